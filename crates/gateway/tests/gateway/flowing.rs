//! Request bodies that go to the worker as they arrive (001, "How the Router Decides" and "Stalled and
//! Aborted Uploads").

use std::time::Duration;

use smg_gateway::settings::{BreakerRules, PolicyName, Settings};

use super::rig::*;

const PATH: &str = "/v1/chat/completions";

/// Retries off, so that every eligible body streams.
fn flows(settings: &mut Settings) {
    settings.bodies.model_selection = false;
    settings.bodies.stall = Some(Duration::from_secs(300));
}

/// The head of a POST that announces so many bytes.
fn head(length: usize) -> String {
    format!("POST {PATH} HTTP/1.1\r\nhost: gw\r\ncontent-length: {length}\r\n\r\n")
}

fn plans(rig: &Rig, path: &str, reason: &str) -> i64 {
    rig.count("smg_router_request_body_path_total", &[("path", path), ("reason", reason)])
}

/// One plan was made, and this is it.
fn only(rig: &Rig, path: &str, reason: &str) -> bool {
    let all = rig.count("smg_router_request_body_path_total", &[]);
    (all, plans(rig, path, reason)) == (1, 1)
}

#[tokio::test(start_paused = true)]
async fn the_worker_gets_the_clients_bytes_in_chunks_while_they_arrive() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], flows).await;
    let body = "{ not json, and nobody here reads it \u{e9} ";
    let (first, second) = body.as_bytes().split_at(10);
    let mut client = rig.client();
    client.send(head(body.len())).await;
    w.until("the head is there before any byte of the body", |story| story.requests.len() == 1)
        .await;
    client.send(first).await;
    w.until("the first half is there", |story| story.requests[0].body == first).await;
    assert!(only(&rig, "streamed", "pure_forward"));
    client.send(second).await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-smg-routed-worker-id").as_deref(), Some(w.url()));
    assert_eq!(reply.header("connection"), None, "the client may go on");
    assert_eq!((w.last().body, w.last().whole), (body.as_bytes().to_vec(), true));
    for (name, value) in [
        ("content-type", &["application/json"][..]),
        ("transfer-encoding", &["chunked"]),
        ("content-length", &[]),
    ] {
        assert_eq!(w.last().header(name), value);
    }
    // The model was never read, nor whether a stream was asked for.
    let labels = [("model", "unknown"), ("streaming", "false"), ("endpoint", "chat")];
    assert_eq!(rig.count("smg_router_requests_total", &labels), 1);
    assert_eq!(client.post(PATH, &[], CHAT).await.status, 200);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_streamed_request_is_sent_once_and_its_answer_relayed_as_it_comes() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        flows(settings);
        settings.retry.attempts = 5;
        settings.bodies.max_buffered = 10;
    })
    .await;
    w.next(script().say(answer("503 Busy", &[], "later")));
    assert_eq!((rig.chat(CHAT).await.status, w.served()), (503, 1));
    assert!(only(&rig, "streamed", "retry_forfeited"));
    w.next(script().say(events_head()).say(chunked("data: 1\n\n")).hang());
    let mut client = rig.client();
    client.send(post(PATH, &[], CHAT_STREAM)).await;
    client.head().await;
    assert_eq!(client.chunk().await.as_deref(), Some(&b"data: 1\n\n"[..]));
    client.leave().await;
    rig.is_at_rest().await;
}

