//! When an exchange must be over, however far it got.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is asked at every event of a stream. Asking tokio's timer takes its locks, so it is
/// asked once for each task that waits; after that a look at whether it rang is enough, since it
/// wakes that task when it does.
#[derive(Debug)]
pub(crate) struct Deadline {
    sleep: Pin<Box<Sleep>>,
    /// Whom it will wake.
    told: Option<Waker>,
}

impl Deadline {
    /// At this moment.
    pub(crate) fn at(moment: Instant) -> Self {
        Self { sleep: Box::pin(sleep_until(moment)), told: None }
    }

    /// Ready once the moment has come.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.told.as_ref().is_some_and(|told| told.will_wake(cx.waker())) {
            return if self.sleep.is_elapsed() { Poll::Ready(()) } else { Poll::Pending };
        }
        self.told = Some(cx.waker().clone());
        self.sleep.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    struct Rings(AtomicUsize);

    impl Wake for Rings {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_wakes_the_task_that_asked_last_and_only_when_its_moment_has_come() {
        let mut deadline = Deadline::at(Instant::now() + Duration::from_secs(5));
        let [first, last] = [(); 2].map(|()| Arc::new(Rings(AtomicUsize::new(0))));
        for rings in [&first, &first, &last, &last] {
            let waker = Waker::from(Arc::clone(rings));
            assert!(deadline.poll(&mut Context::from_waker(&waker)).is_pending());
        }
        tokio::time::advance(Duration::from_secs(6)).await;
        let waker = Waker::from(Arc::clone(&last));
        assert!(deadline.poll(&mut Context::from_waker(&waker)).is_ready());
        assert_eq!(first.0.load(Ordering::Relaxed), 0);
        assert_eq!(last.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_awaits_it_is_woken() {
        let begun = Instant::now();
        let mut deadline = Deadline::at(begun + Duration::from_secs(5));
        poll_fn(|cx| deadline.poll(cx)).await;
        assert!(begun.elapsed() >= Duration::from_secs(5));
    }
}
