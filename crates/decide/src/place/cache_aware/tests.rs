//! What the facts and the issue ask for, case by case.

use super::*;
use crate::fleet::load::Report;
use crate::place::Branch;
use crate::place::testing::{dice, fleet};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use std::sync::Arc;

struct Scene {
    workers: Vec<Arc<Worker>>,
    policy: CacheAware,
    dice: SmallRng,
    now: u64,
}

impl Scene {
    fn new(count: u32, params: Params) -> Self {
        Self { workers: fleet(count), policy: CacheAware::new(params), dice: dice(), now: 0 }
    }

    fn of(count: u32) -> Self {
        Self::new(count, Params::default())
    }

    fn propose(&mut self, prompt: Prompt<'_>) -> (Option<usize>, Branch) {
        let ask = Ask { prompt, now: self.now, ..Ask::default() };
        let candidates = Candidates::new(&self.workers, &[]);
        let proposal = self.policy.propose(&ask, &candidates, &mut self.dice);
        (proposal.at, proposal.branch)
    }

    fn place(&mut self, prompt: Prompt<'_>) -> (usize, Branch) {
        let ask = Ask { prompt, now: self.now, ..Ask::default() };
        let candidates = Candidates::new(&self.workers, &[]);
        let proposal = self.policy.propose(&ask, &candidates, &mut self.dice);
        let at = proposal.at.unwrap();
        self.policy.commit(&ask, &self.workers[at]);
        (at, proposal.branch)
    }

    fn say(&mut self, text: &str) -> (usize, Branch) {
        self.place(Prompt::Text(&[text]))
    }

    fn words(&mut self, count: usize) -> String {
        let words: Vec<String> = (0..count)
            .map(|_| format!("{:015x}", self.dice.random_range(0..1_u64 << 60)))
            .collect();
        words.join(" ")
    }
}

#[test]
fn a_prompt_that_goes_on_stays_and_so_does_an_equal_one() {
    for words in [1, 3, 60, 64, 128, 700] {
        let mut scene = Scene::of(5);
        for _ in 0..20 {
            let mut text = scene.words(words);
            let (home, _) = scene.say(&text);
            for _ in 0..6 {
                assert_eq!(scene.say(&text), (home, Branch::TreeMatch), "{words} words again");
                text.push_str(" and more");
                assert_eq!(scene.say(&text), (home, Branch::TreeMatch), "{words} words and more");
            }
        }
    }
}

#[test]
fn different_prompts_spread() {
    let mut scene = Scene::of(4);
    let mut seen = [0; 4];
    for _ in 0..40 {
        let text = scene.words(60);
        let (at, branch) = scene.say(&text);
        assert_eq!(branch, Branch::ExpectedWaitFallback);
        seen[at] += 1;
    }
    assert_eq!(seen, [10; 4]);
}

#[test]
fn the_sixth_of_six_equal_prompts_at_once_goes_over() {
    let rules = Rules { abs: 2, rel: 1.5, ..Rules::default() };
    let mut scene = Scene::new(2, Params { rules, ..Params::default() });
    let text = scene.words(60);
    let mut seen = Vec::new();
    for _ in 0..6 {
        let (at, branch) = scene.say(&text);
        scene.workers[at].begin(None);
        seen.push((at, branch));
    }
    let (home, first) = seen[0];
    assert_eq!(first, Branch::ExpectedWaitFallback);
    assert!(seen[1..5].iter().all(|one| *one == (home, Branch::TreeMatch)), "{seen:?}");
    assert_eq!(seen[5], (1 - home, Branch::Spill));
    // Now both hold it, so the one with less in flight is as good.
    assert_eq!(scene.say(&text), (1 - home, Branch::TreeMatch));
}

/// The case to win: everybody begins with the same system prompt and nothing waits anywhere.
#[test]
fn conversations_that_share_a_system_prompt_spread_and_stay() {
    for system_words in [5, 60, 400, 1000, 2000] {
        let mut scene = Scene::of(4);
        let system = scene.words(system_words);
        let mut talks: Vec<(String, usize)> = Vec::new();
        for _ in 0..20 {
            let text = format!("{system} {}", scene.words(20));
            let (at, _) = scene.say(&text);
            talks.push((text, at));
        }
        for _ in 0..5 {
            for (text, home) in &mut talks {
                let more = scene.words(40);
                text.push_str(&more);
                assert_eq!(scene.say(text), (*home, Branch::TreeMatch));
            }
        }
        let count = |at| talks.iter().filter(|(_, home)| *home == at).count();
        assert_eq!([0, 1, 2, 3].map(count), [5; 4], "{system_words} words");
    }
}

