//! The network: every dial ends at the worker of that name.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;

use smg_gateway::upstream::{Dial, Dialled, Offer, Origin, WorkerTls};

use super::Worker;

pub(super) struct Net {
    workers: HashMap<String, Worker>,
    tls: WorkerTls,
}

impl Net {
    pub(super) fn of(workers: &[&Worker], tls: WorkerTls) -> Self {
        let named = |worker: &&Worker| (worker.url().to_owned(), Worker::clone(worker));
        Self { workers: workers.iter().map(named).collect(), tls }
    }
}

impl std::fmt::Debug for Net {
    /// Without what the workers were sent: tests ask what the gateway itself shows.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Net").finish_non_exhaustive()
    }
}

impl Dial for Net {
    fn dial<'a>(
        &'a self,
        origin: &'a Origin,
        offer: Offer,
    ) -> Pin<Box<dyn Future<Output = io::Result<Dialled>> + Send + 'a>> {
        Box::pin(async move {
            let worker = self.workers.get(origin.url());
            let worker = worker.ok_or(io::ErrorKind::NotFound)?;
            let socket = worker.dialled().await?;
            if origin.is_secure() {
                self.tls.secure(origin, socket, offer).await
            } else {
                Ok(Dialled::from(socket))
            }
        })
    }
}
