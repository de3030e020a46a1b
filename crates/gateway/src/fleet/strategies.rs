//! A model's workers under another policy than their own: what a client asks for one request
//! (`routing-strategy`, 004). Such a policy is made when it is first asked for and remembers what it
//! learns as the model's own does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use smg_decide::fleet::{Leg, WorkerId};
use smg_decide::place::{Policy, Remembered};

use super::{Group, Roster, Upstream, make_policy};
use crate::settings::PolicyName;
use crate::telemetry::Meters;

/// The policies of a model that clients asked for; they outlive the snapshots of the fleet.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<HashMap<PolicyName, Arc<dyn Policy>>>);

/// One snapshot's group under each other policy, made when it is first asked for.
#[derive(Debug, Default)]
pub(super) struct Variants([OnceLock<Arc<Group>>; PolicyName::ALL.len()]);

impl Asked {
    fn policy(&self, name: PolicyName, make: impl FnOnce() -> Arc<dyn Policy>) -> Arc<dyn Policy> {
        Arc::clone(self.lock().entry(name).or_insert_with(make))
    }

    fn all(&self) -> Vec<Arc<dyn Policy>> {
        self.lock().values().map(Arc::clone).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PolicyName, Arc<dyn Policy>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    /// Every policy that places requests among these workers.
    fn policies(&self) -> impl Iterator<Item = Arc<dyn Policy>> {
        let own = self.policy.name();
        let asked = self.asked.all().into_iter().filter(move |policy| policy.name() != own);
        std::iter::once(Arc::clone(&self.policy)).chain(asked)
    }

    /// Tells every policy that a worker is gone, or holds nothing any more.
    pub(crate) fn forget(&self, gone: WorkerId) {
        self.policies().for_each(|policy| policy.forget(gone));
    }

    /// Sweeps every policy's index; what is left then of the one that remembers prompts.
    pub(super) fn sweep(&self, now: u64) -> Option<[Remembered; 2]> {
        let swept = self.policies().map(|policy| {
            policy.sweep(now);
            policy.remembered()
        });
        swept.fold(None, Option::or)
    }

    /// Whether any policy goes by what engines report.
    pub(crate) fn reads_loads(&self) -> bool {
        self.policies().any(|policy| policy.reads_loads())
    }

    /// The worker at an address as ids and shared pins have it (`host:port`, `@rank`): its place in
    /// the list, available or not.
    pub(crate) fn at(&self, address: &[u8]) -> Option<usize> {
        self.addresses.get(address).copied()
    }
}

/// The places of these workers by address. Of two at one address the first is meant.
pub(super) fn addresses(upstreams: &[Arc<Upstream>]) -> HashMap<Box<[u8]>, usize> {
    let mut addresses = HashMap::with_capacity(upstreams.len());
    for (at, upstream) in upstreams.iter().enumerate() {
        addresses.entry(upstream.address.as_bytes().into()).or_insert(at);
    }
    addresses
}

impl Roster {
    /// The workers of a model under the policy that a request asked for, if it did.
    pub(crate) fn under(
        &self,
        group: Arc<Group>,
        wanted: Option<PolicyName>,
        meters: &Meters,
    ) -> Arc<Group> {
        let Some(name) =
            wanted.filter(|name| name.as_str() != group.policy.name() && !group.external)
        else {
            return group;
        };
        let Some(variant) = group.variants.0.get(name as usize) else { return group };
        let make = || {
            let make = || make_policy(name, &self.placement, self.assignment);
            let policy = group.asked.policy(name, make);
            Arc::new(Group {
                model: Arc::clone(&group.model),
                branches: meters.policies.of(policy.name()),
                selections: meters.workers.selections(Leg::Regular, &group.model, policy.name()),
                workers: group.workers.clone(),
                upstreams: group.upstreams.clone(),
                addresses: group.addresses.clone(),
                requests: group.requests.clone(),
                meters: Arc::clone(&group.meters),
                asked: Arc::clone(&group.asked),
                variants: Variants::default(),
                external: false,
                policy,
            })
        };
        Arc::clone(variant.get_or_init(make))
    }

    /// Whether the policy that is in effect for a request has to read the prompt (001, rule 2), and
    /// whether to its end.
    pub(crate) fn reads_prompt(&self, wanted: Option<PolicyName>) -> (bool, bool) {
        match wanted.and_then(|name| self.reads.get(name as usize)) {
            Some(reads) => *reads,
            None => {
                let fleet = self.current.load();
                (fleet.reads_prompt, fleet.reads_whole_prompt)
            }
        }
    }
}
