//! Whose fault a failed send is and what follows from it.
//!
//! One value answers for an attempt: pass the answer on, or fail with a status and a code.

/// How a send ended without an answer that can be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No connection to the worker came about.
    Connect,
    /// The connection was lost, or what came back was no HTTP answer, before the answer's head.
    Send,
    /// The answer's head came, its body broke off.
    Body,
    /// The answer is larger than `--max-payload-size` (001, "Worker responses").
    TooLarge,
    /// The deadline of the whole request passed.
    Timeout,
}

impl Fault {
    /// The status the client gets.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Connect | Self::Send | Self::Body => 500,
            Self::TooLarge => 502,
            Self::Timeout => 504,
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
            Self::Timeout => "call_upstream_timeout",
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

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert!(!resend(&not), "{not:?}");
        }
        assert!(resend(&Failed { body: Some(MAX_RESEND_BYTES - 1), ..stale }));
    }
}
