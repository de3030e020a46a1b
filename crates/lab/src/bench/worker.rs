//! The mock worker: a process of its own that answers what a gateway asks at registration, and chat at once.
//!
//! It is written by hand over tokio because its cost competes with the gateway for the same cores. A stream's events
//! are written one by one, each a chunk of its own, as an engine does that flushes every token.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

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
            let _ = converse(Connection::new(stream)?, &answers).await;
            Ok::<(), io::Error>(())
        });
    }
}

/// All answers, ready to be written.
#[derive(Debug)]
struct Answers {
    chat: Vec<u8>,
    models: Vec<u8>,
    info: Vec<u8>,
    loads: Vec<u8>,
    health: Vec<u8>,
    missing: Vec<u8>,
    torn: Vec<u8>,
    chunks: Vec<Vec<u8>>,
    every: Option<Duration>,
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
            chat: json("200 OK", &chat_answer(args.number)),
            models: json("200 OK", &models),
            info: json("200 OK", &info),
            loads: json("200 OK", loads),
            health: json("200 OK", "{}"),
            missing: json("404 Not Found", r#"{"error":{"message":"no such route"}}"#),
            torn: json("400 Bad Request", r#"{"error":{"message":"not the length it had"}}"#),
            chunks: chunks(args.events),
            every: (args.every_ms > 0).then(|| Duration::from_millis(args.every_ms)),
        }
    }

    /// The answer to everything but a stream.
    fn plain(&self, target: &str) -> &[u8] {
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

fn json(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A stream's writes: the head with the first event, the other events, the end.
fn chunks(events: u32) -> Vec<Vec<u8>> {
    let texts = (0..events).map(event).chain([DONE.to_owned()]);
    let mut chunks: Vec<Vec<u8>> =
        texts.map(|text| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()).collect();
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
        let (mut body, mut len) = (Vec::new(), 0);
        connection
            .body(framing, |piece| {
                len += piece.len();
                if len <= SMALL {
                    body.extend_from_slice(piece);
                }
                Ok(())
            })
            .await?;
        let target = first_line.split(' ').nth(1).unwrap_or_default();
        // Longer ones are of a flood, whose bodies have any length.
        if len > SMALL && len < LARGE_CHAT - REWRITTEN {
            connection.stream.write_all(&answers.torn).await?;
        } else if len <= SMALL && first_line.starts_with("POST") && wants_stream(&body) {
            stream(&mut connection, answers).await?;
        } else {
            connection.stream.write_all(answers.plain(target)).await?;
        }
    }
    Ok(())
}

/// Enough of a parser for bodies that come from this bench, also when a gateway wrote them anew.
fn wants_stream(body: &[u8]) -> bool {
    [&br#""stream":true"#[..], br#""stream": true"#]
        .iter()
        .any(|text| memmem::find(body, text).is_some())
}

async fn stream(connection: &mut Connection, answers: &Answers) -> io::Result<()> {
    let Some(every) = answers.every else {
        for chunk in &answers.chunks {
            connection.stream.write_all(chunk).await?;
        }
        return Ok(());
    };
    let mut ticks = interval(every);
    // A late event never brings the next one forward: two of them would leave in one write and look cheap.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for chunk in &answers.chunks {
        ticks.tick().await;
        connection.stream.write_all(chunk).await?;
    }
    Ok(())
}
