//! Deliver: an answer with its real status, unless a stream has to be kept alive before there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request};
use smg_wire::route::{Inference, Route};

use crate::edge::{Arriving, Reply};
use crate::gateway::Gateway;
use crate::relay::{Coming, Late, ReplyBody};

/// Whether a request was found to ask for a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<AtomicBool>);

impl Asked {
    pub(super) fn note(&self, stream: bool) {
        self.0.store(stream, Ordering::Relaxed);
    }

    fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Serves an inference request.
pub(crate) async fn deliver(
    gw: &Arc<Gateway>,
    route: Route,
    inference: &'static Inference,
    request: Request<Arriving>,
) -> Reply {
    let asked = Asked::default();
    match gw.settings.sse_keepalive {
        None => super::serve(gw, (route, inference), request, &asked).await,
        Some(every) => {
            let gw = Arc::clone(gw);
            let told = asked.clone();
            let coming: Coming =
                Box::pin(
                    async move { super::serve(&gw, (route, inference), request, &told).await },
                );
            wait(coming, &asked, every, inference).await
        }
    }
}

/// Waits for the answer for as long as a stream may be silent.
async fn wait(mut coming: Coming, asked: &Asked, every: Duration, inference: &Inference) -> Reply {
    loop {
        if let Ok(reply) = tokio::time::timeout(every, coming.as_mut()).await {
            return reply;
        }
        if asked.is_noted() {
            let mut reply =
                Reply::new(ReplyBody::late(Late::new(coming, every, inference.dialect)));
            let headers = reply.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            return reply;
        }
    }
}
