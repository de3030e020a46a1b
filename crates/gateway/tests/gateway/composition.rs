//! What becomes of a key under each policy, with the override and without (000, "How the Override
//! Composes with Each Policy"), and where a key may stand.

use smg_gateway::Settings;
use smg_gateway::settings::{Assignment, PolicyName, Sticky};

use super::rig::*;

const KEY: &str = "x-smg-routing-key";

/// Three workers that serve two models, under a policy.
async fn fleet(
    policy: PolicyName,
    key_override: bool,
    change: impl FnOnce(&mut Settings),
) -> (Rig, Vec<Worker>) {
    let workers: Vec<_> = ["w1", "w2", "w3"].map(|name| Worker::serving(name, &["m", "n"])).into();
    workers.iter().for_each(|worker| worker.waiting(0));
    let all: Vec<_> = workers.iter().collect();
    let rig = Rig::start(&all, |settings| {
        settings.placement.policy = policy;
        settings.sticky = Sticky { key_override, ..sticky() };
        change(settings);
    })
    .await;
    (rig, workers)
}

fn with_rid(rid: &str) -> String {
    format!(r#"{{"model":"m","messages":[],"rid":"{rid}"}}"#)
}

/// A prompt that differs from those of other numbers.
fn prompt(n: usize) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"prompt {n}"}}]}}"#)
}

async fn by_header(rig: &Rig, value: &str) -> String {
    rig.chat_with(&[(KEY, value)], CHAT).await.worker()
}

async fn by_rid(rig: &Rig, rid: &str) -> String {
    rig.chat(&with_rid(rid)).await.worker()
}

fn sources(rig: &Rig) -> i64 {
    rig.count("smg_routing_key_source_total", &[])
}

fn entries(rig: &Rig) -> i64 {
    rig.count("smg_manual_policy_cache_entries", &[])
}

const OVERRIDDEN: [PolicyName; 8] = [
    PolicyName::CacheAware,
    PolicyName::RoundRobin,
    PolicyName::Random,
    PolicyName::Passthrough,
    PolicyName::PowerOfTwo,
    PolicyName::LeastLoad,
    PolicyName::Bucket,
    PolicyName::PrefixHash,
];

