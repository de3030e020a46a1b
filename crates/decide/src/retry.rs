//! Whose fault a failed send is, and whether the request is sent again, when and where.

use rand::{Rng, RngExt as _};

use crate::settle::End;

/// How a send ended without an answer that can be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The worker refused the connection, or its address led nowhere.
    Connect,
    /// The worker did not take the connection in time.
    ConnectTimeout,
    /// The connection was lost, or what came back was no HTTP answer, before the answer's head.
    Send,
    /// The answer's head came, its body broke off.
    Body,
    /// The answer is larger than `--max-payload-size` (001, "Worker responses").
    TooLarge,
    /// The deadline of the whole request passed.
    Timeout,
    /// The client sent nothing for `--stream-body-stall-timeout-secs` (001, "Stalled and Aborted
    /// Uploads").
    UploadStalled,
    /// A streamed body grew past `--max-payload-size`.
    UploadTooLarge,
    /// The client's upload failed before the whole body had been forwarded.
    UploadAborted,
}

impl Fault {
    /// The status the client gets.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Connect | Self::Send | Self::Body => 500,
            Self::TooLarge => 502,
            Self::ConnectTimeout | Self::Timeout => 504,
            Self::UploadStalled => 408,
            Self::UploadTooLarge => 413,
            Self::UploadAborted => 400,
        }
    }

    /// How an exchange ended that failed like this: what a client does to its upload is never the
    /// worker's fault.
    #[must_use]
    pub const fn end(self) -> End {
        match self {
            Self::Timeout => End::Timeout,
            Self::UploadStalled | Self::UploadTooLarge | Self::UploadAborted => End::ClientGone,
            _ => End::UpstreamBroke,
        }
    }

    /// The `X-SMG-Error-Code` the client gets.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Connect => "call_upstream_connection_failed",
            Self::Send => "call_upstream_request_error",
            Self::Body => "read_response_body_failed",
            Self::TooLarge => "upstream_response_too_large",
            Self::ConnectTimeout | Self::Timeout => "call_upstream_timeout",
            Self::UploadStalled => "request_body_stalled",
            Self::UploadTooLarge => "request_body_too_large",
            Self::UploadAborted => "request_body_aborted",
        }
    }
}

/// Bodies of this size and more are sent once (001, "Resending Pre-Response Failures").
pub const MAX_RESEND_BYTES: usize = 1 << 20;

/// What is known of a send that failed before the answer's head.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    /// Why.
    pub fault: Fault,
    /// Whether any byte of an answer arrived.
    pub heard: bool,
    /// The body's size in bytes; `None` for a body that cannot be sent again.
    pub body: Option<usize>,
    /// Whether this was the second send already.
    pub resent: bool,
}

/// Whether the same message is sent once more, at once: the worker cannot have begun to work on it.
#[must_use]
pub const fn resend(failed: &Failed) -> bool {
    let small = matches!(failed.body, Some(bytes) if bytes < MAX_RESEND_BYTES);
    let unanswered = matches!(failed.fault, Fault::Connect | Fault::Send) && !failed.heard;
    small && unanswered && !failed.resent
}

/// `--retry-…`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Attempts in all, the first included; 1 under `--disable-retries`.
    pub attempts: u32,
    /// Milliseconds before the second attempt.
    pub initial_ms: u64,
    /// Longest wait in milliseconds.
    pub max_ms: u64,
    /// Growth of the wait from one attempt to the next.
    pub multiplier: f64,
    /// Share by which a wait is drawn longer or shorter, 0 to 1.
    pub jitter: f64,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A worker answered with this status, and with this `Retry-After` in seconds.
    Answered {
        /// The status.
        status: u16,
        /// Seconds.
        retry_after: Option<u64>,
    },
    /// It did not.
    Failed(Fault),
}

/// What follows from an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass on what there is: the answer, or the failure.
    Final,
    /// The same, but only because there are no attempts left.
    Exhausted,
    /// Try again after this many milliseconds.
    Retry {
        /// Milliseconds to wait first.
        wait_ms: u64,
        /// Whether a key pinned to the worker stays pinned there: it is busy, not broken.
        keep_pin: bool,
    },
}

/// The attempts of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attempts {
    made: u32,
    internal_errors: u32,
}

