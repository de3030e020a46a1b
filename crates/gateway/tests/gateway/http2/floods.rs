//! Clients that keep no measure: what they may cost is bounded, and others are served.

use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use h2::{Reason, client};
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::rig::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The head of a request in HPACK: POST, http, `/v1/chat/completions`, gw.
fn request_block() -> Vec<u8> {
    let path = b"/v1/chat/completions";
    let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).expect("short")];
    block.extend_from_slice(path);
    block.extend_from_slice(&[0x01, 2, b'g', b'w']);
    block
}

/// The reason of the GOAWAY in what the gateway said.
fn goaway(mut said: &[u8]) -> Option<u32> {
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = said {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if *kind == 7 {
            return Some(u32::from_be_bytes(rest.get(4..8)?.try_into().ok()?));
        }
        said = rest.get(length..)?;
    }
    None
}

const ENHANCE_YOUR_CALM: u32 = 11;

#[tokio::test(start_paused = true)]
async fn floods_end_their_connection_and_nothing_else() {
    let headers = |flags: u8, stream: u32| {
        let block = request_block();
        [frame(block.len(), 1, flags, stream), block].concat()
    };
    let reset = |stream: u32| [frame(4, 3, 0, stream), 8_u32.to_be_bytes().to_vec()].concat();
    let rapid_resets: Vec<u8> =
        (0..5000_u32).flat_map(|n| [headers(5, 2 * n + 1), reset(2 * n + 1)].concat()).collect();
    // A header that never ends: 16 KiB in each frame.
    let filler = [vec![0x00, 1, b'a', 0x7f, 0x81, 0x7c], vec![b'x'; 16_000]].concat();
    let mut continuation = [frame(request_block().len(), 1, 1, 1), request_block()].concat();
    for _ in 0..64 {
        continuation.extend(frame(filler.len(), 9, 0, 1));
        continuation.extend(&filler);
    }
    let no_data: Vec<u8> = (0..20_000).fold(headers(4, 1), |mut all, _| {
        all.extend(frame(0, 0, 0, 1));
        all
    });
    for (what, flood) in
        [("resets", rapid_resets), ("continuations", continuation), ("empty frames", no_data)]
    {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        w.usually(script().hang());
        let (mut ours, theirs) = tokio::io::duplex(64 << 10);
        let served = tokio::spawn(Arc::clone(&rig.gw).converse(theirs, Ipv4Addr::LOCALHOST.into()));
        let (mut reader, mut writer) = tokio::io::split(&mut ours);
        let mut said = Vec::new();
        let sends = async {
            let _ = writer.write_all(&[PREFACE, &frame(0, 4, 0, 0), &flood].concat()).await;
            let _ = writer.shutdown().await;
        };
        let ((), _) =
            within(what, async { tokio::join!(sends, reader.read_to_end(&mut said)) }).await;
        within(what, served).await.expect("no panic");
        assert_eq!(goaway(&said), Some(ENHANCE_YOUR_CALM), "{what}");
        w.until("nothing is left at the worker", |story| story.open == 0).await;
        assert!(w.served() <= 200, "{what}: {}", w.served());
        rig.is_at_rest().await;
        assert_eq!(rig.get("/health").await.status, 200, "{what}");
    }
}

/// A raw connection, and the task that serves it.
fn connect(rig: &Rig) -> (DuplexStream, JoinHandle<()>) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    (ours, tokio::spawn(Arc::clone(&rig.gw).converse(theirs, Ipv4Addr::LOCALHOST.into())))
}

/// A handshake that tells these settings.
fn greeting(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(settings.len(), 4, 0, 0), settings].concat()
}

