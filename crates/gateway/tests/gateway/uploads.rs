//! Request bodies: how much memory they may hold together, and how long they may take.

use std::time::Duration;

use smg_gateway::settings::AdmissionRules;

use super::rig::*;

const PATH: &str = "/v1/chat/completions";
const FREE: usize = 64 << 10;

/// A whole chat body of this size.
fn body(len: usize) -> String {
    format!("{CHAT}{}", " ".repeat(len - CHAT.len()))
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_too_much_together_are_refused_and_small_ones_never_are() {
    let w = Worker::new("w1");
    let rig =
        Rig::start(&[&w], |settings| settings.bodies.max_buffered_total = Some(200_000)).await;
    let whole = post(PATH, &[], body(FREE + 150_000));
    let mut large = rig.client();
    large.send(&whole[..whole.len() - 10]).await;
    settle().await;
    let mut second = rig.client();
    second.try_send(post(PATH, &[], body(FREE + 60_000))).await;
    let reply = second.reply().await;
    reply.is_refusal(503, "buffer_budget_exhausted");
    assert_eq!(reply.header("retry-after").as_deref(), Some("2"));
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    assert_eq!(rig.chat(&body(FREE)).await.status, 200);
    large.send(&whole[whole.len() - 10..]).await;
    assert_eq!(large.reply().await.status, 200);
    // Both have given back what they held, the refused one too.
    assert_eq!(rig.chat(&body(FREE + 190_000)).await.status, 200);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_in_the_middle_gives_back_what_it_held() {
    let w = Worker::new("w1");
    let rig =
        Rig::start(&[&w], |settings| settings.bodies.max_buffered_total = Some(200_000)).await;
    let whole = post(PATH, &[], body(FREE + 190_000));
    let mut leaving = rig.client();
    leaving.send(&whole[..whole.len() - 10]).await;
    settle().await;
    leaving.leave().await;
    assert_eq!(rig.chat(&body(FREE + 190_000)).await.status, 200);
}

/// A body that is sent under another model's name lies in memory twice while it is sent.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_written_anew_counts_twice() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        settings.bodies.max_buffered_total = Some(200_000);
        settings.aliases.insert("fast".to_owned(), MODEL.to_owned());
        // Else the first of the two goes before the other is sent.
        settings.retry.attempts = 2;
    })
    .await;
    let named = |model: &str| {
        let chat = |text: &str| format!(r#"{{"model":"{model}","messages":["{text}"]}}"#);
        chat(&"x".repeat(FREE + 90_000 - chat("").len()))
    };
    for (model, status) in [("fast", 503), (MODEL, 200)] {
        w.next(script().hang());
        let mut slow = rig.client();
        slow.send(post(PATH, &[], named(model))).await;
        settle().await;
        assert_eq!(rig.chat(&named(MODEL)).await.status, status, "{model}");
        slow.leave().await;
    }
    assert_eq!(rig.chat(&body(FREE + 190_000)).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_streamed_answer_holds_no_body() {
    let w = Worker::new("w1");
    let rig =
        Rig::start(&[&w], |settings| settings.bodies.max_buffered_total = Some(200_000)).await;
    w.next(script().say(events_head()).hang());
    let mut streaming = rig.client();
    streaming.send(post(PATH, &[], body(FREE + 190_000))).await;
    streaming.head().await;
    assert_eq!(rig.chat(&body(FREE + 190_000)).await.status, 200);
    streaming.leave().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_in_time_is_its_clients_fault() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        settings.bodies.timeout = Duration::from_secs(20);
    })
    .await;
    let mut client = rig.client();
    let whole = post(PATH, &[], CHAT);
    client.send(&whole[..whole.len() - 1]).await;
    let begun = tokio::time::Instant::now();
    let reply = client.reply().await;
    reply.is_refusal(408, "request_body_timeout");
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    assert_eq!((begun.elapsed().as_secs(), w.served()), (20, 0));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_upload_is_heard_out_so_that_its_client_reads_the_refusal() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.bodies.max_payload = 1000).await;
    let mut client = rig.narrow_client(4096);
    assert!(client.try_send(post(PATH, &[], body(300_000))).await, "the upload was cut off");
    assert_eq!(client.reply().await.status, 413);
    client.leave().await;
    // A client that never ends is not listened to for ever.
    let mut client = rig.narrow_client(4096);
    client.send(&post(PATH, &[], body(300_000))[..2000]).await;
    assert_eq!(client.reply().await.status, 413);
    later(11.0).await;
    assert!(!client.try_send("x".repeat(100_000)).await, "still listening");
}

