//! How much of all request bodies together may lie in memory.

/// What a body may hold without asking: no more than its connection's own read buffer, so a small
/// request never depends on what others hold.
pub const FREE_BYTES: u64 = 64 * 1024;
/// Bodies up to this size may use what large ones leave.
pub const SMALL_BYTES: u64 = 1 << 20;
/// This share of the budget is out of reach for larger ones.
const KEPT_SHARE: u64 = 8;

/// Whether a body of `body` bytes so far fits when all bodies together then hold `held`.
#[must_use]
pub const fn fits(total: u64, held: u64, body: u64) -> bool {
    let kept = if body > SMALL_BYTES { total / KEPT_SHARE } else { 0 };
    held <= total - kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eighth_is_for_small_bodies() {
        const TOTAL: u64 = 80 << 20;
        for (held, body, expected) in [
            (TOTAL, SMALL_BYTES, true),
            (TOTAL + 1, SMALL_BYTES, false),
            (70 << 20, SMALL_BYTES + 1, true),
            ((70 << 20) + 1, SMALL_BYTES + 1, false),
            ((70 << 20) + 1, SMALL_BYTES, true),
        ] {
            assert_eq!(fits(TOTAL, held, body), expected, "{held} {body}");
        }
        assert!(!fits(0, 1, 1) && fits(u64::MAX, u64::MAX, 1));
    }
}