#[tokio::test(start_paused = true)]
async fn who_never_reads_what_it_asks_for_is_read_no_further_and_let_go() {
    let ping = [frame(8, 6, 0, 0), b"pingpong".to_vec()].concat();
    let settings = [frame(6, 4, 0, 0), vec![0, 4, 0, 1, 0, 0]].concat();
    for (what, asks) in [("PING", ping), ("SETTINGS", settings)] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        w.usually(script().hang());
        let (mut client, served) = connect(&rig);
        let block = request_block();
        let body = [frame(CHAT.len(), 0, 1, 1), CHAT.as_bytes().to_vec()].concat();
        let request = [greeting(&[]), frame(block.len(), 1, 4, 1), block, body].concat();
        client.write_all(&request).await.expect("sent");
        w.until("it waits", |story| story.open == 1).await;
        let (begun, mut asked) = (Instant::now(), 0_usize);
        let many = asks.repeat(100);
        while asked < 100 << 20 && client.write_all(&many).await.is_ok() {
            asked += many.len();
            if asked == many.len() {
                w.next(script().say(json("{}")));
                assert_eq!(rig.chat(CHAT).await.status, 200, "others are served");
            }
        }
        // No more than fills the pipes both ways: what is not read is not answered either.
        assert!(asked < 512 << 10, "{what}: {asked} bytes");
        within(what, served).await.expect("no panic");
        assert_eq!(begun.elapsed().as_secs(), TIMEOUT.as_secs(), "{what}: as any write");
        rig.is_at_rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_too_long_is_refused_and_its_connection_goes_on() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.clients.max_header_bytes = 8 << 10).await;
    let mut client = H2Client::connect(&rig.gw).await;
    for (length, status) in [(4 << 10, 200), (9 << 10, 431), (12 << 10, 431), (4 << 10, 200)] {
        let request = Request::post("http://gw/v1/chat/completions");
        let request = request.header("x-long", "x".repeat(length)).body(()).expect("a head");
        let mut sender = within("a place", client.sender.clone().ready()).await.expect("open");
        let (answer, mut stream) = sender.send_request(request, false).expect("a request");
        let _ = stream.send_data(Bytes::from_static(CHAT.as_bytes()), true);
        assert_eq!(read(answer).await.status, status, "{length}");
    }
    assert_eq!((w.served(), client.get("/health").await.status), (2, 200));
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_which_there_is_no_room_is_reset_in_time_and_nothing_of_it_stays() {
    // All of a small answer waits for room; a long one begins where there is a little.
    for (window, length) in [(0, 10), (1, 1 << 20), (100_000, 1 << 20)] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |settings| settings.bodies.max_payload = 2 << 20).await;
        let (ours, served) = connect(&rig);
        let mut shaking = client::Builder::new();
        shaking.initial_window_size(window).initial_connection_window_size(1 << 20);
        let (sender, connection) = shaking.handshake(ours).await.expect("h2");
        let driver = tokio::spawn(connection);
        w.usually(script().say(json(&format!("{}{{}}", " ".repeat(length)))));
        let begun = Instant::now();
        let mut unread = Vec::new();
        for _ in 0..5 {
            let request = Request::post("http://gw/v1/chat/completions").body(()).expect("a head");
            let mut sender = sender.clone().ready().await.expect("a place");
            let (answer, mut stream) = sender.send_request(request, false).expect("a request");
            stream.send_data(Bytes::from_static(CHAT.as_bytes()), true).expect("sent");
            unread.push(within("a head", answer).await.expect("a head").into_body());
        }
        for body in &mut unread {
            let reset = within("its end", async {
                loop {
                    match body.data().await {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => break error.reason(),
                        None => break None,
                    }
                }
            });
            assert_eq!(reset.await, Some(Reason::CANCEL), "{window} {length}");
        }
        let lasted = begun.elapsed();
        assert!(lasted >= TIMEOUT && lasted < TIMEOUT * 5 / 4, "{window} {length}: {lasted:?}");
        rig.is_at_rest().await;
        drop((sender, unread));
        driver.abort();
        within("the end", served).await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_client_must_not_say_ends_its_stream_or_its_connection() {
    const PROTOCOL_ERROR: u32 = 1;
    const FLOW_CONTROL_ERROR: u32 = 3;
    let block = request_block();
    let request = |flags| [frame(block.len(), 1, flags, 1), block.clone()].concat();
    let window = |stream, more: u32| [frame(4, 8, 0, stream), more.to_be_bytes().to_vec()].concat();
    let promise =
        |flags| [frame(4 + block.len(), 5, flags, 1), vec![0, 0, 0, 2], block.clone()].concat();
    let most = (1 << 31) - 1;
    for (what, said, ends) in [
        ("a window beyond all", window(0, most), Some(FLOW_CONTROL_ERROR)),
        ("a stream's window beyond all", window(1, most), None),
        ("a push", promise(4), Some(PROTOCOL_ERROR)),
    ] {
        let w = Worker::new("w1");
        let rig = Rig::start(&[&w], |_| {}).await;
        w.usually(script().hang());
        let (mut client, served) = connect(&rig);
        client.write_all(&[greeting(&[]), request(4)].concat()).await.expect("sent");
        let body = [frame(CHAT.len(), 0, 1, 1), CHAT.as_bytes().to_vec()].concat();
        client.write_all(&body).await.expect("sent");
        w.until("it waits", |story| story.open == 1).await;
        client.write_all(&said).await.expect("sent");
        w.until("it is cancelled", |story| story.open == 0).await;
        settle().await;
        if ends.is_none() {
            // The connection goes on: it answers.
            client
                .write_all(&[frame(8, 6, 0, 0), b"pingpong".to_vec()].concat())
                .await
                .expect("sent");
        }
        let mut heard = Vec::new();
        if ends.is_some() {
            client.read_to_end(&mut heard).await.expect("an end");
            within(what, served).await.expect("no panic");
        } else {
            while !heard.ends_with(b"pingpong") {
                within(what, client.read_buf(&mut heard)).await.expect("an answer");
            }
        }
        let reset = [frame(4, 3, 0, 1), FLOW_CONTROL_ERROR.to_be_bytes().to_vec()].concat();
        let was_reset = heard.windows(reset.len()).any(|said| said == reset);
        assert_eq!((goaway(&heard), was_reset), (ends, ends.is_none()), "{what}");
        drop(client);
        rig.is_at_rest().await;
    }
}
