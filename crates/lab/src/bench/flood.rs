//! A flood of uploads: what `--max-buffered-total-bytes` is worth. Many large bodies come at once, more than the budget
//! holds, while small chats go on being asked; the figures are the most memory the gateway ever held, by the kernel's
//! own mark, and what became of both kinds of request.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::contender::{Contender, Programs, Routing, Started};
use super::group::Group;
use super::http1::{Connection, broken};
use super::load::until_ready;
use super::payload::{MODEL, chat_request};
use super::worker::WorkerArgs;
use super::{exit_code, raise_file_limit, runtime};

/// What the uploads may take together before they count as stuck.
const STUCK: Duration = Duration::from_secs(300);

/// Pause of a small client between two chats.
const BREATH: Duration = Duration::from_millis(5);

/// How long small chats are asked before the flood, for comparison.
const CALM: Duration = Duration::from_secs(2);

/// How much of an upload is written at a time.
const PIECE: usize = 64 * 1024;

/// How hard it comes.
#[derive(Clone, Debug, clap::Args)]
pub struct FloodArgs {
    /// Uploads that begin at once.
    #[arg(long, default_value_t = 200)]
    uploads: usize,
    /// MiB of each.
    #[arg(long, default_value_t = 100)]
    mib: usize,
    /// MiB of `--max-buffered-total-bytes`.
    #[arg(long, default_value_t = 2048)]
    budget_mib: u64,
    /// MiB that the gateway may hold in all; more is a failure.
    #[arg(long, default_value_t = 2355)]
    limit_mib: u64,
    /// Clients that ask small chats meanwhile, each one after the other.
    #[arg(long, default_value_t = 8)]
    small: usize,
    /// An smg binary to flood instead of the one cargo builds here.
    #[arg(long)]
    gateway: Option<PathBuf>,
}

/// What became of the requests of one kind.
#[derive(Debug, Default)]
struct Fates {
    /// How many there were of each status or error.
    ends: BTreeMap<String, usize>,
    times: Vec<Duration>,
}

/// Floods a gateway. Fails if it held more than it may, or if a small chat was not answered.
pub fn flood_main(args: &FloodArgs) -> ExitCode {
    exit_code(run(args))
}

async fn run(args: &FloodArgs) -> Result<bool, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = Programs::find(&root, &[Contender::Ours], args.gateway.as_deref())?;
    raise_file_limit();
    let (_worker, worker) = Group::worker(&WorkerArgs { number: 0, events: 1, every_ms: 0 })?;
    let budget = (args.budget_mib << 20).to_string();
    let more = ["--max-buffered-total-bytes", &budget];
    let Started { group: mut gateway, address, .. } =
        programs.start(Contender::Ours, Routing::CacheAware, &[worker], &more)?;
    until_ready(&mut gateway, address, (1, 1)).await?;
    let idle = most_held(gateway.id())?;
    let ((), calm) = beside(args.small, address, tokio::time::sleep(CALM)).await?;
    let began = Instant::now();
    let uploading = tokio::time::timeout(STUCK, upload_all(args, address));
    let (uploads, small) = beside(args.small, address, uploading).await?;
    let took = began.elapsed().as_secs_f64();
    gateway.check_alive()?;
    let uploads = uploads.map_err(|_| "the uploads got stuck".to_owned())?;
    let held = most_held(gateway.id())?;
    let (held_mib, idle_mib) = (held >> 20, idle >> 20);
    let FloodArgs { uploads: count, mib, budget_mib, limit_mib, .. } = args;
    let _ = write!(
        io::stdout(),
        "{count} uploads of {mib} MiB at once, under a budget of {budget_mib} MiB, in {took:.1} s\n\
         uploads             {uploads}\n\
         resident at most    {held_mib} MiB, {idle_mib} MiB before\n\
         small chats before  {calm}\n\
         small chats during  {small}\n",
    );
    Ok(held_mib <= *limit_mib && small.ends.keys().all(|end| end == "200"))
}

/// Asks small chats for as long as `work` takes, from a thread of their own so that the work delays none.
async fn beside<T>(
    clients: usize,
    address: SocketAddr,
    work: impl Future<Output = T>,
) -> Result<(T, Fates), String> {
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    let asking = std::thread::spawn(move || {
        runtime().map(|runtime| runtime.block_on(chat_all(clients, address, told)))
    });
    let done = work.await;
    over.store(true, Ordering::Relaxed);
    let small = asking.join().map_err(|_| "the small clients fell over".to_owned())??;
    Ok((done, small))
}

async fn chat_all(clients: usize, address: SocketAddr, over: Arc<AtomicBool>) -> Fates {
    let mut chatting: JoinSet<Fates> =
        (0..clients).map(|_| chat(address, Arc::clone(&over))).collect();
    let mut all = Fates::default();
    while let Some(fates) = chatting.join_next().await {
        all.add(fates.unwrap_or_default());
    }
    all
}

