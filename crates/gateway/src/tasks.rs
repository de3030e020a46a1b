//! The one place that starts tasks, so that each has a name and none outlives a drain unseen.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::{JoinHandle, coop};
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

/// So many bytes read count as one step of a task's turn, of which it has 128.
const STEP: usize = 8 << 10;

/// Counts what a read brought against the turn of the task. tokio counts every read as one step: a
/// task whose reads are large would go on for tens of megabytes while everybody else on its thread
/// waits.
pub(crate) fn spend(cx: &mut Context<'_>, bytes: usize) {
    for _ in 0..bytes / STEP {
        match coop::poll_proceed(cx) {
            Poll::Ready(step) => step.made_progress(),
            // The turn is over with the next step, and the next one is called for.
            Poll::Pending => return,
        }
    }
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

/// Whether somebody still waits for a piece of work.
#[derive(Debug)]
pub(crate) struct Wanted(Weak<()>);

impl Wanted {
    /// Whether it goes on for somebody.
    pub(crate) fn still(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// As [`blocking`], for work that takes long and looks now and then whether anybody waits for it: a
/// thread cannot be stopped from outside.
pub(crate) async fn blocking_while_wanted<T: Send + 'static>(
    work: impl FnOnce(&Wanted) -> T + Send + 'static,
) -> Option<T> {
    let waits = Arc::new(());
    let wanted = Wanted(Arc::downgrade(&waits));
    let done = blocking(move || work(&wanted)).await;
    drop(waits);
    done
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_is_told_when_nobody_waits_for_it_any_more() {
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (ended, ends) = mpsc::channel();
        let work = move |wanted: &Wanted| {
            let _ = begun.send(());
            while wanted.still() {
                std::thread::yield_now();
            }
            ended.send(()).unwrap();
        };
        tokio::select! {
            biased;
            _ = blocking_while_wanted(work) => panic!("it is wanted for as long as this waits"),
            began = begins => began.unwrap(),
        }
        ends.recv().unwrap();
        assert_eq!(blocking_while_wanted(Wanted::still).await, Some(true));
    }
}
