//! Waiting until a gateway answers, and answers from both workers.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{ask, connect, keep};
use crate::bench::group::Group;
use crate::bench::payload::{chat_answer, chat_request, get_request};

/// How long a gateway may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often it is asked; also how exact the time to the first answer is.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits for `/health`, then for a first chat, then until `shown` of the `workers` have answered one. Returns how long
/// after its start the gateway gave the first chat answer.
pub(crate) async fn until_ready(
    gateway: &mut Group,
    address: SocketAddr,
    (shown, workers): (usize, usize),
) -> Result<Duration, String> {
    let mut first = None;
    let mut healthy = false;
    let mut seen = vec![false; workers];
    let mut trouble = String::from("no answer");
    while gateway.started.elapsed() < PATIENCE {
        gateway.check_alive()?;
        let request = if healthy { chat_request(false, None) } else { get_request("/health") };
        let began = Instant::now();
        match tokio::time::timeout(Duration::from_secs(1), once(address, &request)).await {
            Ok(Ok(_)) if !healthy => {
                healthy = true;
                continue;
            }
            Ok(Ok(body)) => {
                first.get_or_insert_with(|| gateway.started.elapsed());
                note(&body, &mut seen)?;
            }
            Ok(Err(error)) => trouble = error.to_string(),
            Err(_) => trouble = "no answer within a second".to_owned(),
        }
        let answered = seen.iter().filter(|&&seen| seen).count();
        if let (Some(first), true) = (first, answered >= shown) {
            return Ok(first);
        }
        tokio::time::sleep(PAUSE.saturating_sub(began.elapsed())).await;
    }
    let answered = seen.iter().filter(|&&seen| seen).count();
    Err(format!(
        "not ready within {} s: {answered} of {workers} workers answered through it, last trouble: {trouble}{}",
        PATIENCE.as_secs(),
        gateway.last_words()
    ))
}

/// One request on a connection of its own.
pub(crate) async fn once(address: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut connection = connect(address).await?;
    let framing = ask(&mut connection, request).await?;
    let mut body = Vec::new();
    connection.body(framing, |piece| keep(&mut body, piece)).await?;
    Ok(body)
}

fn note(body: &[u8], seen: &mut [bool]) -> Result<(), String> {
    for (worker, seen) in seen.iter_mut().enumerate() {
        if body == chat_answer(worker).as_bytes() {
            *seen = true;
            return Ok(());
        }
    }
    Err(format!(
        "its first answer is not a worker's, byte for byte: {}",
        String::from_utf8_lossy(body)
    ))
}
