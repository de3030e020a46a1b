//! Bodies of which a beginning is read before they stream (docs/bodies.md, "Peeked").

use smg_gateway::settings::{PolicyName, Settings};

use super::flowing::{KEY, PATH, flows, head, only, plans};
use super::rig::*;

/// Streams but for the key in the body, which may be looked for in so many bytes.
fn peeks(bytes: usize) -> impl FnOnce(&mut Settings) {
    move |settings| {
        flows(settings);
        settings.sticky = sticky();
        settings.bodies.peek = bytes;
    }
}

/// A body whose messages are followed by its key, as SDKs write it.
fn keyed(model: &str, first: &str, rid: &str) -> String {
    let filler = "x".repeat(5000);
    format!(
        r#"{{"messages":[{{"role":"system","content":"s"}},{{"role":"user","content":"{first}"}},{{"role":"user","content":"{filler}"}}],"model":"{model}","rid":"{rid}"}}"#
    )
}

fn sources(rig: &Rig, source: &str) -> i64 {
    rig.count("smg_routing_key_source_total", &[("source", source)])
}

#[tokio::test(start_paused = true)]
async fn a_key_that_stands_in_the_beginning_is_found_and_the_rest_streams() {
    let (a, b) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&a, &b], peeks(100_000)).await;
    let body = keyed(MODEL, "hello", "conv_t1");
    let mut homes = Vec::new();
    for _ in 0..4 {
        let reply = rig.chat(&body).await;
        assert_eq!(reply.status, 200);
        homes.push(reply.header("x-smg-routed-worker-id").unwrap());
    }
    homes.dedup();
    assert_eq!(homes.len(), 1);
    assert_eq!((sources(&rig, "rid"), plans(&rig, "streamed", "peeked")), (4, 4));
    let at = if a.served() > 0 { &a } else { &b };
    assert_eq!(at.last().body, body.as_bytes(), "every byte, those that were looked at too");
    assert_eq!(at.last().header("transfer-encoding"), ["chunked"]);
    let labels = [("model", MODEL), ("streaming", "false"), ("endpoint", "chat")];
    assert_eq!(rig.count("smg_router_requests_total", &labels), 4);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_stands_behind_is_the_messages_the_conversation_opens_with() {
    let workers = [Worker::new("w1"), Worker::new("w2"), Worker::new("w3")];
    let rig = Rig::start(&workers.each_ref(), peeks(200)).await;
    for turn in 0..3 {
        for opening in ["one", "two", "three"] {
            let body = keyed(MODEL, opening, &format!("never-read-{turn}"));
            assert_eq!(rig.chat(&body).await.status, 200);
        }
    }
    assert_eq!((sources(&rig, "opening"), rig.branch("vacant")), (9, 3));
    assert_eq!(rig.branch("occupied_hit"), 6);
    // A header names the conversation all the same.
    let named = [(KEY, "named")];
    rig.client().post(PATH, &named, keyed(MODEL, "one", "r")).await;
    assert_eq!(sources(&rig, "header"), 1);
    // Nothing of the messages shows in metrics.
    assert!(!rig.gw.metrics_text().contains("never-read"));
}

#[tokio::test(start_paused = true)]
async fn the_worker_has_the_beginning_before_the_end_is_written() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], peeks(300)).await;
    let body = keyed(MODEL, "hello", "r");
    let mut client = rig.client();
    client.send(head(body.len())).await.send(&body[..400]).await;
    w.until("what was looked at is there", |story| {
        story.requests.first().is_some_and(|request| request.body == body.as_bytes()[..400])
    })
    .await;
    client.send(&body[400..]).await;
    assert_eq!(client.reply().await.status, 200);
    // A client that stalls before is answered as one that stalls later.
    let mut stalled = rig.client();
    stalled.send(head(body.len())).await.send(&body[..100]).await;
    let reply = stalled.reply().await;
    reply.is_refusal(408, "request_body_stalled");
    assert_eq!((reply.header("connection").as_deref(), w.served()), (Some("close"), 1));
    let mut leaving = rig.client();
    leaving.send(head(body.len())).await.send(&body[..100]).await;
    settle().await;
    leaving.leave().await;
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn of_several_models_the_one_that_is_found_is_asked_and_else_the_body_is_read() {
    let (a, b) = (Worker::new("w1"), Worker::serving("w2", &["other"]));
    let found = Rig::start(&[&a, &b], peeks(100_000)).await;
    assert_eq!(found.chat(&keyed("other", "x", "r")).await.status, 200);
    assert_eq!((a.served(), b.served()), (0, 1));
    assert_eq!(plans(&found, "streamed", "peeked"), 1);

    let hidden = Rig::start(&[&a, &b], peeks(200)).await;
    assert_eq!(hidden.chat(&keyed("other", "x", "r")).await.status, 200);
    assert_eq!((a.served(), b.served()), (0, 2));
    assert!(only(&hidden, "buffered", "model_ambiguous"));
    assert_eq!(b.last().header("content-length").len(), 1);

    let igw = |peek| {
        move |settings: &mut Settings| {
            peeks(peek)(settings);
            settings.bodies.model_selection = true;
        }
    };
    let selecting = Rig::start(&[&a], igw(200)).await;
    assert_eq!(selecting.chat(&keyed(MODEL, "x", "r")).await.status, 200);
    assert!(only(&selecting, "buffered", "model_selection"));
    let selecting = Rig::start(&[&a], igw(100_000)).await;
    assert_eq!(selecting.chat(&keyed(MODEL, "x", "r")).await.status, 200);
    assert!(only(&selecting, "streamed", "peeked"));
}

