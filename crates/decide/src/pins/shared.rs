//! A pin as replicas share it: the addresses of its workers, first the one that is tried first, with a
//! space between two. An address that this replica does not know keeps its place all the same, as the
//! worker may be another model's, or have registered with another replica first; it is never asked.

use super::Pin;
use crate::fleet::WorkerId;

/// What stands for the addresses that nobody here knows. No worker has these ids: there are far fewer.
const STRANGERS: [WorkerId; 2] = [WorkerId(u32::MAX), WorkerId(u32::MAX - 1)];

/// A pin that was read from the shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPin<'a> {
    /// The workers in it. Those that nobody here knows are never available.
    pub pin: Pin,
    addresses: [&'a str; 2],
}

impl<'a> SharedPin<'a> {
    /// Reads a pin; `id` knows the addresses of workers. `None` when there is no address in it.
    pub fn read(text: &'a str, id: impl Fn(&str) -> Option<WorkerId>) -> Option<Self> {
        let mut addresses = text.split(' ').filter(|address| !address.is_empty());
        let [first, second] = STRANGERS;
        let primary = addresses.next()?;
        let leads = id(primary).unwrap_or(first);
        let candidate = addresses.next().unwrap_or(primary);
        let follows = if candidate == primary { leads } else { id(candidate).unwrap_or(second) };
        Some(Self { pin: Pin::of_two(leads, follows), addresses: [primary, candidate] })
    }

    /// The pin as this replica remembers it; `None` when it knows none of the workers.
    #[must_use]
    pub fn known(&self) -> Option<Pin> {
        let mut known = self.pin.remembered().filter(|worker| !STRANGERS.contains(worker));
        let primary = known.next()?;
        Some(known.next().map_or(Pin::new(primary), |second| Pin::of_two(primary, second)))
    }

    /// The text of what this pin has become; `address` knows the workers of this replica.
    pub fn moved<'b>(
        &self,
        pin: Pin,
        address: impl Fn(WorkerId) -> Option<&'b str>,
    ) -> Option<String> {
        let stranger = |worker| {
            let at = STRANGERS.iter().position(|stranger| *stranger == worker)?;
            self.addresses.get(at).copied()
        };
        text(pin.remembered().filter_map(|worker| stranger(worker).or_else(|| address(worker))))
    }
}

/// The text of a pin; `None` when nobody in it has an address.
pub fn written<'b>(pin: Pin, address: impl Fn(WorkerId) -> Option<&'b str>) -> Option<String> {
    text(pin.remembered().filter_map(address))
}

fn text<'b>(mut addresses: impl Iterator<Item = &'b str>) -> Option<String> {
    let mut text = addresses.next()?.to_owned();
    if let Some(second) = addresses.next() {
        text.push(' ');
        text.push_str(second);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::super::{Replacement, Rules, Step};
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules { replacement: Replacement::Follows, threshold: None };

    /// Knows a:1 as 1 and b:1 as 2.
    fn id(address: &str) -> Option<WorkerId> {
        ["a:1", "b:1"].iter().position(|known| *known == address).map(|at| WorkerId(at as u32 + 1))
    }

    fn address(worker: WorkerId) -> Option<&'static str> {
        match worker {
            WorkerId(1) => Some("a:1"),
            WorkerId(2) => Some("b:1"),
            _ => None,
        }
    }

    #[test]
    fn what_is_read_is_what_was_written_and_who_is_unknown_keeps_a_place() {
        for (text, known, again) in [
            ("a:1", Some(Pin::new(WorkerId(1))), "a:1"),
            ("b:1 a:1", Some(Pin::of_two(WorkerId(2), WorkerId(1))), "b:1 a:1"),
            ("x:1 a:1", Some(Pin::new(WorkerId(1))), "x:1 a:1"),
            ("a:1 x:1", Some(Pin::new(WorkerId(1))), "a:1 x:1"),
            ("x:1 y:1", None, "x:1 y:1"),
            ("x:1", None, "x:1"),
            ("a:1 a:1", Some(Pin::new(WorkerId(1))), "a:1"),
            (" a:1  b:1 x:1", Some(Pin::of_two(WorkerId(1), WorkerId(2))), "a:1 b:1"),
        ] {
            let read = SharedPin::read(text, id).unwrap();
            assert_eq!(read.known(), known, "{text}");
            assert_eq!(read.moved(read.pin, address).as_deref(), Some(again), "{text}");
        }
        assert_eq!(SharedPin::read(" ", id), None);
    }

    #[test]
    fn a_replacement_goes_beside_a_worker_of_another_replica() {
        let read = SharedPin::read("x:1", id).unwrap();
        let moved = read.pin.moved(Step::Replace, WorkerId(1), RULES, |_| 0);
        assert_eq!(read.moved(moved, address).as_deref(), Some("x:1 a:1"));
        let read = SharedPin::read("x:1 b:1", id).unwrap();
        let moved = read.pin.moved(Step::Replace, WorkerId(1), RULES, |_| 0);
        assert_eq!(read.moved(moved, address).as_deref(), Some("b:1 a:1"));
        assert_eq!(written(Pin::of_two(WorkerId(1), WorkerId(9)), address).as_deref(), Some("a:1"));
        assert_eq!(written(Pin::new(WorkerId(9)), address), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_stranger_a_worker(text in "[abx:1 ]{0,12}") {
            if let Some(read) = SharedPin::read(&text, id) {
                let known = read.known().into_iter().flat_map(Pin::remembered);
                prop_assert!(known.into_iter().all(|worker| address(worker).is_some()));
            }
        }
    }
}
