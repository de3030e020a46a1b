//! Redis (7.0 or later) or Valkey as the shared store.
//!
//! One connection for all requests, kept up by one task. It asks the server to be told of changes to
//! what it has read (client tracking, which needs RESP3); scripts end with a read for that reason.
//! When the connection is lost, so are the copies: nobody would tell of changes any more.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo as _,
    ProtocolVersion, PushInfo, PushKind, RedisError, Script, Value,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::copies::Copies;
use super::{Answer, Fault, Met, Name, RENEWAL, Store, TTL};

/// Bound on connecting, and on the answer to a question whether the server is still there.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two such questions, and the longest pause between two attempts to connect.
const PULSE: Duration = Duration::from_secs(1);
/// The first such pause.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// ARGV: address, life and renewal in milliseconds, whether it is a use. A life is renewed at most
/// once a minute, by whichever replica: each renewal takes every other replica's copy away.
const CLAIM: &str = "\
local found = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if found and (found == ARGV[1] or ARGV[4] == '1')
  and redis.call('PTTL', KEYS[1]) < ARGV[2] - ARGV[3] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {found and 0 or 1, redis.call('GET', KEYS[1])}";
/// ARGV: the address it is to be still pinned to, the new one, life in milliseconds.
const SHIFT: &str = "\
local found = redis.call('GET', KEYS[1])
local ours = not found or found == ARGV[1]
if ours then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return {ours and 1 or 0, redis.call('GET', KEYS[1])}";

/// The store.
#[derive(Debug)]
pub(crate) struct Redis {
    client: Client,
    connection: ArcSwapOption<MultiplexedConnection>,
    lost: Arc<Notify>,
    copies: Arc<Copies>,
    claim: Script,
    shift: Script,
}

impl Redis {
    /// A store at this URL, which nobody has connected to yet.
    ///
    /// # Errors
    /// In words that do not repeat the URL: it may hold a password.
    pub(crate) fn new(url: &str, copies: Arc<Copies>) -> Result<Self, String> {
        let info = url.into_connection_info().map_err(|error| error.to_string())?;
        // Changes are told of within the same connection from RESP3 on.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(settings);
        Ok(Self {
            client: Client::open(info).map_err(|error| error.to_string())?,
            connection: ArcSwapOption::empty(),
            lost: Arc::default(),
            copies,
            claim: Script::new(CLAIM),
            shift: Script::new(SHIFT),
        })
    }

    /// Connects for ever.
    pub(crate) async fn keep(&self) {
        let (mut pause, mut quiet) = (FIRST_PAUSE, false);
        loop {
            match timeout(PATIENCE, self.connect()).await {
                Ok(Ok(connection)) => {
                    tracing::info!("the sticky store is connected");
                    (pause, quiet) = (FIRST_PAUSE, false);
                    self.connection.store(Some(Arc::new(connection.clone())));
                    self.watch(connection).await;
                    self.connection.store(None);
                    self.copies.forget();
                    tracing::warn!("the sticky store is lost; keys go where they hash to");
                }
                failed if !quiet => {
                    // Once, however often it fails.
                    quiet = true;
                    let why = match failed {
                        Ok(Err(error)) => error.to_string(),
                        _ => "no answer within a second".to_owned(),
                    };
                    tracing::warn!(
                        why,
                        "the sticky store cannot be reached; keys go where they hash to"
                    );
                }
                _ => {}
            }
            tokio::time::sleep(pause).await;
            pause = PULSE.min(pause * 2);
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let (copies, lost) = (Arc::clone(&self.copies), Arc::clone(&self.lost));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            // Each operation brings its own.
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                heed(&copies, &lost, &push);
                Ok::<_, redis::aio::SendError>(())
            });
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&config).await?;
        // Not of our own changes: what we are answered is news enough.
        redis::cmd("CLIENT").arg(&["TRACKING", "ON", "NOLOOP"]).exec_async(&mut connection).await?;
        Ok(connection)
    }

    /// Returns once the connection is lost.
    async fn watch(&self, mut connection: MultiplexedConnection) {
        loop {
            tokio::select! {
                () = self.lost.notified() => return,
                () = tokio::time::sleep(PULSE) => {}
            }
            let ping = redis::cmd("PING");
            if !matches!(timeout(PATIENCE, ping.exec_async(&mut connection)).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    fn connection(&self) -> Result<MultiplexedConnection, Fault> {
        let connection = self.connection.load();
        connection
            .as_ref()
            .map(|connection| MultiplexedConnection::clone(connection))
            .ok_or(Fault::Away)
    }
}

/// What the server says unasked.
fn heed(copies: &Copies, lost: &Notify, push: &PushInfo) {
    match (&push.kind, push.data.first()) {
        (PushKind::Disconnection, _) => {
            copies.forget();
            lost.notify_one();
        }
        (PushKind::Invalidate, Some(Value::Array(names))) => {
            for name in names {
                if let Value::BulkString(name) = name {
                    copies.changed(name);
                }
            }
        }
        // Everything was deleted.
        (PushKind::Invalidate, _) => copies.forget(),
        _ => {}
    }
}

impl Store for Redis {
    fn claim<'a>(&'a self, name: &'a Name, address: &'a str, used: bool) -> Answer<'a, Met> {
        Box::pin(async move {
            let mut connection = self.connection()?;
            let mut call = self.claim.key(name.to_string());
            call.arg(address).arg(millis(TTL)).arg(millis(RENEWAL)).arg(u8::from(used));
            met(call.invoke_async(&mut connection).await)
        })
    }

    fn shift<'a>(&'a self, name: &'a Name, from: &'a str, to: &'a str) -> Answer<'a, Met> {
        Box::pin(async move {
            let mut connection = self.connection()?;
            let mut call = self.shift.key(name.to_string());
            call.arg(from).arg(to).arg(millis(TTL));
            met(call.invoke_async(&mut connection).await)
        })
    }

    fn look<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<String>> {
        Box::pin(async move {
            let mut connection = self.connection()?;
            let found = redis::cmd("GET").arg(name.to_string()).query_async(&mut connection).await;
            judged(found)
        })
    }
}

fn met(answer: Result<(u8, String), RedisError>) -> Result<Met, Fault> {
    judged(answer).map(|(ours, address)| Met { address, ours: ours == 1 })
}

fn judged<T: FromRedisValue>(answer: Result<T, RedisError>) -> Result<T, Fault> {
    answer.map_err(|error| {
        tracing::debug!(%error, "the sticky store refused");
        if error.is_connection_dropped() || error.kind() == ErrorKind::Io {
            Fault::Away
        } else {
            Fault::Error
        }
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
