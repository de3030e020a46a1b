//! Agents' sessions (004): where a request goes by its id, else by its key, else anywhere.

use http::{HeaderMap, HeaderName, HeaderValue};
use smg_decide::keys::session;
use smg_decide::pins::rendezvous::seed;
use smg_decide::place::{Ask, Branch, Candidates, Proposal, Sought};
use smg_wire::header::{PARENT_KEY, SESSION_ID, SESSION_KEY, SPREAD};

use super::lease::Lease;
use super::store::{Name, Shared};
use super::{Asking, Round, Session, Treatment};
use crate::fleet::{Group, Upstream};

/// What a request says of its session.
#[derive(Debug, Default)]
pub(super) struct Presented<'a> {
    id: Option<Id>,
    key: Option<&'a [u8]>,
    parent: Option<&'a [u8]>,
}

/// What an `x-session-id` says.
#[derive(Debug)]
enum Id {
    /// Nothing that this gateway issued for the model.
    Unreadable,
    /// The address of a worker, or so it says.
    Address(Vec<u8>),
}

/// A key's turn at the shared store.
struct Turn<'a> {
    store: &'a Shared,
    name: Name,
    group: &'a Group,
    candidates: Candidates<'a>,
    ask: &'a Ask<'a>,
}

impl Session {
    /// Key: what the headers say of a session, and what the policy looks for. A `rid`, which is read
    /// under the override, comes before both (000, the `manual` row).
    pub(super) fn presented<'a>(
        &self,
        model: &str,
        rid: Option<&'a str>,
        headers: &'a HeaderMap,
    ) -> (Presented<'a>, Sought) {
        let key = rid.map(str::as_bytes).or_else(|| session_key(headers, &SESSION_KEY));
        let id = last(headers, &SESSION_ID).filter(|id| rid.is_none() && !id.is_empty());
        let id = id.map(|id| self.ids.read(model, id).map_or(Id::Unreadable, Id::Address));
        let parent = session_key(headers, &PARENT_KEY).filter(|_| key.is_some());
        let sought = Sought {
            key: key.map(|key| seed(model, key)),
            parent: parent.map(|parent| seed(model, parent)),
            spread: last(headers, &SPREAD).and_then(session::spread).unwrap_or(1),
        };
        (Presented { id, key, parent }, sought)
    }

    /// The id of the worker that serves a request of a session; `None` for any other request.
    pub(super) fn id(
        &self,
        asking: &Asking<'_>,
        model: &str,
        upstream: &Upstream,
    ) -> Option<HeaderValue> {
        let session = asking.treatment == Treatment::Session && asking.goes_on();
        session.then(|| self.ids.issue(model, upstream)).flatten()
    }

    /// Choose, for a request of a session.
    pub(super) async fn affine(
        &self,
        group: &Group,
        asking: &Asking<'_>,
        round: &Round,
    ) -> Option<Lease> {
        let candidates = Candidates::new(&group.workers, &round.excluded).at(self.clock.millis());
        let decided = match self.by_id(group, asking, round, &candidates) {
            Some(at) => Proposal::by(Branch::IdHit, Some(at)),
            None => self.by_key(group, asking, round, candidates).await,
        };
        group.branches.decided(&decided);
        let lease = Lease::new(group, decided.at?, self.clock)?;
        // Never with the key: it is the caller's own (004).
        tracing::debug!(
            branch = decided.branch.as_str(),
            worker = &*lease.upstream.worker.url,
            model_id = &*group.model,
            "Session routing decision"
        );
        let key = asking.presented.key.map(|key| self.hash_bytes(Some(&group.model), key));
        Some(lease.flying(key.map(|key| self.hashed(key))))
    }

    /// The worker that the id names, if it may take the request. What an id says is compared with
    /// registered workers and with nothing else.
    fn by_id(
        &self,
        group: &Group,
        asking: &Asking<'_>,
        round: &Round,
        candidates: &Candidates<'_>,
    ) -> Option<usize> {
        let at = match asking.presented.id.as_ref()? {
            Id::Unreadable => None,
            Id::Address(address) => group.at(address),
        };
        if let Some(at) = at.filter(|at| candidates.takes(*at)) {
            return Some(at);
        }
        // A retry after another worker's failure has nothing new to say of the id.
        let named = at.and_then(|at| candidates.worker(at)).map(|worker| worker.id);
        let news = match &*round.excluded {
            [] => true,
            [failed] => Some(*failed) == named,
            _ => false,
        };
        if news {
            group.branches.decided(&Proposal::by(Branch::IdStale, None));
        }
        None
    }

    async fn by_key(
        &self,
        group: &Group,
        asking: &Asking<'_>,
        round: &Round,
        candidates: Candidates<'_>,
    ) -> Proposal {
        let presented = &asking.presented;
        let one = presented.key.filter(|_| asking.ask.sought.spread < 2);
        let Some((store, key)) = self.store.as_deref().zip(one) else {
            return propose(group, &asking.ask, &candidates);
        };
        let name = store.name(&group.model, key);
        let turn = Turn { store, name, group, candidates, ask: &asking.ask };
        let parent = presented.parent.map(|parent| store.name(&group.model, parent));
        let (branch, address) = match turn.known(parent.as_ref(), self).await {
            Ok(known) => known,
            Err(proposal) => return proposal,
        };
        let pinned = group.at(address.as_bytes()).filter(|at| turn.candidates.takes(*at));
        let Some(at) = pinned else {
            let proposal = propose(group, &asking.ask, &turn.candidates);
            // The pinned worker is busy, not broken: the next request goes there again.
            if round.keep_pin {
                return proposal;
            }
            return turn.moved(&address, proposal.at, Branch::KeyMoved).await.unwrap_or(proposal);
        };
        let stay = Proposal::by(branch, Some(at));
        if !self.is_hot(at, &turn.candidates) || self.flies(group, key) {
            return stay;
        }
        let cooler = self.imbalance.and_then(|it| it.cooler(&turn.candidates, &mut rand::rng()));
        turn.moved(&address, cooler, Branch::GateLeft).await.unwrap_or(stay)
    }

    /// Whether a worker has too much to do for a key to stay, or to start, there.
    fn is_hot(&self, at: usize, candidates: &Candidates<'_>) -> bool {
        self.imbalance.is_some_and(|rules| rules.is_hot(at, candidates))
    }

    /// Whether the key has a request in flight here.
    fn flies(&self, group: &Group, key: &[u8]) -> bool {
        self.pins.is_flying(self.hash_bytes(Some(&group.model), key))
    }
}

