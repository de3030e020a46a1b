//! The mock worker: a process of its own that answers what a gateway asks at registration, and chat at once.
//!
//! It is written by hand over tokio because its cost competes with the gateway for the same cores. A stream's events
//! are written one by one, each a chunk of its own, as an engine does that flushes every token. A gateway that begins
//! with HTTP/2 is answered in it ([`http2`]).

mod http2;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use memchr::memmem;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::group::end_with_parent;
use super::http1::{Connection, Head};
use super::payload::{DONE, LARGE_CHAT, MODEL, chat_answer, event};

/// A body up to this is looked into; a longer one is only counted.
const SMALL: usize = 64 * 1024;
/// What a gateway that writes a large body anew may add to it, or leave out.
const REWRITTEN: usize = 4096;

/// What one mock worker is.
#[derive(Clone, Debug, clap::Args)]
pub struct WorkerArgs {
    /// The number by which the worker names itself.
    #[arg(long)]
    pub(crate) number: usize,
    /// Events of a streaming answer.
    #[arg(long, default_value_t = 200)]
    pub(crate) events: u32,
    /// Milliseconds between the events of a stream; 0 writes them back to back.
    #[arg(long, default_value_t = 0)]
    pub(crate) every_ms: u64,
}

/// Runs one worker until its standard input closes, that is until the bench ends, however it ends.
pub fn worker_main(args: &WorkerArgs) -> ExitCode {
    end_with_parent();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "bench worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &WorkerArgs) -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        // The bench reads the port from here.
        writeln!(io::stdout(), "{}", listener.local_addr()?.port())?;
        serve(listener, args).await
    })
}

/// Accepts connections for ever.
pub(crate) async fn serve(listener: TcpListener, args: &WorkerArgs) -> io::Result<()> {
    let answers = Arc::new(Answers::new(args));
    loop {
        let (stream, _) = listener.accept().await?;
        let answers = Arc::clone(&answers);
        tokio::spawn(async move {
            // A gateway may close or reset whenever it likes; if that hurts an answer, the load sees it.
            if http2::is_spoken(&stream).await? {
                let _ = http2::converse(stream, answers).await;
            } else {
                let _ = converse(Connection::new(stream)?, &answers).await;
            }
            Ok::<(), io::Error>(())
        });
    }
}

/// All answers, ready to be written.
#[derive(Debug)]
struct Answers {
    chat: Answer,
    models: Answer,
    info: Answer,
    loads: Answer,
    health: Answer,
    missing: Answer,
    torn: Answer,
    /// A stream as HTTP/1.1 has it.
    chunks: Vec<Vec<u8>>,
    /// Its events, and the one that ends it.
    events: Vec<Bytes>,
    every: Option<Duration>,
}

/// One of them, as HTTP/1.1 has it and in parts.
#[derive(Debug)]
struct Answer {
    whole: Vec<u8>,
    status: StatusCode,
    body: Bytes,
}

