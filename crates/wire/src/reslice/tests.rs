use serde_json::{Value, json};

use super::*;

pub(super) fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// An event of one choice with this delta and end.
pub(super) fn delta(delta: &Value, finish: Option<&str>) -> String {
    event(&json!({
        "id": "c", "created": 7, "model": "MiniMax-M2",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }))
}

fn content(text: &str) -> String {
    delta(&json!({"content": text}), None)
}

fn letters(count: usize) -> String {
    ('a'..='z').cycle().take(count).collect()
}

fn tokens(text: &str) -> String {
    text.chars().map(|token| content(&token.to_string())).collect()
}

const DONE: &str = "data: [DONE]\n\n";

fn stop() -> String {
    delta(&json!({}), Some("stop"))
}

/// What comes of a stream, the same however it is cut.
fn resliced(stream: &str) -> String {
    let stream = stream.as_bytes();
    let run = |chunks: &[&[u8]]| {
        let (mut machine, mut out) = (Reslicer::default(), Vec::new());
        chunks.iter().for_each(|chunk| machine.feed(chunk, &mut out));
        machine.finish(&mut out);
        assert!(!machine.has_pending());
        String::from_utf8(out).unwrap()
    };
    let whole = run(&[stream]);
    // Every place of a short stream, fewer of a long one: each costs its length.
    let step = 1 + stream.len().pow(2) / 2_000_000;
    for cut in (0..stream.len()).step_by(step) {
        let (before, after) = stream.split_at(cut);
        assert_eq!(run(&[before, after]), whole, "cut at {cut}");
    }
    assert_eq!(run(&stream.chunks(1).collect::<Vec<_>>()), whole);
    whole
}

/// The events of a stream that are JSON.
pub(super) fn events(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

fn deltas(stream: &str) -> Vec<Value> {
    events(stream).iter().map(|event| event["choices"][0]["delta"].clone()).collect()
}

fn lengths(stream: &str) -> Vec<usize> {
    let texts = deltas(stream).into_iter();
    texts.filter_map(|delta| Some(delta.get("content")?.as_str()?.chars().count())).collect()
}

#[test]
fn single_characters_come_in_slices_of_eighty() {
    for (total, wanted) in [
        (3, &[3][..]),
        (79, &[79]),
        (80, &[80]),
        (81, &[80, 1]),
        (165, &[80, 80, 5]),
        (321, &[80, 80, 80, 80, 1]),
    ] {
        let text = letters(total);
        let out = resliced(&format!("{}{}{DONE}", tokens(&text), stop()));
        assert_eq!(lengths(&out), wanted);
        let end = format!("{}{DONE}", stop());
        assert!(out.ends_with(&end), "the end is not as it was");
    }
}

#[test]
fn a_cut_of_much_text_leaves_no_short_tail() {
    for (total, wanted) in [
        (160, &[160][..]),
        (161, &[156, 5]),
        (164, &[159, 5]),
        (165, &[160, 5]),
        (200, &[160, 40]),
        (240, &[160, 80]),
        (321, &[160, 156, 5]),
        (999, &[160, 160, 160, 160, 160, 160, 39]),
    ] {
        assert_eq!(lengths(&resliced(&(content(&letters(total)) + &stop()))), wanted);
    }
}

#[test]
fn characters_count_and_none_is_split() {
    let text = "é𝄞\u{1f600}\"\\\n\u{1}漢".repeat(25);
    let escaped = text.chars().fold(String::new(), |mut out, char| {
        char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out += &format!("\\u{unit:04x}"));
        out
    });
    let event = content("@").replace('@', &escaped);
    let out = resliced(&(event + &stop()));
    assert_eq!(lengths(&out), [160, 40]);
    let texts: String = deltas(&out).iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(texts, text);
}

