//! Several engines alike, each on a free port of this machine.

use std::io;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Counts, Engine, Profile};

/// Engines that run until the fleet is dropped.
#[derive(Debug)]
pub struct Fleet {
    members: Vec<(String, Engine)>,
    _serving: JoinSet<io::Result<()>>,
}

impl Fleet {
    /// Starts `size` engines. They answer by the time this returns.
    ///
    /// # Errors
    /// When a port cannot be opened.
    pub async fn start(size: usize, profile: &Profile) -> io::Result<Self> {
        let mut members = Vec::with_capacity(size);
        let mut serving = JoinSet::new();
        for _ in 0..size {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let url = format!("http://{}", listener.local_addr()?);
            let engine = Engine::new(profile.clone());
            members.push((url, engine.clone()));
            serving.spawn(async move { engine.serve(listener).await });
        }
        Ok(Self { members, _serving: serving })
    }

    /// The engines' addresses, such as `http://127.0.0.1:41234`.
    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|(url, _)| url.as_str())
    }

    /// Each engine's numbers, in the order of the addresses.
    #[must_use]
    pub fn counts(&self) -> Vec<Counts> {
        self.members.iter().map(|(_, one)| one.counts()).collect()
    }
}
