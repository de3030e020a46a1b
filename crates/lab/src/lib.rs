//! The lab: a simulated engine, a player of conversations, and the demo that shows what it is
//! worth that a conversation comes back to the engine whose cache knows it, the bench that measures
//! the gateway beside others, and the simulator that plays the decision core from seeds.

pub mod bench;
pub mod demo;
pub mod dice;
pub mod engine;
pub mod pick_bench;
pub mod player;
pub mod prefix_study;
pub mod simulator;
pub mod traces;
