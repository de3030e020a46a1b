//! Responses that workers keep: whatever is about one goes to the worker that made it.

use super::rig::*;

const ASK: &str = r#"{"model":"m","input":"hello"}"#;

async fn fleet() -> (Rig, [Worker; 3]) {
    let workers = ["w1", "w2", "w3"].map(Worker::new);
    let rig = Rig::start(&workers.each_ref(), |_| {}).await;
    (rig, workers)
}

/// The worker makes this response next, and can show it.
fn makes(worker: &Worker, id: &str) {
    let response = format!(r#"{{"id":"{id}","object":"response"}}"#);
    worker.next(script().say(json(&response))).page(&format!("/v1/responses/{id}"), &response);
}

async fn create(rig: &Rig, body: &str) -> Reply {
    rig.client().post("/v1/responses", &[], body).await
}

fn on_from(id: &str) -> String {
    format!(r#"{{"model":"m","input":"and?","previous_response_id":"{id}"}}"#)
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_about_a_response_goes_to_the_worker_that_made_it() {
    let (rig, workers) = fleet().await;
    for (worker, id) in workers.iter().zip(["resp_1", "resp_2", "resp_3"]) {
        makes(worker, id);
        assert_eq!(create(&rig, ASK).await.worker(), worker.url()[7..9]);
    }
    for (worker, id) in workers.iter().zip(["resp_1", "resp_2", "resp_3"]) {
        let name = &worker.url()[7..9];
        let path = format!("/v1/responses/{id}");
        worker.page(&format!("{path}/input_items"), r#"{"data":[]}"#);
        let shown = rig.get(&format!("{path}?include[]=x")).await;
        assert_eq!((shown.status, &*shown.worker()), (200, name));
        assert_eq!(shown.json()["id"], id);
        assert!(worker.now(|story| story.probed.contains(&format!("{path}?include[]=x"))));
        assert_eq!(rig.get(&format!("{path}/input_items")).await.worker(), name);
        for (method, path) in [("POST", format!("{path}/cancel")), ("DELETE", path.clone())] {
            assert_eq!(rig.ask(method, &path, "").await.worker(), name, "{method} {path}");
            assert!(worker.last().head.starts_with(&format!("{method} {path} HTTP")));
        }
        for _ in 0..4 {
            assert_eq!(create(&rig, &on_from(id)).await.worker(), name);
            assert_eq!(worker.last().body, on_from(id).as_bytes());
        }
    }
    // Nobody was asked what was known, and the cycle of new ones has not moved.
    assert_eq!(workers[1].asked("/v1/responses/resp_1"), 0);
    assert_eq!(create(&rig, ASK).await.worker(), "w1");
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_streamed_response_is_known_from_its_first_event_on() {
    let (rig, workers) = fleet().await;
    let created =
        r#"data: {"type":"response.created","response":{"id":"resp_s","status":"in_progress"}}"#;
    let (half, rest) = created.split_at(50);
    let stream = [events_head().as_bytes(), &chunked(half), &chunked(format!("{rest}\n\n"))];
    workers[0].next(script().say(stream.concat()).hang());
    let mut client = rig.client();
    client.send(post("/v1/responses", &[], r#"{"model":"m","input":"x","stream":true}"#)).await;
    assert_eq!(client.head().await.status, 200);
    client.chunk().await.expect("the first event");
    client.chunk().await.expect("its rest");
    let cancelled = rig.ask("POST", "/v1/responses/resp_s/cancel", "").await;
    assert_eq!((cancelled.status, &*cancelled.worker()), (200, "w1"));
    client.leave().await;
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_response_is_asked_for_once_of_every_ready_worker() {
    let (rig, workers) = fleet().await;
    let path = "/v1/responses/resp_old";
    rig.get(path).await.is_refusal(404, "response_not_found");
    rig.ask("DELETE", path, "").await.is_refusal(404, "response_not_found");
    let refused = create(&rig, &on_from("resp_old")).await;
    refused.is_refusal(404, "previous_response_not_found");
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
    for worker in &workers {
        assert_eq!((worker.asked(path), worker.served()), (3, 0));
    }
    // One that another gateway had made is found, and remembered.
    workers[2].page(path, r#"{"id":"resp_old"}"#);
    assert_eq!(rig.get(path).await.worker(), "w3");
    assert_eq!(create(&rig, &on_from("resp_old")).await.worker(), "w3");
    assert_eq!(rig.ask("DELETE", path, "").await.worker(), "w3");
    assert_eq!(workers.each_ref().map(|worker| worker.asked(path)), [4, 4, 5]);
    let refusals = [("error_code", "response_not_found")];
    assert_eq!(rig.count("smg_router_upstream_responses_total", &refusals), 2);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_an_id_leads_nowhere() {
    let (rig, workers) = fleet().await;
    for id in ["..", ".", "a%2fb", "%2e%2e"] {
        rig.get(&format!("/v1/responses/{id}")).await.is_refusal(404, "response_not_found");
    }
    for id in ["../../flush_cache", "", "a b", "a?b=c"] {
        let refused = create(&rig, &on_from(id)).await;
        refused.is_refusal(404, "previous_response_not_found");
    }
    for worker in &workers {
        let asked = |path: &String| path.starts_with("/v1/responses");
        assert!(worker.now(|story| !story.probed.iter().any(asked)));
        assert_eq!(worker.served(), 0);
    }
    // A field of another type is the worker's to judge.
    let body = r#"{"model":"m","input":"x","previous_response_id":null}"#;
    assert_eq!(create(&rig, body).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_response_is_nowhere_else_while_its_worker_is_away() {
    let (rig, workers) = fleet().await;
    makes(&workers[0], "resp_1");
    create(&rig, ASK).await;
    workers[0].health(None);
    rig.until("w1 is out", |gw| gw.workers().0 == 2).await;
    rig.get("/v1/responses/resp_1").await.is_refusal(503, "no_available_workers");
    create(&rig, &on_from("resp_1")).await.is_refusal(503, "no_available_workers");
    workers[0].health(Some("200 OK"));
    rig.until("w1 is back", |gw| gw.workers().0 == 3).await;
    assert_eq!(rig.get("/v1/responses/resp_1").await.worker(), "w1");
    // Once it has left the fleet, its responses are gone with it.
    let listed = rig.get("/workers").await.json();
    let id = listed["workers"][0]["id"].as_str().expect("an id").to_owned();
    rig.ask("DELETE", &format!("/workers/{id}"), "").await;
    rig.until("w1 has left", |gw| gw.workers().1 == 2).await;
    rig.get("/v1/responses/resp_1").await.is_refusal(404, "response_not_found");
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_tried_again_where_the_response_is() {
    let workers = ["w1", "w2"].map(Worker::new);
    let rig = Rig::start(&workers.each_ref(), |settings| settings.retry.attempts = 3).await;
    makes(&workers[0], "resp_1");
    create(&rig, ASK).await;
    workers[0].next(script().say(answer("503 Busy", &[], "")));
    assert_eq!(create(&rig, &on_from("resp_1")).await.worker(), "w1");
    assert_eq!((workers[0].served(), workers[1].served()), (3, 0));
}