#[test]
fn a_prefix_too_long_to_read_again_is_copied_when_its_holder_is_ahead() {
    let mut scene = Scene::of(4);
    let document = scene.words(16_000);
    let mut seen = [0; 4];
    for asked in 1..=200 {
        let text = format!("{document} {}", scene.words(20));
        seen[scene.say(&text).0] += 1;
        if asked == 5 {
            assert_eq!(seen.iter().max(), Some(&5), "64,000 tokens are worth more than five asks");
        }
    }
    assert_eq!(seen, [50; 4]);
}

#[test]
fn an_edited_message_stays_but_a_template_spreads() {
    let mut scene = Scene::of(4);
    let text = scene.words(200);
    let (home, _) = scene.say(&text);
    let answers: Vec<String> = (0..24).map(|_| format!("{text} {}", scene.words(30))).collect();
    for answer in &answers[..3] {
        assert_eq!(scene.say(answer), (home, Branch::TreeMatch));
    }
    let elsewhere = answers[3..].iter().filter(|answer| scene.say(answer).0 != home).count();
    assert!(elsewhere >= 12, "only {elsewhere} of 21 went elsewhere");
}

#[test]
fn a_small_share_does_not_bind_but_an_idle_home_is_still_the_best() {
    let mut scene = Scene::of(3);
    let mut text = scene.words(20);
    let (home, _) = scene.say(&text);
    text.push_str(&scene.words(400));
    assert_eq!(scene.say(&text), (home, Branch::ExpectedWaitFallback));
    for _ in 0..4 {
        scene.workers[home].begin(None);
    }
    text.push_str(&scene.words(4000));
    assert_ne!(scene.say(&text).0, home, "waiting takes longer than reading so little again");
}

#[test]
fn a_queue_outweighs_where_conversations_were_placed() {
    let mut scene = Scene::of(2);
    let waiting = Report { waiting: 50, ..Report::default() };
    scene.workers[0].load().set_report(Some(waiting));
    scene.workers[1].load().set_report(Some(Report::default()));
    for _ in 0..10 {
        let text = scene.words(10);
        assert_eq!(scene.say(&text).0, 1);
    }
}

#[test]
fn an_unavailable_holder_is_spilled_from_and_used_again_on_return() {
    let mut scene = Scene::of(2);
    let text = scene.words(60);
    let (home, _) = scene.say(&text);
    scene.workers[home].set_healthy(false);
    assert_eq!(scene.propose(Prompt::Text(&[&text])), (Some(1 - home), Branch::Spill));
    scene.workers[home].set_healthy(true);
    assert_eq!(scene.propose(Prompt::Text(&[&text])), (Some(home), Branch::TreeMatch));
    scene.workers.iter().for_each(|worker| worker.set_healthy(false));
    assert_eq!(scene.propose(Prompt::Text(&[&text])), (None, Branch::NoHealthyWorkers));
}

#[test]
fn a_full_cache_drops_affinity_and_is_left_alone() {
    for (overload_usage, balance_usage, binds) in
        [(0.8, 1.0, false), (1.0, 0.5, false), (0.95, 0.9, true), (1.0, 1.0, true)]
    {
        let rules = Rules { overload_usage, balance_usage, ..Rules::default() };
        let mut scene = Scene::new(3, Params { rules, ..Params::default() });
        let text = scene.words(60);
        let (home, _) = scene.say(&text);
        for (at, worker) in scene.workers.iter().enumerate() {
            let token_usage = if at == home { 0.9 } else { 0.3 };
            worker.load().set_report(Some(Report { token_usage, ..Report::default() }));
        }
        for _ in 0..10 {
            let (at, branch) = scene.propose(Prompt::Text(&[&text]));
            assert_eq!(at == Some(home), binds);
            assert_eq!(branch, if binds { Branch::TreeMatch } else { Branch::Spill });
        }
        scene.workers.iter().for_each(|worker| {
            worker.load().set_report(Some(Report { token_usage: 0.97, ..Report::default() }));
        });
        assert!(scene.propose(Prompt::Text(&[&text])).0.is_some(), "all full is still somewhere");
    }
}

#[test]
fn the_threshold_is_to_be_exceeded() {
    let rules = Rules { threshold: 0.5, ..Rules::default() };
    let mut scene = Scene::new(2, Params { rules, ..Params::default() });
    let half = "x".repeat(500);
    let (home, _) = scene.say(&half);
    let whole = format!("{half}{}", "y".repeat(500));
    assert_eq!(scene.propose(Prompt::Text(&[&whole])), (Some(home), Branch::ExpectedWaitFallback));
    let less = format!("{half}{}", "y".repeat(499));
    assert_eq!(scene.propose(Prompt::Text(&[&less])), (Some(home), Branch::TreeMatch));
}

