//! HTTP/2 at both ends: a worker's tongue, and a client.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream, client, server};
use http::{HeaderMap, Request, Response};
use smg_gateway::Gateway;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};

use super::line::Line;
use super::within;

/// One step of an answer over HTTP/2.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    /// The head; whether it is all.
    Head(&'static str, bool),
    /// Data; whether it is the last.
    Data(&'static str, bool),
    Reset(Reason),
    /// The connection takes no more streams.
    GoAway,
    /// Until [`Tongue::go_on`].
    Wait,
}

/// A request as it arrived over HTTP/2.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) on: usize,
    pub(crate) uri: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Whether all of it came.
    pub(crate) whole: bool,
    /// Why the gateway ended the stream.
    pub(crate) reset: Option<Reason>,
}

#[derive(Default)]
struct Said {
    next: VecDeque<Vec<Frame>>,
    heard: Vec<Heard>,
    probes: usize,
    /// Connections that speak HTTP/2 and are open.
    open: usize,
}

/// How a worker speaks HTTP/2, beside HTTP/1.1.
#[derive(Clone)]
pub(crate) struct Tongue {
    said: Arc<Mutex<Said>>,
    news: Arc<watch::Sender<()>>,
    go_on: Arc<Notify>,
    most: u32,
    line: Line,
}

impl Tongue {
    /// One that allows so many streams at once.
    pub(crate) fn new(most: u32) -> Self {
        let news = Arc::new(watch::Sender::new(()));
        Self { said: Arc::default(), news, go_on: Arc::default(), most, line: Line::default() }
    }

    /// Answers the next request so.
    pub(crate) fn next(&self, frames: impl Into<Vec<Frame>>) -> &Self {
        self.lock().next.push_back(frames.into());
        self
    }

    /// Lets everybody go on who waits.
    pub(crate) fn go_on(&self) {
        self.go_on.notify_waiters();
    }

    /// Inference requests so far.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.lock().heard.clone()
    }

    /// Questions of the gateway's own.
    pub(crate) fn probes(&self) -> usize {
        self.lock().probes
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.lock().open
    }

    /// Waits until it has heard this.
    pub(crate) async fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let mut news = self.news.subscribe();
        within(what, async {
            while !so(self) {
                news.changed().await.expect("a tongue that lives");
            }
        })
        .await;
    }

    /// Says these frames on the newest connection, whatever they do to it; `false` when nobody hears
    /// them.
    pub(crate) async fn says(&self, frames: Vec<u8>) -> bool {
        within("the gateway reads", self.line.say(frames)).await
    }

    /// From now on the gateway's PINGs do not arrive, or do again.
    pub(crate) fn deaf(&self, deaf: bool) {
        self.line.deaf(deaf);
    }

    /// From now on nothing that the gateway says is read, or all is.
    pub(crate) fn frozen(&self, frozen: bool) {
        self.line.frozen(frozen);
    }

    /// Waits for the answer to a PING.
    pub(crate) async fn pong(&self, payload: &[u8]) {
        let mut pongs = self.line.pongs();
        let heard = pongs.wait_for(|pongs| pongs.iter().any(|pong| pong == payload));
        within("a PONG", heard).await.expect("a line that lives");
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().expect("no test panics under this lock")
    }

    fn tell<T>(&self, change: impl FnOnce(&mut Said) -> T) -> T {
        let changed = change(&mut self.lock());
        self.news.send_replace(());
        changed
    }

    /// Speaks on this connection; `page` is what the worker answers to questions.
    pub(super) async fn speak(
        self,
        socket: impl AsyncRead + AsyncWrite + Send + 'static,
        on: usize,
        page: impl Fn(&str) -> Option<(u16, String)>,
    ) {
        let socket = self.line.through(socket);
        let mut builder = server::Builder::new();
        let Ok(mut connection) =
            builder.max_concurrent_streams(self.most).handshake::<_, Bytes>(socket).await
        else {
            return;
        };
        self.tell(|said| said.open += 1);
        let away = Arc::new(Notify::new());
        loop {
            let accepted = tokio::select! {
                accepted = connection.accept() => accepted,
                () = away.notified() => {
                    connection.graceful_shutdown();
                    continue;
                }
            };
            let Some(Ok((request, respond))) = accepted else { break };
            if request.method() == http::Method::GET {
                self.tell(|said| said.probes += 1);
                answer_page(respond, page(request.uri().path()));
                continue;
            }
            let (tongue, away) = (self.clone(), Arc::clone(&away));
            tokio::spawn(async move { tongue.answer(request, respond, on, &away).await });
        }
        self.tell(|said| said.open -= 1);
    }

    async fn answer(
        self,
        request: Request<RecvStream>,
        mut respond: server::SendResponse<Bytes>,
        on: usize,
        away: &Notify,
    ) {
        let (head, body) = request.into_parts();
        let (uri, headers) = (head.uri.to_string(), head.headers);
        let (at, frames) = self.tell(|said| {
            let (body, reset) = (Vec::new(), None);
            said.heard.push(Heard { on, uri, headers, body, whole: false, reset });
            let usual = vec![Frame::Head("application/json", false), Frame::Data("{}", true)];
            (said.heard.len() - 1, said.next.pop_front().unwrap_or(usual))
        });
        let early = matches!(frames.first(), Some(Frame::Reset(_)));
        let reading = tokio::spawn(self.clone().read(body, at));
        if !early {
            let _ = reading.await;
        }
        let mut stream: Option<SendStream<Bytes>> = None;
        for frame in frames {
            match (frame, &mut stream) {
                (Frame::Head(kind, end), _) => {
                    let head = Response::builder().header("content-type", kind);
                    stream = respond.send_response(head.body(()).expect("a head"), end).ok();
                }
                (Frame::Data(data, end), Some(stream)) => {
                    let _ = stream.send_data(Bytes::from_static(data.as_bytes()), end);
                }
                (Frame::Data(..), None) => panic!("data before a head"),
                (Frame::Reset(reason), None) => respond.send_reset(reason),
                (Frame::Reset(reason), Some(stream)) => stream.send_reset(reason),
                (Frame::GoAway, _) => away.notify_one(),
                (Frame::Wait, None) => {
                    tokio::select! {
                        () = self.go_on.notified() => {}
                        reset = std::future::poll_fn(|cx| respond.poll_reset(cx)) => {
                            return self.tell(|said| said.heard[at].reset = reset.ok());
                        }
                    }
                }
                (Frame::Wait, Some(stream)) => {
                    tokio::select! {
                        () = self.go_on.notified() => {}
                        reset = std::future::poll_fn(|cx| stream.poll_reset(cx)) => {
                            return self.tell(|said| said.heard[at].reset = reset.ok());
                        }
                    }
                }
            }
        }
    }

    async fn read(self, mut body: RecvStream, at: usize) {
        loop {
            match body.data().await {
                Some(Ok(data)) => {
                    let _ = body.flow_control().release_capacity(data.len());
                    self.tell(|said| said.heard[at].body.extend_from_slice(&data));
                }
                Some(Err(error)) => {
                    return self.tell(|said| said.heard[at].reset = error.reason());
                }
                None => return self.tell(|said| said.heard[at].whole = true),
            }
        }
    }
}

