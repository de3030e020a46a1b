//! What `cache_aware` learns of requests that a pin decided, and whose requests count.

use smg_gateway::settings::{Assignment, PolicyName, Sticky};

use super::rig::*;

const KEY: &str = "x-smg-routing-key";

/// A conversation's prompt after so many turns.
fn talk(turns: usize) -> String {
    let text: String =
        (0..turns).map(|n| format!("turn {n}: {} ", "so it goes on. ".repeat(40))).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

async fn pinned_under(assignment: Assignment) -> (Rig, [Worker; 3]) {
    let workers = ["w1", "w2", "w3"].map(Worker::new);
    let rig = Rig::start(&workers.each_ref(), |settings| {
        settings.placement.policy = PolicyName::CacheAware;
        settings.sticky = Sticky { assignment: Some(assignment), ..sticky() };
    })
    .await;
    (rig, workers)
}

/// The first turn alone would be too small a share of the ninth to bind it.
#[tokio::test(start_paused = true)]
async fn the_later_turns_of_a_pinned_conversation_are_known_without_its_key() {
    for assignment in [Assignment::Delegate, Assignment::MinLoad] {
        let (rig, _workers) = pinned_under(assignment).await;
        let home = rig.chat_with(&[(KEY, "k")], &talk(1)).await.worker();
        for turns in 2..9 {
            assert_eq!(rig.chat_with(&[(KEY, "k")], &talk(turns)).await.worker(), home);
        }
        let branch = |of| rig.count("smg_cache_aware_policy_branch_total", &[("branch", of)]);
        let before = branch("tree_match");
        assert_eq!(rig.chat(&talk(9)).await.worker(), home, "{assignment:?}");
        assert_eq!(branch("tree_match"), before + 1, "{assignment:?}");
    }
}

/// 000, "In-Flight Threshold": the placement can pick the pinned worker again, "for example when
/// `cache_aware` finds the conversation's prefix there".
#[tokio::test(start_paused = true)]
async fn beyond_the_threshold_a_conversation_stays_where_its_prefix_is() {
    let (rig, workers) = pinned_under(Assignment::Delegate).await;
    for turns in 1..9 {
        rig.chat_with(&[(KEY, "k")], &talk(turns)).await;
    }
    workers.iter().for_each(|worker| {
        worker.usually(script().hang());
    });
    let served = || workers.iter().map(Worker::served).sum::<usize>();
    let mut clients = Vec::new();
    for n in 9..14 {
        let mut client = rig.client();
        client.send(post("/v1/chat/completions", &[(KEY, "k")], talk(9))).await;
        rig.until("it is there", |_| served() == n).await;
        clients.push(client);
    }
    assert_eq!(rig.branch("cap_respill"), 3);
    assert_eq!(workers.iter().map(Worker::served).max(), Some(13), "all at home");
}

/// A request that its worker failed taught nothing, as far as it could be sent again.
#[tokio::test(start_paused = true)]
async fn what_a_pinned_request_failed_to_do_is_not_remembered() {
    let worker = Worker::new("w1");
    let rig = Rig::start(&[&worker], |settings| {
        settings.placement.policy = PolicyName::CacheAware;
        settings.sticky = sticky();
        settings.retry.attempts = 2;
    })
    .await;
    rig.chat_with(&[(KEY, "k")], CHAT).await;
    worker.next(script().say(answer("500 No", &[], "")));
    assert_eq!(rig.chat_with(&[(KEY, "k")], &talk(3)).await.status, 500);
    let matched = || rig.count("smg_cache_aware_policy_branch_total", &[("branch", "tree_match")]);
    let before = matched();
    rig.chat(&talk(3)).await;
    assert_eq!(matched(), before);
    rig.chat(&talk(3)).await;
    assert_eq!(matched(), before + 1);
}

async fn replica(workers: &[Worker; 2], policy: PolicyName) -> Rig {
    Rig::start(&workers.each_ref(), |settings| {
        settings.placement.policy = policy;
        settings.sticky = Sticky { assignment: Some(Assignment::MinLoad), ..sticky() };
    })
    .await
}

/// 000, "Assignment Modes": each gateway replica counted only the requests it dispatched.
#[tokio::test(start_paused = true)]
async fn what_another_replica_has_in_flight_does_not_count() {
    let workers = ["w1", "w2"].map(Worker::new);
    workers.iter().for_each(|worker| {
        worker.usually(script().hang());
    });
    let served = || workers.each_ref().map(Worker::served);
    let other = replica(&workers, PolicyName::Passthrough).await;
    let here = replica(&workers, PolicyName::RoundRobin).await;
    let mut clients = Vec::new();
    // Without a key the policy places, and that is the first worker for all six.
    for (rig, key, all) in [(&other, None, 6), (&here, Some(["a", "b", "c", "d"]), 10)] {
        let from = served().iter().sum::<usize>();
        for n in from..all {
            let mut client = rig.client();
            let name = key.map(|keys| [(KEY, keys[n - from])]);
            let headers = name.as_ref().map_or(&[][..], |name| name);
            client.send(post("/v1/chat/completions", headers, CHAT)).await;
            rig.until("it is there", |_| served().iter().sum::<usize>() == n + 1).await;
            clients.push(client);
        }
    }
    assert_eq!(served(), [8, 2]);
}