/// One small client; it connects anew after an error.
async fn chat(address: SocketAddr, over: Arc<AtomicBool>) -> Fates {
    let request = chat_request(false, None);
    let (mut fates, mut connection) = (Fates::default(), None);
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        match turn(&mut connection, address, &request).await {
            Ok(status) => fates.note(status.to_string(), began),
            Err(error) => {
                connection = None;
                fates.note(error.to_string(), began);
            }
        }
        tokio::time::sleep(BREATH).await;
    }
    fates
}

async fn turn(
    connection: &mut Option<Connection>,
    address: SocketAddr,
    request: &[u8],
) -> io::Result<u16> {
    if connection.is_none() {
        *connection = Some(Connection::new(TcpStream::connect(address).await?)?);
    }
    let Some(connection) = connection else { return Err(broken("no connection")) };
    connection.stream.write_all(request).await?;
    let head = connection.head().await?.ok_or_else(|| broken("closed without an answer"))?;
    connection.body(head.framing, |_| Ok(())).await?;
    head.status().ok_or_else(|| broken("no status"))
}

async fn upload_all(args: &FloodArgs, address: SocketAddr) -> Fates {
    let mut uploading: JoinSet<(String, Instant)> =
        (0..args.uploads).map(|number| upload(address, number, args.mib << 20)).collect();
    let mut all = Fates::default();
    while let Some(Ok((end, began))) = uploading.join_next().await {
        all.note(end, began);
    }
    all
}

/// One upload, which is given up once it is answered, as HTTP clients do.
async fn upload(address: SocketAddr, number: usize, bytes: usize) -> (String, Instant) {
    let began = Instant::now();
    let asked = async {
        let (mut from, mut to) = TcpStream::connect(address).await?.into_split();
        let mut start = [0; "HTTP/1.1 200".len()];
        let mut answer = pin!(from.read_exact(&mut start));
        tokio::select! {
            answered = answer.as_mut() => answered?,
            // Whoever closes on us may have said why.
            _ = send(&mut to, number, bytes) => answer.await?,
        };
        Ok::<_, io::Error>(String::from_utf8_lossy(&start[9..]).into_owned())
    };
    (asked.await.unwrap_or_else(|error| error.to_string()), began)
}

/// A chat whose one message has so many bytes.
async fn send(to: &mut (impl AsyncWrite + Unpin), number: usize, bytes: usize) -> io::Result<()> {
    let start =
        format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"Upload {number}. "#);
    let end = r#""}],"max_tokens":64}"#;
    let length = start.len() + bytes + end.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{start}"
    );
    to.write_all(head.as_bytes()).await?;
    let piece: Vec<u8> = b"and what of the tides ".iter().copied().cycle().take(PIECE).collect();
    let mut left = bytes;
    while left > 0 {
        let now = piece.get(..left.min(PIECE)).unwrap_or_default();
        to.write_all(now).await?;
        left -= now.len();
    }
    to.write_all(end.as_bytes()).await
}

/// The most bytes a process ever had in memory.
fn most_held(pid: u32) -> Result<u64, String> {
    let file = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    high_water(&text).ok_or_else(|| format!("{file} has no VmHWM"))
}

fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

impl Fates {
    fn note(&mut self, end: String, began: Instant) {
        *self.ends.entry(end).or_default() += 1;
        self.times.push(began.elapsed());
    }

    fn add(&mut self, others: Self) {
        for (end, count) in others.ends {
            *self.ends.entry(end).or_default() += count;
        }
        self.times.extend(others.times);
    }
}

impl fmt::Display for Fates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (end, count) in &self.ends {
            write!(f, "{count} × {end}, ")?;
        }
        let mut times = self.times.clone();
        times.sort_unstable();
        let at = |share: usize| {
            times.get((times.len() * share / 100).min(times.len().saturating_sub(1)))
        };
        let [half, most, all] = [50, 99, 100].map(|share| at(share).copied().unwrap_or_default());
        write!(f, "half within {half:.1?}, 99 of 100 within {most:.1?}, all within {all:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_the_kernel_is_read() {
        assert_eq!(high_water("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS: 1 kB\n"), Some(2 << 20));
        assert_eq!(high_water("Name: x"), None);
        assert!(most_held(std::process::id()).unwrap() > 1 << 20);
    }

    #[tokio::test]
    async fn an_upload_is_the_chat_it_claims_to_be() {
        let mut sent = Vec::new();
        send(&mut sent, 7, 100_000).await.unwrap();
        let text = String::from_utf8(sent).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
        let chat: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            chat["messages"][0]["content"].as_str().unwrap().len(),
            100_000 + "Upload 7. ".len()
        );
    }

    #[test]
    fn fates_add_up() {
        let mut fates = Fates::default();
        assert!(!fates.to_string().is_empty());
        for millis in 1..=100 {
            fates.times.push(Duration::from_millis(millis));
        }
        fates.ends.insert("200".to_owned(), 100);
        let told = "100 × 200, half within 51.0ms, 99 of 100 within 100.0ms, all within 100.0ms";
        assert_eq!(fates.to_string(), told);
    }
}
