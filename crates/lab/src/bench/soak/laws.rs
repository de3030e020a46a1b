//! What may become of a request, given what happened to the engines while it ran.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::CLIENTS;

/// The gateway's `--request-timeout-secs`.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

/// The gateway's `--max-concurrent-requests` and its `--queue-size`.
pub(crate) const PLACES: usize = 64;

/// Requests of floods without which nobody need be sent away: all places, running and waiting, less those
/// of the clients, each of whom may be there once more with a request that it has just left.
const CROWD: usize = 2 * PLACES - 2 * CLIENTS;

/// What a client saw at the end of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// An answer, and it was whole.
    Answered,
    /// A refusal instead of an answer.
    Refused { status: u16, code: String },
    /// A stream that broke and said so, by this code.
    Broke(String),
    /// A body without its end.
    CutOff,
    /// The client itself left.
    Left,
    /// What no client should ever see.
    Wrong(String),
}

impl Fate {
    /// Reads an answer. `whole` is false if its body had no end.
    pub(crate) fn of(status: Option<u16>, streamed: bool, whole: bool, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        match status {
            _ if !whole => Self::CutOff,
            Some(200) if streamed => Self::of_stream(&text),
            Some(200) if body.ends_with(b"}") && text.contains("\"choices\"") => Self::Answered,
            Some(status) if status != 200 => Self::Refused { status, code: code(&text) },
            _ => Self::Wrong(format!("no answer: {text}")),
        }
    }

    fn of_stream(text: &str) -> Self {
        let last = text.trim_end().lines().last().unwrap_or_default();
        match last.strip_prefix("data: ") {
            _ if !text.ends_with("\n\n") => {
                Self::Wrong("a stream ended within an event".to_owned())
            }
            Some("[DONE]") => Self::Answered,
            Some(event) if event.starts_with(r#"{"error""#) => Self::Broke(code(event)),
            _ => Self::Wrong(format!("a stream ended as if it were whole after: {last}")),
        }
    }

    /// In a few words, to be counted by.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Answered => "answered".to_owned(),
            Self::Refused { status, code } => format!("refused, {status} {code}"),
            Self::Broke(code) => format!("stream broken, {code}"),
            Self::CutOff => "cut off within an event".to_owned(),
            Self::Left => "left by its client".to_owned(),
            Self::Wrong(why) => why.chars().take(100).collect(),
        }
    }
}

fn code(json: &str) -> String {
    let value: Value = serde_json::from_str(json).unwrap_or_default();
    value.pointer("/error/code").and_then(Value::as_str).unwrap_or("without a code").to_owned()
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) streamed: bool,
    /// Whether it was one of a flood's.
    pub(crate) of_flood: bool,
    /// Whom the gateway named, if it came to that.
    pub(crate) worker: Option<String>,
    pub(crate) fate: Fate,
}

/// A span during which something was the matter.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

/// All that was done, by the worker's URL.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    pub(crate) kills: Vec<(String, Instant)>,
    pub(crate) hangs: Vec<(String, Span)>,
    pub(crate) floods: usize,
    pub(crate) crowd: Crowd,
}

/// How many requests of floods were open, from one moment to the next.
#[derive(Debug, Default)]
pub(crate) struct Crowd(Vec<(Instant, usize)>);

impl Crowd {
    /// As their clients saw it, who were there before the gateway and after it.
    pub(crate) fn of(records: &[Record]) -> Self {
        let flood = records.iter().filter(|record| record.of_flood);
        let mut changes: Vec<(Instant, bool)> =
            flood.flat_map(|record| [(record.began, false), (record.ended, true)]).collect();
        // At one moment whoever comes, comes first.
        changes.sort_unstable();
        let mut open = 0_usize;
        let steps = changes.into_iter().map(|(at, ended)| {
            open = if ended { open.saturating_sub(1) } else { open + 1 };
            (at, open)
        });
        Self(steps.collect())
    }

    /// The most there were at any moment of a request.
    fn most_during(&self, record: &Record) -> usize {
        let before = self.0.partition_point(|(at, _)| *at <= record.began).saturating_sub(1);
        let steps = self.0.iter().skip(before).take_while(|(at, _)| *at <= record.ended);
        steps.map(|(_, open)| *open).max().unwrap_or_default()
    }
}

impl Troubles {
    /// Whether a request may have ended as it did.
    pub(crate) fn allow(&self, record: &Record) -> bool {
        match &record.fate {
            Fate::Answered | Fate::Left => true,
            Fate::Wrong(_) => false,
            // An answer that has begun cannot be begun again by another worker.
            Fate::CutOff => record.streamed && (self.killed(record) || self.hung_out(record)),
            Fate::Broke(code) => match code.as_str() {
                "read_response_body_failed" => self.killed(record),
                "call_upstream_timeout" => self.hung_out(record),
                _ => false,
            },
            Fate::Refused { status, code } => match (status, code.as_str()) {
                (429, "admission_queue_full") => self.flooded(record),
                // It was written to a worker that may still be at it.
                (504, "call_upstream_timeout") => self.hung_out(record),
                (500, "read_response_body_failed") => !record.streamed && self.killed(record),
                _ => false,
            },
        }
    }

