//! The gateway from outside: clients and workers at the ends of in-memory pipes, under paused time.
//!
//! `rig` holds both ends; every other module is one kind of thing that may happen.

#[cfg(test)]
mod rig;

#[cfg(test)]
mod access;
#[cfg(test)]
mod admin;
#[cfg(test)]
mod admission;
#[cfg(test)]
mod aliases;
#[cfg(test)]
mod answers;
#[cfg(test)]
mod broken_workers;
#[cfg(test)]
mod composition;
#[cfg(test)]
mod data_parallel;
#[cfg(test)]
mod deadlines;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod flowing;
mod framing;
#[cfg(test)]
mod handoff;
#[cfg(test)]
mod http2;
#[cfg(test)]
mod idle_clients;
#[cfg(test)]
mod learned;
#[cfg(test)]
mod leaving;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod overload;
#[cfg(test)]
mod peeking;
#[cfg(test)]
mod pools;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod relaying;
#[cfg(test)]
mod responses;
#[cfg(test)]
mod retries;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod slices;
#[cfg(test)]
mod slow_readers;
#[cfg(test)]
mod smuggling;
#[cfg(test)]
mod stickiness;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod uploads;
#[cfg(test)]
mod usage;
#[cfg(test)]
mod worker_life;
#[cfg(test)]
mod worker_specs;
