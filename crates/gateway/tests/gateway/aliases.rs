//! `--model-alias`: another name for a model, for clients only.

use super::rig::*;

async fn aliased(w: &Worker) -> Rig {
    Rig::start(&[w], |settings| {
        for (alias, model) in [("fast", "m"), ("lost", "nobody"), ("lora", "m")] {
            settings.aliases.insert(alias.to_owned(), model.to_owned());
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn the_worker_sees_the_model_and_the_rest_byte_for_byte() {
    let w = Worker::new("w1");
    let rig = aliased(&w).await;
    for (sent, seen) in [
        (
            r#"{ "model" : "fast","messages":[{"model":"fast"}],"x":1.10}"#,
            r#"{"model":"m","messages":[{"model":"fast"}],"x":1.10}"#,
        ),
        (
            r#"{"model":"x","messages":[],"mod\u0065l":"f\u0061st"}"#,
            r#"{"model":"x","messages":[],"mod\u0065l":"m"}"#,
        ),
        (CHAT, CHAT),
    ] {
        assert_eq!(rig.chat(sent).await.status, 200, "{sent}");
        assert_eq!(String::from_utf8(w.last().body).unwrap(), seen);
        assert_eq!(w.last().header("content-length"), [seen.len().to_string()]);
    }
    let counted = rig.count("smg_router_requests_total", &[("model", "m"), ("endpoint", "chat")]);
    assert_eq!(counted, 3, "an alias is no label");
}

#[tokio::test(start_paused = true)]
async fn an_alias_is_case_sensitive_and_stands_for_one_model_only() {
    let w = Worker::new("w1");
    let rig = aliased(&w).await;
    for model in ["Fast", "lost", "nobody"] {
        let body = format!(r#"{{"model":"{model}","messages":[]}}"#);
        rig.chat(&body).await.is_refusal(404, "model_not_found");
    }
    assert_eq!(w.served(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_models_are_listed() {
    let w = Worker::serving("w1", &["m", "lora"]);
    let rig = aliased(&w).await;
    let list = rig.get("/v1/models").await.json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["m"], "a model whose name is an alias cannot be reached by it");
}

#[tokio::test(start_paused = true)]
async fn a_conversation_is_the_same_under_either_name() {
    let workers = [Worker::new("w1"), Worker::new("w2")];
    let rig = Rig::start(&[&workers[0], &workers[1]], |settings| {
        settings.aliases.insert("fast".to_owned(), "m".to_owned());
        settings.sticky = sticky();
    })
    .await;
    let home = rig.chat_with(&[("x-smg-routing-key", "k")], CHAT).await.worker();
    for _ in 0..3 {
        let body = r#"{"model":"fast","messages":[]}"#;
        assert_eq!(rig.chat_with(&[("x-smg-routing-key", "k")], body).await.worker(), home);
    }
}
