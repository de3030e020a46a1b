//! Sessions of agents (004): ids, keys, and which policy a client asks for.

use smg_gateway::Settings;
use smg_gateway::settings::PolicyName;

use super::rig::*;

const STRATEGY: (&str, &str) = ("routing-strategy", "session-affinity");
const ID: &str = "x-session-id";
const KEY: &str = "x-aibrix-session-key";

async fn fleet(count: usize, change: impl FnOnce(&mut Settings)) -> (Rig, Vec<Worker>) {
    let workers: Vec<_> = (1..=count).map(|n| Worker::new(&format!("w{n}"))).collect();
    let all: Vec<_> = workers.iter().collect();
    let rig = Rig::start(&all, change).await;
    (rig, workers)
}

fn for_all(settings: &mut Settings) {
    settings.placement.policy = PolicyName::SessionAffinity;
}

fn id_of(worker: &str) -> String {
    // base64 of "w1:8000" and so on
    match worker {
        "w1" => "dzE6ODAwMA==",
        "w2" => "dzI6ODAwMA==",
        "w3" => "dzM6ODAwMA==",
        other => panic!("{other}"),
    }
    .to_owned()
}

fn branch(rig: &Rig, branch: &str) -> i64 {
    rig.count("smg_session_affinity_branch_total", &[("branch", branch)])
}

