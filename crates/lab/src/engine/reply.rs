//! The JSON of answers: whole ones, the pieces of streamed ones, and errors.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use serde_json::{Value, json};

use super::ask::{Ask, Complaint, Form};
use super::messages::Message;
use super::run::{Ending, Usage};

/// What every piece of one answer repeats.
#[derive(Debug, Clone)]
pub(super) struct Letterhead {
    form: Form,
    include_usage: bool,
    created: u64,
    message: Message,
}

impl Letterhead {
    pub(super) fn new(ask: &Ask, number: u64, model: &str) -> Self {
        let prefix = match ask.form {
            Form::Chat => "chatcmpl",
            Form::Messages => "msg",
            Form::Text => "cmpl",
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            form: ask.form,
            include_usage: ask.include_usage,
            created: since.map_or(0, |since| since.as_secs()),
            message: Message {
                id: format!("{prefix}-lab-{number}"),
                model: model.to_owned(),
                calls: ask.calls.clone(),
            },
        }
    }

    pub(super) fn whole(&self, text: &str, ending: Ending, usage: Usage) -> Value {
        let choice = match self.form {
            Form::Messages => return self.message.whole(text, ending, usage),
            Form::Chat => json!({
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "logprobs": null,
                "finish_reason": ending.text(),
            }),
            Form::Text => text_choice(text, Some(ending)),
        };
        let mut answer = self.sheet(self.whole_kind(), json!([choice]));
        set(&mut answer, "usage", usage_json(usage));
        answer
    }

    /// The pieces that open a streamed answer. Plain completions have none.
    pub(super) fn opening(&self, usage: Usage) -> Vec<Value> {
        let role = || chat_choice(&json!({"role": "assistant", "content": ""}), None);
        match self.form {
            Form::Chat => vec![self.piece(role())],
            Form::Messages => self.message.opening(usage),
            Form::Text => Vec::new(),
        }
    }

    pub(super) fn text(&self, text: &str) -> Value {
        self.piece(match self.form {
            Form::Messages => return Message::text(text),
            Form::Chat => chat_choice(&json!({ "content": text }), None),
            Form::Text => text_choice(text, None),
        })
    }

    /// The pieces that close it.
    pub(super) fn closing(&self, ending: Ending, usage: Usage) -> Vec<Value> {
        let end = match self.form {
            Form::Messages => return self.message.closing(ending, usage),
            Form::Chat => chat_choice(&json!({}), Some(ending)),
            Form::Text => text_choice("", Some(ending)),
        };
        let mut pieces = vec![self.piece(end)];
        if self.include_usage {
            let mut piece = self.sheet(self.piece_kind(), json!([]));
            set(&mut piece, "usage", usage_json(usage));
            pieces.push(piece);
        }
        pieces
    }

    /// Writes a piece as an event, which has a name in Anthropic's form.
    pub(super) fn event(&self, events: &mut BytesMut, piece: &Value) {
        if let (Form::Messages, Some(name)) = (self.form, piece["type"].as_str()) {
            events.extend_from_slice(format!("event: {name}\n").as_bytes());
        }
        events.extend_from_slice(format!("data: {piece}\n\n").as_bytes());
    }

    /// What stands after the last piece.
    pub(super) fn last_line(&self) -> &'static [u8] {
        if self.form == Form::Messages { b"" } else { b"data: [DONE]\n\n" }
    }

    fn piece(&self, choice: Value) -> Value {
        self.sheet(self.piece_kind(), Value::Array(vec![choice]))
    }

    fn sheet(&self, kind: &str, choices: Value) -> Value {
        let mut sheet = json!({
            "id": self.message.id,
            "object": kind,
            "created": self.created,
            "model": self.message.model,
        });
        set(&mut sheet, "choices", choices);
        sheet
    }

    fn whole_kind(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat.completion",
            Form::Text | Form::Messages => "text_completion",
        }
    }

    fn piece_kind(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat.completion.chunk",
            Form::Text | Form::Messages => "text_completion",
        }
    }
}

pub(super) fn error(complaint: &Complaint) -> Value {
    let kind = match complaint.status {
        404 => "not_found_error",
        status if status < 500 => "invalid_request_error",
        _ => "server_error",
    };
    json!({"error": {
        "message": complaint.message,
        "type": kind,
        "param": complaint.param,
        "code": complaint.code,
    }})
}

fn chat_choice(delta: &Value, ending: Option<Ending>) -> Value {
    json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": ending.map(Ending::text)})
}

fn text_choice(text: &str, ending: Option<Ending>) -> Value {
    json!({"index": 0, "text": text, "logprobs": null, "finish_reason": ending.map(Ending::text)})
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    })
}

fn set(object: &mut Value, name: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}
