//! How many files, which is to say connections, this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the process itself holds open: its log, listeners, runtimes, snapshots, scrapes.
const OWN: u64 = 64;

/// Raises the limit as far as the system lets anybody. A shell's usual one is that of programs which use
/// `select`, and this is none.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, what there is has to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Connections of clients that leave as many for workers: a client has one request at a time, and a
/// request one worker.
pub(crate) fn for_clients() -> usize {
    half_of(getrlimit(Resource::Nofile).current)
}

/// `None` is no limit at all.
fn half_of(limit: Option<u64>) -> usize {
    let left = limit.unwrap_or(u64::MAX).saturating_sub(OWN) / 2;
    usize::try_from(left.max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_left_for_workers() {
        for (limit, clients) in
            [(Some(0), 1), (Some(64), 1), (Some(1024), 480), (Some(65536), 32736)]
        {
            assert_eq!(half_of(limit), clients, "{limit:?}");
        }
        assert!(half_of(None) > 1 << 30);
        assert!(for_clients() >= 1);
    }
}
