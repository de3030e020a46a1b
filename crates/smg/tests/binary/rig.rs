//! A gateway process and workers of a few lines, both on loopback.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn launch<S: AsRef<OsStr>>(flags: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smg"));
    command.arg("launch").args(flags).stdin(Stdio::null());
    command
}

/// A running gateway; killed when dropped.
pub(crate) struct Gateway {
    pub(crate) port: u16,
    pub(crate) metrics: u16,
    process: Mutex<Child>,
    lines: Mutex<Receiver<String>>,
    /// What was logged before it was ready.
    early: Mutex<Vec<String>>,
}

impl Gateway {
    /// Starts one before these workers and waits until all have registered.
    pub(crate) fn start(workers: &[&str], flags: &[&str]) -> Self {
        Self::of(launch([""; 0]), workers, flags)
    }

    /// The same, with a command that may have an environment of its own.
    pub(crate) fn of(mut command: Command, workers: &[&str], flags: &[&str]) -> Self {
        let (port, metrics) = (free_port(), free_port());
        if !flags.contains(&"--host") && !command.get_args().any(|flag| flag == "--host") {
            command.args(["--host", "127.0.0.1"]);
        }
        command.args(["--prometheus-host", "127.0.0.1"]);
        command.args(["--port", &port.to_string(), "--prometheus-port", &metrics.to_string()]);
        if !flags.contains(&"--policy") {
            command.args(["--policy", "round_robin"]);
        }
        command.args(flags);
        if !workers.is_empty() {
            command.arg("--worker-urls").args(workers);
        }
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(process.stdout.take().unwrap());
        let gateway = Self {
            port,
            metrics,
            process: process.into(),
            lines: lines.into(),
            early: Mutex::default(),
        };
        gateway.is_ready(workers.len());
        gateway
    }

    /// Waits for the banner and so many workers; on a busy machine a worker may come first.
    fn is_ready(&self, workers: usize) {
        let (mut listens, mut registered) = (false, 0);
        while !listens || registered < workers {
            let line = self.wait_for_log("");
            listens |= line.contains("listens on");
            registered += usize::from(line.contains("worker registered"));
            self.early.lock().unwrap().push(line);
        }
    }

    /// A log line that contains `text`, from the start of the process on.
    pub(crate) fn has_logged(&self, text: &str) -> String {
        let early = self.early.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
        early.unwrap_or_else(|| self.wait_for_log(text))
    }

    /// One whose stdout and stderr have been closed at their other end.
    pub(crate) fn start_deaf(workers: &[&str], flags: &[&str]) -> Self {
        let mut command = launch(["--host", "127.0.0.1"]);
        command.stderr(Stdio::piped());
        let gateway = Self::of(command, workers, flags);
        drop(gateway.process.lock().unwrap().stderr.take());
        // The reader of stdout lets go of it when nobody listens to the reader.
        *gateway.lines.lock().unwrap() = channel().1;
        gateway
    }

    /// Everything that was logged since the last look, to the end of the process.
    pub(crate) fn whole_log(&self) -> String {
        let lines = self.lines.lock().unwrap();
        let mut log = String::new();
        while let Ok(line) = lines.recv_timeout(PATIENCE) {
            log.push_str(&line);
            log.push('\n');
        }
        log
    }

    /// The next log line that contains `text`.
    pub(crate) fn wait_for_log(&self, text: &str) -> String {
        let lines = self.lines.lock().unwrap();
        loop {
            let line =
                lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no log line with {text}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.lock().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits for the end of the process, which shows as the end of its output.
    pub(crate) fn ended(self) -> ExitStatus {
        let lines = self.lines.lock().unwrap();
        while lines.recv_timeout(PATIENCE).is_ok() {}
        self.process.lock().unwrap().wait().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }
}

fn lines_of(out: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A worker that serves the model `m`, names itself in its answers, and holds a stream after its
/// first event until told to finish.
pub(crate) struct Worker {
    pub(crate) url: String,
    finish: Sender<()>,
}

impl Worker {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (finish, finished) = channel();
        let finished = Arc::new(Mutex::new(finished));
        let name = url.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (name, finished) = (name.clone(), Arc::clone(&finished));
                std::thread::spawn(move || answer(socket, &name, &finished));
            }
        });
        Self { url, finish }
    }

    pub(crate) fn finish_stream(&self) {
        self.finish.send(()).unwrap();
    }
}

fn answer(socket: TcpStream, name: &str, finished: &Mutex<Receiver<()>>) {
    let mut out = socket.try_clone().unwrap();
    let mut from = BufReader::new(socket);
    while let Some((path, body)) = request(&mut from) {
        if body.contains("\"stream\":true") {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            write!(out, "{head}d\r\ndata: first\n\n\r\n").unwrap();
            let _ = finished.lock().unwrap().recv_timeout(PATIENCE);
            write!(out, "c\r\ndata: last\n\n\r\n0\r\n\r\n").unwrap();
            continue;
        }
        let body = match path.as_str() {
            "/v1/models" => "{\"data\":[{\"id\":\"m\"}]}".to_owned(),
            "/v1/chat/completions" => format!("{{\"worker\":\"{name}\"}}"),
            _ => "{}".to_owned(),
        };
        let length = body.len();
        let _ = write!(
            out,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
    }
}

/// A request's path and body, or nothing when the connection ends.
fn request(from: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let mut line = String::new();
    from.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        from.read_line(&mut line).ok()?;
        match line.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some((path, String::from_utf8(body).ok()?))
}

pub(crate) fn get(port: u16, path: &str) -> (u16, String) {
    exchange(port, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
}

/// Posts a chat completion.
pub(crate) fn post(port: u16, body: &str) -> (u16, String) {
    post_with(port, "x-nothing: special", body)
}

/// Posts a chat completion with a header.
pub(crate) fn post_with(port: u16, header: &str, body: &str) -> (u16, String) {
    post_to(port, "/v1/chat/completions", header, body)
}

/// Posts anything.
pub(crate) fn post_to(port: u16, path: &str, header: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}");
    exchange(port, &format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}"))
}

fn exchange(port: u16, request: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
