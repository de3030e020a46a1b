//! An agent and its sub-agents before simulated engines: what a child has in common with its parent is
//! read once.

use std::fmt::Write as _;

use serde_json::{Value, json};
use smg_lab::engine::Profile;
use smg_lab::engine::fleet::Fleet;

use super::redis::{Redis, ops, until};
use super::rig::{Gateway, post_with};

const CHILDREN: usize = 16;

/// A chat with these messages, and what of its prompt was cached: tokens of how many.
fn turn(gateway: &Gateway, headers: &str, messages: &[Value]) -> (u64, u64) {
    let body = json!({"messages": messages, "max_tokens": 4}).to_string();
    let (status, answer) = post_with(gateway.port, headers, &body);
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let count = |at: &str| answer.pointer(at).and_then(Value::as_u64).unwrap();
    (count("/usage/prompt_tokens_details/cached_tokens"), count("/usage/prompt_tokens"))
}

/// A parent's turn through one replica, then the first turns of its children through both at once.
fn family(gateways: &[Gateway; 2], parent: &str) {
    let mut rules = String::new();
    for n in 0..400 {
        write!(rules, "Rule {n} of {parent}: think before you act. ").unwrap();
    }
    let shared = [json!({"role": "system", "content": rules})];
    let (_, shared_tokens) =
        turn(&gateways[0], &format!("x-aibrix-session-key: {parent}"), &shared);
    assert!(shared_tokens > 1000, "{shared_tokens}");
    std::thread::scope(|scope| {
        for n in 0..CHILDREN {
            let ([one, other], [rules]) = (gateways, &shared);
            let gateway = if n.is_multiple_of(2) { one } else { other };
            let key = format!("x-aibrix-session-key: {parent}-child-{n}");
            let headers = format!("{key}\r\nx-smg-parent-key: {parent}");
            let task = json!({"role": "user", "content": format!("Task {n}, which is none of the others.")});
            let messages = [rules.clone(), task];
            scope.spawn(move || {
                let (cached, _) = turn(gateway, &headers, &messages);
                assert!(
                    cached * 100 >= shared_tokens * 90,
                    "child {n}: {cached} of {shared_tokens}"
                );
            });
        }
    });
}

#[test]
fn sixteen_children_find_what_their_parent_has_read() {
    let engines = tokio::runtime::Runtime::new().unwrap();
    let profile = Profile { pace: 0.01, ..Profile::default() };
    let fleet = engines.block_on(Fleet::start(4, &profile)).unwrap();
    let urls: Vec<_> = fleet.urls().collect();
    let policy = ["--policy", "session_affinity"];
    let apart = [0, 1].map(|_| Gateway::start(&urls, &policy));
    (0..4).for_each(|n| family(&apart, &format!("apart-{n}")));

    let redis = Redis::start();
    let url = redis.url();
    let shared =
        [&policy[..], &["--redis-url", &url, "--sticky-store-timeout-ms", "5000"]].concat();
    let together = [0, 1].map(|_| Gateway::start(&urls, &shared));
    for gateway in &together {
        let hello = [json!({"role": "user", "content": "hello"})];
        until("the store is used", || {
            turn(gateway, "x-aibrix-session-key: warm-up", &hello);
            ops(gateway, "claim", "ok") > 0
        });
    }
    (0..4).for_each(|n| family(&together, &format!("together-{n}")));
}
