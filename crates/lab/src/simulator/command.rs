//! `lab simulate`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use super::{Fault, Plan, STEPS, Sums};

/// Flags of the simulator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How many seeds, from 0.
    #[arg(long, default_value_t = 256)]
    seeds: u64,
    /// Steps of each seed.
    #[arg(long, default_value_t = STEPS)]
    steps: usize,
    /// Play this seed only.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Break a rule on purpose, to see it noticed.
    #[arg(long, value_enum)]
    fault: Option<Fault>,
}

/// Plays the seeds, up to the first that fails.
#[must_use]
pub fn main(args: &Args) -> ExitCode {
    match run(args, &mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        // Nobody reads on; the code still tells.
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

/// Whether all seeds passed.
fn run(args: &Args, out: &mut impl Write) -> io::Result<bool> {
    let began = Instant::now();
    let plan = Plan::new(args.steps, args.fault);
    let seeds = args.seed.map_or(0..args.seeds, |seed| seed..seed.saturating_add(1));
    let count = seeds.end - seeds.start;
    let mut sums = Sums::default();
    for (done, seed) in (1..).zip(seeds) {
        match plan.play(seed) {
            Ok(more) => sums.add(&more),
            Err(failure) => {
                writeln!(out, "{failure}")?;
                return Ok(false);
            }
        }
        if done % (count / 10).max(1000) == 0 && done < count {
            writeln!(out, "{done} of {count} seeds")?;
            out.flush()?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    writeln!(out, "{count} seeds hold: {sums}; {seconds:.1} s")?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(args: &Args) -> (bool, String) {
        let mut out = Vec::new();
        let passed = run(args, &mut out).unwrap();
        (passed, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_run_ends_with_one_line_and_a_failure_with_the_command_that_replays_it() {
        let args = Args { seeds: 3, steps: 50, seed: None, fault: None };
        let (passed, text) = said(&args);
        assert!(passed && text.starts_with("3 seeds hold: 150 steps, "), "{text}");
        assert_eq!(text.lines().count(), 1);

        let broken = Args { seeds: 256, fault: Some(Fault::LateSweep), ..args };
        let (passed, text) = said(&broken);
        let again = text.lines().last().unwrap();
        let (_, seed) =
            again.split_once("again: cargo run -p smg-lab --release -- simulate --seed ").unwrap();
        let (seed, rest) = seed.split_once(' ').unwrap();
        assert_eq!((passed, rest), (false, "--steps 50 --fault late-sweep"));
        let once = Args { seed: seed.parse().ok(), ..broken };
        assert_eq!(said(&once), (false, text.clone()));
    }
}
