//! RFC 9113 as a client that breaks it: every case of httpwg, over plain connections and over TLS,
//! each on a connection of its own.
//!
//! The suite takes for the end of a connection that nothing came in time. What it reads through tells
//! the one from the other.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use buffet::IntoHalves;
use httpwg::{Config, Conn};
use smg_gateway::settings::ServerTls;
use tokio::io::{AsyncRead, DuplexStream, ReadBuf, ReadHalf, WriteHalf, copy_bidirectional};
use tokio::task::LocalSet;

use self::otherwise::OTHERWISE;
use super::super::rig::*;

mod otherwise;

httpwg_macros::gen_catalog!(catalog);

/// A route that reads a body, needs none, and asks a worker.
const PATH: &str = "/v1/responses/resp_1/cancel";
/// Cases of the suite: a run of fewer is none.
const CASES: usize = 107;

/// A connection as the suite wants it.
struct Pipe {
    socket: DuplexStream,
    reading: Rc<Cell<Reading>>,
}

/// How far the suite reads.
#[derive(Clone, Copy, PartialEq)]
enum Reading {
    /// Still.
    On,
    /// To the end of the connection.
    ToTheEnd,
    /// No further, because nothing came in time.
    GivenUp,
}

struct Reader {
    half: ReadHalf<DuplexStream>,
    reading: Rc<Cell<Reading>>,
}

impl IntoHalves for Pipe {
    type Read = Reader;
    type Write = WriteHalf<DuplexStream>;

    fn into_halves(self) -> (Self::Read, Self::Write) {
        let (half, write) = tokio::io::split(self.socket);
        (Reader { half, reading: self.reading }, write)
    }
}

impl AsyncRead for Reader {
    /// A little at a time, and the end as an error: the suite counts wrong when it is more than 4 KiB behind, and panics
    /// at an end in the middle of what it takes for a frame.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut little = [0; 512];
        let most = into.remaining().min(little.len());
        let mut some = ReadBuf::new(&mut little[..most]);
        let read = ready!(Pin::new(&mut self.half).poll_read(cx, &mut some));
        if read.is_err() || some.filled().is_empty() {
            self.reading.set(Reading::ToTheEnd);
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        into.put_slice(some.filled());
        Poll::Ready(Ok(()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.reading.get() == Reading::On {
            self.reading.set(Reading::GivenUp);
        }
    }
}

/// What came of each case.
async fn outcomes(
    rig: &Rig,
    authority: Option<&Authority>,
) -> BTreeMap<String, Result<(), String>> {
    // The default is 256 MiB.
    buffet::bufpool::initialize_allocator_with_num_bufs(1024).expect("4 MiB");
    let (host, path) = ("gw".to_owned(), PATH.to_owned());
    let tls = authority.is_some();
    let config = Rc::new(Config { host, path, tls, ..Config::default() });
    let mut outcomes = BTreeMap::new();
    for (section, cases) in catalog::<Pipe>().into_values().flatten() {
        for (name, case) in cases {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            tokio::spawn(Arc::clone(&rig.gw).converse(theirs, Ipv4Addr::LOCALHOST.into()));
            let socket = match authority {
                None => ours,
                Some(authority) => {
                    let (mut tls, _) = authority.negotiate("gw", ours, &[b"h2"]).await;
                    let (near, mut far) = tokio::io::duplex(64 << 10);
                    // The suite never flushes.
                    tokio::spawn(async move { copy_bidirectional(&mut far, &mut tls).await });
                    near
                }
            };
            let (config, reading) = (Rc::clone(&config), Rc::new(Cell::new(Reading::On)));
            let tasks = LocalSet::new();
            let ran = tasks.spawn_local(async move {
                let pipe = Pipe { socket, reading: Rc::clone(&reading) };
                let outcome = case(Conn::new(config, pipe)).await;
                if reading.get() == Reading::GivenUp {
                    return Err("nothing came".to_owned());
                }
                outcome.map_err(|report| report.to_string())
            });
            // Most cases panic where they fail.
            let outcome = within(name, tasks.run_until(ran))
                .await
                .unwrap_or_else(|panic| Err(panic.to_string()));
            outcomes.insert(format!("{section}: {name}"), outcome);
        }
    }
    outcomes
}

/// Holds every case to what is expected of it.
async fn hold(over: &str, authority: Option<&Authority>) {
    let w = Worker::new("w1");
    w.page("/v1/responses/resp_1", "{}");
    let identity = authority.map(|authority| authority.signs("gw").identity());
    let rig = Rig::start(&[&w], |settings| {
        settings.tls = identity.and_then(|identity| ServerTls::new(&identity).ok());
    })
    .await;
    let outcomes = outcomes(&rig, authority).await;
    assert_eq!(outcomes.len(), CASES, "{:?}", outcomes.keys());
    let expected = |name: &str| OTHERWISE.iter().find(|(case, ..)| *case == name);
    let mut wrong: Vec<_> = outcomes
        .iter()
        .filter(|(name, outcome)| match (outcome, expected(name)) {
            (Ok(()), None) => false,
            (Err(came), Some((_, otherwise, _))) => !came.ends_with(otherwise),
            _ => true,
        })
        .map(|(name, outcome)| format!("{name}: {outcome:?}"))
        .collect();
    let unknown = OTHERWISE.iter().filter(|(case, ..)| !outcomes.contains_key(*case));
    wrong.extend(unknown.map(|(case, ..)| format!("{case}: there is no such case")));
    assert!(wrong.is_empty(), "over {over}:\n{}", wrong.join("\n"));
    let (held, otherwise) = (CASES - OTHERWISE.len(), OTHERWISE.len());
    println!(
        "RFC 9113 over {over}: {held} of {CASES} cases hold, {otherwise} are answered otherwise, as listed"
    );
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn every_case_of_the_suite_holds_or_is_listed_in_plain() {
    hold("a plain connection", None).await;
}

#[tokio::test(start_paused = true)]
async fn every_case_of_the_suite_holds_or_is_listed_under_tls() {
    hold("TLS", Some(&Authority::new("ca"))).await;
}
