//! Clients that ask, listen to the end or leave, and write down what they saw.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::laws::{Fate, Record};
use crate::bench::http1::{Connection, Head, broken};
use crate::bench::load::{connect, keep};
use crate::bench::payload::chat_request;
use crate::dice::Dice;

/// Clients that ask all the time, each one request after the other.
pub(crate) const CLIENTS: usize = 24;

/// Requests of a flood, all at once: more than may run and wait.
const FLOOD: usize = 200;

/// Longest pause between two requests of a client, in milliseconds.
const BREATH: usize = 20;

/// A client that leaves has had enough within so many milliseconds; an undisturbed answer takes about 120.
const TEMPER: usize = 150;

/// A request that takes longer is stuck: all its waits in the gateway together are shorter.
const STUCK: Duration = Duration::from_secs(20);

/// The clients of a soak.
#[derive(Debug)]
pub(crate) struct Clients {
    over: Arc<AtomicBool>,
    asking: JoinSet<Vec<Record>>,
}

impl Clients {
    pub(crate) fn start(address: SocketAddr, seed: u64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let asking = (0..CLIENTS)
            .map(|number| {
                let dice = Dice::new(seed ^ ((number as u64 + 1) << 32));
                ask_until(Arc::clone(&over), address, format!("client-{number}"), dice)
            })
            .collect();
        Self { over, asking }
    }

    /// Floods the gateway once beside the others.
    pub(crate) fn flood(&mut self, address: SocketAddr) {
        self.asking.spawn(flood(address));
    }

    /// Has all finish what they are at, and returns what they saw.
    pub(crate) async fn end(self) -> Vec<Record> {
        self.over.store(true, Ordering::Relaxed);
        self.asking.join_all().await.into_iter().flatten().collect()
    }
}

async fn ask_until(
    over: Arc<AtomicBool>,
    address: SocketAddr,
    key: String,
    mut dice: Dice,
) -> Vec<Record> {
    let (mut records, mut connection) = (Vec::new(), None);
    while !over.load(Ordering::Relaxed) {
        let streamed = dice.below(2) == 0;
        let request = chat_request(streamed, (dice.below(3) > 0).then_some(&*key));
        let patience = match dice.below(8) {
            0 => Some(Duration::from_millis(dice.below(TEMPER) as u64)),
            _ => None,
        };
        records.push(ask(&mut connection, address, (&request, streamed), patience).await);
        sleep(Duration::from_millis(dice.below(BREATH) as u64)).await;
    }
    records
}

/// Many requests at once, each on a connection of its own.
async fn flood(address: SocketAddr) -> Vec<Record> {
    let asking: JoinSet<Record> = (0..FLOOD).map(|_| ask_once(address)).collect();
    asking.join_all().await
}

async fn ask_once(address: SocketAddr) -> Record {
    let request = chat_request(false, None);
    let record = ask(&mut None, address, (&request, false), None).await;
    Record { of_flood: true, ..record }
}

/// One request. A client without patience for it leaves, and any end but a good one costs the connection.
async fn ask(
    connection: &mut Option<Connection>,
    address: SocketAddr,
    (request, streamed): (&[u8], bool),
    patience: Option<Duration>,
) -> Record {
    let (began, mut worker) = (Instant::now(), None);
    let exchange = exchange(connection, address, (request, streamed), &mut worker);
    let fate = match timeout(patience.unwrap_or(STUCK), exchange).await {
        Ok(fate) => fate,
        Err(_) if patience.is_some() => Fate::Left,
        Err(_) => Fate::Wrong("no end in sight".to_owned()),
    };
    if fate != Fate::Answered {
        *connection = None;
    }
    Record { began, ended: Instant::now(), streamed, of_flood: false, worker, fate }
}

async fn exchange(
    slot: &mut Option<Connection>,
    address: SocketAddr,
    (request, streamed): (&[u8], bool),
    worker: &mut Option<String>,
) -> Fate {
    let asked = async {
        if slot.is_none() {
            *slot = Some(connect(address).await?);
        }
        let connection = slot.as_mut().ok_or_else(|| broken("no connection"))?;
        connection.stream.write_all(request).await?;
        let head = connection.head().await?.ok_or_else(|| broken("closed instead of answered"))?;
        Ok::<_, std::io::Error>((connection, head))
    };
    let (connection, head) = match asked.await {
        Ok(asked) => asked,
        Err(error) => return Fate::Wrong(format!("no answer at all: {error}")),
    };
    let status = head.status();
    let Head { framing, worker: named, .. } = head;
    *worker = named;
    let mut body = Vec::new();
    let read = connection.body(framing, |piece| keep(&mut body, piece)).await;
    Fate::of(status, streamed, read.is_ok(), &body)
}
