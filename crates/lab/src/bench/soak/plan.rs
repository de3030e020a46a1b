//! What happens to the engines, and when: drawn from a seed before anything is started.

use std::time::Duration;

use crate::dice::Dice;

/// Engines behind the gateway.
pub(crate) const ENGINES: usize = 4;

/// How many may be dead, stopped or on their way back at once: whatever happens, somebody could answer.
const DISTURBED: usize = 2;

/// How long an engine that is back may take to be trusted again; until then it counts as disturbed.
const RECOVERY: Duration = Duration::from_secs(4);

/// Something that is done to an engine, by its number, or to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Kill(usize),
    Revive(usize),
    Freeze(usize),
    Thaw(usize),
    Flood,
}

/// An act and its time, from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) act: Act,
}

/// Acts for `length`, in order. Everyone who is killed is revived within it, and whoever is stopped goes on.
pub(crate) fn draw(seed: u64, length: Duration) -> Vec<Step> {
    let mut dice = Dice::new(seed);
    let mut steps = Vec::new();
    let mut busy = [Duration::ZERO; ENGINES];
    let mut now = millis(&mut dice, 200, 800);
    while now < length {
        if dice.below(8) == 0 {
            steps.push(Step { at: now, act: Act::Flood });
        } else {
            strike(&mut dice, &mut busy, (now, length), &mut steps);
        }
        now += millis(&mut dice, 200, 1200);
    }
    // Stable: who is killed and revived at one time is killed first.
    steps.sort_by_key(|step| step.at);
    steps
}

/// Strikes one engine, unless too many are disturbed already or it could not be over in time.
fn strike(
    dice: &mut Dice,
    busy: &mut [Duration; ENGINES],
    (now, length): (Duration, Duration),
    steps: &mut Vec<Step>,
) {
    let engine = dice.below(ENGINES);
    let (kills, lasts) = match dice.below(5) {
        0 => (true, Duration::ZERO),
        1 | 2 => (true, millis(dice, 500, 3000)),
        3 => (false, millis(dice, 300, 1500)),
        // Beyond the gateway's --request-timeout-secs.
        _ => (false, millis(dice, 4500, 6000)),
    };
    let disturbed = busy.iter().filter(|&&until| until > now).count();
    let Some(until) = busy.get_mut(engine).filter(|until| **until <= now) else { return };
    if disturbed >= DISTURBED || now + lasts >= length {
        return;
    }
    *until = now + lasts + RECOVERY;
    let acts = match kills {
        true => [Act::Kill(engine), Act::Revive(engine)],
        false => [Act::Freeze(engine), Act::Thaw(engine)],
    };
    steps.extend([now, now + lasts].into_iter().zip(acts).map(|(at, act)| Step { at, act }));
}

fn millis(dice: &mut Dice, from: usize, to: usize) -> Duration {
    Duration::from_millis((from + dice.below(to - from)) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn one_seed_one_plan() {
        let minute = Duration::from_secs(60);
        assert_eq!(draw(7, minute), draw(7, minute));
        assert_ne!(draw(7, minute), draw(8, minute));
        assert!(draw(7, minute).iter().any(|step| step.act == Act::Flood));
    }

    #[test]
    fn somebody_is_well_at_any_time_and_everybody_in_the_end() {
        for seed in 0..200 {
            let mut down = BTreeSet::new();
            for Step { act, .. } in draw(seed, Duration::from_secs(30)) {
                match act {
                    Act::Kill(engine) | Act::Freeze(engine) => assert!(down.insert(engine)),
                    Act::Revive(engine) | Act::Thaw(engine) => assert!(down.remove(&engine)),
                    Act::Flood => {}
                }
                assert!(down.len() <= DISTURBED, "seed {seed}");
            }
            assert!(down.is_empty(), "seed {seed}");
        }
    }
}
