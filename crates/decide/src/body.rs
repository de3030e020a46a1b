//! Stream or buffer: the nine rules of 001, "How the Router Decides", as one table.
//!
//! Decided from headers, the effective policy and the fleet before a byte of the body is read.

/// How a request body travels; the `path` label of `smg_router_request_body_path_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Read whole before a worker is chosen.
    Buffered,
    /// Forwarded as it arrives.
    Streamed,
    /// Forwarded as it arrives, once a beginning of it has told where (`--routing-key-peek-bytes`).
    Peeked,
}

impl Path {
    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Streamed | Self::Peeked => "streamed",
        }
    }
}

/// The deciding rule; the `reason` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Rule 1: the key may be in the body.
    RoutingKeyOverride,
    /// Rule 2: the policy reads the prompt and no hint stands in for it.
    PolicyNeedsText,
    /// Rule 3: the model is in the body and more than one is served.
    ModelAmbiguous,
    /// Rule 4: a worker wants the body edited.
    WorkerMutatesBody,
    /// Rule 5: a plugin inspects the request.
    WasmRequestHook,
    /// Rule 6: the length is unknown.
    NoContentLength,
    /// Rule 7: small enough to keep for a retry.
    Retryable,
    /// Rule 8: too large to keep.
    RetryForfeited,
    /// Rule 9: nothing to keep it for.
    PureForward,
    /// A streamed plan that found no worker from the headers alone.
    NoAvailableWorker,
    /// The model in the body picks one of several policies (`--enable-igw`).
    ModelSelection,
    /// A vendor's API is behind the gateway, and the whole body is read for it.
    OpenAi,
    /// Only what the beginning of the body says stood against streaming it.
    Peeked,
}

impl Reason {
    /// All reasons, for metrics that exist at zero.
    pub const ALL: [Self; 13] = [
        Self::RoutingKeyOverride,
        Self::PolicyNeedsText,
        Self::ModelAmbiguous,
        Self::WorkerMutatesBody,
        Self::WasmRequestHook,
        Self::NoContentLength,
        Self::Retryable,
        Self::RetryForfeited,
        Self::PureForward,
        Self::NoAvailableWorker,
        Self::ModelSelection,
        Self::OpenAi,
        Self::Peeked,
    ];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoutingKeyOverride => "routing_key_override",
            Self::PolicyNeedsText => "policy_needs_text",
            Self::ModelAmbiguous => "model_ambiguous",
            Self::WorkerMutatesBody => "worker_mutates_body",
            Self::WasmRequestHook => "wasm_request_hook",
            Self::NoContentLength => "no_content_length",
            Self::Retryable => "retryable",
            Self::RetryForfeited => "retry_forfeited",
            Self::PureForward => "pure_forward",
            Self::NoAvailableWorker => "no_available_worker",
            Self::ModelSelection => "model_selection",
            Self::OpenAi => "openai",
            Self::Peeked => "peeked",
        }
    }
}

/// What the rules look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// A worker is somebody else's API.
    pub external: bool,
    /// `--enable-igw`.
    pub model_selection: bool,
    /// `--routing-key-override`.
    pub key_override: bool,
    /// The effective policy reads the prompt and the request carries no valid tokens hint.
    pub needs_prompt: bool,
    /// Workers for more than one model are registered.
    pub several_models: bool,
    /// Some worker rewrites request bodies.
    pub worker_mutates: bool,
    /// A plugin is attached at `OnRequest`.
    pub request_hook: bool,
    /// The valid `Content-Length`, in bytes.
    pub content_length: Option<u64>,
    /// More than one attempt is allowed.
    pub retries: bool,
    /// `--max-buffered-request-bytes`.
    pub max_buffered: u64,
    /// The beginning of the body may be looked at, and can be: it is not compressed.
    pub peek: bool,
    /// The policy needs the end of the prompt, too.
    pub needs_whole_prompt: bool,
}

/// A plan and the rule that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How the body travels.
    pub path: Path,
    /// Why.
    pub reason: Reason,
}

