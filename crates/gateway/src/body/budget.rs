//! `--max-buffered-total-bytes`: what all buffered request bodies together may hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use smg_decide::budget::{FREE_BYTES, fits};

/// The budget of all requests; clones are the same budget.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    total: u64,
    held: Arc<AtomicU64>,
}

/// What one body holds of it; given back when dropped.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Option<Budget>,
    bytes: u64,
}

/// A body together with its charge, so that the last clone of it gives the charge back.
struct Charged<B> {
    body: B,
    _charge: Charge,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Self {
        Self { total, held: Arc::default() }
    }

    /// Bytes held beyond what is free.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl Charge {
    /// Of a body that has not begun; without a budget everything fits.
    pub(super) const fn none(budget: Option<Budget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Charges for a body that has grown to `len`; false when that is too much.
    #[must_use]
    pub(super) fn grow(&mut self, len: usize) -> bool {
        let (Some(budget), Ok(len)) = (&self.budget, u64::try_from(len)) else { return true };
        let more = len.saturating_sub(FREE_BYTES).saturating_sub(self.bytes);
        if more == 0 {
            return true;
        }
        self.bytes += more;
        let held = budget.held.fetch_add(more, Ordering::Relaxed) + more;
        fits(budget.total, held, len)
    }

    /// The body, holding its charge until its last clone is gone.
    pub(super) fn seal(self, body: Vec<u8>) -> Bytes {
        if self.bytes == 0 {
            return body.into();
        }
        self.keep(body)
    }

    /// The same for a body that has to be held as it is.
    pub(super) fn keep(self, body: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Charged { body, _charge: self })
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Charged<B> {
    fn as_ref(&self) -> &[u8] {
        self.body.as_ref()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(budget) = self.budget.as_ref().filter(|_| self.bytes > 0) {
            budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: usize = 64 * 1024;

    #[test]
    fn the_last_clone_of_a_body_gives_its_charge_back() {
        let budget = Budget::new(1000);
        let mut charge = Charge::none(Some(budget.clone()));
        assert!(charge.grow(FREE));
        assert_eq!(budget.held(), 0, "a small body costs nothing");
        assert!(charge.grow(FREE + 400) && charge.grow(FREE + 900));
        let body = charge.seal(vec![0; FREE + 900]);
        let part = body.slice(..1);
        drop(body);
        assert_eq!(budget.held(), 900);
        let mut other = Charge::none(Some(budget.clone()));
        assert!(other.grow(FREE) && !other.grow(FREE + 101));
        drop(other);
        assert_eq!(budget.held(), 900);
        drop(part);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn without_a_budget_everything_fits() {
        let mut charge = Charge::none(None);
        assert!(charge.grow(usize::MAX));
    }
}
