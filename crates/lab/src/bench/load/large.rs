//! Chats of 10 MiB, closed loop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Buf as _;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;

use super::chat::check_shares;
use super::{Count, Measured, Target, answered, collect, connect, keep, keep_going, measure};
use crate::bench::contender::Routing;
use crate::bench::http1::{Connection, broken};
use crate::bench::payload::{LargeChat, LargeChats, chat_answer};

/// Bodies in flight at once.
const IN_FLIGHT: usize = 16;
/// Conversations of a client.
const CHATS_EACH: usize = 4;

/// What the clients share.
#[derive(Debug)]
struct Work {
    chats: LargeChats,
    answers: Vec<Vec<u8>>,
    sticky: bool,
    count: Count,
}

/// Runs the row.
pub(crate) async fn large(
    target: Target,
    routing: Routing,
    workers: usize,
) -> Result<Measured, String> {
    let work = Arc::new(Work {
        chats: LargeChats::new(),
        answers: (0..workers).map(|worker| chat_answer(worker).into_bytes()).collect(),
        sticky: routing.is_sticky(),
        count: Count::default(),
    });
    let mut clients = JoinSet::new();
    for number in 0..IN_FLIGHT {
        clients.spawn(client(target.address, number, Arc::clone(&work)));
    }
    keep_going(&mut clients, target.warm_up).await?;
    let measured = measure(&mut clients, &work.count, target).await?;
    work.count.stop.store(true, Ordering::Relaxed);
    check_shares(&collect(clients).await?, routing, workers)?;
    Ok(measured)
}

/// Asks until told to stop; returns how many answers came from each worker.
async fn client(address: SocketAddr, number: usize, work: Arc<Work>) -> io::Result<Vec<u64>> {
    let mut connection = connect(address).await?;
    let mut shares = vec![0; work.answers.len()];
    let mut chats: Vec<(LargeChat, Option<usize>)> =
        (0..CHATS_EACH).map(|chat| (LargeChats::chat(number * CHATS_EACH + chat), None)).collect();
    while !work.count.stopped() {
        for (chat, home) in &mut chats {
            let worker = turn(&mut connection, chat, &work).await?;
            if let Some(share) = shares.get_mut(worker) {
                *share += 1;
            }
            let before = *home.get_or_insert(worker);
            if work.sticky && before != worker {
                let what = format!("a conversation went from worker {before} to worker {worker}");
                return Err(broken(&what));
            }
            work.count.add(1);
        }
    }
    Ok(shares)
}

/// One request and its answer; returns the worker that gave it.
async fn turn(connection: &mut Connection, chat: &LargeChat, work: &Work) -> io::Result<usize> {
    let mut request = chat.before.chain(work.chats.shared()).chain(&*chat.after);
    connection.stream.write_all_buf(&mut request).await?;
    let framing = answered(connection).await?;
    let mut body = Vec::new();
    connection.body(framing, |piece| keep(&mut body, piece)).await?;
    work.answers.iter().position(|answer| *answer == body).ok_or_else(|| {
        broken(&format!("an answer no worker gave: {}", String::from_utf8_lossy(&body)))
    })
}
