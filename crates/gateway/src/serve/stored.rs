//! Requests about a response that one worker keeps: its id stands in the path, or a new response goes
//! on from it.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use smg_decide::fleet::WorkerId;
use smg_wire::error::Refusal;
use smg_wire::response::is_id;
use smg_wire::route::Route;
use tokio::task::JoinHandle;

use crate::fleet::{Group, Upstream, one_each};
use crate::gateway::Gateway;
use crate::tasks;
use crate::upstream::{Question, ask};

/// Bound on the question whether a worker has a response.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The worker that has the response in this path, among the workers of its model.
pub(super) async fn find(
    gw: &Gateway,
    path: &str,
) -> Result<(Arc<Group>, Option<WorkerId>), Refusal> {
    let id = Route::find(path).captured(path).unwrap_or_default();
    let fleet = gw.fleet.load();
    let found = home(gw, &fleet.upstreams, id).await;
    let of = |worker| {
        let upstream = fleet.upstreams.iter().find(|upstream| upstream.worker.id == worker)?;
        let group = fleet.models.get(upstream.card.load().main_model()?)?;
        Some((Arc::clone(group), Some(worker)))
    };
    found.and_then(of).ok_or_else(|| {
        let param = Some("response_id");
        Refusal { param, ..unknown(gw, "response_not_found", id) }
    })
}

/// The worker of this model that has the response which a new one goes on from.
pub(super) async fn previous(gw: &Gateway, group: &Group, id: &str) -> Result<WorkerId, Refusal> {
    home(gw, &group.upstreams, id).await.ok_or_else(|| {
        let param = Some("previous_response_id");
        Refusal { param, ..unknown(gw, "previous_response_not_found", id) }
    })
}

fn unknown(gw: &Gateway, code: &'static str, id: &str) -> Refusal {
    // Repeated only as far as it can be an id.
    let what = match is_id(id) {
        true => format!("No worker has the response '{id}'."),
        false => "This cannot be the id of a response.".to_owned(),
    };
    gw.meters.router.attempt(StatusCode::NOT_FOUND.as_u16(), code);
    Refusal::new(StatusCode::NOT_FOUND, code, what)
}

/// The worker among these that has the response: the one that made it, else whoever of those ready
/// says so when asked. They are asked once, for what was made before this gateway started or
/// through another one.
async fn home(gw: &Gateway, among: &[Arc<Upstream>], id: &str) -> Option<WorkerId> {
    if !is_id(id) {
        return None;
    }
    let known = gw.session.responses.home(id);
    if let Some(known) = known.filter(|known| among.iter().any(|one| one.worker.id == *known)) {
        return Some(known);
    }
    let _turn = gw.session.responses.search().await?;
    let found = search(gw, among, id).await?;
    gw.session.responses.remember(id, found);
    Some(found)
}

/// Workers that are being asked; nobody waits for their answers once this is dropped.
struct Asked(Vec<(WorkerId, JoinHandle<bool>)>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, task)| task.abort());
    }
}

async fn search(gw: &Gateway, among: &[Arc<Upstream>], id: &str) -> Option<WorkerId> {
    let (now, path) = (gw.clock.millis(), format!("/v1/responses/{id}"));
    let mut asked = Asked(Vec::new());
    for upstream in one_each(among.iter().filter(|upstream| upstream.worker.available(now))) {
        let (pool, path) = (Arc::clone(&upstream.pool), path.clone());
        let has = async move {
            let said = ask(&pool, Question::whether(&path), ANSWER_WITHIN).await;
            said.is_ok_and(|(status, _)| status.is_success())
        };
        let task = tasks::spawn_on(&gw.control, "response", has);
        asked.0.push((upstream.worker.id, task));
    }
    for (worker, task) in &mut asked.0 {
        if matches!(task.await, Ok(true)) {
            return Some(*worker);
        }
    }
    None
}
