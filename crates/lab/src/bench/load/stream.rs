//! Streaming chats: bursts in a closed loop, and many slow streams side by side.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::{CLIENTS, Count, Measured, Target, ask, collect, connect, keep_going, measure};
use crate::bench::http1::{Connection, broken};
use crate::bench::payload::{Script, chat_request};

/// Events of a stream that is sent back to back.
pub(crate) const BURST_EVENTS: u32 = 200;

/// Streams that are open at once in the paced row.
pub(crate) const PACED_STREAMS: usize = 1000;

/// Time between two events of a paced stream.
pub(crate) const PACED_EVERY: Duration = Duration::from_millis(20);

/// Paced streams are opened over this time, so that their events are spread as those of real streams are.
const RAMP: Duration = Duration::from_secs(2);

/// How long all streams are open before the window, so that no backlog of their opening is worked off within it.
const SETTLE: Duration = Duration::from_secs(2);

/// How long streams live on after the window; a machine that is late still has them open then.
const MARGIN: Duration = Duration::from_secs(1);

/// What every stream needs.
#[derive(Debug)]
struct Work {
    request: Vec<u8>,
    script: Script,
    count: Count,
    open: AtomicUsize,
}

impl Work {
    fn new(events: u32) -> Arc<Self> {
        Arc::new(Self {
            request: chat_request(true, None),
            script: Script::new(events),
            count: Count::default(),
            open: AtomicUsize::new(0),
        })
    }
}

/// Streams of 200 events, one after the other on each connection.
pub(crate) async fn burst(target: Target) -> Result<Measured, String> {
    let work = Work::new(BURST_EVENTS);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let work = Arc::clone(&work);
        clients.spawn(async move {
            let mut connection = connect(target.address).await?;
            while !work.count.stopped() {
                stream(&mut connection, &work).await?;
            }
            Ok::<(), io::Error>(())
        });
    }
    keep_going(&mut clients, target.warm_up).await?;
    let measured = measure(&mut clients, &work.count, target).await?;
    work.count.stop.store(true, Ordering::Relaxed);
    collect(clients).await?;
    Ok(measured)
}

/// How many events a paced stream needs so that it outlives a window of this length.
pub(crate) fn paced_events(window: Duration) -> u32 {
    let life = RAMP + SETTLE + window + MARGIN;
    u32::try_from(life.as_millis() / PACED_EVERY.as_millis()).unwrap_or(u32::MAX)
}

/// A thousand streams that are all open during the whole window.
pub(crate) async fn paced(target: Target) -> Result<Measured, String> {
    let work = Work::new(paced_events(target.window));
    let mut clients = JoinSet::new();
    let start = Instant::now();
    for number in 0..PACED_STREAMS {
        let at = start + RAMP.mul_f64(number as f64 / PACED_STREAMS as f64);
        clients.spawn(paced_client(target.address, at, Arc::clone(&work)));
    }
    keep_going(&mut clients, RAMP + SETTLE).await?;
    while work.open.load(Ordering::Relaxed) < PACED_STREAMS {
        // No stream may end while others still open, so waiting is bounded by their length.
        keep_going(&mut clients, Duration::from_millis(20)).await?;
    }
    let measured = measure(&mut clients, &work.count, target).await?;
    collect(clients).await?;
    Ok(measured)
}

async fn paced_client(address: SocketAddr, at: Instant, work: Arc<Work>) -> io::Result<()> {
    sleep_until(at).await;
    let mut connection = connect(address).await?;
    stream(&mut connection, &work).await
}

/// One stream from request to `[DONE]`, every byte compared with what the worker must have sent.
async fn stream(connection: &mut Connection, work: &Work) -> io::Result<()> {
    let framing = ask(connection, &work.request).await?;
    work.open.fetch_add(1, Ordering::Relaxed);
    let mut received = 0;
    let mut events = 0;
    connection
        .body(framing, |piece| {
            if !work.script.holds(received, piece) {
                return Err(broken(&format!(
                    "a stream differs from the worker's after {received} bytes: {}",
                    String::from_utf8_lossy(piece)
                )));
            }
            received += piece.len();
            let now = work.script.events_in(received);
            work.count.add(now - events);
            events = now;
            Ok(())
        })
        .await?;
    if received != work.script.len() {
        return Err(broken(&format!(
            "a stream ended after {received} of {} bytes",
            work.script.len()
        )));
    }
    Ok(())
}
