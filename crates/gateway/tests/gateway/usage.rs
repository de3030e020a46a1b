//! Prompt tokens by what pins had to do with where they went, as the answers tell them.

use super::rig::*;

/// Prompt tokens and cached ones of an outcome.
fn tokens(rig: &Rig, outcome: &str) -> (i64, i64) {
    let of = |name| rig.count(name, &[("outcome", outcome)]);
    (of("smg_prompt_tokens_total"), of("smg_cached_prompt_tokens_total"))
}

fn usage(prompt: u32, cached: u32) -> String {
    format!(
        r#"{{"prompt_tokens":{prompt},"completion_tokens":3,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
    )
}

#[tokio::test(start_paused = true)]
async fn tokens_are_counted_by_the_outcome_of_the_request() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.sticky = sticky()).await;
    for outcome in ["occupied_hit", "occupied_miss", "vacant", "cap_respill", "no_routing_id"] {
        assert_eq!(tokens(&rig, outcome), (0, 0));
        let labels = [("outcome", outcome)];
        assert_eq!(rig.metric("smg_prompt_tokens_total", &labels), Some(0.0), "{outcome}");
    }
    let whole = |prompt, cached| json(&format!(r#"{{"usage":{}}}"#, usage(prompt, cached)));
    w.next(script().say(whole(100, 0)));
    rig.chat(r#"{"model":"m","messages":[],"rid":"a_t1"}"#).await;
    w.next(script().say(whole(150, 96)));
    rig.chat(r#"{"model":"m","messages":[],"rid":"a_t2"}"#).await;
    w.next(script().say(whole(7, 1)));
    rig.chat(CHAT).await;
    assert_eq!(tokens(&rig, "vacant"), (100, 0));
    assert_eq!(tokens(&rig, "occupied_hit"), (150, 96));
    assert_eq!(tokens(&rig, "no_routing_id"), (7, 1));
}

#[tokio::test(start_paused = true)]
async fn of_a_stream_the_last_usage_counts_in_every_dialect() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let openai = [
        format!("data: {{\"choices\":[],\"usage\":{}}}\n\n", usage(40, 0)),
        format!("data: {{\"choices\":[],\"usage\":{}}}\n\ndata: [DONE]\n\n", usage(40, 32)),
    ];
    let anthropic = [
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":8,\"cache_read_input_tokens\":32,\"cache_creation_input_tokens\":0}}}\n\n".to_owned(),
        "event: message_delta\ndata: {\"usage\":{\"output_tokens\":5}}\n\n".to_owned(),
    ];
    let responses = ["event: response.completed\ndata: {\"response\":{\"id\":\"r\",\"usage\":{\"input_tokens\":40,\"input_tokens_details\":{\"cached_tokens\":32}}}}\n\n".to_owned(), String::new()];
    let generate = [1, 2].map(|n| {
        format!("data: {{\"meta_info\":{{\"prompt_tokens\":40,\"cached_tokens\":32,\"completion_tokens\":{n}}}}}\n\n")
    });
    let body = r#"{"model":"m","messages":[],"prompt":"a","text":"a","input":"a","stream":true}"#;
    let mut times = 0;
    for (path, stream) in [
        ("/v1/chat/completions", &openai),
        ("/v1/messages", &anthropic),
        ("/v1/responses", &responses),
        ("/generate", &generate),
    ] {
        let [first, second] = stream;
        // Cut within a key of the last event.
        let (half, rest) = second.split_at(second.len() / 2);
        let chunks: Vec<_> = [&**first, half, rest].into_iter().filter(|c| !c.is_empty()).collect();
        w.next(script().say(events(&chunks)));
        assert_eq!(rig.client().post(path, &[], body).await.body, stream.concat().as_bytes());
        times += 1;
        assert_eq!(tokens(&rig, "no_routing_id"), (40 * times, 32 * times), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_no_prompt_was_read_for_is_not_counted() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let said = format!(r#"{{"id":"r1","input_tokens":9,"usage":{}}}"#, usage(9, 9));
    w.page("/v1/responses/r1", &said).usually(script().say(json(&said)));
    for path in ["/v1/messages/count_tokens", "/v1/tokenize"] {
        rig.client().post(path, &[], CHAT).await;
    }
    assert_eq!(rig.get("/v1/responses/r1").await.status, 200);
    w.next(script().say(answer("500 Oh", &["content-type: application/json"], &said)));
    rig.chat(CHAT).await;
    assert_eq!(tokens(&rig, "no_routing_id"), (0, 0));
    assert_eq!(rig.count("smg_prompt_tokens_total", &[]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_takes_nothing_away() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let start = "data: {\"message\":{\"usage\":{\"input_tokens\":50}}}\n\n";
    w.next(script().say([events_head().as_bytes(), &chunked(start)].concat()).hang());
    let mut client = rig.client();
    client.send(post("/v1/messages", &[], CHAT_STREAM)).await;
    client.head().await;
    client.chunk().await.expect("an event");
    client.leave().await;
    rig.is_at_rest().await;
    assert_eq!(tokens(&rig, "no_routing_id"), (50, 0));
}
