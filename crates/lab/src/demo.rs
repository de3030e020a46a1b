//! The demo: the same conversations through a gateway that keeps each on its engine and through one
//! that does not, and what the engines' caches made of it.
//!
//! Both plays ask for as many words in the same order, but for other words: their seeds differ. So
//! neither finds the other's prompts in a cache, even if both gateways stand before one fleet.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use crate::engine::Profile;
use crate::player::{self, Landing, Script, Turn};
use progress::Progress;

pub use sums::{Sums, by_worker};

mod print;
mod progress;
mod sums;

/// Engines the demo is made for.
pub const ENGINES: usize = 4;

/// Conversations whose turns are shown one by one.
const SHOWN: usize = 2;

/// What the demo plays against.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    /// A gateway that is sticky.
    pub sticky_url: &'a str,
    /// A gateway that is not, or the same one with stickiness off.
    pub plain_url: &'a str,
    /// The model the engines serve.
    pub model: &'a str,
    /// Decides the texts. A fleet that was played on before needs a new one.
    pub seed: u64,
    /// Whether `out` is a terminal, where a line may be written over.
    pub live: bool,
    /// Whether the gateways go on serving, for those who want to try them.
    pub stays: bool,
}

/// What came out, for those who do not read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// With stickiness.
    pub sticky: Sums,
    /// Without.
    pub plain: Sums,
}

/// Engines for the demo: together they can keep all its conversations once, but not each of them
/// every conversation. That is the usual lot of a fleet, and why scattering turns costs so much.
#[must_use]
pub fn profile(model: &str) -> Profile {
    Profile { model: model.to_owned(), blocks: 512, ..Profile::default() }
}

/// What the demo plays.
#[must_use]
pub fn script(model: &str, seed: u64) -> Script {
    Script { model: model.to_owned(), seed, ..Script::default() }
}

/// Plays both, then prints turns, summary and, if the gateways stay, what to try next.
///
/// # Errors
/// When `out` cannot be written to or an address is no HTTP address.
pub async fn play(out: &mut (dyn Write + Send), stage: &Stage<'_>) -> io::Result<Outcome> {
    let script = script(stage.model, stage.seed);
    print::opening(out, &script)?;
    let sticky = act(out, stage, "with stickiness", (stage.sticky_url, &script)).await?;
    let other = Script { seed: stage.seed.wrapping_add(1), ..script.clone() };
    let plain = act(out, stage, "without", (stage.plain_url, &other)).await?;

    let shown = typical(&plain);
    let few = |turn: &&Turn| shown.contains(&turn.conversation);
    print::turns(out, "Turn by turn, with stickiness", sticky.iter().filter(few))?;
    print::turns(out, "The same without", plain.iter().filter(few))?;
    let outcome = Outcome { sticky: Sums::of(&sticky), plain: Sums::of(&plain) };
    print::summary(out, &outcome)?;
    if stage.stays {
        print::try_it(out, stage)?;
    }
    Ok(outcome)
}

async fn act(
    out: &mut (dyn Write + Send),
    stage: &Stage<'_>,
    title: &str,
    (url, script): (&str, &Script),
) -> io::Result<Vec<Turn>> {
    let mut progress = Progress::new(out, title, script, stage.live);
    let turns = player::play(url, script, &mut |turn| progress.note(turn)).await?;
    progress.end()?;
    Ok(turns)
}

/// The conversations that moved about as often as all did on average. A few lucky ones stay on
/// their worker unasked, and shown alone they would tell the wrong story.
fn typical(turns: &[Turn]) -> Vec<usize> {
    let mut moves = BTreeMap::<usize, usize>::new();
    for turn in turns {
        *moves.entry(turn.conversation).or_default() += usize::from(turn.landing == Landing::Moved);
    }
    let (count, all) = (moves.len(), moves.values().sum::<usize>());
    let mut order: Vec<usize> = moves.keys().copied().collect();
    order.sort_by_key(|one| (moves.get(one).copied().unwrap_or(0) * count).abs_diff(all));
    order.truncate(SHOWN);
    order
}

fn millis(time: Duration) -> u128 {
    (time + Duration::from_micros(500)).as_millis()
}
