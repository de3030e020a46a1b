//! One conversation: what has been said, and who answered last.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::client::{Answer, Base};
use super::{Landing, Naming, Script, Turn};
use crate::dice::Dice;

pub(super) struct Conversation {
    index: usize,
    script: Arc<Script>,
    key: Option<String>,
    messages: Vec<Value>,
    turns: usize,
    worker: Option<String>,
}

impl Conversation {
    pub(super) fn new(index: usize, script: Arc<Script>) -> Self {
        let seed = script.seed;
        let key = (script.naming != Naming::Nameless).then(|| format!("chat-{seed:x}-{index:02}"));
        let system = prose(mix(seed, u64::MAX, 0), script.system_words);
        Self {
            index,
            key,
            messages: vec![json!({"role": "system", "content": system})],
            turns: 0,
            worker: None,
            script,
        }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) async fn take_turn(&mut self, base: &Base) -> Turn {
        self.ask();
        let header = match &self.script.naming {
            Naming::Header(name) => self.key.as_deref().map(|key| (name.as_str(), key)),
            Naming::Nameless | Naming::Rid => None,
        };
        let exchange = base.chat(self.body(), header);
        let answer = match timeout(self.script.patience, exchange).await {
            Ok(answer) => answer,
            Err(_) => Answer::failed("no end in sight: patience ran out"),
        };
        self.hear(answer)
    }

    fn ask(&mut self) {
        self.turns += 1;
        let words = match self.turns {
            1 => self.script.first_words,
            _ => self.script.turn_words,
        };
        let seed = mix(self.script.seed, self.index as u64, self.turns as u64);
        self.messages.push(json!({"role": "user", "content": prose(seed, words)}));
    }

    fn body(&self) -> Value {
        let mut body = json!({
            "model": self.script.model,
            "messages": self.messages,
            "max_tokens": self.script.reply_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let (Naming::Rid, Some(key), Some(fields)) =
            (&self.script.naming, &self.key, body.as_object_mut())
        {
            fields.insert("rid".to_owned(), json!(format!("{key}_t{}", self.turns)));
        }
        body
    }

    fn hear(&mut self, answer: Answer) -> Turn {
        let landing = match (self.turns, &self.worker, &answer.worker) {
            (1, _, _) => Landing::New,
            (_, Some(before), Some(now)) if before == now => Landing::Pinned,
            (_, Some(_), Some(_)) => Landing::Moved,
            _ => Landing::Unknown,
        };
        // A failed turn is forgotten as a chat client would: the next one asks again, further on.
        let said = match answer.error {
            Some(_) => "...",
            None => answer.text.as_str(),
        };
        self.messages.push(json!({"role": "assistant", "content": said}));
        self.worker.clone_from(&answer.worker);
        Turn {
            conversation: self.index,
            number: self.turns,
            key: self.key.clone(),
            worker: answer.worker,
            landing,
            prompt_tokens: answer.prompt_tokens,
            cached_tokens: answer.cached_tokens,
            first_token: answer.first_token,
            error: answer.error,
        }
    }
}

/// One seed for each text of a run.
fn mix(seed: u64, conversation: u64, turn: u64) -> u64 {
    let mut dice = Dice::new(seed);
    let mut dice = Dice::new(dice.roll() ^ conversation);
    let mut dice = Dice::new(dice.roll() ^ turn);
    dice.roll()
}

/// So many made-up words. Three syllables of sixteen make four thousand of them, enough that two
/// texts do not begin alike.
fn prose(seed: u64, words: usize) -> String {
    const SYLLABLES: &[&str] = &[
        "ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu", "da", "fe", "gi", "ho", "ju",
        "pa",
    ];
    let mut dice = Dice::new(seed);
    let mut text = String::new();
    for word in 0..words {
        if word > 0 {
            text.push(' ');
        }
        for _ in 0..3 {
            text.push_str(dice.pick(SYLLABLES));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(naming: Naming) -> Conversation {
        let script = Script { naming, ..Script::default() };
        Conversation::new(3, Arc::new(script))
    }

    #[test]
    fn a_turn_resends_what_was_said_and_names_its_conversation() {
        let mut one = conversation(Naming::Rid);
        one.ask();
        assert_eq!(one.body()["rid"], "chat-1-03_t1");
        one.hear(Answer { text: "hello".to_owned(), ..Answer::default() });
        one.ask();
        let body = one.body();
        assert_eq!(body["rid"], "chat-1-03_t2");
        let roles: Vec<_> =
            body["messages"].as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(body["messages"][2]["content"], "hello");
    }

    #[test]
    fn without_a_name_no_rid_is_sent() {
        let mut one = conversation(Naming::Nameless);
        one.ask();
        assert!(one.body().get("rid").is_none());
    }

    #[test]
    fn landing_is_seen_from_the_turn_before() {
        let mut one = conversation(Naming::Rid);
        let mut landings = Vec::new();
        for worker in [Some("a"), Some("a"), Some("b"), None, Some("b")] {
            one.ask();
            let answer = Answer { worker: worker.map(str::to_owned), ..Answer::default() };
            landings.push(one.hear(answer).landing);
        }
        use Landing::{Moved, New, Pinned, Unknown};
        assert_eq!(landings, [New, Pinned, Moved, Unknown, Unknown]);
    }

    #[test]
    fn texts_differ_by_seed_conversation_and_turn() {
        let texts = [mix(1, 0, 1), mix(2, 0, 1), mix(1, 1, 1), mix(1, 0, 2)].map(|s| prose(s, 5));
        let distinct: std::collections::HashSet<_> = texts.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert_eq!(texts[0], prose(mix(1, 0, 1), 5));
    }
}
