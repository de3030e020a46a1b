//! The one place that starts tasks, so that each has a name and none outlives a drain unseen.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

/// Starts a task on the current runtime. `name` shows in debug logs of whatever it does.
pub(crate) fn spawn<F>(name: &'static str, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    spawn_on(&Handle::current(), name, task)
}

/// Starts a task on another runtime.
pub(crate) fn spawn_on<F>(runtime: &Handle, name: &'static str, task: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    runtime.spawn(task.instrument(tracing::debug_span!("task", name)))
}

/// Runs something that blocks (a file) off the runtime; a panic in it is only its own.
pub(crate) async fn blocking(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = tokio::task::spawn_blocking(work).await {
        tracing::error!(%error, "blocking work failed");
    }
}