type Applies = fn(&Facts) -> bool;

/// Modes that buffer whatever the rules say (001, "How the Router Decides").
const MODES: [(Applies, Reason); 2] =
    [(|f| f.external, Reason::OpenAi), (|f| f.model_selection, Reason::ModelSelection)];

/// First match wins; the last row always matches.
const RULES: [(Applies, Path, Reason); 9] = [
    (|f| f.key_override, Path::Buffered, Reason::RoutingKeyOverride),
    (|f| f.needs_prompt, Path::Buffered, Reason::PolicyNeedsText),
    (|f| f.several_models, Path::Buffered, Reason::ModelAmbiguous),
    (|f| f.worker_mutates, Path::Buffered, Reason::WorkerMutatesBody),
    (|f| f.request_hook, Path::Buffered, Reason::WasmRequestHook),
    (|f| f.content_length.is_none(), Path::Buffered, Reason::NoContentLength),
    (|f| f.retries && f.content_length <= Some(f.max_buffered), Path::Buffered, Reason::Retryable),
    (|f| f.retries, Path::Streamed, Reason::RetryForfeited),
    (|_| true, Path::Streamed, Reason::PureForward),
];

/// The plan for an eligible request.
#[must_use]
pub fn plan(facts: &Facts) -> Plan {
    let plan = ruled(facts);
    if !facts.peek || facts.external || plan.path != Path::Buffered {
        return plan;
    }
    // What the beginning of a body can tell is no reason to hold all of it.
    let without = Facts {
        key_override: false,
        several_models: false,
        model_selection: false,
        needs_prompt: facts.needs_prompt && facts.needs_whole_prompt,
        ..*facts
    };
    match ruled(&without).path {
        Path::Streamed => Plan { path: Path::Peeked, reason: Reason::Peeked },
        Path::Buffered | Path::Peeked => plan,
    }
}

fn ruled(facts: &Facts) -> Plan {
    if let Some((_, reason)) = MODES.iter().find(|(applies, _)| applies(facts)) {
        return Plan { path: Path::Buffered, reason: *reason };
    }
    let fallback = Plan { path: Path::Streamed, reason: Reason::PureForward };
    RULES
        .iter()
        .find(|(applies, ..)| applies(facts))
        .map_or(fallback, |(_, path, reason)| Plan { path: *path, reason: *reason })
}

/// What a streamed plan meets when its worker is to be chosen, which may be a while later.
#[derive(Clone, Copy, Debug)]
pub struct Met {
    /// Some worker rewrites request bodies.
    pub worker_mutates: bool,
    /// Workers for more than one model are registered, and which is meant is not known.
    pub several_models: bool,
    /// The same under `--enable-igw`, where it matters however many there are.
    pub model_selection: bool,
    /// Some worker can be chosen.
    pub available: bool,
}

