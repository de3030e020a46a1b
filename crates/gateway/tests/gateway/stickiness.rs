//! A conversation stays where it is (000).

use std::time::Duration;

use smg_gateway::settings::{Assignment, Eviction};

use super::rig::*;

/// A fleet that registers in this order.
async fn fleet(
    names: &[&str],
    change: impl FnOnce(&mut smg_gateway::Settings),
) -> (Rig, Vec<Worker>) {
    let workers: Vec<_> = names.iter().map(|name| Worker::new(name)).collect();
    let all: Vec<_> = workers.iter().collect();
    let rig = Rig::start(&all, |settings| {
        settings.sticky = sticky();
        change(settings);
    })
    .await;
    (rig, workers)
}

async fn turn(rig: &Rig, key: &str) -> String {
    rig.chat_with(&[("x-smg-routing-key", key)], CHAT).await.worker()
}

#[tokio::test(start_paused = true)]
async fn every_turn_of_a_conversation_lands_on_one_worker() {
    let (rig, _workers) = fleet(&["w1", "w2", "w3"], |_| {}).await;
    let home = rig.chat(r#"{"model":"m","messages":[],"rid":"conv"}"#).await.worker();
    for n in 1..10 {
        for rid in [format!("conv_t{n}"), format!("conv_t{n}_r{n}"), format!("conv_r{n}")] {
            let body = format!(r#"{{"messages":[],"model":"m","rid":"{rid}"}}"#);
            // A header never outranks the rid, a request id is no key.
            let odd = format!("u{n}");
            let headers = [("x-smg-routing-key", odd.as_str()), ("x-request-id", &odd)];
            assert_eq!(rig.chat_with(&headers, &body).await.worker(), home, "{rid}");
        }
    }
    assert_eq!(turn(&rig, "conv_t99").await, home);
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (1, 28));
    let source = |of| rig.count("smg_routing_key_source_total", &[("source", of)]);
    assert_eq!((source("rid"), source("header")), (28, 1));
    assert_eq!(rig.count("smg_manual_policy_cache_entries", &[]), 1);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_rid_of_any_other_type_is_no_key_and_no_error() {
    let (rig, workers) = fleet(&["w1"], |_| {}).await;
    for rid in ["null", "5", "1e999", "true", r#"["a"]"#, r#"{"a":1}"#, r#""""#, r#""\ud800""#] {
        let body = format!(r#"{{"model":"m","messages":[],"rid":{rid}}}"#);
        assert_eq!(rig.chat(&body).await.status, 200, "{rid}");
        assert_eq!(workers[0].last().body, body.as_bytes(), "the engine's to judge");
    }
    assert_eq!(rig.count("smg_routing_key_source_total", &[]), 0);
    // Then a header decides.
    rig.chat_with(&[("x-smg-routing-key", "k")], r#"{"model":"m","messages":[],"rid":5}"#).await;
    assert_eq!(rig.count("smg_routing_key_source_total", &[("source", "header")]), 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_rids_in_one_body_the_last_one_counts() {
    let (rig, _workers) = fleet(&["w1", "w2", "w3"], |_| {}).await;
    let homes = [turn(&rig, "a").await, turn(&rig, "b").await];
    assert_ne!(homes[0], homes[1]);
    for (body, home) in [
        (r#"{"model":"m","rid":"a","messages":[],"rid":"b"}"#, &homes[1]),
        (r#"{"model":"m","rid":"b","messages":[{"rid":"b"}],"r\u0069d":"\u0061_t2"}"#, &homes[0]),
    ] {
        assert_eq!(rig.chat(body).await.worker(), *home, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_not_valid_are_ignored() {
    let (rig, _workers) = fleet(&["w1", "w2"], |_| {}).await;
    for bad in [String::new(), "x".repeat(129), "x".repeat(8000), "caf\u{e9}\u{80}".repeat(40)] {
        assert_ne!(turn(&rig, &bad).await, turn(&rig, &bad).await, "{} bytes", bad.len());
    }
    let mut client = rig.client();
    let request = post("/v1/chat/completions", &[("x-smg-routing-key", "@")], CHAT);
    let request: Vec<u8> = request.iter().map(|b| if *b == b'@' { 0xff } else { *b }).collect();
    client.send(request).await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(rig.count("smg_manual_policy_cache_entries", &[]), 0);
    let longest = "x".repeat(128);
    assert_eq!(turn(&rig, &longest).await, turn(&rig, &longest).await);
    assert_eq!(rig.count("smg_manual_policy_cache_entries", &[]), 1);
}

#[tokio::test(start_paused = true)]
async fn without_the_override_nothing_sticks() {
    let workers = [Worker::new("w1"), Worker::new("w2")];
    let rig = Rig::start(&[&workers[0], &workers[1]], |_| {}).await;
    let body = r#"{"model":"m","messages":[],"rid":"k"}"#;
    for _ in 0..4 {
        rig.chat_with(&[("x-smg-routing-key", "k")], body).await;
    }
    assert_eq!((workers[0].served(), workers[1].served()), (2, 2));
    assert_eq!(rig.count("smg_manual_policy_branch_total", &[]), 0);
    assert_eq!(rig.count("smg_routing_key_source_total", &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn pins_are_kept_for_each_model_apart() {
    let workers: Vec<_> = ["w1", "w2"].map(|name| Worker::serving(name, &["m", "n"])).into();
    let rig = Rig::start(&[&workers[0], &workers[1]], |s| s.sticky = sticky()).await;
    let ask = |model| format!(r#"{{"messages":[],"rid":"k","model":"{model}"}}"#);
    // Another key first, so that the two models' cycles differ.
    turn(&rig, "other").await;
    let (m, n) = (rig.chat(&ask("m")).await.worker(), rig.chat(&ask("n")).await.worker());
    assert_ne!(m, n);
    for _ in 0..3 {
        assert_eq!(rig.chat(&ask("m")).await.worker(), m);
        assert_eq!(rig.chat(&ask("n")).await.worker(), n);
    }
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (3, 6));
}

#[tokio::test(start_paused = true)]
async fn the_third_request_in_flight_is_placed_again() {
    let (rig, workers) = fleet(&["w1", "w2", "w3"], |_| {}).await;
    for worker in &workers {
        worker.usually(script().pause(10.0).say(json("{}")));
    }
    let mut clients = Vec::new();
    for n in 1..=3 {
        let mut client = rig.client();
        client.send(post("/v1/chat/completions", &[("x-smg-routing-key", "k")], CHAT)).await;
        rig.until("it is there", |_| workers.iter().map(Worker::served).sum::<usize>() == n).await;
        clients.push(client);
    }
    assert_eq!(rig.count("smg_worker_requests_active", &[]), 3);
    // One key, two workers: it counts once on each.
    assert_eq!(rig.count("smg_worker_routing_keys_active", &[]), 2);
    let mut homes = Vec::new();
    for client in &mut clients {
        homes.push(client.reply().await.worker());
    }
    assert!(homes[0] == homes[1] && homes[1] != homes[2], "{homes:?}");
    let branches = ["vacant", "occupied_hit", "cap_respill"].map(|branch| rig.branch(branch));
    assert_eq!(branches, [1, 1, 1]);
    // The pin followed to where there was room.
    assert_eq!(turn(&rig, "k").await, homes[2]);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn other_traffic_never_moves_a_key() {
    let (rig, workers) = fleet(&["w1", "w2"], |_| {}).await;
    let home = turn(&rig, "k").await;
    for worker in &workers {
        worker.usually(script().pause(100.0).say(json("{}")));
    }
    let mut others = Vec::new();
    for _ in 0..8 {
        let mut client = rig.client();
        client.send(post("/v1/chat/completions", &[], CHAT)).await;
        others.push(client);
    }
    settle().await;
    for worker in &workers {
        worker.usually(script().say(json("{}")));
    }
    for _ in 0..6 {
        assert_eq!(turn(&rig, "k").await, home);
    }
    assert_eq!(rig.branch("cap_respill"), 0);
}

#[tokio::test(start_paused = true)]
async fn pinned_requests_do_not_disturb_the_cycle() {
    let (rig, _workers) = fleet(&["w1", "w2", "w3"], |_| {}).await;
    let home = turn(&rig, "k").await;
    let mut cycle = vec![home.clone()];
    for _ in 0..5 {
        for _ in 0..2 {
            assert_eq!(turn(&rig, "k").await, home);
        }
        cycle.push(rig.chat(CHAT).await.worker());
    }
    assert_eq!(cycle[..3], cycle[3..]);
    cycle.truncate(3);
    cycle.sort();
    assert_eq!(cycle, ["w1", "w2", "w3"]);
    // Every placement is counted, pinned or not.
    assert_eq!(rig.count("smg_worker_selection_total", &[("policy", "round_robin")]), 16);
}

#[tokio::test(start_paused = true)]
async fn an_idle_pin_is_evicted_and_one_in_use_is_not() {
    let eviction = Eviction { max_idle_secs: 600, interval: Duration::from_secs(60) };
    let (rig, workers) = fleet(&["w1", "w2"], |settings| {
        settings.sticky = smg_gateway::settings::Sticky { eviction: Some(eviction), ..sticky() };
    })
    .await;
    let entries = || rig.count("smg_manual_policy_cache_entries", &[]);
    turn(&rig, "idle").await;
    turn(&rig, "used").await;
    for w in &workers {
        w.usually(script().pause(1000.0).say(json("{}")));
    }
    let mut busy = rig.client();
    busy.send(post("/v1/chat/completions", &[("x-smg-routing-key", "busy")], CHAT)).await;
    settle().await;
    for w in &workers {
        w.usually(script().say(json("{}")));
    }
    assert_eq!(entries(), 3);
    later(400.0).await;
    turn(&rig, "used").await;
    later(300.0).await;
    assert_eq!(entries(), 2, "the sweep updates the gauge");
    assert_eq!(busy.reply().await.status, 200);
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (3, 1));
    turn(&rig, "idle").await;
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn every_assignment_mode_sticks() {
    for assignment in
        [Assignment::Random, Assignment::MinLoad, Assignment::MinGroup, Assignment::Delegate]
    {
        let (rig, workers) = fleet(&["w1", "w2", "w3"], |settings| {
            settings.sticky =
                smg_gateway::settings::Sticky { assignment: Some(assignment), ..sticky() };
        })
        .await;
        for n in 0..30 {
            let key = format!("k{n}");
            let home = turn(&rig, &key).await;
            assert_eq!(turn(&rig, &key).await, home, "{assignment:?}");
        }
        let counts = workers.iter().map(Worker::served).collect::<Vec<_>>();
        assert!(counts.iter().all(|count| *count > 0), "{assignment:?}: {counts:?}");
        assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (30, 30));
    }
}

#[tokio::test(start_paused = true)]
async fn min_load_and_min_group_look_at_what_is_in_flight() {
    for assignment in [Assignment::MinLoad, Assignment::MinGroup] {
        let (rig, workers) = fleet(&["w1", "w2", "w3"], |settings| {
            settings.sticky =
                smg_gateway::settings::Sticky { assignment: Some(assignment), ..sticky() };
        })
        .await;
        workers.iter().for_each(|w| {
            w.usually(script().hang());
        });
        let mut clients = Vec::new();
        for n in 0..9 {
            let mut client = rig.client();
            let key = format!("k{n}");
            client.send(post("/v1/chat/completions", &[("x-smg-routing-key", &key)], CHAT)).await;
            rig.until("it is there", |_| {
                workers.iter().map(Worker::served).sum::<usize>() == n + 1
            })
            .await;
            clients.push(client);
        }
        let counts = workers.iter().map(Worker::served).collect::<Vec<_>>();
        assert_eq!(counts, [3, 3, 3], "{assignment:?}");
        drop(clients);
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_keys_shuts_nobody_out() {
    let (rig, _workers) = fleet(&["w1", "w2"], |_| {}).await;
    for n in 0..2500 {
        let key = format!("{n:0>110}");
        assert!(!turn(&rig, &key).await.is_empty());
    }
    assert_eq!(rig.count("smg_manual_policy_cache_entries", &[]), 2500);
    assert_eq!(turn(&rig, "fresh").await, turn(&rig, "fresh").await);
}

#[tokio::test(start_paused = true)]
async fn turns_that_come_together_land_together() {
    let (rig, workers) = fleet(&["w1", "w2", "w3"], |_| {}).await;
    let (a, b) = tokio::join!(turn(&rig, "k"), turn(&rig, "k"));
    assert_eq!(a, b);
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (1, 1));
    assert_eq!(workers.iter().map(Worker::served).max(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn the_first_configured_header_with_a_valid_value_decides() {
    let (rig, _workers) = fleet(&["w1", "w2", "w3"], |settings| {
        let headers = ["x-first", "x-second"].map(http::HeaderName::from_static).to_vec();
        settings.sticky = smg_gateway::settings::Sticky { headers, ..sticky() };
    })
    .await;
    let home = rig.chat_with(&[("x-second", "k")], CHAT).await.worker();
    let long = "x".repeat(129);
    for headers in [
        vec![("X-FIRST", "k_t1"), ("x-second", "other")],
        vec![("x-first", ""), ("x-second", "k_t2")],
        vec![("x-first", &long), ("x-second", "k_t2_r1")],
        vec![("x-smg-routing-key", "other"), ("x-second", "k")],
    ] {
        assert_eq!(rig.chat_with(&headers, CHAT).await.worker(), home, "{headers:?}");
    }
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (1, 4));
}