#[test]
fn silence_lets_everything_out() {
    let (mut machine, mut out) = (Reslicer::default(), Vec::new());
    machine.feed(content("ab").as_bytes(), &mut out);
    assert!(out.is_empty() && machine.has_pending());
    machine.flush_idle(&mut out);
    assert_eq!(String::from_utf8(out.clone()).unwrap(), content("ab"));
    assert!(!machine.has_pending());
    machine.flush_idle(&mut out);
    assert_eq!(out.len(), content("ab").len());
}

#[test]
fn fields_are_held_apart_and_the_older_goes_first() {
    let both = |a: &str, b: &str| delta(&json!({"content": b, "reasoning_content": a}), None);
    let out = resliced(
        &[
            delta(&json!({"reasoning_content": letters(83)}), None),
            delta(&json!({"reasoning_content": "end"}), None),
            content(&letters(80)),
            both("x", "y"),
            stop(),
        ]
        .concat(),
    );
    assert_eq!(
        deltas(&out),
        [
            json!({"reasoning_content": letters(83)}),
            json!({"reasoning_content": "end"}),
            json!({"content": letters(80)}),
            json!({"reasoning_content": "x"}),
            json!({"content": "y"}),
            json!({}),
        ]
    );
    let out = resliced(&delta(&json!({"reasoning": letters(70)}), None).repeat(2));
    assert_eq!(deltas(&out), [json!({"reasoning": letters(70) + &letters(70)})]);
}

#[test]
fn a_slice_has_the_envelope_of_the_latest_event() {
    let event = |id: &str, more: &Value| {
        let mut event = json!({"id": id, "object": "o", "choices": [
            {"index": 0, "delta": {"content": id}, "logprobs": null, "finish_reason": null}]});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("data: {event}\n\n")
    };
    let out = resliced(
        &[
            event("one", &json!({"system_fingerprint": "f", "usage": null})),
            event("two", &json!({"tier": 1.50, "usage": null})),
        ]
        .concat(),
    );
    assert_eq!(
        events(&out),
        [json!({"id": "two", "object": "o", "tier": 1.5, "usage": null,
        "choices": [{"index": 0, "delta": {"content": "onetwo"}, "logprobs": null,
            "finish_reason": null}]})]
    );
    let usage = json!({"id": "three", "choices": [], "usage": {"total_tokens": 5}});
    let usage = format!("data: {usage}\n\n");
    let out = resliced(&(event("one", &json!({})) + &usage));
    assert_eq!(events(&out)[0]["id"], "three");
    assert_eq!(events(&out)[0].get("usage"), None);
    assert!(out.ends_with(&usage));
}

#[test]
fn what_ends_the_text_follows_it() {
    let out = resliced(&(content("ab") + &delta(&json!({"content": "cd"}), Some("length"))));
    assert_eq!(out, content("abcd") + &delta(&json!({}), Some("length")));
    let usage = r#"data: {"choices":[{"index":0,"delta":{"content":"cd"}}],"usage":{"n":1}}"#;
    let out = resliced(&format!("{}{usage}\n\n", content("ab")));
    assert_eq!(deltas(&out), [json!({"content": "abcd"}), json!({})]);
    let uses: Vec<_> = events(&out).iter().map(|event| event["usage"].clone()).collect();
    assert_eq!(uses, [Value::Null, json!({"n": 1})]);
}

#[test]
fn a_role_is_said_once_and_before_the_text() {
    let spoken = |text: &str| delta(&json!({"role": "assistant", "content": text}), None);
    let out = resliced(&(spoken("") + &spoken("a") + &spoken("b") + &stop()));
    assert_eq!(
        deltas(&out),
        [json!({"role": "assistant", "content": ""}), json!({"content": "ab"}), json!({}),]
    );
    let out = resliced(&spoken("text").repeat(3));
    assert_eq!(deltas(&out), [json!({"role": "assistant"}), json!({"content": "texttexttext"})]);
}

