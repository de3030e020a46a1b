//! Plays conversations against any OpenAI-compatible address and writes down, turn by turn, where
//! each landed and what the cache knew.
//!
//! A turn resends the whole history, as chat clients do. All conversations take turn one, then all
//! take turn two; the order is shuffled for every turn, so that a balancer that merely alternates
//! cannot look sticky by accident.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::dice::Dice;
use client::Base;
use conversation::Conversation;

mod client;
mod conversation;

/// How a request says which conversation it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Naming {
    /// Not at all.
    Nameless,
    /// By `rid`, the key with `_t` and the turn's number behind it.
    Rid,
    /// By a header of this name, which holds the key.
    Header(String),
}

/// What is played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The model asked for.
    pub model: String,
    /// How many conversations there are.
    pub conversations: usize,
    /// How many turns each of them has.
    pub turns: usize,
    /// How many of them speak at once.
    pub concurrency: usize,
    /// How a conversation is named to the gateway.
    pub naming: Naming,
    /// Decides every text and the order of play. Engines keep what they have read, so a seed that
    /// was played before measures the run before.
    pub seed: u64,
    /// Words of the system prompt that all conversations share.
    pub system_words: usize,
    /// Words of a conversation's first question.
    pub first_words: usize,
    /// Words of every later question.
    pub turn_words: usize,
    /// The longest answer asked for.
    pub reply_tokens: usize,
    /// How long one answer may take altogether.
    pub patience: Duration,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            model: "lab".to_owned(),
            conversations: 16,
            turns: 6,
            concurrency: 8,
            naming: Naming::Rid,
            seed: 1,
            system_words: 40,
            first_words: 600,
            turn_words: 60,
            reply_tokens: 24,
            patience: Duration::from_secs(60),
        }
    }
}

/// Where a turn landed, seen from the turn before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// A first turn: any worker would do.
    New,
    /// On the worker of the turn before.
    Pinned,
    /// On another worker.
    Moved,
    /// One of the two answers did not name its worker.
    Unknown,
}

impl Landing {
    /// The word for it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Pinned => "pinned",
            Self::Moved => "moved",
            Self::Unknown => "unknown",
        }
    }
}

/// What is known of one turn after it was played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Which conversation, from 0.
    pub conversation: usize,
    /// Which of its turns, from 1.
    pub number: usize,
    /// The conversation's key, if it was sent.
    pub key: Option<String>,
    /// What the answer said about its worker.
    pub worker: Option<String>,
    /// Where that is, seen from the turn before.
    pub landing: Landing,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that came from the engine's cache.
    pub cached_tokens: usize,
    /// From the start of the request to the first text of the answer.
    pub first_token: Option<Duration>,
    /// Why the turn failed.
    pub error: Option<String>,
}

/// Plays `script` against the gateway or engine at `base`, such as `http://127.0.0.1:30000`.
/// `watch` sees every turn when it ends; the result is ordered by conversation and turn.
///
/// # Errors
/// When `base` is no plain HTTP address. A turn that fails is a turn with an error in it.
pub async fn play(
    base: &str,
    script: &Script,
    watch: &mut (dyn FnMut(&Turn) + Send),
) -> io::Result<Vec<Turn>> {
    let base = Arc::new(Base::parse(base)?);
    let script = Arc::new(script.clone());
    let mut dice = Dice::new(script.seed);
    let mut waiting: Vec<_> = (0..script.conversations)
        .map(|index| Conversation::new(index, Arc::clone(&script)))
        .collect();
    let mut played = Vec::with_capacity(script.conversations * script.turns);
    for _ in 0..script.turns {
        dice.shuffle(&mut waiting);
        let mut round = Round::default();
        waiting = round.play(&base, &script, waiting, watch).await;
        played.append(&mut round.turns);
    }
    played.sort_by_key(|turn| (turn.conversation, turn.number));
    Ok(played)
}

/// One turn of every conversation.
#[derive(Default)]
struct Round {
    turns: Vec<Turn>,
    after: Vec<Conversation>,
}

impl Round {
    async fn play(
        &mut self,
        base: &Arc<Base>,
        script: &Script,
        conversations: Vec<Conversation>,
        watch: &mut (dyn FnMut(&Turn) + Send),
    ) -> Vec<Conversation> {
        let seats = Arc::new(Semaphore::new(script.concurrency.max(1)));
        let mut speaking = JoinSet::new();
        for mut conversation in conversations {
            // Taken before the task starts, so that the shuffled order is the order of sending.
            let seat = Arc::clone(&seats).acquire_owned().await.ok();
            let base = Arc::clone(base);
            speaking.spawn(async move {
                let turn = conversation.take_turn(&base).await;
                drop(seat);
                (conversation, turn)
            });
            while let Some(ended) = speaking.try_join_next() {
                self.note(ended.ok(), watch);
            }
        }
        while let Some(ended) = speaking.join_next().await {
            self.note(ended.ok(), watch);
        }
        // Tasks end in the order of the network; only the seed may decide the next shuffle.
        self.after.sort_by_key(Conversation::index);
        std::mem::take(&mut self.after)
    }

    fn note(&mut self, ended: Option<(Conversation, Turn)>, watch: &mut (dyn FnMut(&Turn) + Send)) {
        if let Some((conversation, turn)) = ended {
            watch(&turn);
            self.turns.push(turn);
            self.after.push(conversation);
        }
    }
}
