//! The clients of a crowd.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bench::http1::{Connection, broken};
use crate::bench::load::connect;
use crate::bench::payload::{DONE, chat_request};

/// What a slow client reads at a time: an event is about 200 bytes on the wire.
const SIP: usize = 160;

/// Idle clients that come at once, each of them one after the other.
const DOORS: usize = 64;

/// Streams that run side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    pub(super) address: SocketAddr,
    pub(super) count: usize,
    pub(super) events: u32,
    pub(super) every: Duration,
}

impl Streams {
    /// Begins one after the other within the time of an event, so that no two are in step.
    async fn each<T: Send + 'static, F: Future<Output = io::Result<T>> + Send + 'static>(
        self,
        client: impl Fn(Self, usize) -> F,
    ) -> (Vec<T>, Vec<String>) {
        let mut clients = JoinSet::new();
        let gap = self.every / u32::try_from(self.count.max(1)).unwrap_or(u32::MAX);
        for number in 0..self.count {
            clients.spawn(client(self, number));
            sleep(gap).await;
        }
        sorted(clients).await
    }

    /// Asks for a stream under a key of its own.
    async fn ask(self, number: usize) -> io::Result<Connection> {
        let mut connection = connect(self.address).await?;
        let request = chat_request(true, Some(&format!("crowd-{number}")));
        connection.stream.write_all(&request).await?;
        Ok(connection)
    }

    async fn listen_slowly(self, number: usize) -> io::Result<()> {
        let mut connection = self.ask(number).await?;
        let mut heard = Vec::new();
        while !heard.ends_with(b"\r\n0\r\n\r\n") {
            let mut sip = [0; SIP];
            let read = connection.stream.read(&mut sip).await?;
            if read == 0 {
                return Err(broken("a stream was cut off"));
            }
            heard.extend_from_slice(sip.get(..read).unwrap_or_default());
            sleep(self.every).await;
        }
        let heard = String::from_utf8_lossy(&heard);
        let events = heard.matches("data: {").count();
        let whole = heard.starts_with("HTTP/1.1 200 ") && heard.contains(DONE);
        if whole && events == self.events as usize {
            Ok(())
        } else {
            Err(broken(&format!("a stream of {events} events")))
        }
    }

    async fn begin(self, number: usize) -> io::Result<Connection> {
        let mut connection = self.ask(number).await?;
        let head = connection.head().await?.ok_or_else(|| broken("closed without an answer"))?;
        match head.status() {
            Some(200) => Ok(connection),
            _ => Err(broken(&head.first_line)),
        }
    }
}

/// Hears all streams to their ends, slower than they come. What is returned is what went wrong.
pub(super) async fn listen_slowly(streams: Streams) -> Option<String> {
    let (_, failures) = streams.each(Streams::listen_slowly).await;
    failed(&failures)
}

/// Begins all streams. They run until they are dropped.
pub(super) async fn begin(streams: Streams) -> Result<Vec<Connection>, String> {
    let (running, failures) = streams.each(Streams::begin).await;
    failed(&failures).map_or(Ok(running), Err)
}

/// So many clients ask once and stay.
pub(super) async fn ask_and_stay(
    address: SocketAddr,
    count: usize,
) -> Result<Vec<Connection>, String> {
    let mut doors = JoinSet::new();
    for door in 0..DOORS {
        let mine = count / DOORS + usize::from(door < count % DOORS);
        doors.spawn(async move {
            let mut staying = Vec::with_capacity(mine);
            for _ in 0..mine {
                let mut connection = connect(address).await?;
                ask(&mut connection).await?;
                staying.push(connection);
            }
            Ok(staying)
        });
    }
    let (staying, failures) = sorted(doors).await;
    failed(&failures).map_or_else(|| Ok(staying.into_iter().flatten().collect()), Err)
}

/// Everyone asks once more, on the connection that they have.
pub(super) async fn ask_again(clients: &mut [Connection]) -> Option<String> {
    let mut failures = Vec::new();
    for client in clients {
        failures.extend(ask(client).await.err().map(|error| error.to_string()));
    }
    failed(&failures)
}

async fn ask(connection: &mut Connection) -> io::Result<()> {
    connection.stream.write_all(&chat_request(false, None)).await?;
    let head = connection.head().await?.ok_or_else(|| broken("closed while it was idle"))?;
    connection.body(head.framing, |_| Ok(())).await?;
    if head.status() == Some(200) { Ok(()) } else { Err(broken(&head.first_line)) }
}

async fn sorted<T: 'static>(mut clients: JoinSet<io::Result<T>>) -> (Vec<T>, Vec<String>) {
    let (mut done, mut failures) = (Vec::new(), Vec::new());
    while let Some(ended) = clients.join_next().await {
        match ended {
            Ok(Ok(value)) => done.push(value),
            Ok(Err(error)) => failures.push(error.to_string()),
            Err(error) => failures.push(error.to_string()),
        }
    }
    (done, failures)
}

fn failed(failures: &[String]) -> Option<String> {
    let first = failures.first()?;
    Some(format!("{} clients failed, the first with: {first}", failures.len()))
}
