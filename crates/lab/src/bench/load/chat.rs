//! Small non-streaming chats, closed loop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinSet;

use super::{CLIENTS, Count, Measured, Target, ask, collect, connect, keep, keep_going, measure};
use crate::bench::contender::Routing;
use crate::bench::http1::{Connection, broken};
use crate::bench::payload::{chat_answer, chat_request, session_request};

/// Keys of a client. A key belongs to one client, as a conversation's turns come one after the other.
const KEYS_EACH: usize = 8;

/// One conversation: its request, and the worker that had it so far.
#[derive(Debug)]
struct Conversation {
    request: Vec<u8>,
    worker: Option<usize>,
}

/// Runs the row.
pub(crate) async fn chat(
    target: Target,
    routing: Routing,
    workers: usize,
) -> Result<Measured, String> {
    let count = Arc::new(Count::default());
    let answers: Arc<Vec<Vec<u8>>> =
        Arc::new((0..workers).map(|worker| chat_answer(worker).into_bytes()).collect());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let conversations = conversations(number, routing);
        clients.spawn(client(
            target.address,
            conversations,
            Arc::clone(&answers),
            Arc::clone(&count),
        ));
    }
    keep_going(&mut clients, target.warm_up).await?;
    let measured = measure(&mut clients, &count, target).await?;
    count.stop.store(true, Ordering::Relaxed);
    check_shares(&collect(clients).await?, routing, workers)?;
    Ok(measured)
}

fn conversations(client: usize, routing: Routing) -> Vec<Conversation> {
    let keys = (0..KEYS_EACH).map(|key| format!("conversation-{:05}", client * KEYS_EACH + key));
    let started = |request| Conversation { request, worker: None };
    match routing {
        Routing::Sticky => keys.map(|key| started(chat_request(false, Some(&key)))).collect(),
        Routing::Session => keys.map(|key| started(session_request(&key))).collect(),
        _ => {
            vec![Conversation { request: chat_request(false, None), worker: None }]
        }
    }
}

/// Asks until told to stop; returns how many answers came from each worker.
async fn client(
    address: SocketAddr,
    mut conversations: Vec<Conversation>,
    answers: Arc<Vec<Vec<u8>>>,
    count: Arc<Count>,
) -> io::Result<Vec<u64>> {
    let mut connection = connect(address).await?;
    let mut shares = vec![0; answers.len()];
    let sticky = conversations.len() > 1;
    let mut body = Vec::new();
    while !count.stopped() {
        for conversation in &mut conversations {
            let worker = turn(&mut connection, &conversation.request, &answers, &mut body).await?;
            if let Some(share) = shares.get_mut(worker) {
                *share += 1;
            }
            let before = *conversation.worker.get_or_insert(worker);
            if sticky && before != worker {
                return Err(broken(&format!(
                    "a conversation went from worker {before} to worker {worker}"
                )));
            }
            count.add(1);
        }
    }
    Ok(shares)
}

/// One request and its answer; returns the worker that gave it.
pub(super) async fn turn(
    connection: &mut Connection,
    request: &[u8],
    answers: &[Vec<u8>],
    body: &mut Vec<u8>,
) -> io::Result<usize> {
    let framing = ask(connection, request).await?;
    body.clear();
    connection.body(framing, |piece| keep(body, piece)).await?;
    answers.iter().position(|answer| answer == body).ok_or_else(|| {
        broken(&format!("an answer no worker gave: {}", String::from_utf8_lossy(body)))
    })
}

/// A gateway that spreads badly does other work than the row asks for.
pub(super) fn check_shares(
    clients: &[Vec<u64>],
    routing: Routing,
    workers: usize,
) -> Result<(), String> {
    let total: u64 = clients.iter().flatten().sum();
    // Consistent hashing of two servers may be rather uneven.
    let least = if routing.is_sticky() { 0.15 } else { 0.4 } * total as f64 * 2.0 / workers as f64;
    for worker in 0..workers {
        let share: u64 = clients.iter().filter_map(|shares| shares.get(worker)).sum();
        if (share as f64) < least {
            return Err(format!("worker {worker} got only {share} of {total} requests"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_shares_are_found() {
        let fair = [vec![50, 50], vec![49, 51]];
        assert_eq!(check_shares(&fair, Routing::RoundRobin, 2), Ok(()));
        let skewed = [vec![70, 30], vec![70, 30]];
        assert!(check_shares(&skewed, Routing::RoundRobin, 2).is_err());
        assert_eq!(check_shares(&skewed, Routing::Sticky, 2), Ok(()));
        assert!(check_shares(&[vec![100, 0]], Routing::Sticky, 2).is_err());
    }
}
