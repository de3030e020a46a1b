//! The demo through two stand-in gateways: one that remembers where a conversation was, one that
//! takes the next engine. They know nothing else of a gateway's trade.

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use http::{HeaderValue, Request, Response};
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use serde_json::Value;
    use smg_lab::demo::{self, ENGINES, Stage};
    use smg_lab::engine::Profile;
    use smg_lab::engine::fleet::Fleet;
    use tokio::net::{TcpListener, TcpStream};

    struct StandIn {
        workers: Vec<String>,
        pins: Option<Mutex<HashMap<String, usize>>>,
        cursor: Mutex<usize>,
    }

    impl StandIn {
        async fn start(fleet: &Fleet, sticky: bool) -> String {
            let gateway = Arc::new(Self {
                workers: fleet.urls().map(str::to_owned).collect(),
                pins: sticky.then(Mutex::default),
                cursor: Mutex::new(0),
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let gateway = Arc::clone(&gateway);
                    let answer = service_fn(move |request| {
                        let gateway = Arc::clone(&gateway);
                        async move { Ok::<_, Infallible>(gateway.forward(request).await) }
                    });
                    let server = hyper::server::conn::http1::Builder::new();
                    tokio::spawn(server.serve_connection(TokioIo::new(stream), answer));
                }
            });
            url
        }

        async fn forward(&self, request: Request<Incoming>) -> Response<Incoming> {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let worker = self.choose(&body);
            let address = worker.strip_prefix("http://").unwrap();
            let stream = TcpStream::connect(address).await.unwrap();
            let (mut sender, line) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(line);
            let request =
                Request::post(path).header("host", address).body(Full::new(body)).unwrap();
            let mut answer = sender.send_request(request).await.unwrap();
            let name = HeaderValue::from_str(worker).unwrap();
            answer.headers_mut().insert("x-smg-routed-worker-id", name);
            answer
        }

        fn choose(&self, body: &Bytes) -> &str {
            let next = || {
                let mut cursor = self.cursor.lock().unwrap();
                *cursor += 1;
                *cursor % self.workers.len()
            };
            let body: Value = serde_json::from_slice(body).unwrap();
            let key = body["rid"].as_str().unwrap().rsplit_once("_t").unwrap().0;
            let at = match &self.pins {
                Some(pins) => *pins.lock().unwrap().entry(key.to_owned()).or_insert_with(next),
                None => next(),
            };
            &self.workers[at]
        }
    }

    /// Plays the whole demo; `pace` 0 makes it quick.
    async fn play(pace: f64, live: bool, stays: bool) -> (demo::Outcome, String) {
        let profile = Profile { pace, ..demo::profile("lab") };
        let one = Fleet::start(ENGINES, &profile).await.unwrap();
        let two = Fleet::start(ENGINES, &profile).await.unwrap();
        let stage = Stage {
            sticky_url: &StandIn::start(&one, true).await,
            plain_url: &StandIn::start(&two, false).await,
            model: "lab",
            seed: 7,
            live,
            stays,
        };
        let mut out = Vec::new();
        let outcome = demo::play(&mut out, &stage).await.unwrap();
        (outcome, String::from_utf8(out).unwrap())
    }

    #[tokio::test]
    async fn nobody_is_invited_to_try_what_is_about_to_leave() {
        let (_, text) = play(0.0, false, false).await;
        assert!(text.contains("What it is worth") && !text.contains("curl"), "{text}");
    }

    #[tokio::test]
    async fn stickiness_pays() {
        let (outcome, text) = play(0.0, false, true).await;
        let (sticky, plain) = (outcome.sticky, outcome.plain);
        assert_eq!((sticky.errors, plain.errors), (0, 0));
        assert_eq!(sticky.same_worker, sticky.later);
        assert!(plain.same_worker * 2 < plain.later);
        assert!(sticky.cached_tokens * 2 > sticky.prompt_tokens);
        assert!(sticky.read_tokens() * 2 < plain.read_tokens());
        for part in ["pinned", "moved", "96 of 96 turns", "What it is worth", "mine_t2"] {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
        assert!(!text.contains('\r'), "a file is no terminal");
    }
}