    /// The worker that answered was killed meanwhile.
    fn killed(&self, record: &Record) -> bool {
        self.kills.iter().any(|(worker, at)| {
            record.worker.as_ref() == Some(worker) && record.began <= *at && *at <= record.ended
        })
    }

    /// A worker was stopped meanwhile, and all the time there is has passed.
    fn hung_out(&self, record: &Record) -> bool {
        let waited = record.ended.duration_since(record.began) >= TIMEOUT;
        waited
            && self.hangs.iter().any(|(worker, span)| {
                record.worker.as_ref().is_none_or(|named| named == worker) && overlap(record, span)
            })
    }

    /// Requests of a flood filled the queue meanwhile: the others alone cannot.
    fn flooded(&self, record: &Record) -> bool {
        self.crowd.most_during(record) >= CROWD
    }
}

fn overlap(record: &Record, span: &Span) -> bool {
    record.began <= span.to && span.from <= record.ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_what_only_looks_like_one() {
        let whole = br#"{"choices":[]}"#;
        let of = |status, streamed, body: &[u8]| Fate::of(Some(status), streamed, true, body);
        assert_eq!(of(200, false, whole), Fate::Answered);
        assert!(matches!(of(200, false, &whole[..9]), Fate::Wrong(_)));
        assert_eq!(Fate::of(Some(200), false, false, whole), Fate::CutOff);
        let error = br#"{"error":{"code":"x"}}"#;
        assert_eq!(of(503, false, error), Fate::Refused { status: 503, code: "x".to_owned() });
        assert_eq!(of(200, true, b"data: {}\n\ndata: [DONE]\n\n"), Fate::Answered);
        let broke = b"data: {}\n\ndata: {\"error\":{\"code\":\"x\"}}\n\n";
        assert_eq!(of(200, true, broke), Fate::Broke("x".to_owned()));
        for silent in [&b"data: {}\n\n"[..], b"data: {}\n\ndata: [DONE]", b""] {
            assert!(matches!(of(200, true, silent), Fate::Wrong(_)));
        }
    }

    /// Worker `a` is killed at second 10, worker `b` is stopped from 20 to 26, and a flood of as many as it takes goes from 40 to 41.
    #[test]
    fn what_is_allowed_depends_on_what_happened_meanwhile() {
        let zero = Instant::now();
        let at = |second| zero + Duration::from_secs(second);
        let span = |from, to| Span { from: at(from), to: at(to) };
        let of_flood = Record {
            began: at(40),
            ended: at(41),
            streamed: false,
            of_flood: true,
            worker: None,
            fate: Fate::Answered,
        };
        let troubles = Troubles {
            kills: vec![("a".to_owned(), at(10))],
            hangs: vec![("b".to_owned(), span(20, 26))],
            floods: 1,
            crowd: Crowd::of(&vec![of_flood.clone(); CROWD]),
        };
        let broke = |code: &str| Fate::Broke(code.to_owned());
        let refused = |status, code: &str| Fate::Refused { status, code: code.to_owned() };
        let lost = "read_response_body_failed";
        let late = "call_upstream_timeout";
        for (fate, worker, from, to, allowed) in [
            (Fate::Answered, "a", 0, 1, true),
            (broke(lost), "a", 9, 11, true),
            (broke(lost), "b", 9, 11, false),
            (broke(lost), "a", 11, 12, false),
            (broke("other"), "a", 9, 11, false),
            (Fate::CutOff, "a", 9, 11, true),
            (Fate::CutOff, "a", 1, 2, false),
            (refused(500, lost), "a", 9, 11, false),
            (refused(500, "call_upstream_request_error"), "a", 9, 11, false),
            (refused(504, late), "b", 21, 25, true),
            (refused(504, late), "b", 21, 23, false),
            (refused(504, late), "a", 21, 25, false),
            (refused(504, late), "b", 30, 34, false),
            (refused(429, "admission_queue_full"), "", 40, 41, true),
            (refused(429, "admission_queue_full"), "", 39, 42, true),
            (refused(429, "admission_queue_full"), "", 30, 31, false),
            (refused(429, "admission_queue_full"), "", 42, 43, false),
            (refused(503, "no_available_workers"), "a", 9, 11, false),
        ] {
            let worker = (!worker.is_empty()).then(|| worker.to_owned());
            let (began, ended) = (at(from), at(to));
            let record = Record { began, ended, streamed: true, of_flood: false, worker, fate };
            assert_eq!(troubles.allow(&record), allowed, "{record:?}");
        }
        let few = Crowd::of(&vec![of_flood.clone(); CROWD - 1]);
        let fate = refused(429, "admission_queue_full");
        let troubles = Troubles { crowd: few, ..troubles };
        assert!(!troubles.allow(&Record { fate, ..of_flood }), "the others would have had room");
    }
}
