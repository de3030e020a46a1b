//! The way to a worker: its address, its idle connections, one exchange.

mod deadline;
mod dial;
mod ears;
mod exchange;
mod origin;
mod outgoing;
mod pool;
mod question;
mod shared;
mod stream;
mod tls;

pub(crate) use deadline::Deadline;
pub use dial::{Dial, Dialled, Offer, Socket, TcpDial};
pub(crate) use exchange::{Exchange, Message, send};
pub use origin::{Origin, OriginError};
pub(crate) use outgoing::Outgoing;
pub(crate) use pool::{Pool, Version};
pub(crate) use question::{Question, ask, fetch};
pub use tls::WorkerTls;
