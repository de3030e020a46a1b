//! The engine over the wire.

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use serde_json::{Value, json};
    use smg_lab::engine::{Counts, Engine, Profile};
    use smg_lab::player::{self, Landing, Naming, Script};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// An engine on a free port that answers without waiting.
    async fn start(profile: Profile) -> (Engine, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let engine = Engine::new(profile);
        let serving = engine.clone();
        tokio::spawn(async move { serving.serve(listener).await });
        (engine, address)
    }

    fn swift() -> Profile {
        Profile { pace: 0.0, ..Profile::default() }
    }

    async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: lab\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// Status and body, as they stand on the wire.
    async fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = send(address, method, path, body).await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    async fn call_json(
        address: SocketAddr,
        method: &str,
        path: &str,
        body: &Value,
    ) -> (u16, Value) {
        let (status, body) = call(address, method, path, &body.to_string()).await;
        (status, serde_json::from_str(&body).unwrap())
    }

    fn hello() -> Value {
        json!({"model": "lab", "rid": "hello_t1", "messages": [{"role": "user", "content": "Hello there, engine."}]})
    }

    fn with(mut body: Value, name: &str, value: Value) -> Value {
        body[name] = value;
        body
    }

    /// Lets the engine go on until its counts are as wanted; a real hang fails the test.
    async fn until(engine: &Engine, wanted: impl Fn(&Counts) -> bool) -> Counts {
        let waiting = async {
            loop {
                let counts = engine.counts();
                if wanted(&counts) {
                    return counts;
                }
                tokio::task::yield_now().await;
            }
        };
        let limit = Duration::from_secs(10);
        tokio::time::timeout(limit, waiting).await.unwrap()
    }

    fn events(body: &str) -> Vec<Value> {
        let data = body.lines().filter_map(|line| line.strip_prefix("data: {"));
        data.map(|rest| serde_json::from_str(&format!("{{{rest}")).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_whole_answer_has_openai_shape_and_says_what_was_cached() {
        let (_, address) = start(swift()).await;
        let path = "/v1/chat/completions";
        let (status, first) = call_json(address, "POST", path, &hello()).await;
        assert_eq!(status, 200);
        assert_eq!(first["object"], "chat.completion");
        assert_eq!(first["choices"][0]["finish_reason"], "stop");
        assert_eq!(first["usage"]["completion_tokens"], 24);
        assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);

        let said = first["choices"][0]["message"].clone();
        let mut next = hello();
        let messages = next["messages"].as_array_mut().unwrap();
        messages.push(said);
        messages.push(json!({"role": "user", "content": "Go on."}));
        let (_, second) = call_json(address, "POST", path, &next).await;
        // 8 tokens of prompt, 24 of answer and its closing mark: two whole blocks of 16.
        assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 32);
        let (_, again) = call_json(address, "POST", path, &hello()).await;
        assert_eq!(again["choices"][0]["message"], first["choices"][0]["message"]);
    }

    #[tokio::test]
    async fn a_streamed_answer_says_the_same() {
        let (_, address) = start(swift()).await;
        let path = "/v1/chat/completions";
        let (_, whole) = call_json(address, "POST", path, &hello()).await;
        let ask = with(hello(), "stream", json!(true));
        let (_, plain) = call(address, "POST", path, &ask.to_string()).await;
        let ask = with(ask, "stream_options", json!({"include_usage": true}));
        let (_, counted) = call(address, "POST", path, &ask.to_string()).await;

        assert!(counted.trim_end_matches("\r\n0").contains("data: [DONE]\n\n"));
        let pieces = events(&counted);
        assert_eq!(pieces[0]["choices"][0]["delta"]["role"], "assistant");
        let text: String = pieces
            .iter()
            .filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(text, whole["choices"][0]["message"]["content"]);
        assert_eq!(pieces[pieces.len() - 2]["choices"][0]["finish_reason"], "stop");
        let last = pieces.last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], 24);
        assert!(last["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64());
        assert_eq!(events(&plain).len(), pieces.len() - 1);
    }

    #[tokio::test]
    async fn plain_completions_are_answered_both_ways() {
        let (_, address) = start(swift()).await;
        let ask = json!({"model": "lab", "prompt": "Once upon a time", "max_tokens": 3});
        let (_, whole) = call_json(address, "POST", "/v1/completions", &ask).await;
        assert_eq!(whole["object"], "text_completion");
        assert_eq!(whole["choices"][0]["finish_reason"], "length");
        let ask = with(ask, "stream", json!(true));
        let (_, stream) = call(address, "POST", "/v1/completions", &ask.to_string()).await;
        let pieces = events(&stream);
        let text: String =
            pieces.iter().filter_map(|piece| piece["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, whole["choices"][0]["text"]);
    }

    #[tokio::test]
    async fn messages_are_answered_both_ways_with_tools_called_at_once() {
        let (engine, address) = start(swift()).await;
        let mut body = json!({
            "model": "lab",
            "max_tokens": 3,
            "system": [{"type": "text", "text": "Be brief. ".repeat(20)}],
            "tools": [{"name": "read"}, {"name": "grep"}],
            "messages": [{"role": "user", "content": "Look around."}],
        });
        let (_, counted) = call_json(address, "POST", "/v1/messages/count_tokens", &body).await;
        let prompt = counted["input_tokens"].as_u64().unwrap();
        let (status, whole) = call_json(address, "POST", "/v1/messages", &body).await;
        assert_eq!((status, &whole["stop_reason"]), (200, &json!("tool_use")));
        assert_eq!(whole["usage"]["input_tokens"], prompt);
        let called = |block: &Value| block["name"].as_str().map(str::to_owned);
        let content = whole["content"].as_array().unwrap();
        assert_eq!(content.iter().filter_map(called).collect::<Vec<_>>(), ["read", "grep"]);

        body["stream"] = true.into();
        let (_, stream) = call(address, "POST", "/v1/messages", &body.to_string()).await;
        assert!(stream.contains("event: message_start\n"), "{stream}");
        let events = events(&stream);
        assert_eq!(events.last().unwrap()["type"], "message_stop");
        let usage = &events[0]["message"]["usage"];
        let cached = usage["cache_read_input_tokens"].as_u64().unwrap();
        assert!(cached > 0 && usage["input_tokens"] == prompt - cached, "{usage}");
        let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        assert_eq!((of("content_block_start"), of("content_block_stop")), (3, 3));
        assert_eq!(engine.counts().prompt_tokens, 2 * prompt);

        let result = json!({"type": "tool_result", "tool_use_id": "x", "content": "found"});
        body["messages"] = json!([{"role": "user", "content": [result]}]);
        body["stream"] = false.into();
        let (_, last) = call_json(address, "POST", "/v1/messages", &body).await;
        assert_eq!(last["stop_reason"], "max_tokens");
    }

    #[tokio::test]
    async fn what_cannot_be_served_is_refused_in_openai_shape() {
        let (_, address) = start(swift()).await;
        let chat = "/v1/chat/completions";
        let other = with(hello(), "model", json!("other")).to_string();
        for (method, path, body, status, code) in [
            ("POST", chat, "{", 400, "invalid_json"),
            ("POST", chat, "{}", 400, "invalid_value"),
            ("POST", chat, other.as_str(), 404, "model_not_found"),
            ("GET", chat, "", 404, "not_found"),
            ("GET", "/version", "", 404, "not_found"),
        ] {
            let (got, answer) = call(address, method, path, body).await;
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!((got, &answer["error"]["code"]), (status, &json!(code)));
            assert!(answer["error"]["message"].is_string());
        }
    }

    #[tokio::test]
    async fn it_tells_a_gateway_what_it_needs() {
        let (_, address) = start(swift()).await;
        call_json(address, "POST", "/v1/chat/completions", &hello()).await;
        assert_eq!(call(address, "GET", "/health", "").await.0, 200);
        let get = |path| async move { call_json(address, "GET", path, &Value::Null).await.1 };
        assert_eq!(get("/v1/models").await["data"][0]["id"], "lab");
        assert_eq!(get("/server_info").await["served_model_name"], "lab");
        assert_eq!(get("/model_info").await["is_generation"], true);
        for path in ["/loads?model=lab", "/v1/loads?include=core"] {
            let load = get(path).await;
            assert_eq!(load["loads"][0]["num_waiting_reqs"], 0);
            assert_eq!(load["loads"][0]["token_usage"], 0.0);
            assert!(load["aggregate"].is_object());
        }
        let (_, metrics) = call(address, "GET", "/metrics", "").await;
        for line in [
            "sglang:num_running_reqs{model_name=\"lab\"} 0",
            "sglang:num_queue_reqs{model_name=\"lab\"} 0",
            "sglang:token_usage{model_name=\"lab\"} 0",
            "sglang:cache_hit_rate{model_name=\"lab\"} 0",
            "sglang:gen_throughput{model_name=\"lab\"} 0",
            "sglang:prompt_tokens_total{model_name=\"lab\"} 8",
            "sglang:cached_tokens_total{model_name=\"lab\"} 0",
        ] {
            assert!(metrics.lines().any(|one| one == line), "{line} in {metrics}");
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_gives_everything_back() {
        for stream in [false, true] {
            // So slow that it would never end by itself.
            let (engine, address) =
                start(Profile { prefill_rate: 0.001, slots: 1, ..Profile::default() }).await;
            let ask = with(hello(), "stream", json!(stream)).to_string();
            let first = send(address, "POST", "/v1/chat/completions", &ask).await;
            until(&engine, |counts| counts.running == 1).await;
            let second = send(address, "POST", "/v1/chat/completions", &ask).await;
            until(&engine, |counts| counts.waiting == 1).await;
            drop(second);
            until(&engine, |counts| counts.waiting == 0).await;
            drop(first);
            let counts = until(&engine, |counts| counts.running == 0).await;
            assert_eq!((counts.pinned_blocks, counts.aborted), (0, 2));
        }
    }

    #[tokio::test]
    async fn a_conversation_played_on_one_engine_is_cached_from_turn_to_turn() {
        let (engine, address) = start(swift()).await;
        let script = Script { conversations: 3, turns: 4, ..Script::default() };
        let mut seen = 0;
        let base = format!("http://{address}");
        let turns = player::play(&base, &script, &mut |_| seen += 1).await.unwrap();
        assert_eq!((turns.len(), seen), (12, 12));
        for turn in &turns {
            assert_eq!(turn.error, None);
            assert!(turn.first_token.is_some());
            if turn.number > 1 {
                assert_eq!(turn.landing, Landing::Unknown, "an engine does not name itself");
                let share = turn.cached_tokens * 100 / turn.prompt_tokens;
                assert!(share > 85, "{turn:?}");
            }
        }
        let prompts: usize = turns.iter().map(|turn| turn.prompt_tokens).sum();
        assert_eq!(engine.counts().prompt_tokens, prompts as u64);
    }

    #[tokio::test]
    async fn a_turn_that_fails_says_why_and_the_play_goes_on() {
        let (_, address) = start(swift()).await;
        let script = Script {
            model: "other".to_owned(),
            naming: Naming::Nameless,
            conversations: 1,
            turns: 2,
            ..Script::default()
        };
        let base = format!("http://{address}");
        let turns = player::play(&base, &script, &mut |_| ()).await.unwrap();
        assert_eq!(turns.len(), 2);
        let error = turns[1].error.as_deref().unwrap();
        assert!(error.starts_with("status 404"), "{error}");
    }

    /// Without sockets the clock can stand still, and times are exact.
    #[tokio::test(start_paused = true)]
    async fn over_a_pipe_a_stream_keeps_the_profiles_time() {
        let engine =
            Engine::new(Profile { prefill_rate: 1.0, decode_rate: 0.5, ..Profile::default() });
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(async move { engine.converse(server).await });
        let body = with(hello(), "stream", json!(true)).to_string();
        let length = body.len();
        let text = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: lab\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let began = tokio::time::Instant::now();
        client.write_all(text.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        let mut first_word = None;
        while client.read_buf(&mut heard).await.unwrap() > 0 {
            let words = String::from_utf8_lossy(&heard).matches("\"delta\"").count();
            if words > 1 {
                first_word.get_or_insert_with(|| began.elapsed().as_secs());
            }
        }
        serving.await.unwrap();
        // 8 tokens of prompt at one a second, then 23 more words at one in two seconds.
        assert_eq!(first_word, Some(8));
        assert_eq!(began.elapsed().as_secs(), 8 + 46);
    }
}
