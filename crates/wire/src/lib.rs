//! The bytes of smg, pure: which path speaks which dialect, what a body says without being turned
//! into a tree, which headers travel, and how an error looks on each route.
#![warn(missing_docs)]

pub mod access;
pub mod chunked;
pub mod coding;
pub mod cors;
pub mod error;
pub mod form;
pub mod head;
pub mod header;
pub mod hint;
pub mod json;
pub mod loads;
pub mod peek;
pub mod prompt;
pub mod reslice;
pub mod response;
pub mod route;
pub mod sse;
pub mod usage;
