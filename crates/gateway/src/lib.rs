//! The request path of smg and the tasks around it: sockets and time. What is decided, is decided
//! in `smg-decide`; what bytes mean stands in `smg-wire`.
//!
//! A request goes through admit, plan, take, key, choose, send, judge, relay and settle; the story
//! is told in `serve.rs` and drawn in docs/architecture.md.

mod access;
mod admin;
mod admission;
mod body;
mod clock;
pub mod drain;
mod edge;
mod fleet;
mod gateway;
mod identity;
mod lull;
mod relay;
mod serve;
mod session;
pub mod settings;
mod tasks;
mod telemetry;
pub mod upstream;

pub use gateway::Gateway;
pub use identity::{Identity, Unfit};
pub use settings::Settings;
