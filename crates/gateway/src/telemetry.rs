//! Metrics: every handle is made once and held, so that counting costs an atomic add and no
//! look-up. Names and labels are the contract of the documents; the list stands in docs/metrics.md.

mod admission;
mod breaker;
mod discovery;
mod engine;
mod http;
mod overload;
mod policies;
mod router;
mod sticky;
mod store;
mod trees;
mod usage;
mod worker;

pub(crate) use self::admission::AdmissionMeters;
pub(crate) use self::breaker::{BreakerMeters, BreakerMetersRoot, RetryMeters};
pub(crate) use self::discovery::{DiscoveryMeters, Source};
pub(crate) use self::engine::EngineMetersRoot;
pub(crate) use self::http::{AGE_SAMPLE, CallGuard, HttpMeters};
pub(crate) use self::overload::OverloadMeters;
pub(crate) use self::policies::{BranchMeters, PolicyMeters};
pub(crate) use self::router::{ModelMeters, RouterMeters};
pub(crate) use self::sticky::StickyMeters;
pub(crate) use self::store::{StoreMeters, StoreOp, StoreResult};
pub(crate) use self::trees::TreeMeters;
pub(crate) use self::usage::UsageMeters;
pub(crate) use self::worker::{WorkerMeters, WorkerMetersRoot};

use prometheus::core::Collector;
use prometheus::{Encoder as _, Registry, TextEncoder};

/// All metrics of one gateway.
#[derive(Debug)]
pub(crate) struct Meters {
    registry: Registry,
    pub(crate) http: HttpMeters,
    pub(crate) admission: AdmissionMeters,
    pub(crate) router: RouterMeters,
    pub(crate) workers: WorkerMetersRoot,
    pub(crate) engines: EngineMetersRoot,
    pub(crate) overload: OverloadMeters,
    pub(crate) policies: PolicyMeters,
    pub(crate) sticky: StickyMeters,
    pub(crate) store: StoreMeters,
    pub(crate) retries: RetryMeters,
    pub(crate) trees: TreeMeters,
    pub(crate) discovery: DiscoveryMeters,
}

impl Meters {
    /// Fresh metrics. `buckets` are the upper bounds of every duration histogram, in seconds.
    ///
    /// # Errors
    /// When the registry takes two metrics for one, which is a mistake in this crate.
    pub(crate) fn new(buckets: &[f64]) -> prometheus::Result<Self> {
        let registry = Registry::new();
        Ok(Self {
            http: HttpMeters::new(&registry, buckets)?,
            admission: AdmissionMeters::new(&registry)?,
            router: RouterMeters::new(&registry, buckets)?,
            workers: WorkerMetersRoot::new(&registry)?,
            engines: EngineMetersRoot::new(&registry)?,
            overload: OverloadMeters::new(&registry)?,
            policies: PolicyMeters::new(&registry)?,
            sticky: StickyMeters::new(&registry)?,
            store: StoreMeters::new(&registry)?,
            retries: RetryMeters::new(&registry)?,
            trees: TreeMeters::new(&registry)?,
            discovery: DiscoveryMeters::new(&registry)?,
            registry,
        })
    }

    /// The text of `GET /metrics`, format 0.0.4.
    ///
    /// # Errors
    /// When a metric cannot be written, which the encoder reports for malformed names only.
    pub(crate) fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// Registers a metric and hands it back.
fn keep<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<M>,
) -> prometheus::Result<M> {
    let metric = metric?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
