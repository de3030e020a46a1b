//! Chats that send their whole history again each turn, all behind one system prompt, without a key: what places them is
//! the prefix of their prompt.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinSet;

use super::chat::{check_shares, turn};
use super::{CLIENTS, Count, Measured, Target, collect, connect, keep_going, measure};
use crate::bench::contender::Routing;
use crate::bench::payload::{GrowingChat, chat_answer};

/// Turns of a conversation.
const TURNS: u32 = 8;

/// Runs the row.
pub(crate) async fn growing(target: Target, workers: usize) -> Result<Measured, String> {
    let count = Arc::new(Count::default());
    let answers: Arc<Vec<Vec<u8>>> =
        Arc::new((0..workers).map(|worker| chat_answer(worker).into_bytes()).collect());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(client(target.address, number, Arc::clone(&answers), Arc::clone(&count)));
    }
    keep_going(&mut clients, target.warm_up).await?;
    let measured = measure(&mut clients, &count, target).await?;
    count.stop.store(true, Ordering::Relaxed);
    // However a gateway places conversations, a worker that gets next to none would make the row another one.
    check_shares(&collect(clients).await?, Routing::Sticky, workers)?;
    Ok(measured)
}

/// Plays one conversation after the other until told to stop; returns how many answers came from each worker.
async fn client(
    address: SocketAddr,
    number: usize,
    answers: Arc<Vec<Vec<u8>>>,
    count: Arc<Count>,
) -> io::Result<Vec<u64>> {
    let mut connection = connect(address).await?;
    let mut shares = vec![0; answers.len()];
    let mut body = Vec::new();
    for conversation in 0_u64.. {
        let mut chat = GrowingChat::new(format!("conversation {number} {conversation}"));
        for _ in 0..TURNS {
            if count.stopped() {
                return Ok(shares);
            }
            let worker = turn(&mut connection, &chat.turn(), &answers, &mut body).await?;
            if let Some(share) = shares.get_mut(worker) {
                *share += 1;
            }
            count.add(1);
        }
    }
    Ok(shares)
}