#[test]
fn text_and_tokens_are_kept_apart() {
    let mut scene = Scene::of(2);
    let ids: Vec<u32> = (0..300).collect();
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let text: String = bytes.iter().map(|byte| char::from(byte & 0x7f)).collect();
    let (home, _) = scene.place(Prompt::Tokens(&ids));
    assert_eq!(scene.propose(Prompt::Tokens(&ids)), (Some(home), Branch::TreeMatch));
    assert_eq!(scene.propose(Prompt::Text(&[&text])).1, Branch::ExpectedWaitFallback);
    let longer: Vec<u32> = (0..309).collect();
    assert_eq!(scene.propose(Prompt::Tokens(&longer)), (Some(home), Branch::TreeMatch));
}

#[test]
fn a_failed_attempt_leaves_no_lie() {
    let mut scene = Scene::of(2);
    let text = scene.words(300);
    let segments = [&*text];
    let ask = Ask { prompt: Prompt::Text(&segments), ..Ask::default() };
    let receipt = scene.policy.commit(&ask, &scene.workers[0]);
    assert!(scene.policy.held().size >= text.len());
    let [texts, tokens] = scene.policy.remembered().unwrap();
    assert!(texts.size >= text.len() && texts.workers == 1 && tokens == Remembered::default());
    scene.policy.undo(&ask, &scene.workers[0], receipt);
    assert_eq!((scene.policy.held().size, scene.policy.held().links), (0, 0));
    assert_eq!(scene.workers[0].placed().tokens(0), 0);
    // What was known before the failed attempt is still known after it.
    let (home, _) = scene.say(&text);
    let receipt = scene.policy.commit(&ask, &scene.workers[home]);
    scene.policy.undo(&ask, &scene.workers[home], receipt);
    assert_eq!(scene.say(&text), (home, Branch::TreeMatch));
}

#[test]
fn nothing_to_go_on_is_balanced_too() {
    let mut scene = Scene::of(3);
    let mut seen = [0; 3];
    for _ in 0..30 {
        let (at, branch) = scene.place(Prompt::Unknown);
        assert_eq!(branch, Branch::ExpectedWaitFallback);
        seen[at] += 1;
    }
    assert_eq!(seen, [10; 3]);
}

fn backlog(worker: &Worker, waiting_tokens: u32) {
    // Fast enough that a queue is no reason by itself.
    let report = Report { waiting_tokens, throughput: 1e9, ..Report::default() };
    worker.load().set_report(Some(report));
}

#[test]
fn a_decay_sends_a_conversation_from_a_long_backlog_to_who_holds_less() {
    for (decay, stays) in [(0.0, true), (0.1, true), (5.0, false)] {
        let scoring = Scoring { decay, ..Scoring::OFF };
        let rules = Rules { scoring, ..Rules::default() };
        let mut scene = Scene::new(3, Params { rules, ..Params::default() });
        let system = scene.words(400);
        let mut talk = format!("{system} {}", scene.words(200));
        let (home, _) = scene.say(&talk);
        let other = format!("{system} {}", scene.words(20));
        let ask = Ask { prompt: Prompt::Text(&[&other]), ..Ask::default() };
        scene.policy.commit(&ask, &scene.workers[(home + 1) % 3]);
        talk.push_str(" and more");
        scene.workers.iter().for_each(|worker| backlog(worker, 0));
        assert_eq!(scene.propose(Prompt::Text(&[&talk])), (Some(home), Branch::TreeMatch));
        // Three times the prompt waits there.
        backlog(&scene.workers[home], 3 * 2400);
        let (at, branch) = scene.propose(Prompt::Text(&[&talk]));
        assert_eq!((at == Some(home), branch), (stays, Branch::TreeMatch), "{decay}");
    }
}

#[test]
fn a_temperature_shares_a_conversation_among_its_holders_and_nobody_else() {
    for (temperature, most) in [(0.0, 0), (0.2, 80), (100.0, 260)] {
        let scoring = Scoring { temperature, ..Scoring::OFF };
        let rules = Rules { scoring, ..Rules::default() };
        let mut scene = Scene::new(4, Params { rules, ..Params::default() });
        let mut talk = scene.words(100);
        let (home, _) = scene.say(&talk);
        let half = talk.clone();
        let second = (home + 1) % 4;
        let ask = Ask { prompt: Prompt::Text(&[&half]), ..Ask::default() };
        scene.policy.commit(&ask, &scene.workers[second]);
        talk.push_str(&scene.words(70));
        let ask = Ask { prompt: Prompt::Text(&[&talk]), ..Ask::default() };
        scene.policy.commit(&ask, &scene.workers[home]);
        let mut seen = [0; 4];
        for _ in 0..400 {
            seen[scene.propose(Prompt::Text(&[&talk])).0.unwrap()] += 1;
        }
        assert_eq!(seen[home] + seen[second], 400, "{temperature}: {seen:?}");
        assert!(seen[second] <= most && (temperature == 0.0 || seen[second] > 0), "{seen:?}");
    }
}

