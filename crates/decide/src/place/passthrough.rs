//! `passthrough`: the first available worker in list order.

use rand::Rng;

use super::{Ask, Candidates, Policy, Proposal, Reads};

/// The policy `passthrough`.
#[derive(Debug, Default)]
pub struct Passthrough;

impl Policy for Passthrough {
    fn name(&self) -> &'static str {
        "passthrough"
    }

    fn reads(&self) -> Reads {
        Reads::Headers
    }

    fn propose(&self, _: &Ask<'_>, candidates: &Candidates<'_>, _: &mut dyn Rng) -> Proposal {
        Proposal::plain(candidates.available().next().map(|(at, _)| at))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{dice, fleet};
    use super::*;

    #[test]
    fn the_first_available_one_in_list_order() {
        let workers = fleet(3);
        let candidates = Candidates::new(&workers, &[]);
        let proposed = || Passthrough.propose(&Ask::default(), &candidates, &mut dice());
        for (gone, next) in
            [(None, Some(0)), (Some(0), Some(1)), (Some(1), Some(2)), (Some(2), None)]
        {
            if let Some(gone) = gone {
                let gone: &usize = &gone;
                workers[*gone].set_healthy(false);
            }
            assert_eq!(proposed(), Proposal::plain(next), "after {gone:?}");
        }
    }
}
