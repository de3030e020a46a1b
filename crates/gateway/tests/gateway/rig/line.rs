//! What lies between the gateway and a worker that speaks HTTP/2: it can say what no server would, and
//! keep back what the gateway says.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, WriteHalf,
};
use tokio::sync::{mpsc, watch};

const PREFACE: usize = 24;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;

/// The line of a worker; clones are the same.
#[derive(Clone)]
pub(super) struct Line {
    /// Where to say something on the newest connection; nothing said is its end.
    says: Arc<Mutex<Option<mpsc::Sender<Vec<u8>>>>>,
    pongs: Arc<watch::Sender<Vec<Vec<u8>>>>,
    /// PINGs of the gateway do not arrive.
    deaf: Arc<watch::Sender<bool>>,
    /// Nothing that the gateway says is read.
    frozen: Arc<watch::Sender<bool>>,
}

impl Default for Line {
    fn default() -> Self {
        let no = || Arc::new(watch::Sender::new(false));
        let pongs = Arc::new(watch::Sender::default());
        Self { says: Arc::default(), pongs, deaf: no(), frozen: no() }
    }
}

impl Line {
    /// Says this in the worker's place; `false` when nobody hears it.
    pub(super) async fn say(&self, frames: Vec<u8>) -> bool {
        let says = self.newest().clone();
        match says {
            Some(says) => says.send(frames).await.is_ok(),
            None => false,
        }
    }

    pub(super) fn deaf(&self, deaf: bool) {
        self.deaf.send_replace(deaf);
    }

    pub(super) fn frozen(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// What the gateway answered to PINGs.
    pub(super) fn pongs(&self) -> watch::Receiver<Vec<Vec<u8>>> {
        self.pongs.subscribe()
    }

    fn newest(&self) -> MutexGuard<'_, Option<mpsc::Sender<Vec<u8>>>> {
        self.says.lock().expect("no test panics under this lock")
    }

    /// Puts itself between the gateway and a worker; the worker's end.
    pub(super) fn through(
        &self,
        gateway: impl AsyncRead + AsyncWrite + Send + 'static,
    ) -> DuplexStream {
        let (worker, ours) = tokio::io::duplex(64 << 10);
        let (mut from_worker, to_worker) = tokio::io::split(ours);
        let (from_gateway, mut to_gateway) = tokio::io::split(gateway);
        let (says, mut said) = mpsc::channel(1);
        *self.newest() = Some(says.clone());
        tokio::spawn(async move {
            while let Ok(frame) = read_frame(&mut from_worker).await {
                let _ = says.send(frame).await;
            }
            let _ = says.send(Vec::new()).await;
        });
        let line = self.clone();
        tokio::spawn(async move {
            // An error is the end of one side, which ends the other.
            let hearing = line.hear(from_gateway, to_worker);
            let saying = async {
                while let Some(frames) = said.recv().await {
                    if frames.is_empty() || to_gateway.write_all(&frames).await.is_err() {
                        return;
                    }
                }
            };
            tokio::pin!(saying);
            tokio::select! {
                _ended = hearing => saying.await,
                () = &mut saying => {}
            }
        });
        worker
    }

    /// Passes on what the gateway says, but for what the worker would not understand: it did not ask.
    async fn hear(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: WriteHalf<DuplexStream>,
    ) -> io::Result<()> {
        let mut preface = [0; PREFACE];
        from.read_exact(&mut preface).await?;
        to.write_all(&preface).await?;
        let (mut frozen, mut greeted) = (self.frozen.subscribe(), false);
        loop {
            let _ = frozen.wait_for(|frozen| !frozen).await;
            let read = read_frame(&mut from).await;
            let Ok(frame) = read else { return to.shutdown().await };
            let ack = frame[4] & ACK != 0;
            match frame[3] {
                PING if ack => self.pongs.send_modify(|pongs| pongs.push(frame[9..].to_vec())),
                PING if *self.deaf.borrow() => {}
                SETTINGS if ack && std::mem::replace(&mut greeted, true) => {}
                _ => to.write_all(&frame).await?,
            }
        }
    }
}

/// The next frame, head and all.
async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 9];
    from.read_exact(&mut frame).await?;
    let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
    frame.resize(9 + length, 0);
    from.read_exact(&mut frame[9..]).await?;
    Ok(frame)
}
