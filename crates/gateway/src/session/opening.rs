//! The opening of a conversation as a second key. A conversation grows: while it is short its `rid` is
//! found in the beginning of its bodies, later it stands behind and only the opening is seen. Both must
//! mean the same worker, or the conversation would move when it is warmest.

use smg_decide::fleet::Leg;
use smg_decide::keys::scope::Scope;
use smg_decide::keys::{Source, Treatment};

use super::{Asking, Session};
use crate::fleet::Upstream;

impl Asking<'_> {
    /// Whether the key is another one than the opening, and pinned in the same way.
    pub(crate) fn has_other_key(&self) -> bool {
        let other = self.key.is_some_and(|key| key.source != Source::Opening);
        self.treatment == Treatment::Pin && other
    }
}

impl Session {
    /// Pins the opening of a conversation whose key led to this worker, unless it is pinned already.
    pub(crate) fn follow(&self, model: &str, opening: &str, upstream: &Upstream) {
        let scope = Scope { model: Some(model), leg: Leg::Regular };
        let (key, now) = (self.hashing.hash(scope, opening.as_bytes()), self.now());
        if self.pins.home(key, now).is_none() {
            self.pins.pin(key, upstream.worker.id, now);
            // Other replicas may be the ones that see no more than the opening.
            if let Some(store) = &self.routing_store {
                store.claim_later(store.routing_name(scope, opening.as_bytes()), &upstream.address);
            }
        }
    }
}
