use proptest::prelude::*;
use serde_json::{Value, json};

use super::Reslicer;
use super::tests::{delta, event, events};

/// What a stream says, events forgotten: the joined text of each field, the things that have an
/// order among them, and how much text stood before each of those.
#[derive(Debug, Default, PartialEq)]
struct Said {
    texts: std::collections::BTreeMap<String, String>,
    things: Vec<(usize, Value)>,
}

fn said(stream: &str) -> Said {
    let mut said = Said::default();
    for event in events(stream) {
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        let mut add = |name: String, value: &Value| {
            said.texts.entry(name).or_default().push_str(value.as_str().unwrap_or_default());
        };
        for name in ["reasoning_content", "reasoning", "content"] {
            add(name.into(), &delta[name]);
        }
        let mut things = Vec::new();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            add(format!("call {}", call["index"]), &call["function"]["arguments"]);
            things.push(&call["id"]);
            things.push(&call["function"]["name"]);
        }
        things.extend([
            &delta["x"],
            &choice["logprobs"],
            &choice["finish_reason"],
            &event["usage"],
        ]);
        let length = said.texts.values().map(String::len).sum();
        let things = things.into_iter().filter(|thing| !thing.is_null());
        said.things.extend(things.map(|thing| (length, thing.clone())));
    }
    said.texts.retain(|_, text| !text.is_empty());
    said
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[a-z é\"\\\\\n😀]{0,6}", 1 => "[a-z漢]{70,400}"]
}

fn frame() -> impl Strategy<Value = String> {
    let plain = |name: &'static str| text().prop_map(move |text| delta(&json!({name: text}), None));
    let call = (0..3, text()).prop_map(|(index, text)| {
        delta(&json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}), None)
    });
    let opening = (0..3, "[a-z]{1,4}").prop_map(|(index, id)| {
        let call = json!({"index": index, "id": id, "function": {"name": id, "arguments": ""}});
        delta(&json!({"tool_calls": [call]}), None)
    });
    let spoken = text().prop_map(|text| delta(&json!({"role": "a", "content": text}), None));
    let several = (text(), text())
        .prop_map(|(a, b)| delta(&json!({"content": a, "reasoning": b, "tool_calls": null}), None));
    let whole = text().prop_map(|text| delta(&json!({"content": text, "x": text}), None));
    let odd = prop_oneof![
        Just(": alive\n\n".to_owned()),
        Just("data: {\n\n".to_owned()),
        Just(delta(&json!({}), Some("stop"))),
        Just(event(&json!({"choices": [], "usage": {"n": 1}}))),
        Just(event(&json!({"choices": [{"delta": {"content": "l"}, "logprobs": [1]}]}))),
        Just("data: [DONE]\n\n".to_owned()),
        Just(event(&json!({"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {}}]}))),
    ];
    prop_oneof![
        8 => plain("content"),
        4 => plain("reasoning_content"),
        4 => call,
        1 => opening,
        1 => spoken,
        1 => several,
        1 => whole,
        1 => odd,
    ]
}

fn run(chunks: &[&[u8]]) -> String {
    let (mut machine, mut out) = (Reslicer::default(), Vec::new());
    chunks.iter().for_each(|chunk| machine.feed(chunk, &mut out));
    machine.finish(&mut out);
    String::from_utf8_lossy(&out).into_owned()
}

proptest! {
    #[test]
    fn only_where_events_begin_and_end_changes(
        frames in prop::collection::vec(frame(), 0..20),
        end in prop_oneof![Just("\n\n"), Just("\r\n\r\n")],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        idle in any::<prop::sample::Index>(),
    ) {
        let stream = frames.concat().replace("\n\n", end);
        let whole = run(&[stream.as_bytes()]);
        prop_assert_eq!(said(&whole), said(&stream));

        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let chunks: Vec<_> =
            cuts.windows(2).map(|cut| &stream.as_bytes()[cut[0]..cut[1]]).collect();
        prop_assert_eq!(&run(&chunks), &whole);

        // Silence moves events as well, and nothing else.
        let (before, after) = stream.as_bytes().split_at(idle.index(stream.len() + 1));
        let (mut machine, mut out) = (Reslicer::default(), Vec::new());
        machine.feed(before, &mut out);
        machine.flush_idle(&mut out);
        prop_assert!(!machine.has_pending());
        machine.feed(after, &mut out);
        machine.finish(&mut out);
        prop_assert_eq!(said(&String::from_utf8(out).unwrap()), said(&stream));
    }

    #[test]
    fn any_bytes_pass_the_same_at_every_cut(
        stream in prop::collection::vec(
            prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), any::<u8>()], 0..60),
        cut in any::<prop::sample::Index>(),
    ) {
        // Nothing here is a chat event, so that nothing may change.
        let (before, after) = stream.split_at(cut.index(stream.len() + 1));
        let (mut machine, mut out) = (Reslicer::default(), Vec::new());
        machine.feed(before, &mut out);
        machine.feed(after, &mut out);
        machine.finish(&mut out);
        prop_assert_eq!(out, stream);
    }
}
