//! Overload protection: when an engine's own report says that it has enough to do.

use super::load::Report;

/// `--worker-overload-…`: a worker is vetoed at or above either threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Requests waiting, summed over the worker's ranks.
    pub waiting: Option<u32>,
    /// Mean use of its KV caches, above 0 and up to 1.
    pub token_usage: Option<f64>,
}

impl Rules {
    /// Never veto.
    pub const OFF: Self = Self { waiting: None, token_usage: None };

    /// Share of the KV cache that counts as full when the switch alone is given.
    pub const DEFAULT_TOKEN_USAGE: f64 = 0.9;

    /// Whether a share of KV cache can be a threshold.
    #[must_use]
    pub fn is_share(token_usage: f64) -> bool {
        token_usage > 0.0 && token_usage <= 1.0
    }

    /// Whether any report could veto, so that engines have to be asked.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.waiting.is_some() || self.token_usage.is_some()
    }

    /// Whether requests are kept away from a worker after this poll. Who does not report is not
    /// known to be overloaded.
    #[must_use]
    pub fn veto(&self, report: Option<&Report>) -> bool {
        let Some(report) = report else { return false };
        // A report's share is a short float: compared as one, 0.9 is at 0.9.
        let full = |usage: f64| report.token_usage >= usage as f32;
        self.waiting.is_some_and(|waiting| report.waiting >= waiting)
            || self.token_usage.is_some_and(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn rules(waiting: Option<u32>, token_usage: Option<f64>) -> Rules {
        Rules { waiting, token_usage }
    }

    fn report(waiting: u32, token_usage: f32) -> Report {
        Report { waiting, token_usage, ..Report::default() }
    }

    #[test]
    fn at_or_above_either_threshold_a_report_vetoes() {
        let either = rules(Some(8), Some(0.9));
        for (rules, waiting, usage, vetoed) in [
            (Rules::OFF, u32::MAX, 1.0, false),
            (rules(Some(8), None), 7, 1.0, false),
            (rules(Some(8), None), 8, 0.0, true),
            (rules(Some(1), None), 0, 0.0, false),
            (rules(None, Some(0.9)), 1000, 0.899, false),
            (rules(None, Some(0.9)), 0, 0.9, true),
            (rules(None, Some(1.0)), 0, 1.0, true),
            (rules(None, Some(0.9)), 0, f32::NAN, false),
            (either, 7, 0.89, false),
            (either, 8, 0.0, true),
            (either, 0, 0.95, true),
        ] {
            assert_eq!(rules.veto(Some(&report(waiting, usage))), vetoed, "{rules:?}");
        }
        assert!(!either.veto(None), "silence is no overload");
    }

    #[test]
    fn either_threshold_switches_it_on() {
        assert!(!Rules::OFF.is_on());
        assert!(rules(Some(1), None).is_on() && rules(None, Some(0.5)).is_on());
    }
}