impl Answers {
    fn new(args: &WorkerArgs) -> Self {
        let models = format!(
            r#"{{"object":"list","data":[{{"id":"{MODEL}","object":"model","created":1700000000,"owned_by":"bench","root":"{MODEL}","max_model_len":32768}}]}}"#
        );
        let info = format!(
            r#"{{"model_path":"{MODEL}","served_model_name":"{MODEL}","tp_size":1,"dp_size":1,"is_generation":true,"version":"0.5.0"}}"#
        );
        let loads = concat!(
            r#"{"loads":[{"dp_rank":0,"num_running_reqs":1,"num_waiting_reqs":0,"num_total_reqs":1,"#,
            r#""token_usage":0.01}],"aggregate":{"total_running_reqs":1,"total_waiting_reqs":0}}"#
        );
        Self {
            chat: json(StatusCode::OK, &chat_answer(args.number)),
            models: json(StatusCode::OK, &models),
            info: json(StatusCode::OK, &info),
            loads: json(StatusCode::OK, loads),
            health: json(StatusCode::OK, "{}"),
            missing: json(StatusCode::NOT_FOUND, r#"{"error":{"message":"no such route"}}"#),
            torn: json(StatusCode::BAD_REQUEST, r#"{"error":{"message":"not the length it had"}}"#),
            chunks: chunks(args.events),
            events: events(args.events).map(Bytes::from).collect(),
            every: (args.every_ms > 0).then(|| Duration::from_millis(args.every_ms)),
        }
    }

    /// The answer to everything but a stream.
    fn plain(&self, target: &str) -> &Answer {
        let path = target.split('?').next().unwrap_or_default();
        match path {
            "/v1/chat/completions" => &self.chat,
            "/health" | "/health_generate" => &self.health,
            "/v1/models" => &self.models,
            "/server_info" | "/get_server_info" | "/model_info" | "/get_model_info" => &self.info,
            "/v1/loads" => &self.loads,
            _ => &self.missing,
        }
    }
}

fn json(status: StatusCode, body: &str) -> Answer {
    let whole = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    Answer { whole: whole.into_bytes(), status, body: Bytes::from(body.to_owned()) }
}

fn events(events: u32) -> impl Iterator<Item = String> {
    (0..events).map(event).chain([DONE.to_owned()])
}

/// A request's body, of which the beginning is kept.
#[derive(Debug, Default)]
struct Asked {
    body: Vec<u8>,
    len: usize,
}

impl Asked {
    fn take(&mut self, piece: &[u8]) {
        self.len += piece.len();
        if self.len <= SMALL {
            self.body.extend_from_slice(piece);
        }
    }

    /// Whether it is a large one that lost something. Longer ones are of a flood, whose bodies have any length.
    fn is_torn(&self) -> bool {
        self.len > SMALL && self.len < LARGE_CHAT - REWRITTEN
    }

    /// Enough of a parser for bodies that come from this bench, also when a gateway wrote them anew.
    fn wants_stream(&self) -> bool {
        let told = [&br#""stream":true"#[..], br#""stream": true"#];
        self.len <= SMALL && told.iter().any(|text| memmem::find(&self.body, text).is_some())
    }
}

/// A stream's writes: the head with the first event, the other events, the end.
fn chunks(events: u32) -> Vec<Vec<u8>> {
    let mut chunks: Vec<Vec<u8>> = self::events(events)
        .map(|text| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
        .collect();
    if let Some(last) = chunks.last_mut() {
        last.extend_from_slice(b"0\r\n\r\n");
    }
    if let Some(first) = chunks.first_mut() {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        first.splice(0..0, head.bytes());
    }
    chunks
}

async fn converse(mut connection: Connection, answers: &Answers) -> io::Result<()> {
    while let Some(Head { first_line, framing, .. }) = connection.head().await? {
        let mut asked = Asked::default();
        connection
            .body(framing, |piece| {
                asked.take(piece);
                Ok(())
            })
            .await?;
        let target = first_line.split(' ').nth(1).unwrap_or_default();
        if asked.is_torn() {
            connection.stream.write_all(&answers.torn.whole).await?;
        } else if first_line.starts_with("POST") && asked.wants_stream() {
            let mut pace = Pace::of(answers.every);
            for chunk in &answers.chunks {
                pace.next().await;
                connection.stream.write_all(chunk).await?;
            }
        } else {
            connection.stream.write_all(&answers.plain(target).whole).await?;
        }
    }
    Ok(())
}

/// When a stream's events are due.
struct Pace(Option<Interval>);

impl Pace {
    /// Back to back, if there is no time between two.
    fn of(every: Option<Duration>) -> Self {
        Self(every.map(|every| {
            let mut ticks = interval(every);
            // A late event never brings the next one forward: two of them would leave in one write and look cheap.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            ticks
        }))
    }

    async fn next(&mut self) {
        if let Some(ticks) = &mut self.0 {
            ticks.tick().await;
        }
    }
}
