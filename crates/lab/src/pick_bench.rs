//! How long `cache_aware` takes: a prompt of 128 KiB looked up, and a pick among 1,000 workers.

use std::hint::black_box;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use smg_decide::fleet::load::Report;
use smg_decide::fleet::{Leg, Worker, WorkerId};
use smg_decide::place::cache_aware::Params;
use smg_decide::place::{Ask, CacheAware, Candidates, Policy, Prompt};

use crate::dice::Dice;

/// Few, so that some of the means fall between what else the machine does.
const ROUNDS: u32 = 200;

/// Measures and prints.
///
/// # Errors
/// When the figures cannot be written.
pub fn print(out: &mut impl Write) -> io::Result<()> {
    let mut dice = Dice::new(1);
    let mut letters = |length: usize| -> String {
        (0..length).map(|_| char::from(b'a' + dice.below(26) as u8)).collect()
    };
    let long = letters(128 * 1024);
    let four = fleet(4);
    let policy = CacheAware::new(Params::default());
    writeln!(out, "128 KiB, never seen, 4 workers: {:?}", propose(&policy, &four, &long))?;
    let commit = time(|| {
        let parts = [&*long];
        let ask = Ask { prompt: Prompt::Text(&parts), ..Ask::default() };
        four.first().map(|worker| policy.commit(&ask, worker))
    });
    writeln!(out, "128 KiB, committed alone: {commit:?}")?;
    let longer = format!("{long} and more");
    writeln!(out, "128 KiB, known, 4 workers: {:?}", propose(&policy, &four, &longer))?;
    writeln!(out, "128 KiB, proposed and committed: {:?}", both(&policy, &four, &longer))?;

    let many = fleet(1000);
    let policy = CacheAware::new(Params::default());
    let new = letters(1000);
    writeln!(out, "1 KB, never seen, 1,000 workers: {:?}", propose(&policy, &many, &new))?;
    for worker in &many {
        worker.load().set_report(Some(Report { token_usage: 0.4, ..Report::default() }));
    }
    writeln!(out, "the same, all report loads: {:?}", propose(&policy, &many, &new))?;
    for (busy, worker) in (0..).zip(&many) {
        let (waiting, throughput) = (busy % 7, 1000.0);
        let report = Report { waiting, throughput, token_usage: 0.4, ..Report::default() };
        worker.load().set_report(Some(report));
        worker.begin(None);
    }
    writeln!(out, "the same, all are busy: {:?}", propose(&policy, &many, &new))?;
    let system = letters(6000);
    for worker in &many {
        let text = format!("{system} {}", letters(300));
        let parts = [&*text];
        policy.commit(&Ask { prompt: Prompt::Text(&parts), ..Ask::default() }, worker);
    }
    let begun = format!("{system} {new}");
    writeln!(out, "7 KB, begins as 1,000 others: {:?}", propose(&policy, &many, &begun))?;
    if let Some(worker) = many.get(700) {
        let parts = [&*begun];
        policy.commit(&Ask { prompt: Prompt::Text(&parts), ..Ask::default() }, worker);
    }
    let on = format!("{begun} and more");
    writeln!(out, "7 KB, goes on on one of 1,000: {:?}", propose(&policy, &many, &on))
}

fn fleet(count: u32) -> Vec<Arc<Worker>> {
    (0..count)
        .map(|at| {
            let worker = Worker::new(WorkerId(at), format!("http://w{at}"), Leg::Regular);
            worker.set_healthy(true);
            Arc::new(worker)
        })
        .collect()
}

fn propose(policy: &CacheAware, workers: &[Arc<Worker>], text: &str) -> Duration {
    let mut dice = SmallRng::seed_from_u64(1);
    time(|| {
        let parts = [text];
        let ask = Ask { prompt: Prompt::Text(&parts), ..Ask::default() };
        policy.propose(&ask, &Candidates::new(workers, &[]), &mut dice)
    })
}

fn both(policy: &CacheAware, workers: &[Arc<Worker>], text: &str) -> Duration {
    let mut dice = SmallRng::seed_from_u64(1);
    time(|| {
        let parts = [text];
        let ask = Ask { prompt: Prompt::Text(&parts), ..Ask::default() };
        let at = policy.propose(&ask, &Candidates::new(workers, &[]), &mut dice).at?;
        Some(policy.commit(&ask, workers.get(at)?))
    })
}

/// The best of several means: what it takes when nothing else runs.
fn time<T>(mut act: impl FnMut() -> T) -> Duration {
    let mean = || {
        let began = Instant::now();
        for _ in 0..ROUNDS {
            black_box(act());
        }
        began.elapsed() / ROUNDS
    };
    std::iter::repeat_with(mean).take(70).min().unwrap_or_default()
}
