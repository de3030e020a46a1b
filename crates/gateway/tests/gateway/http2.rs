//! HTTP/2: with clients, and towards workers.

mod clients;
mod floods;
mod rfc9113;
mod worker_floods;
mod workers;
