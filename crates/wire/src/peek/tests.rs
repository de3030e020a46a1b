use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::*;
use crate::json::{Fields, First, MAX_DEPTH};
use crate::route::Rid;

fn peek(body: &str) -> Peek {
    let mut peek = Peek::default();
    peek.read(body.as_bytes());
    peek
}

fn opening(body: &str, prompt: Prompt) -> (Vec<&str>, &str, Option<&str>, bool) {
    let peek = peek(body);
    let Some(found) = peek.opening(prompt) else { return Default::default() };
    (
        found.items.iter().map(|span| &body[span.clone()]).collect(),
        &body[found.whole.clone()],
        found.begun.map(|at| &body[at..]),
        found.complete,
    )
}

#[test]
fn fields_are_known_once_they_are_whole() {
    let body = r#" { "rid" : "a\u0062" ,"stream":true, "messages":[{"rid":1}],"x":{"model":2},"mod\u0065l":"m"}"#;
    let known_after = |field: Field| {
        (0..=body.len())
            .find(|end| peek(&body[..*end]).span(field).is_some())
            .map(|end| &body[..end])
    };
    assert_eq!(known_after(Field::Rid), Some(r#" { "rid" : "a\u0062""#));
    assert!(known_after(Field::Stream).unwrap().ends_with(":true"));
    assert!(known_after(Field::Model).unwrap().ends_with(r#":"m""#));
    assert_eq!(known_after(Field::SessionId), None);
    let whole = peek(body);
    assert_eq!(whole.state(), State::Complete);
    assert_eq!(whole.text(Field::Rid, body.as_bytes()).as_deref(), Some("ab"));
    assert_eq!(whole.raw(Field::Stream, body.as_bytes()), Some("true"));
    assert_eq!(whole.text(Field::Stream, body.as_bytes()), None);
}

#[test]
fn of_a_repeated_field_the_last_one_that_is_whole_counts() {
    let body = r#"{"rid":"a","rid":12,"rid":"b"#;
    for (end, wanted) in [(9, None), (10, Some("\"a\"")), (19, Some("\"a\"")), (20, Some("12"))] {
        assert_eq!(peek(&body[..end]).raw(Field::Rid, body.as_bytes()), wanted, "{end}");
    }
    assert_eq!(peek(body).raw(Field::Rid, body.as_bytes()), Some("12"));
}

#[test]
fn the_opening_is_what_has_come_of_the_prompt() {
    let body = r#"{"messages": [ {"a":[1]} , "b",3 ,[4]], "x":[7]"#;
    assert_eq!(
        opening(body, Prompt::Messages),
        (vec![r#"{"a":[1]}"#, "\"b\"", "3", "[4]"], r#"{"a":[1]} , "b",3 ,[4]"#, None, true)
    );
    assert_eq!(
        opening(&body[..29], Prompt::Messages),
        (vec![r#"{"a":[1]}"#], r#"{"a":[1]}"#, Some("\"b"), false)
    );
    assert_eq!(opening(&body[..14], Prompt::Messages), (vec![], "", None, false));
    assert_eq!(opening(body, Prompt::System), Default::default());
    let body = r#"{"prompt":"long","system":{"a":"unfinis"#;
    assert_eq!(opening(body, Prompt::Prompt), (vec!["\"long\""], "\"long\"", None, true));
    assert_eq!(opening(body, Prompt::System), (vec![], "", Some(r#"{"a":"unfinis"#), false));
    // The last one counts, as with every field.
    assert_eq!(opening(r#"{"text":"a","text":["b""#, Prompt::Text).0, ["\"b\""]);
    let (items, whole, ..) = {
        let body = r#"{"input_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18"#;
        opening(body, Prompt::InputIds)
    };
    assert_eq!((items.len(), whole), (MOST_ITEMS, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"));
}

#[test]
fn what_is_no_body_is_told_where_it_shows() {
    for (body, wanted) in [
        ("", State::NeedsMore),
        (" \n", State::NeedsMore),
        ("{", State::NeedsMore),
        ("{}", State::Complete),
        ("{} \n", State::Complete),
        ("{}x", State::Broken),
        ("[", State::NotAnObject),
        ("\"a\"", State::NotAnObject),
        ("7", State::NotAnObject),
        (r#"{"a":01"#, State::Broken),
        (r#"{"a":-"#, State::NeedsMore),
        (r#"{"a":-}"#, State::Broken),
        (r#"{"a":1.5e+3}"#, State::Complete),
        (r#"{"a":nul}"#, State::Broken),
        (r#"{"a":"\x"#, State::Broken),
        (r#"{"a":"\u12g"#, State::Broken),
        ("{\"a\":\"\n", State::Broken),
        (r#"{"a":[}"#, State::Broken),
        (r#"{"a":[1,]"#, State::Broken),
        (r#"{"a":1,}"#, State::Broken),
        (r#"{"a":{]"#, State::Broken),
        (r#"{"a" 1"#, State::Broken),
        (r#"{"\ud800":1"#, State::Broken),
        (r#"{"a":"\ud800"}"#, State::Complete),
    ] {
        assert_eq!(peek(body).state(), wanted, "{body}");
    }
    let nested = |depth: usize| format!("{{\"a\":{}", "[".repeat(depth - 1));
    assert_eq!(peek(&nested(MAX_DEPTH)).state(), State::NeedsMore);
    assert_eq!(peek(&nested(MAX_DEPTH + 1)).state(), State::Broken);
}

#[test]
fn a_character_may_be_cut_in_two_but_must_be_one() {
    let body = "{\"rid\":\"é漢\"}".as_bytes();
    let mut one = Peek::default();
    for end in 0..body.len() {
        assert_eq!(one.read(&body[..end]), State::NeedsMore);
    }
    assert_eq!(one.read(body), State::Complete);
    assert_eq!(one.text(Field::Rid, body).as_deref(), Some("é漢"));
    assert_eq!(Peek::default().read(b"{\"a\":\"\xff"), State::Broken);
    assert_eq!(Peek::default().read(b"{\"a\":\"\xc3\"}"), State::Broken);
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        "[ -~é\"\\\\\n]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("rid|model|[a-c}\"]{0,2}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// A body with fields of interest, some of them twice.
fn body() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        4 => prop::sample::select(FIELDS.to_vec()).prop_map(str::to_owned),
        2 => prop::sample::select(PROMPTS.to_vec()).prop_map(str::to_owned),
        1 => "[a-c}\"é]{0,2}",
    ];
    let fields = prop::collection::vec((name, value(), "[ \n\t]{0,2}"), 0..8);
    fields.prop_map(|fields| {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value, space)| {
                format!("{space}{}{space}:{value}{space}", Value::from(&**name))
            })
            .collect();
        format!(" {{{}}} ", fields.join(","))
    })
}

/// Reads in steps that end where the cuts are.
fn in_steps(body: &[u8], cuts: &[prop::sample::Index]) -> Peek {
    let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
    ends.push(body.len());
    ends.sort_unstable();
    let mut peek = Peek::default();
    ends.into_iter().for_each(|end| {
        peek.read(&body[..end]);
    });
    peek
}

proptest! {
    #[test]
    fn a_whole_body_is_read_as_the_full_parser_reads_it(
        body in body(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let peek = in_steps(body.as_bytes(), &cuts);
        prop_assert_eq!(peek.state(), State::Complete);
        let whole: Map<String, Value> = serde_json::from_str(&body).unwrap();
        for (name, span) in FIELDS.iter().zip(&peek.fields) {
            let ours = span.clone().map(|span| serde_json::from_str(&body[span]).unwrap());
            prop_assert_eq!(ours.as_ref(), whole.get(*name));
        }
        let fields = Fields::read(body.as_bytes(), &[]).unwrap();
        prop_assert_eq!(peek.text(Field::Rid, body.as_bytes()), fields.rid(Rid::Text));
        prop_assert_eq!(peek.raw(Field::Stream, body.as_bytes()) == Some("true"), fields.stream());
        if let Ok(model) = fields.model() {
            prop_assert_eq!(peek.text(Field::Model, body.as_bytes()), model);
        }
        for (name, opening) in PROMPTS.iter().zip(&peek.prompts) {
            let Some(raw) = fields.prompt_field(name) else { continue };
            let items = match serde_json::from_str::<First<&RawValue, MOST_ITEMS>>(raw) {
                Ok(First(items)) => items.iter().map(|item| item.get()).collect(),
                Err(_) => vec![raw],
            };
            let opening = opening.as_ref().unwrap();
            let ours: Vec<_> = opening.items.iter().map(|span| &body[span.clone()]).collect();
            prop_assert_eq!(ours, items);
            prop_assert!(opening.complete && opening.begun.is_none());
        }
    }

    #[test]
    fn a_beginning_says_what_the_whole_says_but_for_later_repeats(
        body in body(),
        end in any::<prop::sample::Index>(),
    ) {
        let end = (0..=end.index(body.len())).rev().find(|end| body.is_char_boundary(*end)).unwrap();
        let beginning = peek(&body[..end]);
        let whole = peek(&body);
        prop_assert!(matches!(beginning.state(), State::NeedsMore | State::Complete));
        for (early, late) in beginning.fields.iter().zip(&whole.fields) {
            let Some(early) = early else { continue };
            let late = late.as_ref().unwrap();
            prop_assert!(early == late || late.start >= early.end);
        }
    }

    #[test]
    fn what_the_full_parser_refuses_is_never_complete(
        body in r#"\{("(a|rid|\\u0061)":[{}\[\]",:0-9\\unltrfaes.\-+E é]{0,12}[,}]){0,3}[}]?"#,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let peek = in_steps(body.as_bytes(), &cuts);
        let accepted = Fields::read(body.as_bytes(), &[]).is_ok();
        prop_assert_eq!(peek.state() == State::Complete, accepted, "{}", body);
    }

    #[test]
    fn any_bytes_are_an_answer_and_the_same_in_any_steps(
        body in prop::collection::vec(
            prop_oneof![prop::sample::select(br#"{}[]":,\01et "#.to_vec()), any::<u8>()], 0..60),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let body = [b"{\"rid\":", &*body].concat();
        let (whole, steps) = (in_steps(&body, &[]), in_steps(&body, &cuts));
        prop_assert_eq!(whole.state(), steps.state());
        if whole.state() != State::Broken {
            prop_assert_eq!(whole.fields, steps.fields);
            prop_assert_eq!(whole.prompts, steps.prompts);
        }
    }
}