#[tokio::test(start_paused = true)]
async fn under_the_override_a_keyed_request_is_pinned_on_any_policy() {
    for policy in OVERRIDDEN {
        let (rig, _workers) = fleet(policy, true, |_| {}).await;
        for n in 0..8 {
            let (rid, header) = (format!("rid{n}"), format!("header{n}"));
            let homes = (by_rid(&rig, &rid).await, by_header(&rig, &header).await);
            for turn in 1..4 {
                assert_eq!(by_rid(&rig, &format!("{rid}_t{turn}")).await, homes.0, "{policy:?}");
                assert_eq!(by_header(&rig, &format!("{header}_t{turn}")).await, homes.1);
            }
        }
        assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (16, 48), "{policy:?}");
        assert_eq!((entries(&rig), sources(&rig)), (16, 64), "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_override_a_key_is_ignored() {
    for policy in OVERRIDDEN {
        let (rig, workers) = fleet(policy, false, |_| {}).await;
        for _ in 0..60 {
            let headers: &[_] = if policy == PolicyName::PrefixHash { &[] } else { &[(KEY, "k")] };
            rig.chat_with(headers, &with_rid("k")).await;
        }
        let spread = workers.iter().filter(|worker| worker.served() > 0).count();
        let alone = if policy == PolicyName::Passthrough { 1 } else { 3 };
        assert_eq!(spread, alone, "{policy:?}");
        assert_eq!((entries(&rig), sources(&rig)), (0, 0), "{policy:?}");
        assert_eq!(rig.count("smg_manual_policy_branch_total", &[]), 0, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn prefix_hash_hashes_a_header_in_place_of_the_prompt_also_for_a_new_keys_first_request() {
    let (plain, _workers) = fleet(PolicyName::PrefixHash, false, |_| {}).await;
    let (sticky, _others) = fleet(PolicyName::PrefixHash, true, |_| {}).await;
    let mut seen = Vec::new();
    for n in 0..12 {
        let (key, body) = (format!("k{n}_t1"), prompt(n));
        let headers = [(KEY, key.as_str())];
        let home = plain.chat_with(&headers, &body).await.worker();
        assert_eq!(plain.chat_with(&headers, &prompt(n + 100)).await.worker(), home);
        assert_eq!(sticky.chat_with(&headers, &body).await.worker(), home, "as without");
        // A key from the body is the override's alone: the prompt places it.
        let keyed = body.replacen('{', &format!(r#"{{"rid":"rid{n}","#), 1);
        let keyless = plain.chat(&body).await.worker();
        assert_eq!(sticky.chat(&keyed).await.worker(), keyless, "as without");
        seen.push(home);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3, "keys are spread");
}

#[tokio::test(start_paused = true)]
async fn under_delegate_the_first_request_is_placed_as_without_the_override() {
    let (rig, _workers) = fleet(PolicyName::RoundRobin, true, |_| {}).await;
    let mut cycle = Vec::new();
    for n in 0..3 {
        cycle.push(rig.chat(CHAT).await.worker());
        cycle.push(by_rid(&rig, &format!("conv{n}")).await);
    }
    assert_eq!(cycle[..3], cycle[3..], "keyed and keyless share one cycle: {cycle:?}");
}

#[tokio::test(start_paused = true)]
async fn manual_reads_its_own_header_in_its_own_way() {
    for key_override in [false, true] {
        let (rig, _workers) = fleet(PolicyName::Manual, key_override, |settings| {
            settings.sticky.headers = vec![http::HeaderName::from_static("x-listed")];
            settings.sticky.assignment = Some(Assignment::MinGroup);
        })
        .await;
        // Neither stripped nor bounded in length, and case matters.
        let long = "k".repeat(5000);
        for value in ["conv_t1", "conv_t2", "conv", "CONV", &long] {
            let home = by_header(&rig, value).await;
            for _ in 0..3 {
                assert_eq!(by_header(&rig, value).await, home);
            }
        }
        assert_eq!((rig.branch("vacant"), entries(&rig)), (5, 5));
        // A listed name, an empty value and one that is not ASCII are no keys.
        for header in [("x-listed", "k"), (KEY, ""), (KEY, "cl\u{e9}")] {
            rig.chat_with(&[header], CHAT).await;
        }
        assert_eq!((rig.branch("no_routing_id"), entries(&rig)), (3, 5));
        assert_eq!(sources(&rig), 0, "only the override counts sources");
    }
}

#[tokio::test(start_paused = true)]
async fn manual_takes_a_rid_first_with_the_override_and_strips_that() {
    let (rig, _workers) = fleet(PolicyName::Manual, true, |_| {}).await;
    let home = by_rid(&rig, "conv").await;
    for n in 0..9 {
        let odd = format!("u{n}");
        let reply = rig.chat_with(&[(KEY, &odd)], &with_rid(&format!("conv_t{n}_r1"))).await;
        assert_eq!(reply.worker(), home);
    }
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit"), entries(&rig)), (1, 9, 1));
    let (off, _others) = fleet(PolicyName::Manual, false, |_| {}).await;
    by_rid(&off, "conv").await;
    assert_eq!((off.branch("no_routing_id"), entries(&off)), (1, 0), "not read without it");
}

#[tokio::test(start_paused = true)]
async fn the_map_of_manual_is_not_scoped_by_model() {
    let (rig, _workers) = fleet(PolicyName::Manual, false, |_| {}).await;
    for n in 0..9 {
        let key = format!("k{n}");
        let home = by_header(&rig, &key).await;
        let other = rig.chat_with(&[(KEY, &key)], r#"{"model":"n","messages":[]}"#).await;
        assert_eq!(other.worker(), home);
    }
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit"), entries(&rig)), (9, 9, 9));
}

#[tokio::test(start_paused = true)]
async fn without_a_key_manual_places_by_its_mode_which_is_random_unless_told() {
    for (assignment, fair) in
        [(None, false), (Some(Assignment::MinLoad), true), (Some(Assignment::Delegate), true)]
    {
        let (rig, workers) = fleet(PolicyName::Manual, false, |settings| {
            settings.sticky.assignment = assignment;
        })
        .await;
        workers.iter().for_each(|worker| {
            worker.usually(script().hang());
        });
        let mut clients = Vec::new();
        for n in 0..30 {
            let mut client = rig.client();
            client.send(post("/v1/chat/completions", &[], CHAT)).await;
            let served = || workers.iter().map(Worker::served).sum::<usize>();
            rig.until("it is there", |_| served() == n + 1).await;
            clients.push(client);
        }
        let counts: Vec<_> = workers.iter().map(Worker::served).collect();
        // By lot, thirty requests are spread as evenly once in forty times.
        assert!(!fair || counts == [10, 10, 10], "{assignment:?}: {counts:?}");
        assert!(counts.iter().all(|count| *count > 0), "{assignment:?}: {counts:?}");
        assert_eq!((rig.branch("no_routing_id"), entries(&rig)), (30, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn manual_has_no_threshold() {
    let (rig, workers) = fleet(PolicyName::Manual, false, |_| {}).await;
    workers.iter().for_each(|worker| {
        worker.usually(script().hang());
    });
    let mut clients = Vec::new();
    for n in 0..5 {
        let mut client = rig.client();
        client.send(post("/v1/chat/completions", &[(KEY, "k")], CHAT)).await;
        let served = || workers.iter().map(Worker::served).sum::<usize>();
        rig.until("it is there", |_| served() == n + 1).await;
        clients.push(client);
    }
    assert_eq!(workers.iter().map(Worker::served).max(), Some(5));
    assert_eq!((rig.branch("cap_respill"), rig.branch("occupied_hit")), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn the_threshold_is_no_limit_a_placement_may_pick_the_pinned_worker_again() {
    // Passthrough always picks the first; least_load with a bound on waiting requests may find nobody.
    for policy in [PolicyName::Passthrough, PolicyName::LeastLoad] {
        let (rig, workers) = fleet(policy, true, |settings| {
            settings.placement.max_waiting = Some(2).filter(|_| policy == PolicyName::LeastLoad);
        })
        .await;
        workers.iter().for_each(|worker| {
            worker.usually(script().hang());
        });
        let mut clients = Vec::new();
        for n in 0..4 {
            if policy == PolicyName::LeastLoad && n == 2 {
                // From now on the policy skips everybody.
                workers.iter().for_each(|worker| worker.waiting(9));
                later(11.0).await;
            }
            let mut client = rig.client();
            client.send(post("/v1/chat/completions", &[(KEY, "k")], CHAT)).await;
            let most = || workers.iter().map(Worker::served).max();
            rig.until("it is there", |_| most() == Some(n + 1)).await;
            clients.push(client);
        }
        let branches = ["vacant", "occupied_hit", "cap_respill"].map(|branch| rig.branch(branch));
        assert_eq!(branches, [1, 1, 2], "{policy:?}");
        assert_eq!(entries(&rig), 1);
        if policy == PolicyName::LeastLoad {
            by_header(&rig, "new").await;
            assert_eq!(rig.branch("no_healthy_workers"), 1, "a new key has nowhere to go");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn consistent_hashing_pins_nothing_takes_a_rid_first_and_a_named_worker_before_both() {
    let (rig, _workers) = fleet(PolicyName::ConsistentHashing, true, |_| {}).await;
    for n in 0..9 {
        let (key, odd) = (format!("conv{n}"), format!("u{n}"));
        let home = by_header(&rig, &key).await;
        let body = with_rid(&format!("{key}_t{n}_r1"));
        assert_eq!(rig.chat_with(&[(KEY, &odd)], &body).await.worker(), home, "the rid, stripped");
        for at in 0..3 {
            let headers = [(KEY, odd.as_str()), ("x-smg-target-worker", &at.to_string())];
            assert_eq!(rig.chat_with(&headers, &body).await.worker(), format!("w{}", at + 1));
        }
    }
    // Header values are not stripped.
    let mut homes = Vec::new();
    for n in 0..12 {
        homes.push(by_header(&rig, &format!("conv_t{n}")).await);
    }
    homes.sort();
    homes.dedup();
    assert!(homes.len() > 1);
    assert_eq!((entries(&rig), sources(&rig)), (0, 0));
    let branch = |of| rig.count("smg_consistent_hashing_policy_branch_total", &[("branch", of)]);
    assert_eq!((branch("routing_key_hit"), branch("target_worker_hit")), (30, 27));
    let missed = rig.chat_with(&[("x-smg-target-worker", "3")], CHAT).await;
    missed.is_refusal(503, "no_available_workers");
    assert_eq!(branch("target_worker_miss"), 1);
    rig.chat(CHAT).await;
    assert_eq!(branch("random_fallback"), 1);
}

/// A body for each route, with room for more fields.
const BODIES: [(&str, &str); 8] = [
    ("/v1/chat/completions", r#""messages":[]"#),
    ("/v1/completions", r#""prompt":"p""#),
    ("/v1/messages", r#""messages":[],"max_tokens":1"#),
    ("/generate", r#""text":"p""#),
    ("/v1/embeddings", r#""input":"p""#),
    ("/v1/classify", r#""input":"p""#),
    ("/rerank", r#""query":"p","documents":["d"]"#),
    ("/v1/responses", r#""input":"p""#),
];

#[tokio::test(start_paused = true)]
async fn every_route_that_has_a_rid_is_keyed_by_it_and_passes_it_on_whole() {
    let (rig, workers) = fleet(PolicyName::RoundRobin, true, |_| {}).await;
    let home = by_header(&rig, "conv").await;
    let at = workers.iter().position(|worker| worker.url().contains(&home)).unwrap();
    for (path, fields) in BODIES.into_iter().filter(|(path, _)| *path != "/v1/responses") {
        let mut rids = vec![r#""conv_t2_r1""#];
        if path == "/rerank" {
            rids.push(r#"["conv_t7","other"]"#);
        }
        for rid in rids {
            let body = format!(r#"{{{fields},"model":"m","rid":{rid}}}"#);
            let reply = rig.client().post(path, &[], &body).await;
            assert_eq!(reply.worker(), home, "{path} {rid}");
            assert_eq!(workers[at].last().body, body.as_bytes(), "{path}: suffixes and all");
        }
    }
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (1, 8));
}

#[tokio::test(start_paused = true)]
async fn responses_are_keyed_by_a_header_only() {
    let (rig, _workers) = fleet(PolicyName::RoundRobin, true, |_| {}).await;
    let body = r#"{"model":"m","input":"p","rid":"conv"}"#;
    for _ in 0..3 {
        assert_eq!(rig.client().post("/v1/responses", &[], body).await.status, 200);
    }
    assert_eq!((sources(&rig), entries(&rig)), (0, 0), "a rid there is plain data");
    let home = by_header(&rig, "conv").await;
    for _ in 0..3 {
        let reply = rig.client().post("/v1/responses", &[(KEY, "conv_t2")], body).await;
        assert_eq!(reply.worker(), home);
    }
}

#[tokio::test(start_paused = true)]
async fn every_inference_answer_names_its_worker_as_registered() {
    let (rig, workers) = fleet(PolicyName::RoundRobin, false, |_| {}).await;
    for (path, fields) in BODIES {
        for status in ["200 OK", "400 Bad Request", "404 Not Found", "429 Busy"] {
            let forged = ["x-smg-routed-worker-id: http://evil"];
            for worker in &workers {
                worker.usually(script().say(answer(status, &forged, worker.url())));
            }
            let body = format!(r#"{{{fields},"model":"m"}}"#);
            let reply = rig.client().post(path, &[], &body).await;
            let named = reply.header("x-smg-routed-worker-id").unwrap();
            assert_eq!(named, reply.text(), "{path}, {status}");
        }
    }
    workers.iter().for_each(|worker| {
        worker.usually(script().say(events(&["data: [DONE]\n\n"])));
    });
    assert_ne!(rig.chat(CHAT_STREAM).await.worker(), "");
    assert_eq!(rig.get("/v1/models").await.header("x-smg-routed-worker-id"), None);
}

#[tokio::test(start_paused = true)]
async fn request_ids_never_route() {
    for policy in [PolicyName::RoundRobin, PolicyName::ConsistentHashing, PolicyName::Manual] {
        let (rig, workers) = fleet(policy, true, |_| {}).await;
        for _ in 0..60 {
            let headers = [("x-request-id", "k"), ("x-correlation-id", "k"), ("x-trace-id", "k")];
            rig.chat_with(&headers, CHAT).await;
        }
        assert!(workers.iter().all(|worker| worker.served() > 0), "{policy:?}");
        assert_eq!((entries(&rig), sources(&rig)), (0, 0), "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pins_are_one_replicas_own_and_a_restart_clears_them() {
    let worker = Worker::new("w1");
    for _ in 0..2 {
        let rig = Rig::start(&[&worker], |settings| settings.sticky = sticky()).await;
        by_header(&rig, "k").await;
        assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn under_the_override_every_body_is_buffered_whatever_hints_it_brings() {
    let read = |settings: &mut Settings| settings.bodies.model_selection = false;
    let (rig, _workers) = fleet(PolicyName::RoundRobin, true, read).await;
    let headers = [("x-smg-routing-tokens", "1,2,3"), (KEY, "k")];
    rig.chat_with(&headers, CHAT).await;
    let labels = [("path", "buffered"), ("reason", "routing_key_override")];
    assert_eq!(rig.count("smg_router_request_body_path_total", &labels), 1);
    let (off, _others) = fleet(PolicyName::RoundRobin, false, read).await;
    off.chat_with(&headers, CHAT).await;
    assert_eq!(off.count("smg_router_request_body_path_total", &labels), 0);
}

#[tokio::test(start_paused = true)]
async fn the_fourth_hour_is_too_long_only_where_eviction_is_on() {
    for (on, kept) in [(true, 0), (false, 1)] {
        let (rig, _workers) = fleet(PolicyName::RoundRobin, true, |settings| {
            if !on {
                settings.sticky.eviction = None;
            }
        })
        .await;
        by_header(&rig, "k").await;
        later(14_399.0).await;
        assert_eq!(entries(&rig), 1);
        later(122.0).await;
        assert_eq!(entries(&rig), kept, "eviction on: {on}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_takes_the_pins_of_manual_too() {
    let (rig, _workers) = fleet(PolicyName::Manual, false, |_| {}).await;
    by_header(&rig, "k").await;
    later(14_399.0 + 122.0).await;
    assert_eq!(entries(&rig), 0);
    by_header(&rig, "k").await;
    assert_eq!(rig.branch("vacant"), 2);
}

#[tokio::test(start_paused = true)]
async fn manual_returns_home_in_every_mode() {
    for assignment in
        [Assignment::Random, Assignment::MinLoad, Assignment::MinGroup, Assignment::Delegate]
    {
        let (rig, workers) = fleet(PolicyName::Manual, true, |settings| {
            settings.sticky.assignment = Some(assignment);
        })
        .await;
        let home = by_rid(&rig, "k").await;
        let at = workers.iter().find(|worker| worker.url().contains(&home)).unwrap();
        at.health(Some("500 No"));
        rig.until("it is out", |gw| gw.workers() == (2, 3)).await;
        let refuge = by_rid(&rig, "k_t1").await;
        assert_ne!(refuge, home);
        assert_eq!(by_rid(&rig, "k_t2").await, refuge, "{assignment:?}");
        at.health(Some("200 OK"));
        rig.until("it is back", |gw| gw.workers() == (3, 3)).await;
        assert_eq!(by_rid(&rig, "k_t3").await, home, "{assignment:?}");
        assert_eq!((rig.branch("occupied_miss"), rig.branch("occupied_hit")), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn the_third_in_flight_is_placed_again_by_the_assignment_mode() {
    // The policy would always pick the first worker.
    let (rig, workers) = fleet(PolicyName::Passthrough, true, |settings| {
        settings.sticky.assignment = Some(Assignment::MinLoad);
    })
    .await;
    workers.iter().for_each(|worker| {
        worker.usually(script().hang());
    });
    let mut clients = Vec::new();
    for n in 0..6 {
        let mut client = rig.client();
        client.send(post("/v1/chat/completions", &[(KEY, "k")], CHAT)).await;
        let served = || workers.iter().map(Worker::served).sum::<usize>();
        rig.until("it is there", |_| served() == n + 1).await;
        clients.push(client);
    }
    let counts: Vec<_> = workers.iter().map(Worker::served).collect();
    assert_eq!(counts, [2, 2, 2]);
    assert_eq!((rig.branch("vacant"), rig.branch("cap_respill")), (1, 2));
}
