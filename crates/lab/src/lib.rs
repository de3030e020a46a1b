//! The lab: a simulated engine, a player of conversations, and the demo that shows what it is
//! worth that a conversation comes back to the engine whose cache knows it, and the bench that measures
//! the gateway beside others.

pub mod bench;
pub mod demo;
pub mod dice;
pub mod engine;
pub mod pins;
pub mod player;