/// What the world offers for a further attempt.
#[derive(Clone, Copy, Debug)]
pub struct Chances {
    /// Whether a worker that has not failed this request is available.
    pub elsewhere: bool,
    /// Milliseconds until the request's deadline.
    pub left_ms: u64,
}

impl Attempts {
    /// Judges an attempt. A further one goes elsewhere if there is an elsewhere.
    pub fn judge(
        &mut self,
        sent: Sent,
        rules: &Rules,
        chances: Chances,
        dice: &mut dyn Rng,
    ) -> Verdict {
        let n = self.made;
        self.made += 1;
        if !self.worth_another(sent, chances.elsewhere) || rules.attempts <= 1 {
            return Verdict::Final;
        }
        if self.made >= rules.attempts {
            return Verdict::Exhausted;
        }
        let backoff = rules.backoff(n, dice);
        let wait_ms = match sent {
            // The worker says when to come back; another one need not wait for that.
            Sent::Answered { retry_after: Some(_), .. } if chances.elsewhere => 0,
            Sent::Answered { retry_after: Some(seconds), .. } => {
                let asked = seconds.saturating_mul(1000);
                if asked > rules.max_ms {
                    return Verdict::Final;
                }
                asked.max(backoff)
            }
            _ => backoff,
        };
        if wait_ms >= chances.left_ms {
            return Verdict::Final;
        }
        let keep_pin = matches!(sent, Sent::Answered { status: 408 | 429 | 503, .. });
        Verdict::Retry { wait_ms, keep_pin }
    }

    fn worth_another(&mut self, sent: Sent, elsewhere: bool) -> bool {
        match sent {
            Sent::Answered { status: 408 | 429 | 502 | 503 | 504, .. } => true,
            // A dead engine is survived, a poisoned prompt visits two at most.
            Sent::Answered { status: 500, .. } => {
                self.internal_errors += 1;
                elsewhere && self.internal_errors == 1
            }
            Sent::Answered { .. } => false,
            // After our own timeout the worker may still be at it, and a second answer to a request
            // whose first one had begun would cost the prefill twice.
            Sent::Failed(Fault::Timeout | Fault::Body) => false,
            Sent::Failed(fault) => !matches!(fault.end(), End::ClientGone),
        }
    }
}