impl Turn<'_> {
    /// Where the key is pinned, and how that is known; a proposal if the store does not say in time.
    async fn known(
        &self,
        parent: Option<&Name>,
        session: &Session,
    ) -> Result<(Branch, String), Proposal> {
        if let Some(address) = self.store.remembered(&self.name) {
            return Ok((Branch::KeyHit, address));
        }
        let proposal = self.first(parent, session).await;
        let Some(meant) = self.upstream(proposal.at) else { return Err(proposal) };
        let Some(met) = self.store.claim(&self.name, &meant.address).await else {
            return Err(proposal);
        };
        let branch = match met.ours {
            true => Branch::KeyClaimed,
            false if *met.address == *meant.address => Branch::KeyHit,
            false => Branch::KeyAdopted,
        };
        Ok((branch, met.address))
    }

    /// Where a new key is to start: with its parent, if that is known and has room.
    async fn first(&self, parent: Option<&Name>, session: &Session) -> Proposal {
        let candidates = &self.candidates;
        if let Some(parent) = parent
            && let Some(address) = self.store.look(parent).await
            && let Some(at) = self.group.at(address.as_bytes())
        {
            if candidates.takes(at) && !session.is_hot(at, candidates) {
                return Proposal::by(Branch::Rendezvous, Some(at));
            }
            let sought = Sought { parent: None, ..self.ask.sought };
            let alone = Ask { sought, now: self.ask.now, ..Ask::default() };
            return propose(self.group, &alone, candidates);
        }
        propose(self.group, self.ask, candidates)
    }

    /// Moves the key for all replicas; `None` if the store did not say in time, or has another worker
    /// that will not do either.
    async fn moved(&self, from: &str, to: Option<usize>, why: Branch) -> Option<Proposal> {
        let to = self.upstream(to)?;
        let met = self.store.shift(&self.name, from, &to.address).await?;
        let at = self.group.at(met.address.as_bytes()).filter(|at| self.candidates.takes(*at))?;
        let branch = if met.ours { why } else { Branch::KeyAdopted };
        Some(Proposal::by(branch, Some(at)))
    }

    fn upstream(&self, at: Option<usize>) -> Option<&Upstream> {
        self.group.upstreams.get(at?).map(|upstream| &**upstream)
    }
}

fn propose(group: &Group, ask: &Ask<'_>, candidates: &Candidates<'_>) -> Proposal {
    group.policy.propose(ask, candidates, &mut rand::rng())
}

fn session_key<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    last(headers, name).and_then(session::key)
}

/// The last value of a header: who repeats one means the last.
fn last<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    headers.get_all(name).iter().next_back().map(HeaderValue::as_bytes)
}
