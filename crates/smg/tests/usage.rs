//! What stickiness is worth, by the gateway's own metrics and by the engines' own counts.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what broke by panicking"
)]
#![cfg_attr(test, expect(dead_code, reason = "another test uses the rest of the rig"))]

#[path = "binary/rig.rs"]
mod rig;

use rig::{Gateway, get, post_to};
use smg_lab::engine::{Engine, Profile};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A simulated engine that answers without waiting.
fn engine(runtime: &Runtime) -> (Engine, String) {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let engine = Engine::new(Profile { model: "m".to_owned(), pace: 0.0, ..Profile::default() });
    let serving = engine.clone();
    runtime.spawn(async move { serving.serve(listener).await });
    (engine, url)
}

/// The sum of a metric over all outcomes but `less`.
fn tokens(gateway: &Gateway, name: &str, less: &str) -> f64 {
    let (_, text) = get(gateway.metrics, "/metrics");
    let here = |line: &&str| line.starts_with(&format!("{name}{{")) && !line.contains(less);
    let values = text.lines().filter(here);
    values.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// Turns of conversations in every form an engine speaks, streamed and not.
fn converse(gateway: &Gateway) {
    let history = "What was said before comes along. ";
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/messages"];
    for (talk, path) in paths.iter().cycle().take(6).enumerate() {
        for turn in 1..=5 {
            let text = format!("{talk} {}", history.repeat(turn * 8));
            let (stream, rid) = (talk % 2 == 0, format!("talk-{talk}_t{turn}"));
            let asked = serde_json::json!({
                "model": "m", "rid": rid, "stream": stream, "max_tokens": 8,
                "messages": [{"role": "user", "content": text}], "prompt": text,
                "stream_options": {"include_usage": true},
            });
            let (status, said) = post_to(gateway.port, path, "x-no: key", &asked.to_string());
            assert_eq!(status, 200, "{said}");
        }
    }
    let asked = r#"{"model":"m","messages":[{"role":"user","content":"How long is this?"}]}"#;
    post_to(gateway.port, "/v1/messages/count_tokens", "x-no: key", asked);
}

#[test]
fn prompt_tokens_agree_with_what_the_engines_have_counted() {
    let runtime = Runtime::new().unwrap();
    let engines = [(); 3].map(|()| engine(&runtime));
    let urls = engines.each_ref().map(|(_, url)| &**url);
    let gateway = Gateway::start(&urls, &["--routing-key-override"]);
    converse(&gateway);
    let sum =
        |of: fn(&Engine) -> u64| engines.iter().map(|(engine, _)| of(engine)).sum::<u64>() as f64;
    for (name, theirs) in [
        ("smg_prompt_tokens_total", sum(|engine| engine.counts().prompt_tokens)),
        ("smg_cached_prompt_tokens_total", sum(|engine| engine.counts().cached_tokens)),
    ] {
        let ours = tokens(&gateway, name, "none");
        assert!(
            theirs > 0.0 && (ours - theirs).abs() <= theirs / 100.0,
            "{name}: {ours}, {theirs}"
        );
    }
    // A conversation's later turns find what its first one could not.
    let share = |outcome| {
        let cached = tokens(&gateway, "smg_cached_prompt_tokens_total", outcome);
        cached / tokens(&gateway, "smg_prompt_tokens_total", outcome)
    };
    let (new, stuck) = (share("occupied_hit"), share("vacant"));
    assert!(stuck > 0.5 && stuck > 2.0 * new, "{stuck} of known ones and {new} of new ones");
}
