//! Traffic to try a placement on: who asks what, and when.

use std::sync::Arc;

use crate::dice::Dice;
use crate::engine::tokens::Voice;

pub mod agent;
pub mod chat;
pub mod mooncake;

/// One request of a trace.
#[derive(Debug, Clone)]
pub struct Request {
    /// When it is sent, in milliseconds from the start.
    pub at: u64,
    /// Which conversation it belongs to.
    pub conversation: usize,
    /// Whether it is the conversation's first, with nothing of it cached anywhere.
    pub opens: bool,
    /// What is asked.
    pub prompt: Body,
    /// What will be answered; empty if a trace tells only how long that is.
    pub answer: Arc<str>,
    /// How long the answer is, in tokens.
    pub answer_tokens: usize,
}

/// A prompt.
#[derive(Debug, Clone)]
pub enum Body {
    /// Its text parts.
    Text(Vec<Arc<str>>),
    /// Its tokens.
    Tokens(Vec<u32>),
}

/// Requests in the order they are sent.
#[derive(Debug, Clone)]
pub struct Trace {
    /// What it is called in tables.
    pub name: String,
    /// The requests.
    pub requests: Vec<Request>,
}

impl Trace {
    fn new(name: String, mut requests: Vec<Request>) -> Self {
        requests.sort_by_key(|request| request.at);
        Self { name, requests }
    }
}

/// The same words for the same seed; about six letters each.
fn text(dice: &mut Dice, words: usize) -> Arc<str> {
    let mut voice = Voice::answering(&[dice.below(1 << 31) as u32, dice.below(1 << 31) as u32]);
    let mut text = String::new();
    for _ in 0..words {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(voice.word());
    }
    text.into()
}

/// A conversation in the making: what was said, and when the next thing is.
#[derive(Debug, Clone)]
struct Talk {
    conversation: usize,
    parts: Vec<Arc<str>>,
    at: u64,
    opens: bool,
}

impl Talk {
    fn says(&mut self, dice: &mut Dice, words: usize) {
        self.parts.push(text(dice, words));
    }

    /// Asks with all that was said, is answered in so many words, and waits.
    fn asks(&mut self, dice: &mut Dice, words: usize, pause: u64) -> Request {
        let answer = text(dice, words);
        let prompt = Body::Text(self.parts.clone());
        self.parts.push(Arc::clone(&answer));
        let (at, opens) = (self.at, std::mem::take(&mut self.opens));
        self.at += pause;
        let conversation = self.conversation;
        Request { at, conversation, opens, prompt, answer, answer_tokens: words }
    }
}

/// A number between two.
fn between(dice: &mut Dice, least: usize, most: usize) -> usize {
    least + dice.below(most.saturating_sub(least) + 1)
}