fn answer_page(mut respond: server::SendResponse<Bytes>, page: Option<(u16, String)>) {
    let Some((status, text)) = page else { return respond.send_reset(Reason::INTERNAL_ERROR) };
    let head = Response::builder().status(status).body(()).expect("a head");
    if let Ok(mut stream) = respond.send_response(head, false) {
        let _ = stream.send_data(text.into(), true);
    }
}

/// A client that speaks HTTP/2.
pub(crate) struct H2Client {
    pub(crate) sender: client::SendRequest<Bytes>,
    driver: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Lengths of DATA frames, and whether each was known to be the last.
    pub(crate) frames: Vec<(usize, bool)>,
    /// Why it broke off.
    pub(crate) broken: Option<Reason>,
}

impl H2Client {
    /// Speaks at once, without asking.
    pub(crate) async fn over(socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        // One answer that is not read leaves room for others.
        let mut builder = client::Builder::new();
        let shaking = builder.initial_connection_window_size(1 << 20).handshake(socket);
        let (sender, connection) = within("a handshake", shaking).await.expect("h2");
        Self { sender, driver: tokio::spawn(connection) }
    }

    pub(crate) async fn connect(gw: &Arc<Gateway>) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(Arc::clone(gw).converse(theirs, std::net::Ipv4Addr::LOCALHOST.into()));
        Self::over(ours).await
    }

    /// Sends a request; what is left of its body goes through the stream.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> (client::ResponseFuture, SendStream<Bytes>) {
        let at = if path.starts_with('/') { format!("http://gw{path}") } else { path.to_owned() };
        let request = Request::builder().method(method).uri(at);
        let mut sender = within("a place", self.sender.clone().ready()).await.expect("open");
        let request = request.header("content-type", "application/json").body(()).expect("a head");
        let (answer, mut stream) =
            sender.send_request(request, body == Some("")).expect("a request");
        if let Some(body) = body.filter(|body| !body.is_empty()) {
            stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true).expect("sent");
        }
        (answer, stream)
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Answer {
        let (answer, _stream) = self.send("POST", path, Some(body)).await;
        read(answer).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        let (answer, _stream) = self.send("GET", path, Some("")).await;
        read(answer).await
    }

    /// How the connection ended, once it has.
    pub(crate) async fn ended(self) -> Result<(), Option<Reason>> {
        let ended = within("the gateway closes", self.driver).await.expect("a driver");
        ended.map_err(|error| error.reason())
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.driver.is_finished()
    }

    /// The connection breaks.
    pub(crate) fn breaks(self) {
        self.driver.abort();
    }
}

/// All of an answer.
pub(crate) async fn read(answer: client::ResponseFuture) -> Answer {
    let (head, mut body) = within("an answer", answer).await.expect("a head").into_parts();
    let (status, headers) = (head.status.as_u16(), head.headers);
    let mut answer = Answer { status, headers, body: Vec::new(), frames: Vec::new(), broken: None };
    while let Some(data) = within("the rest", body.data()).await {
        match data {
            Ok(data) => {
                answer.frames.push((data.len(), body.is_end_stream()));
                answer.body.extend_from_slice(&data);
                let _ = body.flow_control().release_capacity(data.len());
            }
            Err(error) => {
                answer.broken = error.reason();
                break;
            }
        }
    }
    answer
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

/// A frame's head.
pub(crate) fn frame(length: usize, kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    let length = u32::try_from(length).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat()
}

/// Reads what has come so far, to tell one version from the other.
pub(super) async fn first(socket: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    use tokio::io::AsyncReadExt as _;
    let mut first = Vec::new();
    while first.len() < 3 {
        if socket.read_buf(&mut first).await? == 0 {
            break;
        }
    }
    Ok(first)
}
