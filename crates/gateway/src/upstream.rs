//! The way to a worker: its address, its idle connections, one exchange.

mod deadline;
mod dial;
mod ears;
mod exchange;
mod origin;
mod outgoing;
mod pool;
mod shared;
mod stream;
mod tls;

pub(crate) use deadline::Deadline;
pub use dial::{Dial, Dialled, Offer, Socket, TcpDial};
pub(crate) use exchange::{Exchange, Message, Question, ask, fetch, send};
pub use origin::{Origin, OriginError};
pub(crate) use outgoing::Outgoing;
pub(crate) use pool::{Pool, Version};
pub use tls::WorkerTls;
