//! A worker that was down may come back as another engine, so it is asked again what it is; only the
//! version of HTTP stays what its registration settled (001, "Upstream HTTP/2").

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use uuid::Uuid;

use super::discover::ask_again;
use super::{Card, Proven, Roster, Terms, Upstream, ranked, register};
use crate::gateway::Gateway;

/// Bound on all questions together: nobody is kept out for long for not saying who it is.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Who is not, and who is newly, a worker of an engine that came back different.
#[derive(Default)]
struct Turned {
    gone: Vec<Arc<Upstream>>,
    come: Vec<Arc<Upstream>>,
}

/// Asks a worker that has come back what it serves now. What cannot be found out stays as it was,
/// until it comes back the next time.
pub(super) async fn renew(gw: &Arc<Gateway>, upstream: &Arc<Upstream>) {
    if upstream.card.load().is_external() {
        return;
    }
    let worker = &*upstream.worker.url;
    let spec = upstream.terms.load().spec.clone();
    let asked = timeout(ANSWERS_WITHIN, ask_again(&upstream.pool, &spec)).await;
    let asked = asked.unwrap_or_else(|_| Err(format!("no answers within {ANSWERS_WITHIN:?}")));
    let card = match asked {
        Ok(card) => card.corrected(&spec),
        Err(why) => {
            tracing::warn!(worker, why, "worker is back and does not say as what");
            return;
        }
    };
    let from = upstream.card.load().models.join(", ");
    let (to, runtime) = (card.models.join(", "), card.runtime);
    let Some(Turned { gone, come }) = gw.fleet.renew(gw, upstream, card) else { return };
    tracing::info!(worker, from, to, runtime, "worker is back as another engine");
    for upstream in gone {
        tracing::info!(worker = &*upstream.worker.url, "worker removed: no such rank any more");
        register::see_off(gw, upstream);
    }
    for upstream in come {
        tracing::info!(worker = &*upstream.worker.url, "worker registered: a new rank");
        register::begin(gw, &upstream);
    }
}

impl Roster {
    /// Gives a worker, and all that shares its engine, what the engine says now; `None` when that is
    /// what it said before, or the worker is gone.
    fn renew(&self, gw: &Gateway, asked: &Arc<Upstream>, card: Card) -> Option<Turned> {
        let mut changing = self.lock();
        let old = self.load();
        // By its id might be found who has taken its place.
        old.upstreams.iter().find(|upstream| Arc::ptr_eq(upstream, asked))?;
        let here = |upstream: &&Arc<Upstream>| Arc::ptr_eq(&upstream.pool, &asked.pool);
        let (here, others): (Vec<_>, Vec<_>) = old.upstreams.iter().partition(here);
        let ranks = |card: &Card| card.ranks().filter(|_| gw.settings.startup.dp_aware);
        let (before, now) = (ranks(&asked.card.load()), ranks(&card));
        let (stay, gone): (Vec<_>, Vec<_>) =
            here.into_iter().partition(|upstream| ranked(now).any(|rank| rank == upstream.rank));
        let was =
            |upstream: &&Arc<Upstream>| Some((Arc::clone(upstream), upstream.becomes(gw, &card)?));
        let changed: Vec<_> = stay.iter().filter_map(was).collect();
        if changed.is_empty() && before == now {
            return None;
        }
        let mut turned = Turned::default();
        // Whom an operator has removed is not new.
        for rank in ranked(now).filter(|rank| ranked(before).all(|old| old != *rank)) {
            let spec = asked.terms.load().spec.clone();
            let card = card.clone().corrected(&spec);
            // A first rank takes the place of the engine as one, and the other way round.
            let first = |upstream: &&&Arc<Upstream>| upstream.rank.is_none_or(|at| at == 0);
            let first = gone.iter().find(first).filter(|_| rank.is_none_or(|at| at == 0));
            let proven = Proven {
                uuid: first.map_or_else(Uuid::new_v4, |upstream| upstream.uuid),
                rank,
                pool: Arc::clone(&asked.pool),
                terms: Arc::new(Terms::of(spec, &card, &gw.settings)),
                card: Arc::new(card),
                source: asked.source,
            };
            turned.come.push(changing.upstream(proven, &gw.meters));
        }
        let upstreams = others.into_iter().chain(stay).chain(&turned.come);
        self.store(&old, upstreams.map(Arc::clone).collect(), &gw.meters);
        for (upstream, was) in changed {
            let lost = |model: &&Arc<str>| !upstream.card.load().models.contains(model);
            for model in was.models.iter().filter(lost) {
                old.forget(model, upstream.worker.id);
                gw.meters.workers.serves_no_more(&upstream.worker.url, model);
            }
        }
        turned.gone = gone.into_iter().map(Arc::clone).collect();
        turned.gone.iter().for_each(|upstream| old.lose(upstream, &gw.meters));
        Some(turned)
    }
}

impl Upstream {
    /// Takes what its engine says for what it is, and returns what it was; `None` if that is the same.
    fn becomes(&self, gw: &Gateway, said: &Card) -> Option<Arc<Card>> {
        let spec = self.terms.load().spec.clone();
        let card = said.clone().corrected(&spec);
        if card == **self.card.load() {
            return None;
        }
        self.terms.store(Arc::new(Terms::of(spec, &card, &gw.settings)));
        Some(self.card.swap(Arc::new(card)))
    }
}
