//! What happens exactly once when an exchange ends.

use crate::fleet::breaker::{Outcome, State, of_status};

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The answer reached its end.
    Clean,
    /// The worker broke off.
    UpstreamBroke,
    /// The client left; dropping the answer means this.
    ClientGone,
    /// The deadline passed.
    Timeout,
    /// The gateway refused or failed it before a worker answered.
    Refused,
}

impl End {
    /// The name in logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::UpstreamBroke => "upstream_broke",
            Self::ClientGone => "client_gone",
            Self::Timeout => "timeout",
            Self::Refused => "refused",
        }
    }
}

/// What the end of an exchange tells of its worker: clients that leave, and what the gateway refuses
/// itself, tell nothing.
#[must_use]
pub const fn outcome(end: End, status: u16, retry_after: bool, state: State) -> Outcome {
    match end {
        End::Clean => of_status(status, retry_after, state),
        End::UpstreamBroke | End::Timeout => Outcome::Failure,
        End::ClientGone | End::Refused => Outcome::Nothing,
    }
}

/// The `error_type` label of `smg_router_request_errors_total`, from a request's final status.
#[must_use]
pub const fn error_type(status: u16) -> Option<&'static str> {
    match status {
        0..400 => None,
        400 => Some("validation_error"),
        404 => Some("no_workers"),
        408 | 504 => Some("timeout"),
        503 => Some("unavailable"),
        500.. => Some("backend_error"),
        _ => Some("internal_error"),
    }
}

/// Every value [`error_type`] gives.
pub const ERROR_TYPES: [&str; 6] =
    ["validation_error", "no_workers", "timeout", "unavailable", "backend_error", "internal_error"];

/// Whether a worker's answer, or the failure to get one, counts in `smg_worker_errors_total`; the
/// status is the worker's, or the one the gateway answers with in its place.
#[must_use]
pub const fn worker_error(status: u16) -> Option<&'static str> {
    match status {
        504 => Some("timeout"),
        500.. => Some("backend_error"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failed_status_has_exactly_one_class() {
        for status in 100..=599 {
            let class = error_type(status);
            assert_eq!(class.is_some(), status >= 400, "{status}");
            assert!(class.is_none_or(|class| ERROR_TYPES.contains(&class)), "{status}");
        }
        assert_eq!(error_type(503), Some("unavailable"));
        assert_eq!(error_type(429), Some("internal_error"));
    }

    #[test]
    fn only_what_the_worker_did_tells_of_the_worker() {
        let closed = |end| outcome(end, 200, false, State::Closed);
        assert_eq!(closed(End::Clean), Outcome::Success);
        assert_eq!(closed(End::UpstreamBroke), Outcome::Failure);
        assert_eq!(closed(End::Timeout), Outcome::Failure);
        assert_eq!(closed(End::ClientGone), Outcome::Nothing);
        assert_eq!(closed(End::Refused), Outcome::Nothing);
        assert_eq!(outcome(End::Clean, 503, true, State::Closed), Outcome::Nothing);
    }

    #[test]
    fn client_errors_are_not_the_workers() {
        for status in [200, 400, 401, 404, 429, 499] {
            assert_eq!(worker_error(status), None);
        }
        assert_eq!(worker_error(504), Some("timeout"));
        assert_eq!(worker_error(500), Some("backend_error"));
    }
}