#[test]
fn a_tool_call_opens_behind_the_text_and_before_its_arguments() {
    let call = |call: &Value| delta(&json!({"content": null, "tool_calls": [call]}), None);
    let named = json!({"index": 0, "id": "t", "type": "function",
        "function": {"name": "f", "arguments": letters(165)}});
    let more = |index: u8, text: &str| {
        let function = json!({"name": null, "arguments": text});
        call(&json!({"id": null, "index": index, "type": "function", "function": function}))
    };
    let slice = |index: u8, text: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]});
    let out = resliced(
        &[
            content("before"),
            call(&named),
            more(0, "0"),
            more(1, "1"),
            more(0, "2"),
            delta(&json!({}), Some("tool_calls")),
        ]
        .concat(),
    );
    let opening = json!({"tool_calls": [{"index": 0, "id": "t", "type": "function",
        "function": {"name": "f", "arguments": ""}}]});
    let text = letters(165);
    assert_eq!(
        deltas(&out),
        [
            json!({"content": "before"}),
            opening,
            slice(0, &text[..160]),
            slice(0, &(text[160..].to_owned() + "02")),
            slice(1, "1"),
            json!({}),
        ]
    );
}

#[test]
fn a_whole_tool_call_in_its_last_event_is_taken_apart_in_order() {
    let call = json!({"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}});
    let out = resliced(&delta(&json!({"content": "a", "tool_calls": [call]}), Some("tool_calls")));
    let ends: Vec<_> =
        events(&out).iter().map(|event| event["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(
        deltas(&out),
        [
            json!({"content": "a"}),
            json!({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
            json!({}),
        ]
    );
    assert_eq!(ends, [Value::Null, Value::Null, Value::Null, json!("tool_calls")]);
}

#[test]
fn what_cannot_be_joined_stays_in_its_event_behind_the_text() {
    let logprobs = delta(&json!({"content": "b"}), None)
        .replace("\"finish_reason\":null", "\"finish_reason\":null,\"logprobs\":{\"content\":[]}");
    for whole in [
        logprobs,
        delta(&json!({"content": "b", "audio": {"data": "x"}}), None),
        delta(&json!({"refusal": "no"}), None),
        delta(&json!({"tool_calls": [{"function": {"arguments": "no index"}}]}), None),
        delta(&json!({"content": ["parts"]}), None),
        delta(&json!({"content": "@"}), None).replace('@', r"\ud83d"),
        content("b").replace("\"content\"", "\"content\":\"a\",\"content\""),
        event(&json!({"error": {"message": "no"}})),
        "data: {broken\n\n".into(),
        "data: 5\n\n".into(),
        "event: x\ndata: y\n\n".into(),
        "data: one\ndata: two\n\n".into(),
        "what\n\n".into(),
        "data:\n\n".into(),
    ] {
        let out = resliced(&[content("a"), whole.clone(), content("c")].concat());
        assert_eq!(out, [content("a"), whole, content("c")].concat());
    }
}

#[test]
fn bytes_that_are_no_text_pass_behind_the_text() {
    let mut out = Vec::new();
    let mut machine = Reslicer::default();
    machine.feed(content("a").as_bytes(), &mut out);
    machine.feed(b"data: \xff\n\n", &mut out);
    assert_eq!(out, [content("a").as_bytes(), b"data: \xff\n\n"].concat());
}

#[test]
fn comments_pass_at_once_and_flush_nothing() {
    let out = resliced(&format!("{}: alive\n\n\n\n{}", content("a"), content("b")));
    assert_eq!(out, format!(": alive\n\n\n\n{}", content("ab")));
    let out = resliced(&format!("{}: beside\n{}", content("a"), content("b")));
    assert_eq!(out, format!(": beside\n\n{}", content("ab")));
}

#[test]
fn an_event_that_says_nothing_passes_unless_text_waits() {
    let nothing = delta(&json!({"content": ""}), None);
    assert_eq!(resliced(&nothing), nothing);
    assert_eq!(resliced(&(content("a") + &nothing + &content("b"))), content("ab"));
}

#[test]
fn more_than_one_choice_ends_it() {
    let other = json!({"choices": [{"index": 1, "delta": {"content": "x"}}]});
    let both = json!({"choices": [{"index": 0, "delta": {}}, {"index": 1, "delta": {}}]});
    for last in [event(&other), event(&both)] {
        let tail = last + &tokens("abc") + &stop();
        assert_eq!(resliced(&(content("a") + &tail)), content("a") + &tail);
    }
}

#[test]
fn what_follows_the_end_is_left_alone() {
    let tail = format!("{DONE}{}junk", tokens("abc"));
    assert_eq!(resliced(&(tokens("abc") + &tail)), content("abc") + &tail);
    let ends = "data:[DONE]\r\n\r\n".to_owned() + &tokens("ab");
    assert_eq!(resliced(&ends), ends);
}

#[test]
fn line_endings_of_every_kind_end_events() {
    for end in ["\n\n", "\r\n\r\n", "\r\r", "\r\n\n"] {
        let stream = (tokens("abc") + &stop()).replace("\n\n", end);
        let out = resliced(&stream);
        assert_eq!(out, content("abc") + &stop().replace("\n\n", end), "{end:?}");
    }
}

#[test]
fn a_frame_without_end_ends_it() {
    for (length, ends) in [(MAX_FRAME, false), (MAX_FRAME + 1, true)] {
        let head = ": ".len();
        let long = format!(": {}\n\n", "x".repeat(length - head - 2));
        let tail = tokens("ab");
        let stream = content("a") + &long + &tail;
        let wanted = match ends {
            true => content("a") + &long + &tail,
            false => long.clone() + &content("aab"),
        };
        for size in [stream.len(), 1 << 16, 4096] {
            let (mut machine, mut out) = (Reslicer::default(), Vec::new());
            stream.as_bytes().chunks(size).for_each(|chunk| machine.feed(chunk, &mut out));
            machine.finish(&mut out);
            assert!(out == wanted.as_bytes(), "frame of {length} in pieces of {size}");
        }
    }
}

#[test]
fn a_broken_stream_gives_what_it_has_and_no_half_frame() {
    for (fails, wanted) in [(true, content("ab")), (false, content("ab") + "data: {half")] {
        let (mut machine, mut out) = (Reslicer::default(), Vec::new());
        machine.feed((tokens("ab") + "data: {half").as_bytes(), &mut out);
        if fails {
            machine.fail(&mut out)
        } else {
            machine.finish(&mut out)
        }
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
        assert!(!machine.has_pending());
    }
}

#[test]
fn calls_held_back_are_bounded() {
    let call = |index: usize| {
        delta(&json!({"tool_calls": [{"index": index, "function": {"arguments": "x"}}]}), None)
    };
    let (mut machine, mut out) = (Reslicer::default(), Vec::new());
    (0..64).for_each(|index| machine.feed(call(index).as_bytes(), &mut out));
    assert!(out.is_empty());
    machine.feed(call(64).as_bytes(), &mut out);
    assert_eq!(events(&String::from_utf8(out).unwrap()).len(), 64);
}

#[test]
fn a_model_of_minimax_is_known_by_its_name() {
    for (model, wanted) in [
        ("MiniMax-M2", true),
        ("minimax-m1", true),
        ("abab6.5s-chat", true),
        ("ABAB", true),
        ("MiniMaxAI/MiniMax-M2", true),
        ("org/abab7", true),
        ("nvidia/MiniMax-M2-NVFP4", true),
        ("minimax/kimi-k2", true),
        ("kimi-k2/minimax-m1", false),
        ("Qwen/minimax", false),
        ("my-minimax", false),
        ("maxmini", false),
        ("llama-3", false),
        ("minima", false),
        ("é/miniéax", false),
        ("", false),
    ] {
        assert_eq!(selects(model), wanted, "{model}");
    }
}
