//! The demo on paper.

use std::io::{self, Write};

use super::{Outcome, Stage, Sums, millis};
use crate::player::{Script, Turn};

/// Width of the bars of the summary.
const BAR: usize = 30;

pub(super) fn opening(out: &mut dyn Write, script: &Script) -> io::Result<()> {
    writeln!(
        out,
        "\nPlaying {} conversations of {} turns, each turn sent with its whole history:\n",
        script.conversations, script.turns
    )
}

pub(super) fn turns<'a>(
    out: &mut dyn Write,
    title: &str,
    turns: impl Iterator<Item = &'a Turn>,
) -> io::Result<()> {
    writeln!(out, "\n{title}\n")?;
    writeln!(out, "  turn  key            worker  outcome   cached of prompt tokens  first token")?;
    let mut workers = Letters::default();
    for turn in turns {
        if turn.number == 1 && !workers.known.is_empty() {
            writeln!(out)?;
        }
        write!(
            out,
            "  {:>4}  {:<13}  {:<6}  ",
            turn.number,
            turn.key.as_deref().unwrap_or("-"),
            workers.letter(turn.worker.as_deref()),
        )?;
        match &turn.error {
            Some(error) => writeln!(out, "failed    {error}")?,
            None => answered(out, turn)?,
        }
    }
    writeln!(out)?;
    for (letter, worker) in workers.legend() {
        writeln!(out, "  {letter} = {worker}")?;
    }
    Ok(())
}

fn answered(out: &mut dyn Write, turn: &Turn) -> io::Result<()> {
    let (cached, prompt) = (turn.cached_tokens, turn.prompt_tokens);
    writeln!(
        out,
        "{:<8}  {cached:>5} of {prompt:>5}  {bar} {percent:>3} %  {wait:>8} ms",
        turn.landing.text(),
        bar = bar(cached, prompt, 4),
        percent = percent(cached, prompt),
        wait = turn.first_token.map_or(0, millis),
    )
}

pub(super) fn summary(out: &mut dyn Write, outcome: &Outcome) -> io::Result<()> {
    let (sticky, plain) = (&outcome.sticky, &outcome.plain);
    writeln!(out, "\nWhat it is worth\n")?;
    let cached = |sums: &Sums| (sums.cached_tokens, sums.prompt_tokens);
    shares(out, "prompt tokens cached", [cached(sticky), cached(plain)])?;
    let same = |sums: &Sums| (sums.same_worker, sums.later);
    shares(out, "turns on same worker", [same(sticky), same(plain)])?;
    waits(out, [sticky, plain])?;
    closing(out, sticky, plain)?;
    for (name, sums) in [("with stickiness", sticky), ("without", plain)] {
        if sums.errors > 0 {
            writeln!(out, "  {} of {} turns failed {name}.", sums.errors, sums.turns)?;
        }
    }
    Ok(())
}

fn shares(
    out: &mut dyn Write,
    title: &str,
    [with, without]: [(usize, usize); 2],
) -> io::Result<()> {
    for (title, name, (part, whole)) in [(title, "sticky", with), ("", "without", without)] {
        let bar = bar(part, whole, BAR);
        writeln!(out, "  {title:<22} {name:<8} {bar} {:>4} %", percent(part, whole))?;
    }
    writeln!(out)
}

fn waits(out: &mut dyn Write, sums: [&Sums; 2]) -> io::Result<()> {
    let [with, without] = sums.map(|sums| sums.first_token.map_or(0, millis));
    let longest = with.max(without);
    let size = |wait| usize::try_from(wait).unwrap_or(usize::MAX);
    for (title, name, wait) in
        [("mean to first token", "sticky", with), ("  (from turn 2 on)", "without", without)]
    {
        let bar = bar(size(wait), size(longest), BAR);
        writeln!(out, "  {title:<22} {name:<8} {bar} {wait:>4} ms")?;
    }
    writeln!(out)
}

fn closing(out: &mut dyn Write, sticky: &Sums, plain: &Sums) -> io::Result<()> {
    writeln!(
        out,
        "  The engines read {} prompt tokens with stickiness and {} without.",
        sticky.read_tokens(),
        plain.read_tokens(),
    )
}

pub(super) fn try_it(out: &mut dyn Write, stage: &Stage<'_>) -> io::Result<()> {
    writeln!(out, "\nTry it: two turns of one conversation; both name the same worker.\n")?;
    for (turn, question) in [(1, "Hello"), (2, "Hello again")] {
        writeln!(
            out,
            "  curl -s -D - -o /dev/null {url}/v1/chat/completions \\\n    \
             -H 'content-type: application/json' \\\n    \
             -d '{{\"model\":\"{model}\",\"rid\":\"mine_t{turn}\",\
             \"messages\":[{{\"role\":\"user\",\"content\":\"{question}\"}}]}}' \\\n    \
             | grep -i x-smg-routed-worker-id\n",
            url = stage.sticky_url.trim_end_matches('/'),
            model = stage.model,
        )?;
    }
    Ok(())
}

/// `part` of `whole` as a bar `width` wide.
pub(super) fn bar(part: usize, whole: usize, width: usize) -> String {
    let full = rounded(part, whole, width).min(width);
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

fn percent(part: usize, whole: usize) -> usize {
    rounded(part, whole, 100)
}

/// `part / whole * scale`, to the nearest.
fn rounded(part: usize, whole: usize, scale: usize) -> usize {
    let twice = part.saturating_mul(scale).saturating_mul(2);
    twice.saturating_add(whole).checked_div(whole.saturating_mul(2)).unwrap_or(0)
}

/// Short names for workers, in the order they are met.
#[derive(Default)]
struct Letters<'a> {
    known: Vec<&'a str>,
}

impl<'a> Letters<'a> {
    fn letter(&mut self, worker: Option<&'a str>) -> String {
        let Some(worker) = worker else {
            return "-".to_owned();
        };
        let met = self.known.iter().position(|known| *known == worker);
        let at = met.unwrap_or_else(|| {
            self.known.push(worker);
            self.known.len() - 1
        });
        name(at)
    }

    fn legend(&self) -> impl Iterator<Item = (String, &'a str)> {
        self.known.iter().enumerate().map(|(at, worker)| (name(at), *worker))
    }
}

/// A, B, … Z, then numbers.
fn name(at: usize) -> String {
    match u8::try_from(at) {
        Ok(at @ 0..26) => char::from(b'A' + at).to_string(),
        _ => format!("#{}", at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_percents_are_rounded_and_never_overflow() {
        assert_eq!(bar(1, 2, 4), "██░░");
        assert_eq!(bar(0, 0, 4), "░░░░");
        assert_eq!(bar(9, 2, 4), "████");
        assert_eq!((percent(2, 3), percent(1, 3), percent(5, 5)), (67, 33, 100));
    }

    #[test]
    fn workers_get_letters_in_the_order_they_are_met() {
        let mut letters = Letters::default();
        let names = ["x", "y", "x"].map(|worker| letters.letter(Some(worker)));
        assert_eq!(names, ["A", "B", "A"]);
        assert_eq!(letters.letter(None), "-");
        assert_eq!(letters.legend().last(), Some(("B".to_owned(), "y")));
        assert_eq!(name(26), "#27");
    }
}
