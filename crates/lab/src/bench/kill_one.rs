//! One engine of four is killed under the load of sticky conversations: what those on the other three notice. The time
//! to the first token of their turns, before and after.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::contender::{Contender, Programs, Routing, Started};
use super::engines::Engines;
use super::gauges::until_in_service;
use super::payload::MODEL;
use super::{exit_code, raise_file_limit};
use crate::player::{Landing, Naming, Script, Turn, play};

/// Engines behind the gateway.
const ENGINES: usize = 4;

/// The one that is killed.
const VICTIM: usize = 0;

/// What the 99th percentile may grow by.
const LIMIT: f64 = 1.5;

/// The conversations.
#[derive(Clone, Debug, clap::Args)]
pub struct KillOneArgs {
    /// How many conversations there are.
    #[arg(long, default_value_t = 48)]
    conversations: usize,
    /// Turns of each; the engine is killed in the middle of them.
    #[arg(long, default_value_t = 60)]
    turns: usize,
    /// Prompt tokens an engine reads per second. The slower, the longer those that lost their engine keep the others'
    /// engines busy with reading their histories again.
    #[arg(long, default_value_t = 40_000)]
    prefill_rate: u32,
    /// How many conversations speak at once; a quarter of them if this is not given.
    #[arg(long)]
    speaking: Option<usize>,
    /// Cache blocks of an engine. By default there is room for all conversations, so that no engine forgets any
    /// because another died.
    #[arg(long, default_value_t = 65_536)]
    blocks: u32,
    /// Kill nobody: what the same load does by itself, to compare with.
    #[arg(long)]
    spare: bool,
    /// Decides the texts and the order of play.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// An smg binary to try instead of the one cargo builds here.
    #[arg(long)]
    gateway: Option<PathBuf>,
}

/// Kills one of four, or spares it. Fails if the others' conversations moved, failed, or became too slow.
pub fn kill_one_main(args: &KillOneArgs) -> ExitCode {
    exit_code(run(args))
}

async fn run(args: &KillOneArgs) -> Result<bool, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = Programs::find(&root, &[Contender::Ours], args.gateway.as_deref())?;
    raise_file_limit();
    let rate = args.prefill_rate.to_string();
    let blocks = args.blocks.to_string();
    let profile = ["--blocks", &*blocks, "--prefill-rate", &rate];
    let mut engines = Engines::start(ENGINES, &profile)?;
    let victim = engines.url(VICTIM);
    let Started { mut group, address, metrics } =
        programs.start(Contender::Ours, Routing::Sticky, &engines.addresses(), &[])?;
    until_in_service(metrics, ENGINES).await?;
    let script = Script {
        model: MODEL.to_owned(),
        conversations: args.conversations,
        turns: args.turns,
        concurrency: args.speaking.unwrap_or(args.conversations / 4),
        naming: Naming::Header("x-smg-routing-key".to_owned()),
        seed: args.seed,
        first_words: 60,
        turn_words: 10,
        ..Script::default()
    };
    // In the middle of a round, while others are speaking.
    let round = args.turns / 2 + 1;
    let mut left = args.conversations * (round - 1) + args.conversations / 2;
    let mut watch = |_: &Turn| {
        left = left.saturating_sub(1);
        if left == 0 && !args.spare {
            engines.kill(VICTIM);
        }
    };
    let turns = play(&format!("http://{address}"), &script, &mut watch)
        .await
        .map_err(|error| format!("cannot play: {error}"))?;
    group.check_alive()?;
    let seen = Seen::of(&turns, round, &victim);
    let _ = io::stdout().write_all(seen.told().as_bytes());
    Ok(seen.good())
}

/// What the conversations noticed.
#[derive(Debug, Default)]
struct Seen {
    /// Waits of untouched conversations for their first token, ascending.
    before: Vec<Duration>,
    after: Vec<Duration>,
    untouched: usize,
    touched: usize,
    /// Turns of untouched conversations that failed or landed elsewhere.
    hurt: usize,
    /// Turns of the others that failed: streams that had begun on the engine that died.
    lost: usize,
}

impl Seen {
    /// Of turns in the order of conversations; the engine `victim` died in `round`.
    fn of(turns: &[Turn], round: usize, victim: &str) -> Self {
        let on_victim =
            |turn: &&Turn| turn.number < round && turn.worker.as_deref() == Some(victim);
        let touched: HashSet<usize> =
            turns.iter().filter(on_victim).map(|turn| turn.conversation).collect();
        let all: HashSet<usize> = turns.iter().map(|turn| turn.conversation).collect();
        let mut seen = Self {
            touched: touched.len(),
            untouched: all.len() - touched.len(),
            ..Self::default()
        };
        // A first turn reads a system prompt, which is not what is compared.
        for turn in turns.iter().filter(|turn| turn.number > 1) {
            if touched.contains(&turn.conversation) {
                seen.lost += usize::from(turn.error.is_some());
                continue;
            }
            seen.hurt += usize::from(turn.error.is_some() || turn.landing != Landing::Pinned);
            let waits = if turn.number < round { &mut seen.before } else { &mut seen.after };
            waits.extend(turn.first_token);
        }
        seen.before.sort_unstable();
        seen.after.sort_unstable();
        seen
    }

    fn growth(&self) -> f64 {
        let [before, after] =
            [&self.before, &self.after].map(|waits| percentile(waits, 99).as_secs_f64());
        after / before
    }

    fn good(&self) -> bool {
        self.hurt == 0 && self.growth() <= LIMIT
    }

    fn told(&self) -> String {
        let row = |name: &str, waits: &[Duration]| {
            let [half, most] = [50, 99].map(|share| percentile(waits, share).as_secs_f64() * 1e3);
            format!("{name:8}{:7} turns, p50 {half:6.1} ms, p99 {most:6.1} ms\n", waits.len())
        };
        let Self { untouched, touched, hurt, lost, .. } = self;
        format!(
            "time to the first token of {untouched} untouched conversations\n{}{}\
             p99 after / before {:.2}, at most {LIMIT}\n\
             {hurt} of their turns failed or moved; {lost} turns of the other {touched} were lost with the engine\n",
            row("before", &self.before),
            row("after", &self.after),
            self.growth()
        )
    }
}

fn percentile(sorted: &[Duration], share: usize) -> Duration {
    let at = (sorted.len() * share / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(conversation: usize, number: usize, worker: &str, millis: u64) -> Turn {
        Turn {
            conversation,
            number,
            key: None,
            worker: Some(worker.to_owned()),
            landing: if number == 1 { Landing::New } else { Landing::Pinned },
            prompt_tokens: 1,
            cached_tokens: 0,
            first_token: Some(Duration::from_millis(millis)),
            error: None,
        }
    }

    #[test]
    fn only_those_elsewhere_are_compared() {
        let mut turns = vec![
            turn(0, 1, "dead", 1),
            turn(0, 2, "dead", 1),
            turn(0, 3, "b", 900),
            turn(1, 1, "b", 500),
            turn(1, 2, "b", 10),
            turn(1, 3, "b", 14),
        ];
        let seen = Seen::of(&turns, 3, "dead");
        assert_eq!((seen.untouched, seen.touched, seen.hurt), (1, 1, 0));
        assert!((seen.growth() - 1.4).abs() < 1e-9 && seen.good(), "{}", seen.told());
        turns[5].landing = Landing::Moved;
        assert!(!Seen::of(&turns, 3, "dead").good());
        turns[5] = turn(1, 3, "b", 16);
        assert!(!Seen::of(&turns, 3, "dead").good());
    }
}
