//! The load: clients that ask, check every byte of every answer, and count; and the window in which the gateway's CPU
//! is read while they do.

mod chat;
mod growing;
mod large;
mod ready;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

pub(crate) use chat::chat;
pub(crate) use growing::growing;
pub(crate) use large::large;
pub(crate) use ready::{once, until_ready};
pub(crate) use stream::{BURST_EVENTS, PACED_EVERY, PACED_STREAMS, burst, paced, paced_events};

use super::http1::{Connection, Framing, broken};
use super::proc::{Moment, Window};

/// Clients of the closed-loop rows.
const CLIENTS: usize = 64;

/// The gateway under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    /// How long a closed loop runs before it is measured: pools fill, every key is placed.
    pub(crate) warm_up: Duration,
    /// How long to measure.
    pub(crate) window: Duration,
}

/// What a measured window showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Requests or events that passed within the window.
    pub(crate) units: u64,
    pub(crate) window: Window,
}

impl Measured {
    /// CPU for one unit, in milliseconds.
    pub(crate) fn millis_per_unit(&self) -> Result<f64, String> {
        self.micros_per_unit().map(|micros| micros / 1000.0)
    }

    /// CPU for one unit, in microseconds.
    pub(crate) fn micros_per_unit(&self) -> Result<f64, String> {
        if self.units == 0 {
            return Err("nothing passed within the window".to_owned());
        }
        Ok(self.window.cpu.as_secs_f64() * 1e6 / self.units as f64)
    }
}

/// What the clients of one measurement share.
#[derive(Debug, Default)]
struct Count {
    units: AtomicU64,
    stop: AtomicBool,
}

impl Count {
    fn add(&self, units: u64) {
        self.units.fetch_add(units, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Reads the counters around `target.window`. Ends with an error as soon as a client does.
async fn measure<T: 'static>(
    clients: &mut JoinSet<io::Result<T>>,
    count: &Count,
    target: Target,
) -> Result<Measured, String> {
    let read = || {
        Moment::take(target.pid)
            .map(|moment| (moment, count.units.load(Ordering::Relaxed)))
            .map_err(|error| format!("cannot read the gateway's CPU time: {error}"))
    };
    let (start, before) = read()?;
    keep_going(clients, target.window).await?;
    let (end, after) = read()?;
    Ok(Measured { units: after - before, window: end.since(&start) })
}

/// Waits while the clients work; none may end.
async fn keep_going<T: 'static>(
    clients: &mut JoinSet<io::Result<T>>,
    time: Duration,
) -> Result<(), String> {
    tokio::select! {
        () = tokio::time::sleep(time) => Ok(()),
        Some(ended) = clients.join_next() => match ended {
            Ok(Err(error)) => Err(format!("a client failed: {error}")),
            Ok(Ok(_)) => Err("a client ended before it was told to".to_owned()),
            Err(error) => Err(format!("a client broke down: {error}")),
        },
    }
}

/// Collects what the clients return; any failure among them is the answer.
async fn collect<T: 'static>(mut clients: JoinSet<io::Result<T>>) -> Result<Vec<T>, String> {
    let all = clients.len();
    let mut results = Vec::with_capacity(all);
    let mut failures = Vec::new();
    while let Some(ended) = clients.join_next().await {
        match ended {
            Ok(Ok(result)) => results.push(result),
            Ok(Err(error)) => failures.push(error.to_string()),
            Err(error) => failures.push(error.to_string()),
        }
    }
    match failures.first() {
        None => Ok(results),
        Some(first) => {
            Err(format!("{} of {all} clients failed, the first with: {first}", failures.len()))
        }
    }
}

pub(crate) async fn connect(address: SocketAddr) -> io::Result<Connection> {
    Connection::new(TcpStream::connect(address).await?)
}

/// Sends a request and reads the answer's head, which must say 200.
async fn ask(connection: &mut Connection, request: &[u8]) -> io::Result<Framing> {
    connection.stream.write_all(request).await?;
    answered(connection).await
}

/// Reads the head of an answer, which must say 200.
async fn answered(connection: &mut Connection) -> io::Result<Framing> {
    let head = connection.head().await?.ok_or_else(|| broken("closed instead of answered"))?;
    if head.status() == Some(200) {
        return Ok(head.framing);
    }
    let mut body = Vec::new();
    connection.body(head.framing, |piece| keep(&mut body, piece)).await?;
    Err(broken(&format!("answered \"{}\": {}", head.first_line, String::from_utf8_lossy(&body))))
}

/// A body's sink that keeps it.
pub(crate) fn keep(body: &mut Vec<u8>, piece: &[u8]) -> io::Result<()> {
    body.extend_from_slice(piece);
    Ok(())
}

#[cfg(test)]
mod tests;
