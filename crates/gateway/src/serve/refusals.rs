//! What the request path says when it cannot answer.

use http::StatusCode;
use smg_decide::retry::Fault;
use smg_wire::error::Refusal;
use smg_wire::json::Bad;

use crate::fleet::Group;
use crate::gateway::Gateway;

/// A send that failed.
pub(super) fn failed(fault: Fault) -> Refusal {
    let what = match fault {
        Fault::Connect => "The worker could not be reached.",
        Fault::Send => "The connection to the worker was lost before it answered.",
        Fault::Body => "The connection to the worker was lost in the middle of its answer.",
        Fault::TooLarge => "The worker's answer is larger than --max-payload-size.",
        Fault::ConnectTimeout => "The worker did not take the connection in time.",
        Fault::Timeout => "The worker did not answer within --request-timeout-secs.",
        Fault::UploadStalled => {
            "No byte of the request body arrived within --stream-body-stall-timeout-secs."
        }
        Fault::UploadTooLarge => "The request body is larger than --max-payload-size.",
        Fault::UploadAborted => "The upload ended before the whole request body had arrived.",
    };
    let status = StatusCode::from_u16(fault.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    Refusal::new(status, fault.code(), what)
}

/// Nobody can take the request now; the client may come back.
pub(super) fn unavailable(what: String) -> Refusal {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    Refusal { retry_after: Some(1), ..Refusal::new(status, "no_available_workers", what) }
}

/// Every worker that could take the request has enough to do; the next poll may say otherwise.
pub(super) fn shed(gw: &Gateway, group: &Group) -> Refusal {
    let what = format!("Every worker of '{}' is overloaded (--worker-overload-…).", group.model);
    let next_poll = gw.settings.loads.interval.as_secs();
    Refusal {
        retry_after: Some(u32::try_from(next_poll).unwrap_or(u32::MAX)),
        ..Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "worker_overload_protection_shed", what)
    }
}

/// A body that no worker should see.
pub(super) fn bad_body(bad: Bad) -> Refusal {
    let refusal = Refusal::new(StatusCode::BAD_REQUEST, bad.code(), bad.to_string());
    Refusal { param: bad.param(), ..refusal }
}

/// Counts a refusal made in a worker's place.
pub(super) fn counted(gw: &Gateway, refusal: Refusal) -> Refusal {
    gw.meters.router.attempt(refusal.status.as_u16(), refusal.code);
    refusal
}
