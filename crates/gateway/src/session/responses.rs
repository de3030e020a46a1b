//! Responses that workers keep (`/v1/responses/{response_id}`): which worker has which. An id is a key
//! whose pin nobody moves: what was made there is nowhere else.

use smg_decide::fleet::{Leg, WorkerId};
use smg_decide::keys::scope::{Hashing, KeyHash, Scope};
use smg_decide::pins::table::Table;
use smg_decide::pins::{Replacement, Rules};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::Clock;

/// Responses remembered; the idlest of a sample goes for one more.
const MAX_RESPONSES: usize = 1 << 18;
/// Unknown ids that the fleet is asked for at once; clients can make up as many as they like.
const MAX_SEARCHES: usize = 8;

/// Which worker has which response.
#[derive(Debug)]
pub(crate) struct Responses {
    table: Table,
    hashing: Hashing,
    clock: Clock,
    searches: Semaphore,
}

impl Responses {
    pub(super) fn new(clock: Clock) -> Self {
        let rules = Rules { replacement: Replacement::Follows, threshold: None };
        Self {
            table: Table::new(rules, Some(MAX_RESPONSES)),
            hashing: Hashing::new(rand::random()),
            clock,
            searches: Semaphore::new(MAX_SEARCHES),
        }
    }

    /// The worker has this response.
    pub(crate) fn remember(&self, id: &str, worker: WorkerId) {
        self.table.pin(self.hash(id), worker, self.clock.secs());
    }

    /// The worker that has this response, as far as is known.
    pub(crate) fn home(&self, id: &str) -> Option<WorkerId> {
        self.table.home(self.hash(id), self.clock.secs())
    }

    /// Waits for a turn to ask the fleet.
    pub(crate) async fn search(&self) -> Option<SemaphorePermit<'_>> {
        // Only a closed one has no turns, and nobody closes it.
        self.searches.acquire().await.ok()
    }

    fn hash(&self, id: &str) -> KeyHash {
        self.hashing.hash(Scope { model: None, leg: Leg::Regular }, id.as_bytes())
    }
}
