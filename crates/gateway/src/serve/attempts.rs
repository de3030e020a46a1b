//! Choose, send, judge: the attempts of one request.

use std::sync::Arc;
use std::time::Duration;

use smg_decide::place::Candidates;
use smg_decide::retry::{Attempts, Chances, Sent, Verdict};
use smg_wire::error::Refusal;
use smg_wire::header::{ROUTED_WORKER, SESSION_ID};
use tokio::time::Instant;

use super::Call;
use super::attempt::{Sending, attempt};
use super::refusals::{counted, shed, unavailable};
use crate::edge::Reply;
use crate::fleet::{Group, Upstream};
use crate::gateway::Gateway;
use crate::session::{Asking, Lease, Round, Way};

/// Choose, send, judge, until there is something to pass on.
pub(super) async fn attempts(
    sending: &mut Sending<'_>,
    mut group: Arc<Group>,
    asking: &Asking<'_>,
) -> Result<Reply, Refusal> {
    let Call { gw, route, wanted, .. } = sending.call;
    let begun = Instant::now();
    let (mut attempts, mut round, mut last) = (Attempts::default(), Round::default(), None);
    for made in 1.. {
        let choice = gw.session.choose(&group, asking, &round, &gw.meters.sticky);
        let Some(lease) = choice.await else { break };
        let (upstream, receipt) = (Arc::clone(&lease.upstream), lease.receipt);
        let deadline = begun + timeout(gw, &upstream);
        let sent = sending.to(&group, lease, deadline).await;
        if sent.as_ref().map_or(true, |(sent, _)| has_failed(*sent)) {
            group.policy.undo(&asking.ask, &upstream.worker, receipt);
        }
        let (sent, reply) = sent?;
        round.excluded.push(upstream.worker.id);
        let elsewhere = !matches!(asking.way, Way::Home(_)) && elsewhere(gw, &group, &round);
        match judge(gw, &mut attempts, sent, (elsewhere, deadline)) {
            Verdict::Final => return Ok(reply),
            Verdict::Exhausted => {
                gw.meters.retries.exhausted(route);
                return Ok(reply);
            }
            Verdict::Retry { wait_ms, keep_pin } => {
                let wait = Duration::from_millis(wait_ms);
                tracing::debug!(worker = &*upstream.worker.url, ?sent, ?wait, "retrying");
                gw.meters.retries.retried(route, made, wait);
                round.keep_pin = keep_pin;
                if !elsewhere {
                    round.excluded.clear();
                }
                // The failed answer is kept in case nobody is left to give another.
                last = Some(reply);
                tokio::time::sleep(wait).await;
            }
        }
        // The fleet may have changed while the worker was busy failing.
        if let Some(now) = gw.fleet.load().group(&group.model) {
            group = gw.fleet.under(Arc::clone(now), wanted, &gw.meters);
        }
    }
    match last {
        Some(reply) => Ok(reply),
        None => Err(counted(gw, nobody(gw, &group, asking.way))),
    }
}

/// The same for a request that nobody can send again.
pub(super) async fn once(
    sending: &mut Sending<'_>,
    group: &Group,
    lease: Option<Lease>,
    way: Way,
) -> Result<Reply, Refusal> {
    let gw = sending.call.gw;
    let lease = lease.ok_or_else(|| counted(gw, nobody(gw, group, way)))?;
    let deadline = Instant::now() + timeout(gw, &lease.upstream);
    let (_, reply) = sending.to(group, lease, deadline).await?;
    Ok(reply)
}

/// How long a worker may take over a request, all attempts together.
fn timeout(gw: &Gateway, upstream: &Upstream) -> Duration {
    upstream.terms.load().timeout.unwrap_or(gw.limits.request_timeout)
}

impl Sending<'_> {
    /// One attempt, counted; the answer is ready to be passed on, a failure too.
    async fn to(
        &mut self,
        group: &Group,
        mut lease: Lease,
        deadline: Instant,
    ) -> Result<(Sent, Reply), Refusal> {
        let gw = self.call.gw;
        let (upstream, session) = (Arc::clone(&lease.upstream), lease.session.take());
        if upstream.worker.vetoed() {
            // A report came in since it was looked at.
            gw.meters.overload.shed_dispatch.inc();
            return Err(counted(gw, shed(gw, group)));
        }
        if let Some(opening) = self.opening.take() {
            gw.session.follow(&group.model, &opening, &upstream);
        }
        let (sent, mut reply) = attempt(self, lease, deadline).await;
        match sent {
            Sent::Answered { status, .. } => gw.meters.router.attempt(status, ""),
            Sent::Failed(fault) => gw.meters.router.attempt(fault.status(), fault.code()),
        }
        reply.headers_mut().insert(ROUTED_WORKER, upstream.routed.clone());
        if let Some(id) = session {
            reply.headers_mut().insert(SESSION_ID, id);
        }
        Ok((sent, reply))
    }
}

/// Why no worker of a model takes the request: all have enough to do, or none is there.
fn nobody(gw: &Gateway, group: &Group, way: Way) -> Refusal {
    let now = gw.clock.millis();
    let mut could = group.workers.iter().filter(|worker| match way {
        Way::Home(home) => worker.id == home,
        Way::Sticky | Way::Anywhere | Way::Placed => true,
    });
    if could.any(|worker| worker.only_vetoed(now)) {
        gw.meters.overload.shed_selection.inc();
        return shed(gw, group);
    }
    unavailable(format!("No worker of '{}' is available.", group.model))
}

/// Judge: pass it on, or try again.
fn judge(
    gw: &Gateway,
    attempts: &mut Attempts,
    sent: Sent,
    (elsewhere, deadline): (bool, Instant),
) -> Verdict {
    let left = deadline.saturating_duration_since(Instant::now());
    let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let chances = Chances { elsewhere, left_ms };
    attempts.judge(sent, &gw.limits.retry, chances, &mut rand::rng())
}

/// Whether what the policy remembered of an attempt is no longer so.
fn has_failed(sent: Sent) -> bool {
    !matches!(sent, Sent::Answered { status: ..500, .. })
}

/// Whether a worker is available that has not failed this request.
fn elsewhere(gw: &Gateway, group: &Group, round: &Round) -> bool {
    let others = Candidates::new(&group.workers, &round.excluded).at(gw.clock.millis());
    others.available().next().is_some()
}
