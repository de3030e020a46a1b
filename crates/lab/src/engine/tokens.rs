//! A tokenizer and a chat template that need no model: what matters here is only that equal text
//! gives equal tokens and that a conversation grows at its end.

use crate::dice::Dice;

/// Cuts text into words and single marks; white space only separates.
#[must_use]
pub fn of_text(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    for piece in text.split_whitespace() {
        let mut word = 0;
        for (at, mark) in piece.char_indices() {
            let after = at + mark.len_utf8();
            if !(mark.is_alphanumeric() || mark == '_') {
                tokens.extend(piece.get(word..at).filter(|word| !word.is_empty()).map(hash));
                tokens.extend(piece.get(at..after).map(hash));
                word = after;
            }
        }
        tokens.extend(piece.get(word..).filter(|word| !word.is_empty()).map(hash));
    }
    tokens
}

/// The token that opens a message. Text cannot spell it: its brackets would be tokens of their own.
#[must_use]
pub fn opening(role: &str) -> u32 {
    hash(&format!("<|{role}|>"))
}

/// The token that closes a message, and with which the model ends an answer.
#[must_use]
pub fn closing() -> u32 {
    hash("<|end|>")
}

/// A prompt in the making: the messages in order, and at last the invitation to answer.
///
/// An answer of the engine ends with [`closing`], so a later turn that repeats prompt and answer
/// renders to the very tokens the engine already computed, and goes on from there.
#[derive(Debug, Default)]
pub struct Template {
    tokens: Vec<u32>,
}

impl Template {
    /// Adds a whole message.
    pub fn message(&mut self, role: &str, text: &str) {
        self.tokens.push(opening(role));
        self.tokens.extend(of_text(text));
        self.tokens.push(closing());
    }

    /// Ends the prompt where the assistant speaks next.
    #[must_use]
    pub fn invite(mut self) -> Vec<u32> {
        self.tokens.push(opening("assistant"));
        self.tokens
    }
}

/// Speaks the answer to a prompt, word by word. The prompt alone decides what is said.
#[derive(Debug)]
pub struct Voice(Dice);

impl Voice {
    /// The voice that answers `prompt`.
    #[must_use]
    pub fn answering(prompt: &[u32]) -> Self {
        let seed = prompt.iter().fold(0xcbf2_9ce4_8422_2325, |seed: u64, token| {
            (seed ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(Dice::new(seed))
    }

    /// The next word: one token, whatever stands around it.
    pub fn word(&mut self) -> &'static str {
        self.0.pick(WORDS)
    }
}

/// The token of one word.
#[must_use]
pub fn of_word(word: &str) -> u32 {
    hash(word)
}

fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

const WORDS: &[&str] = &[
    "the",
    "a",
    "river",
    "stone",
    "light",
    "garden",
    "winter",
    "letter",
    "quiet",
    "golden",
    "walks",
    "keeps",
    "finds",
    "under",
    "over",
    "between",
    "morning",
    "harbour",
    "window",
    "paper",
    "slow",
    "bright",
    "remembers",
    "answers",
    "carries",
    "bridge",
    "forest",
    "number",
    "engine",
    "story",
    "and",
    "of",
    "with",
    "toward",
    "salt",
    "copper",
    "market",
    "cloud",
    "signal",
    "thread",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_marks_are_tokens_and_spaces_are_not() {
        let two = of_text("one, two");
        assert_eq!(two.len(), 3);
        assert_eq!(two, of_text("  one ,\n two"));
        assert_eq!(of_text("naïve_x…").len(), 2);
        assert_eq!(of_text(""), Vec::<u32>::new());
    }

    #[test]
    fn text_cannot_forge_a_marker() {
        assert!(!of_text("<|user|>").contains(&opening("user")));
        assert!(!of_text("<|end|>").contains(&closing()));
    }

    #[test]
    fn the_next_turn_begins_with_this_turn_and_its_answer() {
        let mut first = Template::default();
        first.message("system", "Be brief.");
        first.message("user", "Hello there");
        let mut known = first.invite();
        let mut voice = Voice::answering(&known);
        let words: Vec<_> = (0..24).map(|_| voice.word()).collect();
        known.extend(words.iter().map(|word| of_word(word)));
        known.push(closing());

        let mut second = Template::default();
        second.message("system", "Be brief.");
        second.message("user", "Hello there");
        second.message("assistant", &words.join(" "));
        second.message("user", "Go on");
        let prompt = second.invite();
        assert!(prompt.starts_with(&known));
        assert!(prompt.len() > known.len());
    }

    #[test]
    fn every_word_of_the_voice_is_one_token() {
        for word in WORDS {
            assert_eq!(of_text(word), [of_word(word)]);
        }
    }
}
