//! Workers that speak HTTP/2 (001, "Upstream HTTP/2").

use std::time::Duration;

use h2::Reason;
use smg_gateway::settings::RetryRules;
use smg_gateway::upstream::WorkerTls;
use tokio::time::Instant;

use super::super::rig::*;

const RESENDS: &str = "smg_router_upstream_send_retries_total";

/// A gateway under `--upstream-http2`.
async fn start(w: &Worker) -> Rig {
    Rig::start(&[w], |settings| settings.startup.http2 = true).await
}

fn speaking(most: u32) -> (Worker, Tongue) {
    let (w, tongue) = (Worker::new("w1"), Tongue::new(most));
    w.speaks(&tongue);
    (w, tongue)
}

async fn shown(rig: &Rig) -> serde_json::Value {
    rig.get("/workers").await.json()["workers"][0]["http2"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_speaks_http2_is_spoken_to_in_it() {
    let (w, tongue) = speaking(100);
    let rig = start(&w).await;
    assert_eq!(shown(&rig).await, true);
    assert_eq!(rig.count("smg_worker_http2", &[("worker", w.url())]), 1);
    let reply = rig.chat(CHAT).await;
    assert_eq!((reply.status, reply.text()), (200, "{}"));
    let heard = tongue.heard();
    assert_eq!((heard.len(), w.served()), (1, 0));
    assert_eq!(heard[0].uri, "http://w1:8000/v1/chat/completions");
    assert_eq!(heard[0].body, CHAT.as_bytes());
    assert_eq!(heard[0].headers["content-length"], CHAT.len().to_string());
    assert!(heard[0].headers.get("host").is_none());
    assert!(tongue.probes() > 2);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_nobody_asks_and_a_pin_asks_nothing() {
    for (http2, pin, is) in [
        (false, "", false),
        (true, r#","http_pool":{"http2":false}"#, false),
        (false, r#","http_pool":{"http2":true}"#, true),
    ] {
        let (w, tongue) = speaking(100);
        let rig = Rig::unready(&[&w], |settings| {
            settings.startup.http2 = http2;
            settings.workers.clear();
        });
        rig.ask("POST", "/workers", &format!(r#"{{"url":"{}"{pin}}}"#, w.url())).await;
        rig.until("it is registered", |gw| gw.workers() == (1, 1)).await;
        assert_eq!(shown(&rig).await, is, "{pin}");
        assert_eq!(rig.count("smg_worker_http2", &[]), i64::from(is), "{pin}");
        assert_eq!(rig.chat(CHAT).await.status, 200);
        assert_eq!((tongue.heard().len(), w.served()), (is.into(), (!is).into()), "{pin}");
        assert_eq!(tongue.probes() > 0, is, "{pin}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_may_be_mixed_and_a_worker_pinned_to_what_it_does_not_speak_never_registers() {
    let ((new, tongue), old) = (speaking(100), Worker::new("w2"));
    let rig = Rig::start(&[&new, &old], |settings| settings.startup.http2 = true).await;
    for _ in 0..6 {
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    assert_eq!((tongue.heard().len(), old.served()), (3, 3));
    assert_eq!(rig.metric("smg_worker_http2", &[("worker", old.url())]), Some(0.0));
    let w = Worker::new("w1");
    let rig = Rig::unready(&[&w], |settings| settings.workers.clear());
    let spec = r#"{"url":"http://w1:8000","http_pool":{"http2":true}}"#;
    let accepted = rig.ask("POST", "/workers", spec).await;
    later(30.0).await;
    assert_eq!((accepted.status, rig.gw.workers(), w.served()), (202, (0, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn the_version_is_settled_at_registration() {
    let (w, _tongue) = speaking(100);
    let rig = start(&w).await;
    let id =
        rig.get("/workers").await.json()["workers"][0]["id"].as_str().expect("an id").to_owned();
    let path = format!("/workers/{id}");
    let refused = rig.ask("PATCH", &path, r#"{"http_pool":{"http2":false}}"#).await;
    refused.is_refusal(400, "invalid_worker_spec");
    let same = rig.ask("PATCH", &path, r#"{"http_pool":{"http2":true,"timeout_secs":5}}"#).await;
    assert_eq!(same.status, 200);
    // What comes back after an outage is asked what it serves, and nothing else.
    w.health(Some("503 Service Unavailable"));
    rig.until("it is out", |gw| gw.workers() == (0, 1)).await;
    w.serves(&["n"]);
    w.health(Some("200 OK"));
    rig.until("it is back", |gw| gw.workers() == (1, 1)).await;
    let shown = rig.get(&path).await.json();
    assert_eq!((&shown["model_id"], &shown["http2"]), (&"n".into(), &true.into()));
}

#[tokio::test(start_paused = true)]
async fn one_that_learns_http2_while_it_is_down_is_spoken_to_as_before() {
    let w = Worker::new("w1");
    let rig = start(&w).await;
    w.health(Some("503 Service Unavailable"));
    rig.until("it is out", |gw| gw.workers() == (0, 1)).await;
    let tongue = Tongue::new(100);
    w.speaks(&tongue);
    w.health(Some("200 OK"));
    rig.until("it is back", |gw| gw.workers() == (1, 1)).await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!(rig.get("/workers").await.json()["workers"][0]["http2"], false);
    assert_eq!(tongue.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn requests_share_a_connection_until_the_worker_allows_no_more_streams() {
    for (most, connections) in [(100, 1), (5, 3)] {
        let (w, tongue) = speaking(most);
        let rig = start(&w).await;
        assert_eq!(rig.chat(CHAT).await.status, 200);
        let mut clients: Vec<_> = (0..12).map(|_| rig.client()).collect();
        for (client, so_far) in clients.iter_mut().zip(2..) {
            tongue.next([
                Frame::Wait,
                Frame::Head("application/json", false),
                Frame::Data("{}", true),
            ]);
            client.send(post("/v1/chat/completions", &[], CHAT)).await;
            tongue.until("it is there", |tongue| tongue.heard().len() == so_far).await;
        }
        assert_eq!(tongue.open(), connections);
        settle().await;
        tongue.go_on();
        for client in &mut clients {
            assert_eq!(client.reply().await.status, 200);
        }
        // The first stays, what it took besides goes.
        later(10.0).await;
        assert_eq!(tongue.open(), 1);
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn streams_and_streamed_bodies_go_over_it() {
    let (w, tongue) = speaking(100);
    let rig = Rig::start(&[&w], |settings| {
        settings.startup.http2 = true;
        settings.bodies.model_selection = false;
        settings.bodies.max_buffered = 10;
        settings.bodies.max_payload = 8 << 20;
    })
    .await;
    tongue.next([
        Frame::Head("text/event-stream", false),
        Frame::Data("data: 1\n\n", false),
        Frame::Data("", false),
        Frame::Data("data: [DONE]\n\n", true),
    ]);
    let body = format!(r#"{{"model":"m","messages":[],"pad":"{}"}}"#, "x".repeat(3 << 20));
    let reply = rig.chat(&body).await;
    assert_eq!(reply.text(), "data: 1\n\ndata: [DONE]\n\n");
    assert_eq!(reply.ended, Ended::LastChunk);
    let heard = tongue.heard();
    assert!(heard[0].whole && heard[0].body == body.as_bytes());
    assert!(heard[0].headers.get("content-length").is_none());
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_holds_up_nobody_and_loses_nothing() {
    const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
    const EVENTS: usize = 4000;
    let (w, tongue) = speaking(100);
    let rig = start(&w).await;
    let mut slow = Vec::new();
    // Each holds more small frames than h2 lets be unread on a connection with an ordinary window.
    for _ in 0..3 {
        let mut said = vec![Frame::Head("text/event-stream", false)];
        said.extend(vec![Frame::Data(EVENT, false); EVENTS]);
        said.push(Frame::Data("data: [DONE]\n\n", true));
        tongue.next(said);
        let mut client = rig.narrow_client(1024);
        client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
        slow.push(client);
    }
    tongue.until("their requests", |tongue| tongue.heard().len() == 3).await;
    settle().await;
    for _ in 0..3 {
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    for mut client in slow {
        assert_eq!(client.head().await.status, 200);
        let text = client.reply_body().await;
        assert_eq!(text.matches(EVENT).count(), EVENTS);
        assert!(text.ends_with("data: [DONE]\n\n"), "{}", text.len());
    }
    let heard = tongue.heard();
    assert!(heard.iter().all(|one| one.on == heard[0].on), "one connection is enough");
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_cancels_its_stream_and_not_the_connection() {
    let (w, tongue) = speaking(100);
    let rig = start(&w).await;
    tongue.next([Frame::Wait]);
    tongue.next([
        Frame::Head("text/event-stream", false),
        Frame::Data("data: 1\n\n", false),
        Frame::Wait,
    ]);
    let (mut waiting, mut streaming) = (rig.client(), rig.client());
    waiting.send(post("/v1/chat/completions", &[], CHAT)).await;
    tongue.until("it is there", |tongue| tongue.heard().len() == 1).await;
    streaming.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    streaming.head().await;
    let begun = Instant::now();
    waiting.leave().await;
    streaming.leave().await;
    let reset = |tongue: &Tongue| tongue.heard().iter().all(|it| it.reset == Some(Reason::CANCEL));
    tongue.until("both are cancelled", reset).await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    rig.is_at_rest().await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!(tongue.heard()[2].on, tongue.heard()[0].on);
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_ends_early_ends_at_the_worker() {
    let (w, tongue) = speaking(100);
    let rig = Rig::start(&[&w], |settings| {
        settings.startup.http2 = true;
        settings.bodies.model_selection = false;
        settings.bodies.max_buffered = 10;
    })
    .await;
    let mut client = rig.client();
    client
        .send("POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-length: 1000\r\n\r\n{")
        .await;
    tongue.until("it begins", |tongue| !tongue.heard().is_empty()).await;
    client.leave().await;
    tongue.until("it ends", |tongue| tongue.heard()[0].reset.is_some()).await;
    rig.is_at_rest().await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_refused_is_sent_once_more_and_one_that_was_broken_off_is_not() {
    for (reason, status, resends) in
        [(Reason::REFUSED_STREAM, 200, 1), (Reason::INTERNAL_ERROR, 500, 0)]
    {
        let (w, tongue) = speaking(100);
        let rig = start(&w).await;
        tongue.next([Frame::Reset(reason)]);
        assert_eq!(rig.chat(CHAT).await.status, status, "{reason:?}");
        assert_eq!(rig.count(RESENDS, &[]), resends, "{reason:?}");
        assert_eq!(tongue.heard().len(), if resends > 0 { 2 } else { 1 });
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_given_up_ends_its_streams_and_the_next_requests_get_another() {
    let (w, tongue) = speaking(100);
    let rig = start(&w).await;
    tongue.next([
        Frame::Head("text/event-stream", false),
        Frame::Data("data: 1\n\n", false),
        Frame::GoAway,
        Frame::Wait,
        Frame::Data("data: 2\n\n", true),
    ]);
    let mut client = rig.client();
    client.send(post("/v1/chat/completions", &[], CHAT_STREAM)).await;
    client.head().await;
    settle().await;
    for _ in 0..3 {
        assert_eq!(rig.chat(CHAT).await.status, 200);
    }
    let heard = tongue.heard();
    assert!(heard[1..].iter().all(|it| it.on == heard[1].on && it.on != heard[0].on));
    tongue.go_on();
    assert_eq!(client.reply_body().await, "data: 1\n\ndata: 2\n\n");
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_stream_in_silence_and_retries_hold_as_ever() {
    let (w, tongue) = speaking(100);
    let rig = Rig::start(&[&w], |settings| {
        settings.startup.http2 = true;
        settings.retry = RetryRules { attempts: 2, ..settings.retry };
    })
    .await;
    tongue.next([Frame::Wait]);
    let begun = Instant::now();
    assert_eq!(rig.chat(CHAT).await.status, 504);
    assert_eq!(begun.elapsed().as_secs(), TIMEOUT.as_secs());
    tongue.until("it is cancelled", |tongue| tongue.heard()[0].reset.is_some()).await;
    tongue.next([Frame::Reset(Reason::INTERNAL_ERROR)]);
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!(rig.count(RESENDS, &[]), 0);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn questions_join_the_connection_there_is_and_an_idle_one_stays() {
    let (w, tongue) = speaking(100);
    let rig = start(&w).await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    settle().await;
    let (dials, probes) = (w.now(|story| story.dials), tongue.probes());
    later(1000.0).await;
    assert!(tongue.probes() > probes + 10);
    assert_eq!(rig.chat(CHAT).await.status, 200);
    assert_eq!((w.now(|story| story.dials), tongue.open()), (dials, 1));
    assert_eq!(rig.count("smg_worker_connections_active", &[]), 1);
}

#[tokio::test(start_paused = true)]
async fn tls_settles_the_version_of_a_worker_at_https() {
    for (flag, speaks, http2) in [(true, true, true), (true, false, false), (false, true, false)] {
        let authority = Authority::new("ca");
        let (w, tongue) = (Worker::secure("w1"), Tongue::new(100));
        w.speaks(&tongue);
        let offered: &[&[u8]] = if speaks { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
        w.shakes(Authority::accepts_in(&authority.signs("w1"), offered));
        let mut tls = WorkerTls::default();
        tls.believe(authority.pem().as_bytes()).expect("a CA");
        let rig = Rig::start(&[&w], |settings| {
            settings.startup.http2 = flag;
            settings.worker_tls = tls;
        })
        .await;
        assert_eq!(rig.chat(CHAT).await.status, 200);
        assert_eq!(tongue.heard().len(), usize::from(http2), "{flag} {speaks}");
        if http2 {
            assert_eq!(tongue.heard()[0].uri, "https://w1/v1/chat/completions");
        }
        // What TLS settles on was not chosen at registration.
        assert_eq!(shown(&rig).await, false);
    }
}
