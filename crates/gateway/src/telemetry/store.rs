//! The store that replicas share their pins in.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use super::keep;

/// What the store is asked; the text is the `op` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreOp {
    /// Pin a key unless it is pinned.
    Claim,
    /// Pin it elsewhere.
    Move,
    /// Say where it is pinned.
    Look,
    /// Let the pin live on.
    Renew,
}

/// What comes of it; the text is the `result` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreResult {
    /// It answered.
    Ok,
    /// It answered with an error.
    Error,
    /// It did not answer in time.
    Timeout,
    /// It was not asked: not connected, or its breaker is open.
    Unavailable,
    /// It was not asked: too many renewals wait already.
    Dropped,
}

impl StoreOp {
    const ALL: [Self; 4] = [Self::Claim, Self::Move, Self::Look, Self::Renew];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Move => "move",
            Self::Look => "look",
            Self::Renew => "renew",
        }
    }
}

impl StoreResult {
    const ALL: [Self; 5] = [Self::Ok, Self::Error, Self::Timeout, Self::Unavailable, Self::Dropped];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Dropped => "dropped",
        }
    }
}

/// Metrics of the shared store.
#[derive(Clone, Debug)]
pub(crate) struct StoreMeters {
    ops: [[IntCounter; StoreResult::ALL.len()]; StoreOp::ALL.len()],
    /// How long it took to answer, or not to.
    pub(crate) seconds: Histogram,
}

impl StoreMeters {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let ops = Opts::new("smg_sticky_store_ops_total", "What the shared store was asked.");
        let ops = keep(registry, IntCounterVec::new(ops, &["op", "result"]))?;
        let seconds = HistogramOpts::new(
            "smg_sticky_store_seconds",
            "Time until the shared store answered, or was waited for no longer.",
        );
        let buckets = vec![0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0];
        let counter = |op: StoreOp, result: StoreResult| {
            ops.with_label_values(&[op.as_str(), result.as_str()])
        };
        Ok(Self {
            ops: StoreOp::ALL.map(|op| StoreResult::ALL.map(|result| counter(op, result))),
            seconds: keep(registry, Histogram::with_opts(seconds.buckets(buckets)))?,
        })
    }

    /// Counts one operation.
    pub(crate) fn count(&self, op: StoreOp, result: StoreResult) {
        let counter = self.ops.get(op as usize).and_then(|op| op.get(result as usize));
        counter.into_iter().for_each(IntCounter::inc);
    }
}
