//! Request bodies: how much memory they may hold together, and how long they may take.

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
        settings.bodies.timeout = std::time::Duration::from_secs(20);
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
