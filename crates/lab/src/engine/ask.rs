//! What a completion request asks for, read from its body; and what to say when that fails.

use serde_json::Value;

use super::run::Ending;
use super::tokens::{self, Template};
use super::{Profile, messages};

/// The forms of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Chat,
    Messages,
    Text,
}

/// A request, understood. Fields an engine need not know, such as `rid`, are passed over.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) form: Form,
    pub(super) prompt: Vec<u32>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// Tools that the answer calls.
    pub(super) calls: Vec<String>,
    max_tokens: Option<usize>,
    ignore_eos: bool,
}

/// A request that cannot be served.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) status: u16,
    pub(super) code: &'static str,
    pub(super) param: Option<&'static str>,
    pub(super) message: String,
}

impl Complaint {
    pub(super) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, param: None, message: message.into() }
    }

    fn about(param: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(param), ..Self::new(400, "invalid_value", message) }
    }
}

impl Ask {
    pub(super) fn read(form: Form, body: &[u8], profile: &Profile) -> Result<Self, Complaint> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|why| Complaint::new(400, "invalid_json", format!("Not JSON: {why}")))?;
        if !body.is_object() {
            return Err(Complaint::new(400, "invalid_json", "The body must be an object"));
        }
        check_model(&body, profile)?;
        let prompt = match form {
            Form::Chat => chat_prompt(&body, None)?,
            Form::Messages => chat_prompt(&body, body.get("system"))?,
            Form::Text => text_prompt(&body)?,
        };
        if prompt.len() > profile.context_tokens {
            let (has, limit) = (prompt.len(), profile.context_tokens);
            return Err(Complaint {
                code: "context_length_exceeded",
                ..Complaint::about("messages", format!("{has} prompt tokens; the limit is {limit}"))
            });
        }
        let options = body.get("stream_options").unwrap_or(&Value::Null);
        Ok(Self {
            form,
            prompt,
            stream: switch(&body, "stream")?,
            include_usage: switch(options, "include_usage")?,
            calls: if form == Form::Messages { messages::calls(&body) } else { Vec::new() },
            max_tokens: match max_tokens(&body, "max_completion_tokens")? {
                Some(limit) => Some(limit),
                None => max_tokens(&body, "max_tokens")?,
            },
            ignore_eos: switch(&body, "ignore_eos")?,
        })
    }

    /// How many tokens the answer has, and why it ends there.
    pub(super) fn length(&self, profile: &Profile) -> (usize, Ending) {
        let natural = profile.reply_tokens;
        let bound = |limit: usize| limit.min(profile.context_tokens);
        match self.max_tokens {
            Some(limit) if self.ignore_eos || limit < natural => (bound(limit), Ending::Length),
            _ => (natural, Ending::Stop),
        }
    }
}

fn check_model(body: &Value, profile: &Profile) -> Result<(), Complaint> {
    match body.get("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(name)) if *name == profile.model => Ok(()),
        Some(Value::String(name)) => Err(Complaint {
            param: Some("model"),
            ..Complaint::new(404, "model_not_found", format!("There is no model `{name}` here"))
        }),
        Some(_) => Err(Complaint::about("model", "`model` must be a string")),
    }
}

fn switch(body: &Value, name: &'static str) -> Result<bool, Complaint> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(_) => Err(Complaint::about(name, format!("`{name}` must be true or false"))),
    }
}

fn max_tokens(body: &Value, name: &'static str) -> Result<Option<usize>, Complaint> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(limit) => match limit.as_u64().and_then(|limit| usize::try_from(limit).ok()) {
            Some(limit) if limit > 0 => Ok(Some(limit)),
            _ => Err(Complaint::about(name, format!("`{name}` must be a whole number above 0"))),
        },
    }
}

fn chat_prompt(body: &Value, system: Option<&Value>) -> Result<Vec<u32>, Complaint> {
    let wrong = |message: &str| Complaint::about("messages", message);
    let messages = match body.get("messages").map(Value::as_array) {
        Some(Some(messages)) if !messages.is_empty() => messages,
        Some(_) => return Err(wrong("`messages` must be a list of at least one message")),
        None => return Err(wrong("`messages` is missing")),
    };
    let mut template = Template::default();
    if let Some(tools) = body.get("tools").filter(|tools| !tools.is_null()) {
        template.message("tools", &tools.to_string());
    }
    if let Some(system) = system {
        let text = content_text(Some(system))
            .ok_or_else(|| Complaint::about("system", "`system` must be a string or blocks"))?;
        template.message("system", &text);
    }
    for message in messages {
        let role = message.get("role").and_then(Value::as_str);
        let role = role.ok_or_else(|| wrong("every message needs a `role`"))?;
        let mut text = content_text(message.get("content"))
            .ok_or_else(|| wrong("`content` must be a string or a list of parts"))?;
        if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
            text.push_str(&calls.to_string());
        }
        template.message(role, &text);
    }
    Ok(template.invite())
}

