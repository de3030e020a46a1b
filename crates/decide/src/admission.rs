//! Who is let in, who waits and who is sent away when `--max-concurrent-requests` is reached.

/// `--max-concurrent-requests` and what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Requests at once, and the most that may come in one burst under a rate; at least 1.
    pub limit: u32,
    /// Requests that may wait.
    pub queue: u32,
    /// Longest wait in milliseconds.
    pub wait_ms: u64,
    /// Requests let in a second over time; `None` for no bound but the limit.
    pub rate: Option<u32>,
}

/// What becomes of a request that has just come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It goes on.
    Admitted,
    /// It waits.
    Queued,
    /// There is no place left to wait in.
    Full,
}

/// Why a request was not let in: the `reason` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No place left to wait in.
    Full,
    /// It waited too long.
    Timeout,
}

impl Rejection {
    /// Every reason, in the order of their values.
    pub const ALL: [Self; 2] = [Self::Full, Self::Timeout];

    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Timeout => "timeout",
        }
    }
}

impl Rules {
    /// Judges an arrival: `free` says whether it could go on at once, `waiting` how many wait.
    #[must_use]
    pub const fn arrive(&self, free: bool, waiting: u32) -> Arrival {
        if free {
            Arrival::Admitted
        } else if waiting < self.queue {
            Arrival::Queued
        } else {
            Arrival::Full
        }
    }
}

/// A thousandth of a token is the smallest that counts: a rate in tokens a second adds as many of
/// them each millisecond, without a remainder.
const TOKEN: i64 = 1000;

/// A bucket of tokens, one for each request let in. It may owe: who takes a token that is not there
/// yet is told when it will be, and the next one queues behind.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    capacity: i64,
    rate: i64,
    level: i64,
    filled: u64,
}

impl Bucket {
    /// A full one. `rate` is in tokens a second, at least 1; `now` in milliseconds.
    #[must_use]
    pub fn new(capacity: u32, rate: u32, now: u64) -> Self {
        let capacity = i64::from(capacity.max(1)) * TOKEN;
        Self { capacity, rate: i64::from(rate.max(1)), level: capacity, filled: now }
    }

    /// Takes a token if one is there.
    pub fn take(&mut self, now: u64) -> bool {
        self.fill(now);
        let there = self.level >= TOKEN;
        if there {
            self.level -= TOKEN;
        }
        there
    }

    /// Takes the next token, and says in how many milliseconds it will be there.
    pub fn reserve(&mut self, now: u64) -> u64 {
        self.fill(now);
        self.level = self.level.saturating_sub(TOKEN);
        u64::try_from(-self.level).unwrap_or(0).div_ceil(self.rate.unsigned_abs())
    }

    /// Gives back a token that was not used.
    pub fn give_back(&mut self) {
        self.level = self.level.saturating_add(TOKEN).min(self.capacity);
    }

    fn fill(&mut self, now: u64) {
        let passed = i64::try_from(now.saturating_sub(self.filled)).unwrap_or(i64::MAX);
        let came = passed.saturating_mul(self.rate);
        self.level = self.level.saturating_add(came).min(self.capacity);
        self.filled = self.filled.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_finds_no_room_waits_and_who_finds_no_place_leaves() {
        let rules = Rules { limit: 2, queue: 2, wait_ms: 1, rate: None };
        for (free, waiting, expected) in [
            (true, 0, Arrival::Admitted),
            (false, 0, Arrival::Queued),
            (false, 1, Arrival::Queued),
            (false, 2, Arrival::Full),
        ] {
            assert_eq!(rules.arrive(free, waiting), expected);
        }
        assert_eq!(Rules { queue: 0, ..rules }.arrive(false, 0), Arrival::Full);
        assert_eq!(Rejection::ALL.map(Rejection::as_str), ["full", "timeout"]);
    }

    #[test]
    fn a_burst_then_one_token_at_a_time() {
        let mut bucket = Bucket::new(2, 4, 1000);
        assert!(bucket.take(1000) && bucket.take(1000) && !bucket.take(1249));
        assert!(bucket.take(1250) && !bucket.take(1250));
        // Two that wait get theirs one after the other, and what is given back goes to the next.
        assert_eq!((bucket.reserve(1250), bucket.reserve(1250)), (250, 500));
        bucket.give_back();
        assert_eq!(bucket.reserve(1500), 250);
        // However long nothing comes, no more than a burst is saved up.
        assert!(bucket.take(u64::MAX) && bucket.take(u64::MAX) && !bucket.take(u64::MAX));
    }

    proptest! {
        #[test]
        fn never_more_than_a_burst_and_the_rate(
            capacity in 1..50_u32,
            rate in 1..5000_u32,
            pauses in prop::collection::vec(0..2000_u64, 1..200),
        ) {
            let mut bucket = Bucket::new(capacity, rate, 0);
            let (mut now, mut taken) = (0, 0_u64);
            for pause in pauses {
                now += pause;
                taken += u64::from(bucket.take(now));
                prop_assert!(taken <= u64::from(capacity) + now * u64::from(rate) / 1000);
            }
        }

        #[test]
        fn a_reserved_token_is_there_when_it_was_promised(
            capacity in 1..10_u32,
            rate in 1..5000_u32,
            pauses in prop::collection::vec(0..500_u64, 1..100),
        ) {
            let mut bucket = Bucket::new(capacity, rate, 0);
            let (mut now, mut used) = (0, Vec::new());
            for pause in pauses {
                now += pause;
                used.push(now + bucket.reserve(now));
                let (at, n) = (used[used.len() - 1], used.len() as u64);
                prop_assert!(n <= u64::from(capacity) + at * u64::from(rate) / 1000);
            }
            prop_assert!(used.is_sorted(), "first come, first served");
        }
    }
}