#[tokio::test(start_paused = true)]
async fn an_id_comes_with_every_answer_and_leads_back() {
    let (rig, _workers) = fleet(3, |_| {}).await;
    let first = rig.chat_with(&[STRATEGY], CHAT).await;
    assert_eq!(first.header(ID), Some(id_of(&first.worker())));
    let id = first.header(ID).unwrap();
    for body in [CHAT, CHAT_STREAM, CHAT] {
        let turn = rig.chat_with(&[STRATEGY, (ID, &id)], body).await;
        assert_eq!((turn.worker(), turn.header(ID)), (first.worker(), Some(id.clone())));
    }
    for worker in ["w1", "w2", "w3"] {
        let turn = rig.chat_with(&[STRATEGY, (ID, &id_of(worker))], CHAT).await;
        assert_eq!(turn.worker(), worker, "an id alone decides");
    }
    assert_eq!((branch(&rig, "random"), branch(&rig, "id_hit")), (1, 6));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_worker_carries_an_id_too() {
    let (rig, workers) = fleet(1, for_all).await;
    workers[0].next(script().say(answer("400 Bad Request", &[], "{}")));
    let refused = rig.chat(CHAT).await;
    assert_eq!((refused.status, refused.header(ID)), (400, Some(id_of("w1"))));
    workers[0].usually(script().close());
    let broken = rig.chat(CHAT).await;
    assert_eq!((broken.status, broken.header(ID)), (500, Some(id_of("w1"))));
}

#[tokio::test(start_paused = true)]
async fn an_id_that_names_no_ready_worker_is_replaced() {
    let (rig, _workers) = fleet(2, for_all).await;
    // "w9:8000", "http://w1:8000", "w1", "w1:8000 " and no base64 at all.
    let stale =
        ["dzk6ODAwMA==", "aHR0cDovL3cxOjgwMDA=", "dzE=", "dzE6ODAwMCA=", "%%%", "dzE6ODAwMA"];
    for id in stale {
        let turn = rig.chat_with(&[(ID, id)], CHAT).await;
        assert_eq!((turn.status, turn.header(ID)), (200, Some(id_of(&turn.worker()))), "{id}");
    }
    assert_eq!(branch(&rig, "id_stale"), 6);
    // An empty one is as good as none.
    rig.chat_with(&[(ID, "")], CHAT).await;
    assert_eq!((branch(&rig, "id_stale"), branch(&rig, "random")), (6, 7));
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_worker_from_its_first_request_on() {
    let (rig, _workers) = fleet(3, for_all).await;
    let mut used = std::collections::BTreeSet::new();
    for n in 0..20 {
        let key = format!("agent run {n}/\u{e9}");
        let home = rig.chat_with(&[(KEY, &key)], CHAT).await;
        assert_eq!(home.header(KEY), None, "the key is its caller's own");
        assert_eq!(home.header(ID), Some(id_of(&home.worker())));
        for _ in 0..3 {
            let turn = rig.chat_with(&[(KEY, &key), (ID, "stale")], CHAT).await;
            assert_eq!(turn.worker(), home.worker());
        }
        used.insert(home.worker());
    }
    assert_eq!(used.len(), 3);
    assert_eq!((branch(&rig, "rendezvous"), branch(&rig, "random")), (80, 0));
}

#[tokio::test(start_paused = true)]
async fn a_valid_id_beats_the_key_and_moves_nothing() {
    let (rig, _workers) = fleet(3, for_all).await;
    let home = rig.chat_with(&[(KEY, "k")], CHAT).await.worker();
    for worker in ["w1", "w2", "w3"] {
        let turn = rig.chat_with(&[(KEY, "k"), (ID, &id_of(worker))], CHAT).await;
        assert_eq!(turn.worker(), worker);
    }
    assert_eq!(rig.chat_with(&[(KEY, "k")], CHAT).await.worker(), home);
}

#[tokio::test(start_paused = true)]
async fn a_key_of_257_bytes_or_none_is_unset() {
    let (rig, _workers) = fleet(3, for_all).await;
    for (key, kept) in [("k".repeat(256), true), ("k".repeat(257), false), (String::new(), false)] {
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..40 {
            used.insert(rig.chat_with(&[(KEY, &key)], CHAT).await.worker());
        }
        assert_eq!(used.len() == 1, kept, "{} bytes", key.len());
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_agree_whatever_the_order_of_their_workers() {
    let workers: Vec<_> = (1..=4).map(|n| Worker::new(&format!("w{n}"))).collect();
    let mut all: Vec<_> = workers.iter().collect();
    let one = Rig::start(&all, for_all).await;
    all.reverse();
    let other = Rig::start(&all, for_all).await;
    for n in 0..50 {
        let key = format!("run-{n}");
        let home = one.chat_with(&[(KEY, &key)], CHAT).await.worker();
        assert_eq!(other.chat_with(&[(KEY, &key)], CHAT).await.worker(), home);
    }
}

#[tokio::test(start_paused = true)]
async fn when_its_worker_breaks_a_key_moves_within_the_request_and_stays_where_it_went() {
    let (rig, workers) = fleet(4, |settings| {
        for_all(settings);
        settings.retry.attempts = 3;
    })
    .await;
    let home = rig.chat_with(&[(KEY, "k")], CHAT).await;
    let url = home.header("x-smg-routed-worker-id").unwrap();
    workers.iter().find(|worker| worker.url() == url).unwrap().door(Door::Refusing);
    // By then no connection to it is kept.
    later(5.0).await;
    let id = home.header(ID).unwrap();
    let moved = rig.chat_with(&[(KEY, "k")], CHAT).await;
    assert!(moved.status == 200 && moved.worker() != home.worker());
    for headers in [&[(KEY, "k")][..], &[(KEY, "k"), (ID, &id)]] {
        let turn = rig.chat_with(headers, CHAT).await;
        assert_eq!((turn.worker(), turn.header(ID)), (moved.worker(), moved.header(ID)));
    }
    assert_eq!(branch(&rig, "id_stale"), 1, "once for a request, however often it was tried");
}

#[tokio::test(start_paused = true)]
async fn another_strategy_issues_no_id_and_knows_no_session() {
    let (rig, workers) = fleet(2, |_| {}).await;
    for _ in 0..2 {
        let turn = rig.chat_with(&[(KEY, "k"), (ID, &id_of("w1"))], CHAT).await;
        assert_eq!(turn.header(ID), None);
    }
    assert_eq!((workers[0].served(), workers[1].served()), (1, 1), "round robin");
    assert_eq!(rig.count("smg_session_affinity_branch_total", &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_may_ask_for_another_policy() {
    let (rig, workers) = fleet(2, for_all).await;
    for asked in ["round-robin", "round_robin", " round-robin "] {
        for _ in 0..2 {
            let turn = rig.chat_with(&[("routing-strategy", asked), (KEY, "k")], CHAT).await;
            assert_eq!((turn.status, turn.header(ID)), (200, None), "{asked}");
        }
    }
    assert_eq!((workers[0].served(), workers[1].served()), (3, 3), "one cycle for all of them");
    for asked in ["prefix-cache", "least-request", "random", "power-of-two", "least_load", "manual"]
    {
        let turn = rig.chat_with(&[("routing-strategy", asked)], CHAT).await;
        // The rig sweeps no index, which cache_aware cannot do without.
        assert_eq!(turn.status, if asked == "prefix-cache" { 400 } else { 200 }, "{asked}");
    }
    for blank in ["", " "] {
        assert!(rig.chat_with(&[("routing-strategy", blank)], CHAT).await.header(ID).is_some());
    }
    let twice = [("routing-strategy", "nonsense"), ("routing-strategy", "random")];
    assert_eq!(rig.chat_with(&twice, CHAT).await.status, 200, "the last one counts");
}

#[tokio::test(start_paused = true)]
async fn prompts_are_remembered_for_those_who_ask_for_it() {
    let (rig, _workers) = fleet(2, |settings| {
        settings.index_sweep = Some(std::time::Duration::from_secs(60));
    })
    .await;
    let body =
        format!(r#"{{"model":"m","messages":[{{"content":"{}"}}]}}"#, "so long ".repeat(200));
    let asked = [("routing-strategy", "prefix-cache")];
    let home = rig.chat_with(&asked, &body).await.worker();
    for _ in 0..3 {
        assert_eq!(rig.chat_with(&asked, &body).await.worker(), home);
    }
    assert_eq!(rig.count("smg_cache_aware_policy_branch_total", &[("branch", "tree_match")]), 3);
}

#[tokio::test(start_paused = true)]
async fn a_strategy_that_is_none_is_refused_with_what_would_do() {
    let (rig, workers) = fleet(1, |_| {}).await;
    for wrong in ["nonsense", "session-affinity-x", "random:1,pd:2", "pd"] {
        let refused = rig.chat_with(&[("routing-strategy", wrong)], CHAT).await;
        refused.is_refusal(400, "invalid_routing_strategy");
        assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
        assert!(refused.text().contains("session-affinity"), "{}", refused.text());
    }
    assert_eq!(workers[0].served(), 0);
}

#[tokio::test(start_paused = true)]
async fn under_a_locked_policy_clients_ask_in_vain() {
    let (rig, _workers) = fleet(2, |settings| settings.affinity.lock_policy = true).await;
    for asked in ["session-affinity", "nonsense"] {
        let turn = rig.chat_with(&[("routing-strategy", asked)], CHAT).await;
        assert_eq!((turn.status, turn.header(ID)), (200, None), "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn session_headers_stay_here_unless_engines_are_to_have_them() {
    let headers = [
        STRATEGY,
        (KEY, "private"),
        (ID, "dzE6ODAwMA=="),
        ("x-smg-parent-key", "parent"),
        ("target-pod", "10.0.0.9:1"),
    ];
    let (rig, workers) = fleet(1, |_| {}).await;
    rig.chat_with(&headers, CHAT).await;
    for (name, _) in headers {
        assert!(workers[0].last().header(name).is_empty(), "{name}");
    }
    let (rig, workers) = fleet(1, |settings| settings.affinity.forward_headers = true).await;
    rig.chat_with(&headers, CHAT).await;
    for (name, value) in &headers[1..4] {
        assert_eq!(workers[0].last().header(name), [*value], "{name}");
    }
    assert!(workers[0].last().header("target-pod").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_encrypted_id_shows_nothing_and_only_bare_ones_that_are_wanted_are_read() {
    let secret = || "0123456789abcdef".parse().unwrap();
    let (rig, _workers) = fleet(3, |settings| {
        for_all(settings);
        settings.affinity.id_secrets = vec![secret()];
    })
    .await;
    let first = rig.chat(CHAT).await;
    let id = first.header(ID).unwrap();
    assert_ne!(id, id_of(&first.worker()));
    for _ in 0..5 {
        assert_eq!(rig.chat_with(&[(ID, &id)], CHAT).await.worker(), first.worker());
    }
    rig.chat_with(&[(ID, &id_of("w1"))], CHAT).await;
    assert_eq!((branch(&rig, "id_hit"), branch(&rig, "id_stale")), (5, 1));
    let (rig, _workers) = fleet(3, |settings| {
        for_all(settings);
        settings.affinity.id_secrets = vec!["another secret than that".parse().unwrap(), secret()];
        settings.affinity.accept_bare = true;
    })
    .await;
    assert_eq!(rig.chat_with(&[(ID, &id)], CHAT).await.worker(), first.worker());
    assert_eq!(rig.chat_with(&[(ID, &id_of("w2"))], CHAT).await.worker(), "w2");
}

#[tokio::test(start_paused = true)]
async fn with_the_override_a_rid_is_the_key() {
    let (rig, _workers) = fleet(3, |settings| {
        for_all(settings);
        settings.sticky = sticky();
    })
    .await;
    let rid = |rid: &str| format!(r#"{{"model":"m","messages":[],"rid":"{rid}"}}"#);
    for n in 0..10 {
        let home = rig.chat(&rid(&format!("conv{n}"))).await.worker();
        let other = id_of(if home == "w1" { "w2" } else { "w1" });
        // Neither a session key, nor an id, nor a routing-key header outranks it.
        let headers = [(KEY, "else"), (ID, other.as_str()), ("x-smg-routing-key", "else")];
        let turn = rig.chat_with(&headers, &rid(&format!("conv{n}_t2_r1"))).await;
        assert_eq!(turn.worker(), home);
        // As a session key it means the same.
        assert_eq!(rig.chat_with(&[(KEY, &format!("conv{n}"))], CHAT).await.worker(), home);
    }
    assert_eq!(rig.branch("vacant"), 0, "what pins keys is not asked");
}

#[tokio::test(start_paused = true)]
async fn children_start_with_their_parent_and_a_spread_key_has_several_workers() {
    let (rig, _workers) = fleet(3, for_all).await;
    let parent = rig.chat_with(&[(KEY, "parent")], CHAT).await.worker();
    for n in 0..16 {
        let headers = [(KEY, format!("child-{n}")), ("x-smg-parent-key", "parent".to_owned())];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        assert_eq!(rig.chat_with(&headers, CHAT).await.worker(), parent);
    }
    let mut used = std::collections::BTreeSet::new();
    for _ in 0..40 {
        used.insert(rig.chat_with(&[(KEY, "wide"), ("x-smg-spread", "2")], CHAT).await.worker());
    }
    assert_eq!(used.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_branches_are_there_from_the_start() {
    let (rig, _workers) = fleet(1, |_| {}).await;
    for label in [
        "id_hit",
        "id_stale",
        "key_hit",
        "key_claimed",
        "key_adopted",
        "key_moved",
        "rendezvous",
        "random",
        "gate_left",
    ] {
        let labels = [("branch", label)];
        assert_eq!(rig.metric("smg_session_affinity_branch_total", &labels), Some(0.0), "{label}");
    }
    for op in ["claim", "move", "look", "renew"] {
        assert_eq!(rig.metric("smg_sticky_store_ops_total", &[("op", op)]), Some(0.0));
    }
}
