//! Bytes of clients and workers, as `smg-wire` reads them.

use serde_json::{Map, Value};
use smg_wire::json::compact::compact;
use smg_wire::json::splice::{self, Edit};
use smg_wire::json::{Fields, seek};
use smg_wire::peek::{Field, Peek, State};
use smg_wire::prompt;
use smg_wire::reslice::Reslicer;
use smg_wire::route::{Prompt, Rid};
use smg_wire::sse::Tail;
use smg_wire::usage::{self, Reader};
use smg_wire::{hint, loads, response};

/// An input and three pieces of it, cut at places that its own bytes tell.
fn pieces(input: &[u8]) -> [&[u8]; 3] {
    let sum: usize = input.iter().map(|byte| usize::from(*byte)).sum();
    let (first, rest) = input.split_at(sum % (input.len() + 1));
    let (second, third) = rest.split_at(sum / 7 % (rest.len() + 1));
    [first, second, third]
}

#[test]
fn json() {
    let target = |input: &[u8]| {
        let fields = Fields::read(input, &[]);
        let _ = seek::text_at(input, &["response", "id"]);
        let _ = loads::from_json(input);
        // The full parser also refuses what it cannot hold, and what is nested as deep as we go.
        let Ok(whole) = serde_json::from_slice::<Map<String, Value>>(input) else { return };
        let fields = fields.unwrap();
        assert_eq!(fields.rid(Rid::Text).as_deref(), whole.get("rid").and_then(Value::as_str));
        assert_eq!(fields.stream(), whole.get("stream") == Some(&Value::Bool(true)));
        for place in [Prompt::Messages, Prompt::TextOrIds, Prompt::Field("input")] {
            let _ = prompt::of(place, &fields);
        }
    };
    fuzz::run("json", 4000, target).unwrap();
}

#[test]
fn splices() {
    let edits = [Edit { name: "rid", value: "[7]" }, Edit { name: "new", value: "\"x\"" }];
    let target = |input: &[u8]| {
        let edited = splice::set(input, &edits);
        if Fields::read(input, &[]).is_err() {
            return;
        }
        let edited = edited.unwrap();
        let edited = compact(&edited).unwrap_or(edited);
        assert!(Fields::read(&edited, &[]).is_ok());
        let after: Option<Map<String, Value>> = serde_json::from_slice(&edited).ok();
        if let (Some(after), Ok(mut wanted)) = (after, serde_json::from_slice::<Map<_, _>>(input)) {
            wanted.insert("rid".into(), serde_json::json!([7]));
            wanted.insert("new".into(), "x".into());
            assert_eq!(after, wanted);
        }
    };
    fuzz::run("json", 4000, target).unwrap();
}

#[test]
fn beginnings() {
    let target = |input: &[u8]| {
        let (mut peek, mut end) = (Peek::default(), 0);
        for piece in pieces(input) {
            end += piece.len();
            peek.read(input.get(..end).unwrap());
        }
        let fields = Fields::read(input, &[]);
        assert_eq!(peek.state() == State::Complete, fields.is_ok());
        if let Ok(fields) = fields {
            assert_eq!(peek.text(Field::Rid, input), fields.rid(Rid::Text));
            assert_eq!(peek.raw(Field::Stream, input) == Some("true"), fields.stream());
            let model = peek.text(Field::Model, input);
            assert_eq!(model, fields.model().ok().flatten());
        }
    };
    fuzz::run("json", 4000, target).unwrap();
}

#[test]
fn streams() {
    let target = |input: &[u8]| {
        let run = |chunks: &[&[u8]]| {
            let (mut tail, mut reader, mut out) = (Tail::default(), Reader::default(), Vec::new());
            let mut reslicer = Reslicer::default();
            for chunk in chunks {
                tail.feed(chunk);
                reader.feed(chunk);
                reslicer.feed(chunk, &mut out);
            }
            reslicer.finish(&mut out);
            (tail.between_events(), reader.usage(), out)
        };
        let whole = run(&[input]);
        let cut = run(&pieces(input));
        assert_eq!((whole.0, &whole.2), (cut.0, &cut.2));
        let _ = (usage::of(input), response::id_of(input));
    };
    fuzz::run("streams", 2000, target).unwrap();
}

#[test]
fn hints() {
    let target = |input: &[u8]| {
        if let Some(ids) = hint::tokens(input) {
            assert_eq!(ids.len(), input.split(|byte| *byte == b',').count());
        }
    };
    fuzz::run("hints", 4000, target).unwrap();
}