/// What is found in a beginning chooses a worker and no more.
#[tokio::test(start_paused = true)]
async fn an_alias_or_a_strange_model_in_the_beginning_has_the_body_read() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        peeks(100_000)(settings);
        settings.aliases.insert("fast".to_owned(), MODEL.to_owned());
    })
    .await;
    assert_eq!(rig.chat(&keyed("fast", "x", "r")).await.status, 200);
    assert!(only(&rig, "buffered", "model_ambiguous"));
    assert_eq!(w.last().body, keyed(MODEL, "x", "r").as_bytes());
    rig.chat(&keyed("none", "x", "r")).await.is_refusal(404, "model_not_found");
    // Nothing of a compressed body can be looked at.
    let packed = [("content-encoding", "zstd")];
    rig.chat_with(&packed, CHAT).await.is_refusal(400, "invalid_content_encoding");
    assert_eq!(plans(&rig, "buffered", "routing_key_override"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_goes_by_prefixes_does_with_the_beginning() {
    let (a, b) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&a, &b], |settings| {
        flows(settings);
        settings.placement.policy = PolicyName::CacheAware;
        settings.bodies.peek = 3000;
    })
    .await;
    let turn = |name: &str| {
        let said = name.repeat(200);
        format!(
            r#"{{"messages":[{{"role":"user","content":"{said}"}},{{"x":"{}"}}]}}"#,
            "y".repeat(9000)
        )
    };
    for _ in 0..3 {
        for name in ["one ", "two "] {
            assert_eq!(rig.chat(&turn(name)).await.status, 200);
        }
    }
    assert_eq!(plans(&rig, "streamed", "peeked"), 6);
    let firsts = |w: &Worker| {
        w.now(|story| {
            let mut names: Vec<_> =
                story.requests.iter().map(|r| r.body[40..44].to_vec()).collect();
            names.sort();
            names.dedup();
            names.len()
        })
    };
    assert_eq!((firsts(&a), firsts(&b)), (1, 1), "each conversation stays where it began");
}

/// The first two turns of a conversation, as an SDK wrote them (tests/record.py), with `rid` last.
const RECORDED: [(&str, [&str; 2]); 3] = [
    (
        "/v1/chat/completions",
        [
            include_str!("recorded/openai-python-1.json"),
            include_str!("recorded/openai-python-2.json"),
        ],
    ),
    (
        "/v1/chat/completions",
        [include_str!("recorded/openai-node-1.json"), include_str!("recorded/openai-node-2.json")],
    ),
    (
        "/v1/messages",
        [
            include_str!("recorded/anthropic-python-1.json"),
            include_str!("recorded/anthropic-python-2.json"),
        ],
    ),
];

/// Wherever the beginning ends: before or behind the `rid`, or between where it stands in one turn and
/// where in the next.
#[tokio::test(start_paused = true)]
async fn conversations_as_sdks_write_them_stay_whatever_is_seen_of_them() {
    for (path, turns) in RECORDED {
        let rids = turns.map(|turn| turn.rfind("\"rid\"").unwrap());
        assert!(rids[0] < rids[1] && rids[1] < 1800, "{rids:?}");
        for (peek, sources_seen) in [
            (1500, ["opening", "opening"]),
            (rids[0] + 14, ["rid", "opening"]),
            (1 << 20, ["rid", "rid"]),
        ] {
            // Two, so that round robin would part them.
            let (a, b) = (Worker::new("w1"), Worker::new("w2"));
            let rig = Rig::start(&[&a, &b], peeks(peek)).await;
            let homes = [
                rig.client().post(path, &[], turns[0]).await.worker(),
                rig.client().post(path, &[], turns[1]).await.worker(),
            ];
            assert_eq!(homes[0], homes[1], "{path} {peek}");
            for source in ["rid", "opening"] {
                let seen = sources_seen.iter().filter(|it| **it == source).count();
                // The body of Node is so short that its first `rid` is within the shortest beginning.
                if peek != 1500 {
                    assert_eq!(sources(&rig, source), seen as i64, "{path} {peek} {source}");
                }
            }
            let used = [&a, &b].into_iter().find(|worker| worker.served() > 0).unwrap();
            assert_eq!(used.last().body, turns[1].as_bytes());
        }
    }
}

/// While it is short enough to be held for a retry its key is read; when it has grown, it is not.
#[tokio::test(start_paused = true)]
async fn a_conversation_that_outgrows_what_is_held_stays() {
    let (a, b) = (Worker::new("w1"), Worker::new("w2"));
    let rig = Rig::start(&[&a, &b], |settings| {
        peeks(400)(settings);
        settings.retry.attempts = 2;
        settings.bodies.max_buffered = 2000;
    })
    .await;
    let turn = |filler: usize| {
        let said = "x".repeat(filler);
        format!(
            r#"{{"messages":[{{"role":"user","content":"hello"}},{{"role":"user","content":"{said}"}}],"rid":"conv"}}"#
        )
    };
    let homes = [rig.chat(&turn(1000)).await.worker(), rig.chat(&turn(5000)).await.worker()];
    assert_eq!(homes[0], homes[1]);
    assert_eq!((sources(&rig, "rid"), sources(&rig, "opening")), (1, 1));
    assert_eq!(plans(&rig, "streamed", "peeked"), 1);
    assert_eq!(rig.branch("occupied_hit"), 1);
}