impl Plan {
    /// The plan as it stands once a worker is chosen: a streamed one falls back to the buffered path
    /// when the fleet has changed, or has nobody for it.
    #[must_use]
    pub fn met(self, met: Met) -> Self {
        let back = match met {
            _ if self.path == Path::Buffered => None,
            Met { worker_mutates: true, .. } => Some(Reason::WorkerMutatesBody),
            Met { model_selection: true, .. } => Some(Reason::ModelSelection),
            Met { several_models: true, .. } => Some(Reason::ModelAmbiguous),
            Met { available: false, .. } => Some(Reason::NoAvailableWorker),
            _ => None,
        };
        back.map_or(self, |reason| Self { path: Path::Buffered, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(content_length: u64) -> Facts {
        let content_length = Some(content_length);
        Facts { content_length, retries: true, max_buffered: 100, ..Facts::default() }
    }

    #[test]
    fn each_rule_wins_over_those_below_it() {
        let all = Facts {
            key_override: true,
            needs_prompt: true,
            several_models: true,
            worker_mutates: true,
            request_hook: true,
            ..sized(1)
        };
        let all = Facts { content_length: None, ..all };
        for (facts, reason) in [
            (all, Reason::RoutingKeyOverride),
            (Facts { key_override: false, ..all }, Reason::PolicyNeedsText),
            (Facts { key_override: false, needs_prompt: false, ..all }, Reason::ModelAmbiguous),
            (Facts { worker_mutates: true, ..Facts::default() }, Reason::WorkerMutatesBody),
            (Facts { request_hook: true, ..Facts::default() }, Reason::WasmRequestHook),
            (Facts::default(), Reason::NoContentLength),
        ] {
            assert_eq!(plan(&facts), Plan { path: Path::Buffered, reason });
        }
    }

    #[test]
    fn modes_that_always_buffer_come_before_every_rule() {
        let facts = Facts { key_override: true, model_selection: true, ..sized(1) };
        let buffered = |reason| Plan { path: Path::Buffered, reason };
        assert_eq!(plan(&facts), buffered(Reason::ModelSelection));
        assert_eq!(plan(&Facts { external: true, ..facts }), buffered(Reason::OpenAi));
    }

    #[test]
    fn a_beginning_is_looked_at_where_nothing_else_is_against_streaming() {
        let peeked = Plan { path: Path::Peeked, reason: Reason::Peeked };
        let large = Facts { peek: true, ..sized(101) };
        let text = Facts { needs_prompt: true, ..large };
        for (facts, path) in [
            (Facts { key_override: true, ..large }, peeked),
            (Facts { several_models: true, ..large }, peeked),
            (Facts { model_selection: true, ..large }, peeked),
            (Facts { key_override: true, several_models: true, ..text }, peeked),
            (text, peeked),
        ] {
            assert_eq!(plan(&facts), path, "{facts:?}");
            // What rules 4 to 7 hold is held for the first reason there is, and so is all of it when
            // nobody may look.
            for held in [
                Facts { peek: false, ..facts },
                Facts { worker_mutates: true, ..facts },
                Facts { request_hook: true, ..facts },
                Facts { content_length: None, ..facts },
                Facts { content_length: Some(100), ..facts },
                Facts { external: true, ..facts },
                Facts { needs_prompt: true, needs_whole_prompt: true, ..facts },
            ] {
                let Plan { path, reason } = plan(&held);
                assert_eq!(path, Path::Buffered, "{held:?}");
                assert_ne!(reason, Reason::Peeked);
            }
        }
        // What streams anyway needs no look.
        assert_eq!(plan(&large).reason, Reason::RetryForfeited);
    }

    #[test]
    fn a_streamed_plan_falls_back_when_the_fleet_is_not_what_it_was() {
        let streamed = Plan { path: Path::Streamed, reason: Reason::RetryForfeited };
        let same = Met {
            worker_mutates: false,
            several_models: false,
            model_selection: false,
            available: true,
        };
        assert_eq!(streamed.met(same), streamed);
        for (met, reason) in [
            (Met { worker_mutates: true, ..same }, Reason::WorkerMutatesBody),
            (Met { several_models: true, ..same }, Reason::ModelAmbiguous),
            (Met { model_selection: true, ..same }, Reason::ModelSelection),
            (Met { available: false, ..same }, Reason::NoAvailableWorker),
        ] {
            assert_eq!(streamed.met(met), Plan { path: Path::Buffered, reason });
            let buffered = Plan { path: Path::Buffered, reason: Reason::Retryable };
            assert_eq!(buffered.met(met), buffered);
        }
    }

    #[test]
    fn the_limit_of_retryable_bodies_is_inclusive() {
        assert_eq!(plan(&sized(100)), Plan { path: Path::Buffered, reason: Reason::Retryable });
        let streamed = |reason| Plan { path: Path::Streamed, reason };
        assert_eq!(plan(&sized(101)), streamed(Reason::RetryForfeited));
        let once = Facts { retries: false, ..sized(1) };
        assert_eq!(plan(&once), streamed(Reason::PureForward));
        let never = Facts { max_buffered: 0, ..sized(1) };
        assert_eq!(plan(&never), streamed(Reason::RetryForfeited));
    }
}