/// Bodies that stream are not read before their turn, so whoever is sent away may still be sending.
#[tokio::test(start_paused = true)]
async fn an_upload_that_may_not_come_in_is_heard_out_too() {
    for peek in [0, 1000] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |settings| {
            settings.bodies.model_selection = peek > 0;
            settings.bodies.peek = peek;
            settings.admission =
                Some(AdmissionRules { limit: 1, queue: 0, wait_ms: 1000, rate: None });
        })
        .await;
        w.next(script().pause(30.0).say(json("{}")));
        let mut first = rig.client();
        first.send(post(PATH, &[], CHAT)).await;
        w.until("the first is there", |story| story.requests.len() == 1).await;
        let mut second = rig.narrow_client(4096);
        assert!(second.try_send(post(PATH, &[], body(300_000))).await, "the upload was cut off");
        let reply = second.reply().await;
        reply.is_refusal(429, "admission_queue_full");
        assert_eq!(reply.header("connection").as_deref(), Some("close"));
        second.leave().await;
        assert_eq!(first.reply().await.status, 200);
        rig.is_at_rest().await;
    }
}

/// A beginning that is looked at is held like a body that is read whole, and no longer.
#[tokio::test(start_paused = true)]
async fn what_is_looked_at_counts_like_a_body_and_has_as_long() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        settings.bodies.peek = 1 << 20;
        settings.bodies.max_buffered_total = Some(200_000);
        settings.bodies.timeout = Duration::from_secs(20);
        settings.bodies.stall = Some(Duration::from_secs(15));
    })
    .await;
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: gw\r\ncontent-length: 500000\r\n\r\n");
    let begun = format!(r#"{{"messages":["{}"#, "x".repeat(FREE + 150_000));
    let mut large = rig.client();
    large.send(&head).await.send(&begun).await;
    settle().await;
    let mut second = rig.client();
    second.send(&head).await.try_send(&begun).await;
    let reply = second.reply().await;
    reply.is_refusal(503, "buffer_budget_exhausted");
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    // Each byte is in time, and all of them are not.
    later(14.0).await;
    large.send("x").await;
    let since = tokio::time::Instant::now();
    large.reply().await.is_refusal(408, "request_body_timeout");
    assert_eq!((since.elapsed().as_secs(), w.served()), (6, 0));
    assert_eq!(rig.chat(&body(FREE + 190_000)).await.status, 200);
    rig.is_at_rest().await;
}

/// Nobody sends a large body again, so it goes once its worker has it, long before there is an answer
/// (001, "Early release").
#[tokio::test(start_paused = true)]
async fn a_large_body_that_is_sent_once_is_let_go_when_it_is_written() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| {
        settings.bodies.max_payload = 4 << 20;
        settings.bodies.max_buffered_total = Some(3 << 20);
    })
    .await;
    let large = body(2 << 20);
    w.next(script().pause(30.0).say(json("{}")));
    let mut first = rig.client();
    first.send(post(PATH, &[], &large)).await;
    w.until("it is there whole", |story| {
        story.requests.first().is_some_and(|it| it.body.len() == 2 << 20)
    })
    .await;
    settle().await;
    assert_eq!(w.last().header("content-length"), ["2097152"]);
    assert_eq!(rig.chat(&large).await.status, 200, "the first still holds its body");
    assert_eq!(first.reply().await.status, 200);
    let early = rig.count("smg_router_request_buffers_released_early_bytes_total", &[]);
    assert_eq!(early, 2 * (2 << 20));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_without_a_length_is_read_whole() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.bodies.model_selection = false).await;
    let mut client = rig.client();
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: gw\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(head).await.send(chunked(CHAT)).await;
    settle().await;
    assert_eq!(w.served(), 0);
    client.send("0\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(w.last().header("content-length"), [CHAT.len().to_string()]);
    let labels = [("path", "buffered"), ("reason", "no_content_length")];
    assert_eq!(rig.count("smg_router_request_body_path_total", &labels), 1);
}

/// Large bodies are large because of images, and those stand where a conversation begins. The first
/// turn is short enough to be held, and its key is read.
#[tokio::test(start_paused = true)]
async fn a_conversation_that_opens_with_an_image_is_known_by_its_beginning() {
    let workers = [Worker::new("w1"), Worker::new("w2"), Worker::new("w3")];
    let rig = Rig::start(&workers.each_ref(), |settings| {
        settings.sticky = sticky();
        settings.bodies.model_selection = false;
        settings.bodies.peek = 4096;
        settings.retry.attempts = 2;
        settings.bodies.max_buffered = 20_000;
    })
    .await;
    let mut said = String::new();
    for _ in 0..3 {
        for opening in ["one", "two", "fee"] {
            let image = opening.repeat(6000);
            let body = format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"data:{image}"}}}}]}}{said}],"rid":"{opening}"}}"#
            );
            assert_eq!(rig.chat(&body).await.status, 200);
        }
        let more = "m".repeat(3000);
        said += &format!(
            r#",{{"role":"assistant","content":"a"}},{{"role":"user","content":"{more}"}}"#
        );
    }
    let source = |source| rig.count("smg_routing_key_source_total", &[("source", source)]);
    assert_eq!((source("rid"), source("opening")), (3, 6));
    assert_eq!((rig.branch("vacant"), rig.branch("occupied_hit")), (3, 6));
}
