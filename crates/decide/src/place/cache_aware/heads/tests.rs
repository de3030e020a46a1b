use super::*;
use proptest::prelude::*;

const W: [WorkerId; 4] = [WorkerId(0), WorkerId(1), WorkerId(2), WorkerId(3)];

fn heads(bound: usize) -> Heads {
    Heads::new(Boundaries::new(&[4, 8, 16]).unwrap(), 10, 1, bound)
}

fn lengths(heads: &Heads, tokens: &[u32], now: u32) -> Vec<(usize, Vec<WorkerId>)> {
    let shared = heads.shared(&heads.chain(Prompt::Tokens(tokens)), now);
    shared.into_iter().map(|(units, holders)| (units, holders.to_vec())).collect()
}

fn give(heads: &Heads, tokens: &[u32], worker: WorkerId, now: u32) -> u32 {
    heads.insert(&heads.chain(Prompt::Tokens(tokens)), worker, now)
}

fn prompt(length: u32) -> Vec<u32> {
    (0..length).collect()
}

#[test]
fn prompts_meet_at_the_boundaries_up_to_which_they_agree() {
    let heads = heads(1 << 20);
    assert_eq!(give(&heads, &prompt(20), W[1], 0), 0b111);
    let mut other = prompt(20);
    other[10] = 99;
    assert_eq!(lengths(&heads, &other, 0), [(8, vec![W[1]]), (4, vec![W[1]])]);
    assert_eq!(give(&heads, &other, W[0], 0), 0b111);
    assert_eq!(lengths(&heads, &prompt(9), 0), [(8, vec![W[0], W[1]]), (4, vec![W[0], W[1]])]);
    assert_eq!(lengths(&heads, &prompt(17), 0)[0], (16, vec![W[1]]));
    for nothing in [&prompt(3)[..], &[], &[9, 9, 9, 9]] {
        assert_eq!(lengths(&heads, nothing, 0), []);
    }
    assert_eq!(heads.chain(Prompt::Text(&["as long as you like"])).blocks.len(), 0);
    assert_eq!(heads.remembered(), Remembered { size: 24 + 8, workers: 2 });
}

#[test]
fn a_head_is_forgotten_when_nobody_was_given_it_for_so_long() {
    let heads = heads(1 << 20);
    give(&heads, &prompt(4), W[0], 100);
    give(&heads, &prompt(4), W[1], 105);
    assert_eq!(lengths(&heads, &prompt(4), 109), [(4, vec![W[0], W[1]])]);
    assert_eq!(lengths(&heads, &prompt(4), 110), [(4, vec![W[1]])]);
    assert_eq!(give(&heads, &prompt(4), W[1], 114), 0);
    assert_eq!(lengths(&heads, &prompt(4), 123), [(4, vec![W[1]])]);
    heads.sweep(123);
    assert_eq!(heads.remembered(), Remembered { size: 4, workers: 1 });
    heads.sweep(124);
    assert_eq!(heads.held().links, 0);
}

#[test]
fn of_four_holders_the_one_given_it_longest_ago_goes() {
    let heads = heads(1 << 20);
    for (now, worker) in [(1, W[0]), (2, W[1]), (3, W[2]), (4, W[0]), (5, W[3])] {
        give(&heads, &prompt(5), worker, now);
    }
    assert_eq!(lengths(&heads, &prompt(5), 5), [(4, vec![W[0], W[2], W[3]])]);
}

#[test]
fn an_undone_insert_leaves_what_was_there_before() {
    let heads = heads(1 << 20);
    give(&heads, &prompt(4), W[0], 0);
    let new = give(&heads, &prompt(9), W[0], 1);
    assert_eq!(new, 0b10);
    heads.remove(&heads.chain(Prompt::Tokens(&prompt(9))), W[0], new);
    assert_eq!(lengths(&heads, &prompt(9), 1), [(4, vec![W[0]])]);
    heads.forget(W[0]);
    assert_eq!(heads.held().links, 0);
}

#[test]
fn a_flood_displaces_what_nobody_uses_and_the_bound_holds() {
    let bound = 2 * SHARDS * 40;
    let heads = heads(bound);
    let used = [7, 7, 7, 7];
    for n in 0..5000 {
        give(&heads, &[n, n, 1, 1], W[1], 0);
        give(&heads, &used, W[0], 0);
        // One more than fits may have come in before its generation was full.
        assert!(heads.held().size <= bound + 2 * SHARDS * 4, "{:?}", heads.held());
    }
    assert_eq!(lengths(&heads, &used, 0), [(4, vec![W[0]])]);
}

proptest! {
    /// Whatever comes and goes, the sizes that are kept are those of what is there.
    #[test]
    fn sizes_add_up(steps in prop::collection::vec((0_u32..4, 0_u32..5, 0_u32..20), 1..80)) {
        let heads = heads(400);
        for (now, (worker, kind, length)) in (0..).zip(steps) {
            let tokens: Vec<u32> = (0..length).map(|n| n / (kind + 1)).collect();
            match kind {
                0 => heads.forget(WorkerId(worker)),
                1 => heads.sweep(now),
                _ => {
                    let chain = heads.chain(Prompt::Tokens(&tokens));
                    let new = heads.insert(&chain, WorkerId(worker), now);
                    if kind == 4 {
                        heads.remove(&chain, WorkerId(worker), new);
                    }
                }
            }
            for shard in &heads.shards {
                for one in lock(shard).generations() {
                    prop_assert_eq!(one.size, one.heads.values().map(Head::size).sum::<usize>());
                    prop_assert!(one.heads.values().all(|head| !head.holders.is_empty()));
                }
            }
        }
    }
}
