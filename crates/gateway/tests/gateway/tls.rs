//! TLS: with clients, and towards workers.

use smg_gateway::settings::ServerTls;
use smg_gateway::upstream::{Origin, WorkerTls};
use smg_gateway::{Identity, Unfit};
use tokio::time::Instant;

use super::rig::*;

/// A gateway that speaks TLS with its clients.
async fn secure(authority: &Authority, worker: &Worker) -> Rig {
    let identity = authority.signs("gw").identity();
    Rig::start(&[worker], |settings| settings.tls = ServerTls::new(&identity).ok()).await
}

/// A gateway before a worker at `https://w1`, who believes this CA and comes as that.
fn before(worker: &Worker, believes: &Authority, identity: Option<Identity>) -> Rig {
    let mut tls = WorkerTls::default();
    tls.believe(believes.pem().as_bytes()).expect("a CA");
    identity.into_iter().for_each(|identity| tls.come_as(identity));
    Rig::unready(&[worker], |settings| settings.worker_tls = tls)
}

/// Why the worker at `https://w1` cannot register.
async fn reason(worker: &Worker, believes: &Authority) -> String {
    let mut tls = WorkerTls::default();
    tls.believe(believes.pem().as_bytes()).expect("a CA");
    let rig = Rig::unready(&[worker], |settings| {
        settings.worker_tls = tls;
        settings.workers.clear();
    });
    let accepted = rig.ask("POST", "/workers", r#"{"url":"https://w1"}"#).await;
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    later(12.0).await;
    assert_eq!(rig.gw.workers(), (0, 0));
    rig.get(&accepted.header("location").expect("where it is")).await.text().to_owned()
}

#[tokio::test(start_paused = true)]
async fn clients_are_answered_and_streamed_to_over_tls() {
    let (authority, w) = (Authority::new("ca"), Worker::new("w1"));
    let rig = secure(&authority, &w).await;
    let mut client = rig.client().secured(&authority, "gw").await;
    for _ in 0..2 {
        assert_eq!(client.post("/v1/chat/completions", &[], CHAT).await.status, 200);
    }
    let event = chunked("data: 1\n\n");
    w.next(script().say(events_head()).say(event).say("0\r\n\r\n"));
    let reply = client.post("/v1/chat/completions", &[], CHAT_STREAM).await;
    assert_eq!((reply.text(), reply.ended), ("data: 1\n\n", Ended::LastChunk));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn plain_http_at_a_tls_port_costs_only_its_own_connection() {
    let (authority, w) = (Authority::new("ca"), Worker::new("w1"));
    let rig = secure(&authority, &w).await;
    let mut plain = rig.client();
    plain.send("GET /health HTTP/1.1\r\nhost: gw\r\n\r\n").await;
    let said = plain.rest().await;
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
    let mut client = rig.client().secured(&authority, "gw").await;
    assert_eq!(client.get("/health").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_handshake_takes_no_longer_than_a_head_and_holds_up_no_drain() {
    let (authority, w) = (Authority::new("ca"), Worker::new("w1"));
    let rig = secure(&authority, &w).await;
    let begun = Instant::now();
    let mut slow = rig.client();
    // The beginning of a ClientHello.
    slow.send([22, 3, 1, 2, 0, 1]).await;
    settle().await;
    assert_eq!(rig.gw.connections(), 0, "a drain would not wait");
    slow.rest().await;
    assert_eq!(begun.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_over_tls_is_given_up() {
    let (authority, w) = (Authority::new("ca"), Worker::new("w1"));
    let rig = secure(&authority, &w).await;
    // More than its socket holds, less than TLS takes off the answer's hands.
    w.next(script().say(json(&format!(r#"{{"x":"{}"}}"#, "x".repeat(20_000)))));
    let mut client = rig.narrow_client(4096).secured(&authority, "gw").await;
    client.send(post("/v1/chat/completions", &[], CHAT)).await;
    w.until("it is asked", |story| story.requests.len() == 1).await;
    rig.until("the answer is on its way", |gw| gw.connections() == 1).await;
    later(TIMEOUT.as_secs_f64() + 1.0).await;
    assert_eq!(rig.gw.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_reached_over_tls() {
    let (authority, w) = (Authority::new("ca"), Worker::secure("w1"));
    w.shakes(Authority::accepts(&authority.signs("w1"), None));
    let rig = before(&w, &authority, None);
    rig.until("it registers", |gw| gw.workers() == (1, 1)).await;
    let reply = rig.chat(CHAT).await;
    assert_eq!((reply.status, reply.worker()), (200, "https://w1".to_owned()));
    // From now on it shows a certificate of somebody else.
    w.next(script().say(json("{}")).close());
    assert_eq!(rig.chat(CHAT).await.status, 200);
    w.shakes(Authority::accepts(&authority.signs("w2"), None));
    rig.chat(CHAT).await.is_refusal(500, "call_upstream_connection_failed");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_prove_itself_does_not_register_and_is_told_why() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    for (signed, words) in [
        (theirs.signs("w1"), ["UnknownIssuer", "--ca-cert-paths"]),
        (ours.signs("w2"), ["not valid for name", "w2"]),
    ] {
        let w = Worker::secure("w1");
        w.shakes(Authority::accepts(&signed, None));
        let why = reason(&w, &ours).await;
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
    let silent = Worker::secure("w1");
    silent.door(Door::Silent);
    let why = reason(&silent, &ours).await;
    assert!(why.contains("no answer within"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_may_ask_who_comes() {
    let authority = Authority::new("ca");
    let acceptor = Authority::accepts(&authority.signs("w1"), Some(&authority));
    let w = Worker::secure("w1");
    w.shakes(acceptor.clone());
    let rig = before(&w, &authority, Some(authority.signs("gw").identity()));
    rig.until("it registers", |gw| gw.workers() == (1, 1)).await;
    assert_eq!(rig.chat(CHAT).await.status, 200);
    let w = Worker::secure("w1");
    w.shakes(acceptor);
    let why = reason(&w, &authority).await;
    assert!(why.contains("CertificateRequired"), "{why}");
}

#[test]
fn what_is_no_pair_is_told_apart_and_never_shown() {
    let authority = Authority::new("ca");
    let (one, other) = (authority.signs("a"), authority.signs("b"));
    let of = |certificate: &str, key: &str| Identity::of(certificate.as_bytes(), key.as_bytes());
    assert!(
        matches!(of(&one.certificate, &other.key), Err(Unfit::Key(why)) if why.contains("fit"))
    );
    assert!(matches!(of(&one.key, &one.key), Err(Unfit::Certificate(_))));
    assert!(matches!(of(&one.certificate, &one.certificate), Err(Unfit::Key(_))));
    let wrong_order = authority.pem() + &one.certificate;
    assert!(matches!(of(&wrong_order, &one.key), Err(Unfit::Key(_))));
    let whole = one.certificate.clone() + &authority.pem();
    let shown = format!("{:?}", of(&whole, &one.key));
    assert_eq!(shown, "Ok(Identity { certificates: 2, .. })");
    assert!(Origin::parse("https://w1").is_ok_and(|origin| origin.is_secure()));
}
