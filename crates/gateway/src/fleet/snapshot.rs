//! How a snapshot of the fleet is made of its workers: who serves what, and by which policy.

use std::collections::HashMap;
use std::sync::Arc;

use smg_decide::fleet::Leg;
use smg_decide::place::{
    Assignment, Bucket, CacheAware, ConsistentHashing, LeastLoad, Manual, Passthrough, Policy,
    PowerOfTwo, PrefixHash, Random, Reads, RoundRobin, SessionAffinity,
};

use super::strategies::{self, Variants};
use super::{Fleet, Group, Roster, Upstream};
use crate::settings::{Placement, PolicyName};
use crate::telemetry::Meters;

/// The name of [`Fleet::anything`] in metrics.
const ANYTHING: &str = "external";

impl Roster {
    /// A snapshot over `upstreams`; a model that was there keeps its policy and its counters.
    pub(super) fn build(
        &self,
        old: &Fleet,
        upstreams: Vec<Arc<Upstream>>,
        meters: &Meters,
    ) -> Fleet {
        let mut members: HashMap<Arc<str>, Vec<Arc<Upstream>>> = HashMap::new();
        for upstream in &upstreams {
            for model in &upstream.card.load().models {
                members.entry(Arc::clone(model)).or_default().push(Arc::clone(upstream));
            }
        }
        let external = |upstream: &Arc<Upstream>| upstream.card.load().is_external();
        for members in members.values_mut() {
            // Vendors are for what no engine of our own serves.
            if !members.iter().all(external) {
                members.retain(|upstream| !external(upstream));
            }
        }
        let open = upstreams.iter().filter(|up| external(up) && up.card.load().models.is_empty());
        let open: Vec<_> = open.map(Arc::clone).collect();
        let anything = (!open.is_empty()).then(|| {
            let old = old.anything.as_ref();
            Arc::new(self.group(old, &ANYTHING.into(), open, meters))
        });
        let models = members.into_iter().map(|(model, members)| {
            let group = self.group(old.models.get(&model), &model, members, meters);
            (model, Arc::new(group))
        });
        let models: HashMap<_, Arc<Group>> = models.collect();
        let mutates = upstreams.iter().any(|upstream| upstream.rank.is_some());
        let reads = |policy: &dyn Policy| policy.reads() == Reads::Prompt;
        let reads_prompt =
            reads(&*self.default) || models.values().any(|group| reads(&*group.policy));
        let reads_whole_prompt =
            reads_whole(&*self.default) || models.values().any(|group| reads_whole(&*group.policy));
        let external = upstreams.iter().any(external);
        Fleet { models, anything, mutates, external, reads_prompt, reads_whole_prompt, upstreams }
    }

    fn group(
        &self,
        old: Option<&Arc<Group>>,
        model: &Arc<str>,
        upstreams: Vec<Arc<Upstream>>,
        meters: &Meters,
    ) -> Group {
        meters.workers.set_pool_size(Leg::Regular, model, upstreams.len());
        let vetoed = upstreams.iter().filter(|upstream| upstream.worker.vetoed()).count();
        meters.overload.set_vetoed(model, vetoed);
        let external = upstreams.iter().all(|upstream| upstream.card.load().is_external());
        let vendors = external.then_some(PolicyName::LeastLoad);
        let name = vendors.or(policy_of(&upstreams)).unwrap_or(self.placement.policy);
        let policy = match old {
            Some(old) if old.policy.name() == name.as_str() => Arc::clone(&old.policy),
            _ => make_policy(name, &self.placement, self.assignment),
        };
        let first_of_two = old.is_none_or(|old| old.workers.len() < 2) && upstreams.len() > 1;
        if name == PolicyName::Passthrough && first_of_two {
            tracing::warn!(model = &**model, "passthrough uses the first of several workers only");
        }
        let requests = |upstream: &Arc<Upstream>| {
            let held = old.and_then(|old| {
                let at = old.workers.binary_search_by_key(&upstream.worker.id, |one| one.id);
                old.requests.get(at.ok()?).cloned()
            });
            held.unwrap_or_else(|| meters.workers.requests(&upstream.worker.url, model))
        };
        Group {
            model: Arc::clone(model),
            requests: upstreams.iter().map(requests).collect(),
            workers: upstreams.iter().map(|upstream| Arc::clone(&upstream.worker)).collect(),
            addresses: strategies::addresses(&upstreams),
            asked: old.map_or_else(Arc::default, |old| Arc::clone(&old.asked)),
            variants: Variants::default(),
            upstreams,
            external,
            meters: old.filter(|old| old.external == external).map_or_else(
                || meters.router.model(model, external),
                |old| Arc::clone(&old.meters),
            ),
            selections: meters.workers.selections(Leg::Regular, model, policy.name()),
            branches: meters.policies.of(policy.name()),
            policy,
        }
    }
}

/// Whether a policy has to see a prompt to its end.
pub(super) fn reads_whole(policy: &dyn Policy) -> bool {
    policy.reads() == Reads::Prompt && !policy.goes_by_beginnings()
}

/// The policy that the workers of a model ask for: the first valid label `policy` decides.
fn policy_of(upstreams: &[Arc<Upstream>]) -> Option<PolicyName> {
    let named =
        |upstream: &Arc<Upstream>| PolicyName::named(upstream.terms.load().labels.get("policy")?);
    upstreams.iter().find_map(named)
}

pub(super) fn make_policy(
    name: PolicyName,
    placement: &Placement,
    assignment: Assignment,
) -> Arc<dyn Policy> {
    match name {
        PolicyName::RoundRobin => Arc::new(RoundRobin::default()),
        PolicyName::Random => Arc::new(Random),
        PolicyName::Passthrough => Arc::new(Passthrough),
        PolicyName::PowerOfTwo => Arc::new(PowerOfTwo::new(placement.wait)),
        PolicyName::LeastLoad => Arc::new(LeastLoad::new(placement.wait, placement.max_waiting)),
        PolicyName::PrefixHash => Arc::new(PrefixHash::new(placement.prefix)),
        PolicyName::ConsistentHashing => Arc::new(ConsistentHashing::default()),
        PolicyName::Manual => Arc::new(Manual::new(assignment)),
        PolicyName::Bucket => Arc::new(Bucket::new(placement.bucket)),
        PolicyName::CacheAware => Arc::new(CacheAware::new(placement.cache)),
        PolicyName::SessionAffinity => Arc::new(SessionAffinity::default()),
    }
}
