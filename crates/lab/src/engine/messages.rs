//! Anthropic's form of an answer (`/v1/messages`). An engine that is given tools calls the first two at
//! once, unless it was just told what they gave.

use serde_json::{Value, json};

use super::run::{Ending, Usage};

/// Tools called at once.
const CALLS: usize = 2;

/// The tools that this request has called.
pub(super) fn calls(body: &Value) -> Vec<String> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let last = list(body.get("messages")).pop().unwrap_or_default();
    let result = |block: &Value| block["type"] == "tool_result";
    if list(last.get("content")).iter().any(result) {
        return Vec::new();
    }
    let name = |tool: &Value| Some(tool.get("name")?.as_str()?.to_owned());
    list(body.get("tools")).iter().filter_map(name).take(CALLS).collect()
}

/// One answer.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) calls: Vec<String>,
}

impl Message {
    pub(super) fn whole(&self, text: &str, ending: Ending, usage: Usage) -> Value {
        let mut content = vec![json!({"type": "text", "text": text})];
        content.extend((0..self.calls.len()).filter_map(|n| self.call(n, &json!({"call": n}))));
        self.sheet(&Value::Array(content), self.reason(ending), usage)
    }

    /// The events before the text.
    pub(super) fn opening(&self, usage: Usage) -> Vec<Value> {
        let empty = self.sheet(&json!([]), None, Usage { generated: 0, ..usage });
        let block = json!({"type": "text", "text": ""});
        vec![json!({"type": "message_start", "message": empty}), starts(0, &block)]
    }

    pub(super) fn text(text: &str) -> Value {
        delta(0, &json!({"type": "text_delta", "text": text}))
    }

    /// The events after the text.
    pub(super) fn closing(&self, ending: Ending, usage: Usage) -> Vec<Value> {
        let mut events = vec![stops(0)];
        for n in 0..self.calls.len() {
            let Some(block) = self.call(n, &json!({})) else { continue };
            let input = json!({"call": n}).to_string();
            events.push(starts(n + 1, &block));
            events.push(delta(n + 1, &json!({"type": "input_json_delta", "partial_json": input})));
            events.push(stops(n + 1));
        }
        events.push(json!({
            "type": "message_delta",
            "delta": {"stop_reason": self.reason(ending), "stop_sequence": null},
            "usage": {"output_tokens": usage.generated},
        }));
        events.push(json!({"type": "message_stop"}));
        events
    }

    fn call(&self, n: usize, input: &Value) -> Option<Value> {
        let (name, id) = (self.calls.get(n)?, format!("toolu-{}-{n}", self.id));
        Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
    }

    fn reason(&self, ending: Ending) -> Option<&'static str> {
        Some(match ending {
            _ if !self.calls.is_empty() => "tool_use",
            Ending::Stop => "end_turn",
            Ending::Length => "max_tokens",
        })
    }

    fn sheet(&self, content: &Value, reason: Option<&str>, usage: Usage) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": null,
            "usage": {
                // Here a prompt is counted in parts that do not overlap.
                "input_tokens": usage.prompt - usage.cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": usage.cached,
                "output_tokens": usage.generated,
            },
        })
    }
}

fn starts(index: usize, block: &Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

fn delta(index: usize, delta: &Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

fn stops(index: usize) -> Value {
    json!({"type": "content_block_stop", "index": index})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_called_until_their_results_are_in() {
        let body = |last: Value| {
            let tools = json!([{"name": "read"}, {"name": "grep"}, {"name": "write"}]);
            json!({"tools": tools, "messages": [{"role": "user", "content": last}]})
        };
        assert_eq!(calls(&body(json!("look"))), ["read", "grep"]);
        assert_eq!(calls(&body(json!([{"type": "text", "text": "look"}]))), ["read", "grep"]);
        assert!(calls(&body(json!([{"type": "tool_result", "content": "x"}]))).is_empty());
        assert!(calls(&json!({"messages": []})).is_empty());
    }
}
