//! One clock for everything that decides: milliseconds and seconds since the start.

use tokio::time::Instant;

/// Time since the start of the gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

/// The clock starts so many seconds in, so that a pin from an earlier run can be older than this one.
const PAST_SECS: u64 = 100_000_000;

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Milliseconds.
    pub(crate) fn millis(self) -> u64 {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        (PAST_SECS * 1000).saturating_add(elapsed)
    }

    /// Seconds.
    pub(crate) fn secs(self) -> u32 {
        u32::try_from(self.millis() / 1000).unwrap_or(u32::MAX)
    }
}
