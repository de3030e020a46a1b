//! What an engine says of its queue, and what has been sent there since it said so.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// An engine's own view of its load, as last polled; summed over its ranks, usage averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Requests running.
    pub running: u32,
    /// Requests waiting.
    pub waiting: u32,
    /// Tokens of waiting prompts that no cache holds.
    pub waiting_tokens: u32,
    /// Tokens generated a second; 0 when not said.
    pub throughput: f32,
    /// Share of the KV cache in use, 0 to 1.
    pub token_usage: f32,
}

/// The live load of one worker. Fields are read one by one: a choice may mix two reports, which is
/// no worse than a report that is a poll old.
#[derive(Debug, Default)]
pub struct Load {
    reported: AtomicBool,
    running: AtomicU32,
    waiting: AtomicU32,
    waiting_tokens: AtomicU32,
    throughput: AtomicU32,
    token_usage: AtomicU32,
    pressure: AtomicU32,
    /// Counts reports, so that a request sent before the last one is not credited twice.
    epoch: AtomicU32,
    /// Requests in flight sent since the last report whose prompt length is not known.
    sent_unsized: AtomicU32,
    /// The same with a known length, and the sum of those lengths.
    sent_sized: AtomicU32,
    sent_tokens: AtomicU32,
}

/// What stands before a further request: reported, and sent there since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) waiting: u32,
    pub(crate) waiting_tokens: u32,
    pub(crate) sent_unsized: u32,
    pub(crate) sent_tokens: u32,
    pub(crate) throughput: f32,
    pub(crate) pressure: f32,
}

/// What one request in flight adds to its worker's load until the next report.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    epoch: u32,
    tokens: Option<u32>,
}

impl Load {
    /// The last report, if the last poll brought one.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        self.reported.load(Ordering::Acquire).then(|| Report {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            waiting_tokens: self.waiting_tokens.load(Ordering::Relaxed),
            throughput: f32::from_bits(self.throughput.load(Ordering::Relaxed)),
            token_usage: f32::from_bits(self.token_usage.load(Ordering::Relaxed)),
        })
    }

    /// What a wait is reckoned from, if the last poll brought a report. A choice among many workers
    /// asks each, so nothing else is read.
    #[inline]
    pub(crate) fn queue(&self) -> Option<Queue> {
        self.reported.load(Ordering::Acquire).then(|| Queue {
            waiting: self.waiting.load(Ordering::Relaxed),
            waiting_tokens: self.waiting_tokens.load(Ordering::Relaxed),
            sent_unsized: self.sent_unsized.load(Ordering::Relaxed),
            sent_tokens: self.sent_tokens.load(Ordering::Relaxed),
            throughput: f32::from_bits(self.throughput.load(Ordering::Relaxed)),
            pressure: f32::from_bits(self.pressure.load(Ordering::Relaxed)),
        })
    }

    /// The throughput of the last report, if it says one.
    #[must_use]
    pub fn throughput(&self) -> Option<f32> {
        let throughput = f32::from_bits(self.throughput.load(Ordering::Relaxed));
        (throughput > 0.0 && self.reported.load(Ordering::Acquire)).then_some(throughput)
    }

    /// How full the KV cache is felt to be: `k / (1 − k)` of its use, 0 to 999. Of the last report;
    /// reckoned once for all the choices until the next.
    #[must_use]
    pub fn pressure(&self) -> f32 {
        f32::from_bits(self.pressure.load(Ordering::Relaxed))
    }

    /// Takes a poll's result; `None` when it failed. What was sent before is in the report now.
    pub fn set_report(&self, report: Option<Report>) {
        if let Some(report) = report {
            self.running.store(report.running, Ordering::Relaxed);
            self.waiting.store(report.waiting, Ordering::Relaxed);
            self.waiting_tokens.store(report.waiting_tokens, Ordering::Relaxed);
            self.throughput.store(report.throughput.to_bits(), Ordering::Relaxed);
            self.token_usage.store(report.token_usage.to_bits(), Ordering::Relaxed);
            self.pressure.store(pressure(report.token_usage).to_bits(), Ordering::Relaxed);
            self.epoch.fetch_add(1, Ordering::Relaxed);
            self.sent_unsized.store(0, Ordering::Relaxed);
            self.sent_sized.store(0, Ordering::Relaxed);
            self.sent_tokens.store(0, Ordering::Relaxed);
        }
        self.reported.store(report.is_some(), Ordering::Release);
    }

    /// Tokens in flight there that the last report cannot know; a request whose prompt length is
    /// unknown counts as `mean` tokens.
    #[must_use]
    pub fn unreported_tokens(&self, mean: u64) -> u64 {
        let of_unknown_length = u64::from(self.sent_unsized.load(Ordering::Relaxed));
        let of_known_length = u64::from(self.sent_tokens.load(Ordering::Relaxed));
        of_known_length.saturating_add(of_unknown_length.saturating_mul(mean))
    }

    /// Requests in flight there that the last report cannot know.
    #[must_use]
    pub fn unreported_requests(&self) -> u64 {
        let of_unknown_length = u64::from(self.sent_unsized.load(Ordering::Relaxed));
        of_unknown_length + u64::from(self.sent_sized.load(Ordering::Relaxed))
    }

    pub(super) fn charge(&self, tokens: Option<u32>) -> Charge {
        match tokens {
            Some(tokens) => {
                self.sent_sized.fetch_add(1, Ordering::Relaxed);
                change(&self.sent_tokens, |sent| sent.saturating_add(tokens));
            }
            None => {
                self.sent_unsized.fetch_add(1, Ordering::Relaxed);
            }
        }
        Charge { epoch: self.epoch.load(Ordering::Relaxed), tokens }
    }

    pub(super) fn discharge(&self, charge: Charge) {
        if charge.epoch != self.epoch.load(Ordering::Relaxed) {
            return;
        }
        match charge.tokens {
            Some(tokens) => {
                change(&self.sent_sized, |sent| sent.saturating_sub(1));
                change(&self.sent_tokens, |sent| sent.saturating_sub(tokens));
            }
            None => change(&self.sent_unsized, |sent| sent.saturating_sub(1)),
        }
    }
}

/// `k / (1 − k)`: how a full KV cache is felt. An engine that reports nonsense (NaN) is taken to
/// have an empty one.
fn pressure(token_usage: f32) -> f32 {
    let usage = token_usage.clamp(0.0, 0.999);
    if usage.is_nan() { 0.0 } else { usage / (1.0 - usage) }
}

/// A report may arrive between the look at the epoch and this, and a sum may reach its bound: the
/// changes saturate.
fn change(counter: &AtomicU32, to: impl Fn(u32) -> u32) {
    let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sent| Some(to(sent)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_counts_until_it_ends_or_is_reported() {
        let load = Load::default();
        let (known, unknown) = (load.charge(Some(10)), load.charge(None));
        assert_eq!((load.unreported_tokens(1000), load.report()), (1010, None));
        assert_eq!(load.unreported_requests(), 2);
        load.discharge(known);
        assert_eq!(load.unreported_tokens(1000), 1000);
        let report = Report { waiting: 3, token_usage: 0.5, ..Report::default() };
        load.set_report(Some(report));
        assert_eq!((load.unreported_tokens(1000), load.report()), (0, Some(report)));
        assert_eq!(load.unreported_requests(), 0);
        let later = load.charge(None);
        load.discharge(unknown);
        assert_eq!(load.unreported_tokens(1000), 1000, "reported already, so not taken off again");
        load.discharge(later);
        load.set_report(None);
        assert_eq!((load.unreported_tokens(1000), load.report()), (0, None));
    }
}
