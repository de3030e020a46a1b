//! HTTP/2: with clients, and towards workers.

mod clients;
mod workers;
