//! The decisions of smg, pure: no socket, no clock, no global randomness, no log line.
//!
//! Every function here takes the time and the dice as arguments and answers with a value whose
//! text is metric label, log field and test assertion alike. The gateway crate asks and acts.
#![warn(missing_docs)]

pub mod admission;
pub mod body;
pub mod budget;
pub mod fleet;
pub mod keys;
pub mod mode;
pub mod pins;
pub mod place;
pub mod retry;
pub mod seat;
pub mod settle;
pub mod strategy;
