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

/// Runs something that blocks (a file) off the runtime; a panic in it is only its own, and leaves
/// nothing.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Some(done),
        Err(error) => {
            tracing::error!(%error, "blocking work failed");
            None
        }
    }
}
