//! The lab: what smg is tried and measured with. Not published.

pub mod bench;
