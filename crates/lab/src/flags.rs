//! The flags as typed, and what they mean.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use smg_lab::bench;
use smg_lab::engine::Profile;
use smg_lab::player::{Naming, Script};
use smg_lab::prefix_study::fleet::Engines;
use smg_lab::simulator;

/// Tools to try a gateway without a GPU.
#[derive(Debug, Parser)]
#[command(name = "lab", version)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one simulated engine; prints "ready" and its URL when it answers.
    Engine(EngineFlags),
    /// Play conversations against an OpenAI-compatible address and print what the caches saved.
    Play(PlayFlags),
    /// Compare the prefix index of cache_aware with an exact character tree, over generated traces.
    PrefixStudy(StudyFlags),
    /// Time what cache_aware does for one request.
    PickBench,
    /// Measure CPU and memory of smg beside a peer and HAProxy on the same work.
    Bench(bench::Args),
    /// Flood smg with large uploads under a budget, and see what it holds and what small requests
    /// make of it.
    Flood(bench::FloodArgs),
    /// Bring a thousand slow streams and ten thousand idle clients before smg, and see that it stays
    /// alive and lets go of them.
    Crowd(bench::CrowdArgs),
    /// Kill, stop and flood engines behind smg from a seed, and see that it keeps its word.
    Soak(bench::SoakArgs),
    /// Kill one of four engines, and see what the conversations of the other three notice.
    KillOne(bench::KillOneArgs),
    /// Measure what a warm key costs whose pin is shared in a Redis, beside one in memory.
    SharedPins(bench::SharedPinsArgs),
    /// Measure what a pin takes in memory, and how long a snapshot takes.
    Pins(PinsFlags),
    /// The bench's mock worker; the bench starts it as a process of its own.
    #[command(hide = true)]
    BenchWorker(bench::WorkerArgs),
    /// Play the decision core from seeds beside a model of the document; stops where they differ.
    Simulate(simulator::Args),
}

#[derive(Debug, Args)]
pub(crate) struct StudyFlags {
    /// A file in the Mooncake format to study instead of the generated traces.
    #[arg(long)]
    pub(crate) mooncake: Option<PathBuf>,
    /// How many engines.
    #[arg(long, default_value_t = Engines::default().workers)]
    workers: usize,
    /// Blocks of 16 tokens in the cache of each.
    #[arg(long, default_value_t = Engines::default().blocks)]
    blocks: usize,
}

impl StudyFlags {
    pub(crate) fn engines(&self) -> Engines {
        Engines { workers: self.workers, blocks: self.blocks, ..Engines::default() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct EngineFlags {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// The model's name.
    #[arg(long, default_value_t = Profile::default().model)]
    model: String,
    /// Tokens in one cache block.
    #[arg(long, default_value_t = Profile::default().block_tokens)]
    block_tokens: usize,
    /// Blocks in the cache.
    #[arg(long, default_value_t = Profile::default().blocks)]
    blocks: usize,
    /// Prompt tokens read per second.
    #[arg(long, default_value_t = Profile::default().prefill_rate)]
    prefill_rate: f64,
    /// Tokens written per second, for each request.
    #[arg(long, default_value_t = Profile::default().decode_rate)]
    decode_rate: f64,
    /// Requests that run at once.
    #[arg(long, default_value_t = Profile::default().slots)]
    slots: usize,
    /// Tokens of an answer that the request does not bound.
    #[arg(long, default_value_t = Profile::default().reply_tokens)]
    reply_tokens: usize,
    /// The longest prompt, in tokens.
    #[arg(long, default_value_t = Profile::default().context_tokens)]
    context_tokens: usize,
    /// End when standard input closes.
    #[arg(long, hide = true)]
    pub(crate) attached: bool,
    /// Stretches every wait; 0 answers at once.
    #[arg(long, default_value_t = Profile::default().pace)]
    pace: f64,
}

impl EngineFlags {
    pub(crate) fn profile(self) -> Profile {
        Profile {
            model: self.model,
            block_tokens: self.block_tokens,
            blocks: self.blocks,
            prefill_rate: self.prefill_rate,
            decode_rate: self.decode_rate,
            slots: self.slots,
            reply_tokens: self.reply_tokens,
            context_tokens: self.context_tokens,
            pace: self.pace,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Key {
    None,
    Rid,
    Header,
}

#[derive(Debug, Args)]
pub(crate) struct PinsFlags {
    /// How many pins.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) pins: u32,
    /// Where the snapshot is written for the while.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct PlayFlags {
    /// Where to play, such as http://127.0.0.1:30000.
    pub(crate) url: String,
    /// The model asked for.
    #[arg(long, default_value_t = Script::default().model)]
    model: String,
    /// How a conversation is named.
    #[arg(long, value_enum, default_value = "rid")]
    key: Key,
    /// The header for `--key header`.
    #[arg(long, default_value = "x-smg-routing-key")]
    header: String,
    /// How many conversations.
    #[arg(long, default_value_t = Script::default().conversations)]
    conversations: usize,
    /// How many turns each.
    #[arg(long, default_value_t = Script::default().turns)]
    turns: usize,
    /// How many speak at once.
    #[arg(long, default_value_t = Script::default().concurrency)]
    concurrency: usize,
    /// Decides the texts; use a new one for every run on the same engines.
    #[arg(long, default_value_t = Script::default().seed)]
    seed: u64,
    /// Words of the system prompt that all conversations share.
    #[arg(long, default_value_t = Script::default().system_words)]
    system_words: usize,
    /// Words of a conversation's first question.
    #[arg(long, default_value_t = Script::default().first_words)]
    first_words: usize,
    /// Words of every later question.
    #[arg(long, default_value_t = Script::default().turn_words)]
    turn_words: usize,
    /// The longest answer asked for, in tokens.
    #[arg(long, default_value_t = Script::default().reply_tokens)]
    reply_tokens: usize,
}

impl PlayFlags {
    pub(crate) fn script(&self) -> Script {
        Script {
            model: self.model.clone(),
            conversations: self.conversations,
            turns: self.turns,
            concurrency: self.concurrency,
            seed: self.seed,
            system_words: self.system_words,
            first_words: self.first_words,
            turn_words: self.turn_words,
            reply_tokens: self.reply_tokens,
            naming: match self.key {
                Key::None => Naming::Nameless,
                Key::Rid => Naming::Rid,
                Key::Header => Naming::Header(self.header.clone()),
            },
            ..Script::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_sound() {
        Flags::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_profiles_and_the_scripts_own() {
        let parse = |words: &[&str]| Flags::parse_from(words).command;
        let Command::Engine(engine) = parse(&["lab", "engine"]) else {
            panic!("not an engine");
        };
        assert_eq!(engine.profile(), Profile::default());
        let Command::Play(play) = parse(&["lab", "play", "http://a"]) else {
            panic!("not a play");
        };
        assert_eq!(play.script(), Script::default());
    }
}
