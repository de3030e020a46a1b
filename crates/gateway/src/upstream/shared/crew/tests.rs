use std::future::{pending, poll_fn};

use tokio::sync::oneshot;

use super::*;

#[tokio::test]
async fn what_is_handed_out_while_the_crew_works_is_done_and_then_it_is_over() {
    let desk = Desk::default();
    let (first, first_ends) = oneshot::channel::<()>();
    let (done, mut is_done) = oneshot::channel();
    desk.execute(async move { first_ends.await.unwrap_or_default() });
    let mut crew = desk.clone().crew();
    assert!(poll_fn(|cx| Poll::Ready(crew.poll(cx).is_pending())).await);
    desk.execute(async move { done.send(()).unwrap_or_default() });
    assert!(poll_fn(|cx| Poll::Ready(crew.poll(cx).is_pending())).await);
    assert_eq!(is_done.try_recv(), Ok(()));
    drop(first);
    poll_fn(|cx| crew.poll(cx)).await;
}

#[test]
fn a_crew_that_is_let_go_leaves_nothing() {
    let desk = Desk::default();
    let crew = desk.clone().crew();
    let (held, kept) = (desk.clone(), Arc::downgrade(&desk.0));
    desk.execute(async move {
        let _held = held;
        pending::<()>().await;
    });
    drop((crew, desk));
    assert!(kept.upgrade().is_none());
}