/// A connection that the worker has closed is found out before a body that cannot be sent again.
#[tokio::test(start_paused = true)]
async fn an_answer_that_never_begins_is_not_asked_for_again() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], flows).await;
    w.next(script().close());
    let reply = rig.chat(CHAT).await;
    reply.is_refusal(500, "call_upstream_request_error");
    assert_eq!(w.served(), 1);
    assert_eq!(rig.count("smg_router_upstream_send_retries_total", &[]), 0);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_client_does_to_its_upload_is_answered_and_never_held_against_the_worker() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        flows(settings);
        settings.breaker = BreakerRules { failures: Some(1), successes: 1, timeout_ms: 60_000 };
    })
    .await;
    let mut stalled = rig.client();
    stalled.send(head(100)).await.send("{").await;
    later(299.0).await;
    // Every byte starts the clock anew.
    stalled.send("}").await;
    later(299.0).await;
    assert_eq!(w.now(|story| story.open), 1);
    let reply = stalled.reply().await;
    reply.is_refusal(408, "request_body_stalled");
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    w.until("its upload is broken off", |story| story.open == 0).await;
    assert!(!w.last().whole);

    let mut leaving = rig.client();
    leaving.send(head(100)).await.send("{").await;
    w.until("the second is there", |story| story.requests.len() == 2).await;
    leaving.leave().await;
    w.until("so is its upload", |story| story.open == 0).await;
    assert!(!w.last().whole);

    let outcomes = rig.count("smg_worker_cb_outcomes_total", &[("outcome", "failure")]);
    assert_eq!(outcomes, 0);
    assert_eq!(rig.chat(CHAT).await.status, 200);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn the_clock_stands_still_while_the_worker_reads_nothing_and_after_the_last_byte() {
    let w = Worker::new("w1").narrow(1024);
    let rig = Rig::start(&[&w], flows).await;
    let body = "x".repeat(200_000);
    w.next(Script::deaf().pause(400.0).read().pause(400.0).say(json("{}")));
    let mut client = rig.narrow_client(1024);
    client.send(head(body.len())).await;
    client.send(&body).await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(w.last().body.len(), body.len());
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_before_the_upload_has_ended_is_passed_on_and_ends_the_connection() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], flows).await;
    w.next(Script::deaf().say(answer("413 Too Much", &[], "no")).hang());
    let mut client = rig.client();
    client.send(head(1_000_000)).await.send("{").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.text()), (413, "no"));
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    w.until("the upload is broken off", |story| story.open == 0).await;
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_streams_stays_compressed_and_what_is_read_does_not() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], flows).await;
    rig.chat_with(&[("content-encoding", "br")], "whatever").await;
    assert_eq!(w.last().header("content-encoding"), ["br"]);
    let reading = Rig::start(&[&w], |_| {}).await;
    let reply = reading.chat_with(&[("content-encoding", "br")], "whatever").await;
    reply.is_refusal(415, "unsupported_content_encoding");
    let reply = reading.chat_with(&[("content-encoding", "gzip")], CHAT).await;
    reply.is_refusal(400, "invalid_content_encoding");
    // {"messages":[]} as one stored block.
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1, 15, 0, 0xf0, 0xff];
    packed.extend(br#"{"messages":[]}"#);
    packed.extend([0x91, 0xc3, 0x30, 0x00, 15, 0, 0, 0]);
    let mut client = reading.client();
    let reply = client.post(PATH, &[("content-encoding", "gzip")], packed).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(w.last().body, br#"{"messages":[]}"#);
    assert_eq!(w.last().header("content-encoding"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn nobody_to_send_to_or_a_fleet_that_needs_the_body_read_makes_it_buffered() {
    let none = Rig::start(&[], flows).await;
    none.chat(CHAT).await.is_refusal(404, "model_not_found");
    assert!(only(&none, "buffered", "no_available_worker"));

    let (a, b) = (Worker::new("w1"), Worker::serving("w2", &["other"]));
    let two = Rig::start(&[&a, &b], flows).await;
    assert_eq!(two.chat(CHAT).await.status, 200);
    assert!(only(&two, "buffered", "model_ambiguous"));

    let reading = Rig::start(&[&a], |settings| {
        flows(settings);
        settings.placement.policy = PolicyName::CacheAware;
    })
    .await;
    assert_eq!(reading.chat(CHAT).await.status, 200);
    assert!(only(&reading, "buffered", "policy_needs_text"));
    assert_eq!(
        reading.count("smg_router_request_buffers_released_early_bytes_total", &[]),
        CHAT.len() as i64
    );
    assert_eq!(reading.chat_with(&[("x-smg-routing-tokens", "1,2")], CHAT).await.status, 200);
    assert_eq!(plans(&reading, "streamed", "pure_forward"), 1);

    let selecting = Rig::start(&[&a], |settings| settings.bodies.model_selection = true).await;
    assert_eq!(selecting.chat(CHAT).await.status, 200);
    assert!(only(&selecting, "buffered", "model_selection"));
}

/// A request that waits for its turn is held against the fleet as it is when its turn comes.
#[tokio::test(start_paused = true)]
async fn a_fleet_that_changes_while_a_streamed_request_waits_is_noticed() {
    let (a, b) = (Worker::new("w1"), Worker::serving("w2", &["other"]));
    let rig = Rig::unready(&[&a, &b], |settings| {
        flows(settings);
        settings.workers.truncate(1);
        settings.admission = Some(smg_gateway::settings::AdmissionRules {
            limit: 1,
            queue: 10,
            wait_ms: 1_000_000,
            rate: None,
        });
    });
    rig.until("the first has registered", |gw| gw.workers() == (1, 1)).await;
    a.next(script().pause(100.0).say(json("{}")));
    let mut first = rig.client();
    first.send(post(PATH, &[], CHAT)).await;
    a.until("the first is there", |story| story.requests.len() == 1).await;
    let mut second = rig.client();
    second.send(post(PATH, &[], CHAT)).await;
    settle().await;
    rig.ask("POST", "/workers", &format!(r#"{{"url":"{}"}}"#, b.url())).await;
    rig.until("it has registered", |gw| gw.workers() == (2, 2)).await;
    assert_eq!(first.reply().await.status, 200);
    assert_eq!(second.reply().await.status, 200);
    assert_eq!(plans(&rig, "buffered", "model_ambiguous"), 1);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_vendor_gets_the_clients_own_key_and_pins_nothing() {
    let vendor = Worker::serving("vendor", &[]);
    let rig = Rig::start(&[&vendor], |settings| {
        settings.startup.external = true;
        settings.sticky = sticky();
        settings.access.api_key = "house".parse().ok();
    })
    .await;
    let send = |key: &'static str| {
        let headers =
            [("authorization", key), ("x-api-key", "house"), ("openai-organization", "org")];
        let rig = &rig;
        async move { rig.client().post(PATH, &[&headers[..], &[(KEY, "k")]].concat(), CHAT).await }
    };
    assert_eq!(send("Bearer theirs").await.status, 200);
    assert_eq!(vendor.last().header("authorization"), ["Bearer theirs"]);
    assert_eq!(vendor.last().header("openai-organization"), ["org"]);
    assert_eq!(vendor.last().header("x-api-key"), [""; 0]);
    assert_eq!(send("Bearer house").await.status, 200);
    assert_eq!(vendor.last().header("authorization"), [""; 0], "the gateway's key stays here");
    assert_eq!(plans(&rig, "buffered", "openai"), 2);
    assert_eq!(rig.count("smg_manual_policy_branch_total", &[]), 0);
    assert_eq!(vendor.now(|story| story.probed.len()), 0, "nothing is asked of a vendor");
    rig.is_at_rest().await;
}

const KEY: &str = "x-smg-routing-key";

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
