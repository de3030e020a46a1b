//! The JSON of answers: whole ones, the pieces of streamed ones, and errors.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::ask::{Complaint, Form};
use super::run::{Ending, Usage};

/// What every piece of one answer repeats.
#[derive(Debug, Clone)]
pub(super) struct Letterhead {
    form: Form,
    id: String,
    created: u64,
    model: String,
}

impl Letterhead {
    pub(super) fn new(form: Form, number: u64, model: &str) -> Self {
        let prefix = match form {
            Form::Chat => "chatcmpl",
            Form::Text => "cmpl",
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            form,
            id: format!("{prefix}-lab-{number}"),
            created: since.map_or(0, |since| since.as_secs()),
            model: model.to_owned(),
        }
    }

    pub(super) fn whole(&self, text: &str, ending: Ending, usage: Usage) -> Value {
        let choice = match self.form {
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

    /// The piece that opens a streamed chat answer. Plain completions have none.
    pub(super) fn role(&self) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        (self.form == Form::Chat).then(|| self.piece(chat_choice(&delta, None)))
    }

    pub(super) fn text(&self, text: &str) -> Value {
        self.piece(match self.form {
            Form::Chat => chat_choice(&json!({ "content": text }), None),
            Form::Text => text_choice(text, None),
        })
    }

    pub(super) fn end(&self, ending: Ending) -> Value {
        self.piece(match self.form {
            Form::Chat => chat_choice(&json!({}), Some(ending)),
            Form::Text => text_choice("", Some(ending)),
        })
    }

    pub(super) fn usage(&self, usage: Usage) -> Value {
        let mut piece = self.sheet(self.piece_kind(), json!([]));
        set(&mut piece, "usage", usage_json(usage));
        piece
    }

    fn piece(&self, choice: Value) -> Value {
        self.sheet(self.piece_kind(), Value::Array(vec![choice]))
    }

    fn sheet(&self, kind: &str, choices: Value) -> Value {
        let mut sheet = json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        });
        set(&mut sheet, "choices", choices);
        sheet
    }

    fn whole_kind(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat.completion",
            Form::Text => "text_completion",
        }
    }

    fn piece_kind(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat.completion.chunk",
            Form::Text => "text_completion",
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