/// The text of a message. A part that is not text, such as an image, counts as its JSON.
fn content_text(content: Option<&Value>) -> Option<String> {
    match content {
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| match part.get("text").and_then(Value::as_str) {
                Some(text) => text.to_owned(),
                None => part.to_string(),
            };
            Some(parts.iter().map(text).collect::<Vec<_>>().join("\n"))
        }
        Some(_) => None,
    }
}

fn text_prompt(body: &Value) -> Result<Vec<u32>, Complaint> {
    let wrong = |message: &str| Complaint::about("prompt", message);
    match body.get("prompt") {
        None | Some(Value::Null) => Err(wrong("`prompt` is missing")),
        Some(Value::String(text)) => Ok(tokens::of_text(text)),
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(text)] => Some(tokens::of_text(text)),
            [Value::Array(ids)] => token_ids(ids),
            ids => token_ids(ids),
        }
        .ok_or_else(|| wrong("`prompt` must be one text or one list of token ids")),
        Some(_) => Err(wrong("`prompt` must be one text or one list of token ids")),
    }
}

fn token_ids(ids: &[Value]) -> Option<Vec<u32>> {
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    ids.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(form: Form, body: &Value) -> Result<Ask, Complaint> {
        Ask::read(form, body.to_string().as_bytes(), &Profile::default())
    }

    fn chat(extra: &Value) -> Value {
        let mut body = json!({"model": "lab", "messages": [{"role": "user", "content": "Hi"}]});
        let fields = body.as_object_mut().unwrap();
        fields.extend(extra.as_object().unwrap().clone());
        body
    }

    #[test]
    fn a_body_that_is_wrong_is_told_where() {
        let about = |extra| read(Form::Chat, &chat(&extra)).unwrap_err();
        for (extra, param) in [
            (json!({"messages": []}), "messages"),
            (json!({"messages": "Hi"}), "messages"),
            (json!({"messages": [{"content": "Hi"}]}), "messages"),
            (json!({"messages": [{"role": "user", "content": 1}]}), "messages"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": "1"}), "max_tokens"),
            (json!({"stream": 1}), "stream"),
            (json!({"model": 1}), "model"),
        ] {
            let complaint = about(extra);
            assert_eq!((complaint.status, complaint.param), (400, Some(param)));
        }
        assert_eq!(about(json!({"model": "other"})).status, 404);
        assert_eq!(read(Form::Chat, &json!([])).unwrap_err().status, 400);
        assert_eq!(read(Form::Text, &json!({})).unwrap_err().param, Some("prompt"));
        assert!(Ask::read(Form::Chat, b"{", &Profile::default()).is_err());
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        assert!(read(Form::Chat, &chat(&json!({"rid": "a_t1", "logprobs": null}))).is_ok());
    }

    #[test]
    fn a_prompt_beyond_the_context_is_refused() {
        let body = json!({"prompt": "word ".repeat(40_000)});
        let complaint = read(Form::Text, &body).unwrap_err();
        assert_eq!(complaint.code, "context_length_exceeded");
    }

    #[test]
    fn the_length_is_natural_unless_bounded() {
        let profile = Profile::default();
        let length = |extra| read(Form::Chat, &chat(&extra)).unwrap().length(&profile);
        assert_eq!(length(json!({})), (24, Ending::Stop));
        assert_eq!(length(json!({"max_tokens": 5})), (5, Ending::Length));
        assert_eq!(length(json!({"max_tokens": 99})), (24, Ending::Stop));
        assert_eq!(length(json!({"max_tokens": 99, "ignore_eos": true})), (99, Ending::Length));
        let both = json!({"max_tokens": 5, "max_completion_tokens": 7});
        assert_eq!(length(both), (7, Ending::Length));
    }

    #[test]
    fn text_ids_and_parts_are_prompts() {
        let prompt = |body| read(Form::Text, &body).unwrap().prompt;
        assert_eq!(prompt(json!({"prompt": "a b"})), prompt(json!({"prompt": ["a b"]})));
        assert_eq!(prompt(json!({"prompt": [1, 2]})), [1, 2]);
        assert_eq!(prompt(json!({"prompt": [[1, 2]]})), [1, 2]);
        let parts =
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]});
        let parts = read(Form::Chat, &chat(&parts)).unwrap().prompt;
        assert_eq!(parts, read(Form::Chat, &chat(&json!({}))).unwrap().prompt);
    }
}
