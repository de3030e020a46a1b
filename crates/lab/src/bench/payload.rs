//! What the load asks and what the mock workers answer, byte for byte. Both sides build it from here, so that the
//! load can compare every answer with what the worker must have sent.

use std::fmt::Write as _;

/// The one model the mock workers serve.
pub(crate) const MODEL: &str = "bench";

/// Length of a small chat's body; long enough to hold a short conversation, as real small requests do.
const SMALL_CHAT: usize = 500;

const PATH: &str = "/v1/chat/completions";

/// The body of a small chat, padded to 500 bytes.
fn chat_body(stream: bool) -> String {
    let before = format!(
        r#"{{"model":"{MODEL}","messages":[{{"role":"system","content":"You answer briefly."}},{{"role":"user","content":""#
    );
    let after = format!(r#""}}],"temperature":0.7,"max_tokens":64,"stream":{stream}}}"#);
    let room = SMALL_CHAT.saturating_sub(before.len() + after.len());
    let padding: String = "Tell me about the tides. ".chars().cycle().take(room).collect();
    format!("{before}{padding}{after}")
}

/// A whole request, head and body, ready to be written. `key` is the routing key, if the row sends one.
pub(crate) fn chat_request(stream: bool, key: Option<&str>) -> Vec<u8> {
    written(head(key), &chat_body(stream))
}

/// The same for a session's key.
pub(crate) fn session_request(key: &str) -> Vec<u8> {
    written(head(None) + &format!("x-aibrix-session-key: {key}\r\n"), &chat_body(false))
}

fn written(mut text: String, body: &str) -> Vec<u8> {
    // Writing to a String cannot fail.
    let _ = write!(text, "content-length: {}\r\n\r\n{body}", body.len());
    text.into_bytes()
}

/// A request's head up to its length.
fn head(key: Option<&str>) -> String {
    let mut text = format!(
        "POST {PATH} HTTP/1.1\r\nhost: bench\r\nuser-agent: lab-bench\r\naccept: */*\r\ncontent-type: application/json\r\n"
    );
    if let Some(key) = key {
        let _ = write!(text, "x-smg-routing-key: {key}\r\n");
    }
    text
}

/// Length of a large chat's body.
pub(crate) const LARGE_CHAT: usize = 10 << 20;
/// Length of one message of it.
const LARGE_MESSAGE: usize = 64 << 10;

/// What all large chats have in common, built once: the messages behind the first.
#[derive(Debug)]
pub(crate) struct LargeChats {
    shared: String,
}

/// A large chat as it is written, piece by piece.
#[derive(Debug)]
pub(crate) struct LargeChat {
    /// The request's head, and the body up to the end of its first message.
    pub(crate) before: Vec<u8>,
    /// What stands behind the messages, as SDKs send it: the model, and the `rid` last.
    pub(crate) after: Vec<u8>,
}

impl LargeChats {
    pub(crate) fn new() -> Self {
        let (opening, after) = Self::ends("");
        let room = LARGE_CHAT - opening.len() - after.len() - 2 * LARGE_NAME;
        let mut shared = String::with_capacity(room);
        // Lines as people and programs write them: a backslash in every 50 bytes.
        let line = r"The tide comes in twice a day, and twice it goes.\n";
        let (before, behind) = (r#",{"role":"user","content":""#, r#""}"#);
        while shared.len() < room {
            let len = LARGE_MESSAGE.min(room - shared.len());
            let text = len.saturating_sub(before.len() + behind.len());
            shared.push_str(before);
            shared.extend((0..text / line.len()).map(|_| line));
            shared.extend((0..text % line.len()).map(|_| '.'));
            shared.push_str(behind);
        }
        Self { shared }
    }

    pub(crate) fn shared(&self) -> &[u8] {
        self.shared.as_bytes()
    }

    /// The chat of this number.
    pub(crate) fn chat(number: usize) -> LargeChat {
        let (opening, after) = Self::ends(&format!("{number:0LARGE_NAME$}"));
        let mut head = head(None);
        let _ = write!(head, "content-length: {LARGE_CHAT}\r\n\r\n{opening}");
        LargeChat { before: head.into_bytes(), after: after.into_bytes() }
    }

    fn ends(name: &str) -> (String, String) {
        let opening =
            format!(r#"{{"messages":[{{"role":"user","content":"This is conversation {name}."}}"#);
        let after = format!(r#"],"model":"{MODEL}","max_tokens":64,"rid":"conversation-{name}"}}"#);
        (opening, after)
    }
}

/// Digits of a large chat's number.
const LARGE_NAME: usize = 5;

/// Length of the system prompt that all growing chats share.
const SYSTEM_PROMPT: usize = 2048;
/// Length of what a user says in each turn of a growing chat.
const USER_TEXT: usize = 200;

/// A chat that sends its whole history again each turn.
#[derive(Debug)]
pub(crate) struct GrowingChat {
    messages: String,
    said: u32,
    name: String,
}

impl GrowingChat {
    /// A new conversation; what `name` says is all that tells it from others.
    pub(crate) fn new(name: String) -> Self {
        let system: String = "You are a careful assistant of the harbour office. "
            .chars()
            .cycle()
            .take(SYSTEM_PROMPT)
            .collect();
        Self { messages: format!(r#"{{"role":"system","content":"{system}"}}"#), said: 0, name }
    }

    /// The next turn's request, head and body.
    pub(crate) fn turn(&mut self) -> Vec<u8> {
        if self.said > 0 {
            self.messages
                .push_str(r#",{"role":"assistant","content":"The tides follow the moon."}"#);
        }
        self.said += 1;
        let asked = format!("{} asks {}: ", self.name, self.said);
        let padding: String = "and what of the tides ".chars().cycle().take(USER_TEXT).collect();
        let _ = write!(self.messages, r#",{{"role":"user","content":"{asked}{padding}"}}"#);
        let body =
            format!(r#"{{"model":"{MODEL}","messages":[{}],"max_tokens":64}}"#, self.messages);
        let mut text = head(None);
        let _ = write!(text, "content-length: {}\r\n\r\n{body}", body.len());
        text.into_bytes()
    }
}

/// A bodiless GET.
pub(crate) fn get_request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: bench\r\nuser-agent: lab-bench\r\n\r\n").into_bytes()
}

/// The body of a non-streaming answer. The worker names itself in it.
pub(crate) fn chat_answer(worker: usize) -> String {
    format!(
        concat!(
            r#"{{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"{}","#,
            r#""choices":[{{"index":0,"message":{{"role":"assistant","content":"The tides follow the moon, and a little "#,
            r#"the sun; twice a day the water comes, and twice it goes."}},"logprobs":null,"finish_reason":"stop"}}],"#,
            r#""usage":{{"prompt_tokens":103,"completion_tokens":24,"total_tokens":127}},"system_fingerprint":"worker-{}"}}"#
        ),
        MODEL, worker
    )
}

/// One event of a stream. All have one length, so that bytes received tell how many events were.
pub(crate) fn event(index: u32) -> String {
    format!(
        concat!(
            r#"data: {{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"{}","#,
            r#""choices":[{{"index":0,"delta":{{"content":" {:07}"}},"logprobs":null,"finish_reason":null}}]}}"#,
            "\n\n"
        ),
        MODEL, index
    )
}

/// How a stream ends.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// A whole stream as the client must receive it, with the length of one event.
#[derive(Debug)]
pub(crate) struct Script {
    bytes: Vec<u8>,
    event_len: usize,
    events: u32,
}

impl Script {
    pub(crate) fn new(events: u32) -> Self {
        let mut text = String::new();
        for index in 0..events {
            text.push_str(&event(index));
        }
        text.push_str(DONE);
        Self { bytes: text.into_bytes(), event_len: event(0).len(), events }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether `piece` is what the stream holds from `offset` on.
    pub(crate) fn holds(&self, offset: usize, piece: &[u8]) -> bool {
        self.bytes.get(offset..).is_some_and(|rest| rest.starts_with(piece))
    }

    /// Events complete within the first `offset` bytes.
    pub(crate) fn events_in(&self, offset: usize) -> u64 {
        let whole = offset / self.event_len;
        u64::from(self.events).min(whole as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_the_promised_length() {
        for stream in [false, true] {
            let body = chat_body(stream);
            assert_eq!(body.len(), SMALL_CHAT);
            let value: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(value["stream"], stream);
        }
        let value: serde_json::Value = serde_json::from_str(&chat_answer(1)).unwrap();
        assert_eq!(value["system_fingerprint"], "worker-1");
        let first = event(0);
        serde_json::from_str::<serde_json::Value>(first.strip_prefix("data: ").unwrap()).unwrap();
    }

    #[test]
    fn each_turn_of_a_growing_chat_extends_the_one_before() {
        let mut chat = GrowingChat::new("c1".to_owned());
        let body = |request: Vec<u8>| {
            let text = String::from_utf8(request).unwrap();
            let (_, body) = text.split_once("\r\n\r\n").unwrap();
            serde_json::from_str::<serde_json::Value>(body).unwrap()["messages"].clone()
        };
        let (first, second) = (body(chat.turn()), body(chat.turn()));
        assert_eq!((first.as_array().unwrap().len(), second.as_array().unwrap().len()), (2, 4));
        assert_eq!(first.as_array().unwrap()[..], second.as_array().unwrap()[..2]);
    }

    #[test]
    fn large_chats_differ_at_both_ends_only() {
        let chats = LargeChats::new();
        let body = |number| {
            let LargeChat { before, after } = LargeChats::chat(number);
            let text = String::from_utf8([&before, chats.shared(), &after].concat()).unwrap();
            let (_, body) = text.split_once("\r\n\r\n").unwrap();
            assert_eq!(body.len(), LARGE_CHAT);
            serde_json::from_str::<serde_json::Value>(body).unwrap()
        };
        let (first, other) = (body(0), body(63));
        assert_eq!(
            (&first["rid"], &other["rid"]),
            (&"conversation-00000".into(), &"conversation-00063".into())
        );
        let messages = |body: &serde_json::Value| body["messages"].as_array().unwrap().clone();
        let (first, other) = (messages(&first), messages(&other));
        assert!(first[0] != other[0] && first[1..] == other[1..] && first.len() > 100);
    }

    #[test]
    fn a_script_counts_whole_events_only() {
        let script = Script::new(3);
        let one = event(0).len();
        assert_eq!(event(2).len(), one);
        assert_eq!(script.len(), 3 * one + DONE.len());
        assert_eq!(script.events_in(one - 1), 0);
        assert_eq!(script.events_in(2 * one), 2);
        assert_eq!(script.events_in(script.len()), 3);
        assert!(script.holds(one, event(1).as_bytes()));
        assert!(!script.holds(one, event(0).as_bytes()));
        assert!(!script.holds(script.len(), b"x"));
    }
}