fn by_heads(count: u32, rules: Rules) -> Scene {
    let boundaries = Boundaries::new(&[8, 64]).unwrap();
    let kind = Kind::Hash { boundaries, ttl_secs: 10 };
    Scene::new(count, Params { rules, kind, ..Params::default() })
}

#[test]
fn by_heads_the_deepest_boundary_with_an_available_holder_decides() {
    let mut scene = by_heads(4, Rules::default());
    let long: Vec<u32> = (0..100).collect();
    let (deep, branch) = scene.place(Prompt::Tokens(&long));
    assert_eq!(branch, Branch::ExpectedWaitFallback);
    let shallow = (deep + 1) % 4;
    let ask = Ask { prompt: Prompt::Tokens(&long[..9]), ..Ask::default() };
    scene.policy.commit(&ask, &scene.workers[shallow]);
    // Eight tokens of ten thousand are enough: there is nowhere between to go on from.
    let longest: Vec<u32> = (0..10_000).collect();
    assert_eq!(scene.propose(Prompt::Tokens(&longest)), (Some(deep), Branch::TreeMatch));
    scene.workers[deep].set_healthy(false);
    assert_eq!(scene.propose(Prompt::Tokens(&longest)), (Some(shallow), Branch::TreeMatch));
    scene.workers[shallow].set_healthy(false);
    assert_eq!(scene.propose(Prompt::Tokens(&longest)).1, Branch::Spill);
    scene.workers.iter().for_each(|worker| worker.set_healthy(false));
    assert_eq!(scene.propose(Prompt::Tokens(&longest)), (None, Branch::NoHealthyWorkers));
}

#[test]
fn by_heads_what_has_none_goes_where_the_wait_is_shortest() {
    let mut scene = by_heads(3, Rules::default());
    scene.workers[0].begin(None);
    scene.workers[2].begin(None);
    for prompt in [Prompt::Text(&["a text"]), Prompt::Tokens(&[1; 7]), Prompt::Unknown] {
        for _ in 0..5 {
            assert_eq!(scene.place(prompt), (1, Branch::ExpectedWaitFallback));
        }
    }
    assert_eq!(scene.policy.held().links, 0);
}

#[test]
fn by_heads_entries_expire_failures_are_undone_and_the_gate_spills() {
    let mut scene = by_heads(2, Rules { abs: 2, rel: 1.5, ..Rules::default() });
    let tokens = [7; 20];
    let ask = Ask { prompt: Prompt::Tokens(&tokens), ..Ask::default() };
    let receipt = scene.policy.commit(&ask, &scene.workers[0]);
    assert_eq!(scene.propose(ask.prompt), (Some(0), Branch::TreeMatch));
    scene.policy.undo(&ask, &scene.workers[0], receipt);
    assert_eq!(scene.propose(ask.prompt).1, Branch::ExpectedWaitFallback);
    scene.policy.learn(&ask, &scene.workers[0]);
    for _ in 0..5 {
        assert_eq!(scene.propose(ask.prompt), (Some(0), Branch::TreeMatch));
        scene.workers[0].begin(None);
    }
    assert_eq!(scene.propose(ask.prompt), (Some(1), Branch::Spill));
    scene.now = 10_000;
    assert_eq!(scene.propose(ask.prompt), (Some(1), Branch::ExpectedWaitFallback));
    scene.policy.sweep(scene.now);
    assert_eq!(scene.policy.held().links, 0);
}

#[test]
fn what_a_pin_decided_is_learned_and_moves_no_count() {
    let mut scene = Scene::of(3);
    let mut talk = scene.words(100);
    scene.say(&talk);
    for _ in 0..3 {
        talk.push_str(&scene.words(300));
        let ask = Ask { prompt: Prompt::Text(&[&talk]), ..Ask::default() };
        scene.policy.learn(&ask, &scene.workers[2]);
    }
    talk.push_str(" and more");
    assert_eq!(scene.propose(Prompt::Text(&[&talk])), (Some(2), Branch::TreeMatch));
}