impl Rules {
    /// The wait after attempt `n`, counted from 0, in milliseconds.
    fn backoff(&self, n: u32, dice: &mut dyn Rng) -> u64 {
        let grown =
            self.initial_ms as f64 * self.multiplier.powi(i32::try_from(n).unwrap_or(i32::MAX));
        let drawn = 1.0 + self.jitter * (2.0 * dice.random::<f64>() - 1.0);
        // A float that is too large or none at all saturates.
        (grown.min(self.max_ms as f64) * drawn) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::testing::dice;

    const RULES: Rules =
        Rules { attempts: 5, initial_ms: 50, max_ms: 30_000, multiplier: 1.5, jitter: 0.2 };
    const CHANCES: Chances = Chances { elsewhere: true, left_ms: 1_000_000 };

    fn answered(status: u16) -> Sent {
        Sent::Answered { status, retry_after: None }
    }

    fn first(sent: Sent, chances: Chances) -> Verdict {
        Attempts::default().judge(sent, &RULES, chances, &mut dice())
    }

    #[test]
    fn only_small_unanswered_first_sends_are_repeated() {
        let stale = Failed { fault: Fault::Send, heard: false, body: Some(10), resent: false };
        assert!(resend(&stale));
        assert!(resend(&Failed { fault: Fault::Connect, ..stale }));
        for not in [
            Failed { heard: true, ..stale },
            Failed { resent: true, ..stale },
            Failed { body: None, ..stale },
            Failed { body: Some(MAX_RESEND_BYTES), ..stale },
            Failed { fault: Fault::Timeout, ..stale },
            Failed { fault: Fault::ConnectTimeout, ..stale },
        ] {
            assert!(!resend(&not), "{not:?}");
        }
        assert!(resend(&Failed { body: Some(MAX_RESEND_BYTES - 1), ..stale }));
    }

    #[test]
    fn what_a_client_does_to_its_upload_is_not_the_workers_fault() {
        for (fault, status, code) in [
            (Fault::UploadStalled, 408, "request_body_stalled"),
            (Fault::UploadTooLarge, 413, "request_body_too_large"),
            (Fault::UploadAborted, 400, "request_body_aborted"),
        ] {
            assert_eq!(
                (fault.status(), fault.code(), fault.end()),
                (status, code, End::ClientGone)
            );
        }
        assert_eq!(Fault::Timeout.end(), End::Timeout);
        assert_eq!(Fault::TooLarge.end(), End::UpstreamBroke);
    }

    #[test]
    fn what_is_retried_and_what_that_does_to_the_pin() {
        for (sent, retried) in [
            (answered(408), Some(true)),
            (answered(429), Some(true)),
            (answered(503), Some(true)),
            (answered(502), Some(false)),
            (answered(504), Some(false)),
            (answered(500), Some(false)),
            (Sent::Failed(Fault::Connect), Some(false)),
            (Sent::Failed(Fault::ConnectTimeout), Some(false)),
            (Sent::Failed(Fault::Send), Some(false)),
            (Sent::Failed(Fault::TooLarge), Some(false)),
            (Sent::Failed(Fault::Timeout), None),
            (Sent::Failed(Fault::Body), None),
            (Sent::Failed(Fault::UploadStalled), None),
            (Sent::Failed(Fault::UploadTooLarge), None),
            (Sent::Failed(Fault::UploadAborted), None),
            (answered(200), None),
            (answered(400), None),
            (answered(404), None),
            (answered(409), None),
            (answered(501), None),
            (answered(529), None),
        ] {
            let keeps = match first(sent, CHANCES) {
                Verdict::Retry { keep_pin, .. } => Some(keep_pin),
                Verdict::Final | Verdict::Exhausted => None,
            };
            assert_eq!(keeps, retried, "{sent:?}");
        }
    }

    #[test]
    fn attempts_are_counted_in_all() {
        for (rules, wanted) in [(RULES, 4), (Rules { attempts: 1, ..RULES }, 0)] {
            let mut attempts = Attempts::default();
            let mut retries = 0;
            while let Verdict::Retry { .. } =
                attempts.judge(answered(503), &rules, CHANCES, &mut dice())
            {
                retries += 1;
            }
            assert_eq!(retries, wanted);
            let last = attempts.judge(answered(503), &rules, CHANCES, &mut dice());
            assert_eq!(last == Verdict::Exhausted, wanted > 0);
        }
    }

    #[test]
    fn an_internal_error_visits_one_other_worker_at_most() {
        let mut attempts = Attempts::default();
        assert!(matches!(
            attempts.judge(answered(500), &RULES, CHANCES, &mut dice()),
            Verdict::Retry { .. }
        ));
        assert_eq!(attempts.judge(answered(500), &RULES, CHANCES, &mut dice()), Verdict::Final);
        let alone = Chances { elsewhere: false, ..CHANCES };
        assert_eq!(first(answered(500), alone), Verdict::Final);
        assert!(matches!(first(answered(503), alone), Verdict::Retry { .. }));
    }

    #[test]
    fn waits_grow_within_their_jitter_and_bound() {
        let mut dice = dice();
        for (n, low, high) in [(0, 40, 60), (1, 60, 90), (2, 90, 135), (60, 24_000, 36_000)] {
            for _ in 0..50 {
                let wait = RULES.backoff(n, &mut dice);
                assert!((low..=high).contains(&wait), "{n}: {wait}");
            }
        }
    }

    #[test]
    fn a_worker_that_says_when_is_believed_within_bounds() {
        let busy = |seconds| Sent::Answered { status: 429, retry_after: Some(seconds) };
        let alone = Chances { elsewhere: false, ..CHANCES };
        assert_eq!(first(busy(7), CHANCES), Verdict::Retry { wait_ms: 0, keep_pin: true });
        assert_eq!(first(busy(7), alone), Verdict::Retry { wait_ms: 7000, keep_pin: true });
        assert_eq!(first(busy(31), alone), Verdict::Final);
        assert_eq!(first(busy(7), Chances { left_ms: 6000, ..alone }), Verdict::Final);
        assert_eq!(first(busy(u64::MAX), alone), Verdict::Final);
        assert_eq!(first(answered(503), Chances { left_ms: 10, ..CHANCES }), Verdict::Final);
    }
}
