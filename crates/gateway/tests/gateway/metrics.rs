//! What is counted: once, under labels of the gateway's own making.

use smg_gateway::settings::PolicyName;

use super::rig::*;

#[tokio::test(start_paused = true)]
async fn label_sets_are_there_before_anything_happens() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.sticky = sticky()).await;
    let branches = [
        "occupied_hit",
        "occupied_miss",
        "vacant",
        "cap_respill",
        "no_routing_id",
        "no_healthy_workers",
    ];
    let at_zero = |name, label, values: &[&str]| {
        for value in values {
            assert_eq!(rig.metric(name, &[(label, value)]), Some(0.0), "{name}{{{label}={value}}}");
        }
    };
    at_zero("smg_manual_policy_branch_total", "branch", &branches);
    at_zero("smg_routing_key_source_total", "source", &["rid", "header"]);
    at_zero("smg_router_upstream_send_retries_total", "router_type", &["http"]);
    at_zero("smg_worker_requests_active", "worker", &[w.url()]);
    at_zero("smg_worker_routing_keys_active", "worker", &[w.url()]);
    at_zero("smg_worker_http2", "worker", &[w.url()]);
    at_zero("smg_worker_selection_total", "policy", &["round_robin"]);
    at_zero("smg_worker_errors_total", "error_type", &["backend_error", "timeout"]);
    let reasons = [
        "routing_key_override",
        "policy_needs_text",
        "no_content_length",
        "retryable",
        "pure_forward",
    ];
    at_zero("smg_router_request_body_path_total", "reason", &reasons);
    at_zero("smg_router_requests_total", "streaming", &["true", "false"]);
    let classes = [
        "validation_error",
        "no_workers",
        "timeout",
        "unavailable",
        "backend_error",
        "internal_error",
    ];
    at_zero("smg_router_request_errors_total", "error_type", &classes);
    assert_eq!(rig.metric("smg_manual_policy_cache_entries", &[]), Some(0.0));
    assert_eq!(rig.metric("smg_http_connections_active", &[]), Some(0.0));
    assert_eq!(rig.metric("smg_worker_pool_size", &[("model", MODEL)]), Some(1.0));
    assert_eq!(rig.metric("smg_worker_health", &[("worker", w.url())]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_of_prompts_shows_with_each_sweep() {
    let workers = ["w1", "w2"].map(Worker::new);
    let rig = Rig::start(&workers.each_ref(), |settings| {
        settings.placement.policy = PolicyName::CacheAware;
        settings.index_sweep = Some(std::time::Duration::from_secs(60));
    })
    .await;
    let text = "a prompt of some length ".repeat(100);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    rig.chat(&body).await;
    let of = |name| rig.metric(name, &[("model", "m")]);
    assert_eq!(of("smg_cache_tree_chars"), None);
    rig.until("a sweep", |_| of("smg_cache_tree_chars") == Some(text.len() as f64)).await;
    assert_eq!(of("smg_cache_tree_tokens"), Some(0.0));
    let tenants = |tree| rig.count("smg_cache_tree_tenants", &[("tree", tree)]);
    assert_eq!((tenants("string"), tenants("token")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn workers_are_counted_by_who_named_them_and_by_what_they_are_sent() {
    let (named, gone) = (Worker::new("w1"), Worker::new("w9"));
    gone.door(Door::Refusing);
    let rig = Rig::unready(&[&named, &gone], |settings| {
        settings.startup.timeout = std::time::Duration::from_secs(10);
    });
    let of = |name, labels: &[_]| rig.count(name, labels);
    let registered = |source, result| {
        let labels = [("source", source), ("result", result)];
        of("smg_discovery_registrations_total", &labels)
    };
    rig.until("one is given up", |_| registered("static", "failed") == 1).await;
    assert_eq!((registered("static", "success"), registered("manual", "success")), (1, 0));
    let removed = |source| of("smg_discovery_deregistrations_total", &[("source", source)]);
    let here = |source| of("smg_discovery_workers_discovered", &[("source", source)]);
    assert_eq!((here("static"), here("manual")), (1, 0));

    for _ in 0..3 {
        rig.chat(CHAT).await;
    }
    let sent =
        || rig.metric("smg_worker_requests_total", &[("worker", named.url()), ("model", "m")]);
    assert_eq!(sent(), Some(3.0));
    let kind = [("worker_type", "regular"), ("connection_mode", "http")];
    assert_eq!(of("smg_worker_connections_active", &kind), 1, "used again and again");

    let listed = rig.get("/workers").await.json();
    let id = listed["workers"][0]["id"].as_str().expect("an id").to_owned();
    rig.ask("DELETE", &format!("/workers/{id}"), "").await;
    rig.until("it has drained", |_| sent().is_none()).await;
    assert_eq!((here("static"), removed("static"), removed("manual")), (0, 1, 0));
    rig.until("its connections are closed", |_| of("smg_worker_connections_active", &kind) == 0)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_body_plan_is_counted_once_for_every_request_with_its_reason() {
    let w = Worker::new("w1");
    let plans = |rig: &Rig| rig.count("smg_router_request_body_path_total", &[]);
    let reason = |rig: &Rig, reason| {
        rig.count("smg_router_request_body_path_total", &[("path", "buffered"), ("reason", reason)])
    };
    let rig = Rig::start(&[&w], |settings| {
        settings.sticky = sticky();
        settings.bodies.model_selection = false;
    })
    .await;
    for body in [CHAT, CHAT_STREAM, "{", r#"{"model":"x","messages":[]}"#] {
        rig.chat(body).await;
    }
    rig.client().post("/v1/completions", &[], r#"{"prompt":"x"}"#).await;
    assert_eq!((plans(&rig), reason(&rig, "routing_key_override")), (5, 5));
    // What never gets as far as a plan has none.
    rig.get("/v1/models").await;
    rig.get("/v1/chat/completions").await;
    rig.get("/nowhere").await;
    assert_eq!(plans(&rig), 5);
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_is_exactly_one_router_error() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.bodies.max_payload = 1000).await;
    let mut failed = 0;
    let mut check = |reply: Reply, status: u16, class: &str| {
        assert_eq!(reply.status, status, "{}", reply.text());
        failed += 1;
        assert_eq!(rig.count("smg_router_request_errors_total", &[]), failed);
        let of_class = rig.count("smg_router_request_errors_total", &[("error_type", class)]);
        assert!(of_class > 0, "{class}");
    };
    check(rig.chat("{").await, 400, "validation_error");
    check(rig.chat(r#"{"messages":[],"model":"x"}"#).await, 404, "no_workers");
    w.next(script().say(answer("500 Oh", &[], "")));
    check(rig.chat(CHAT).await, 500, "backend_error");
    w.next(script().say(answer("503 Busy", &[], "")));
    check(rig.chat(CHAT_STREAM).await, 503, "unavailable");
    w.next(script().say(answer("429 Slow", &[], "")));
    check(rig.chat(CHAT).await, 429, "internal_error");
    w.next(script().close()).next(script().close());
    check(rig.chat(CHAT).await, 500, "backend_error");
    w.next(script().hang());
    check(rig.chat(CHAT).await, 504, "timeout");
    w.next(script().say(answer("200 OK", &[], &"x".repeat(1001))));
    check(rig.chat(CHAT).await, 502, "backend_error");
    // And what succeeds is none.
    assert_eq!(rig.chat(CHAT).await.status, 200);
    w.next(script().say(events(&["data: 1\n\n"])));
    assert_eq!(rig.chat(CHAT_STREAM).await.status, 200);
    assert_eq!(rig.count("smg_router_request_errors_total", &[]), failed);
    assert_eq!(rig.count("smg_router_request_duration_seconds_count", &[]), 2);
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_by_model_and_whether_they_stream() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    rig.chat(CHAT).await;
    rig.chat(CHAT_STREAM).await;
    rig.chat(CHAT_STREAM).await;
    let count = |streaming| {
        let labels = [
            ("model", "m"),
            ("endpoint", "chat"),
            ("streaming", streaming),
            ("router_type", "http"),
            ("backend_type", "regular"),
            ("connection_mode", "http"),
        ];
        rig.count("smg_router_requests_total", &labels)
    };
    assert_eq!((count("false"), count("true")), (1, 2));
    let labels = [("router_type", "http"), ("status_code", "200"), ("error_code", "")];
    assert_eq!(rig.count("smg_router_upstream_responses_total", &labels), 3);
    let labels = [("path", "/v1/chat/completions"), ("status_code", "200"), ("error_code", "")];
    assert_eq!(rig.count("smg_http_responses_total", &labels), 3);
    let labels = [("path", "/v1/chat/completions"), ("method", "POST")];
    assert_eq!(rig.count("smg_http_requests_total", &labels), 3);
    assert_eq!(rig.count("smg_http_request_duration_seconds_count", &labels), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_was_sent_becomes_a_label() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |settings| settings.sticky = sticky()).await;
    let lines = |rig: &Rig| rig.gw.metrics_text().lines().count();
    rig.chat(r#"{"messages":[],"model":"evil-0"}"#).await;
    w.next(script().say(answer("500 Oh", &["x-smg-error-code: evil-0"], "")));
    rig.chat(CHAT).await;
    rig.get("/evil-0").await;
    let mut odd = rig.client();
    odd.send("EVIL-0 /workers HTTP/1.1\r\n\r\n").await;
    odd.reply().await;
    let before = lines(&rig);
    for n in 1..20 {
        rig.chat(&format!(r#"{{"messages":[],"model":"evil-{n}","rid":"evil-{n}"}}"#)).await;
        w.next(script().say(answer("500 Oh", &[&format!("x-smg-error-code: evil-{n}")], "")));
        rig.chat_with(&[("x-smg-routing-key", &format!("evil-{n}"))], CHAT).await;
        rig.get(&format!("/evil-{n}")).await;
        let mut odd = rig.client();
        odd.send(format!("EVIL-{n} /workers HTTP/1.1\r\n\r\n")).await;
        odd.reply().await;
    }
    let text = rig.gw.metrics_text();
    assert!(!text.to_ascii_lowercase().contains("evil"), "{text}");
    assert!(lines(&rig) <= before + 4, "{} lines became {}", before, lines(&rig));
    assert_eq!(
        rig.count(
            "smg_router_request_errors_total",
            &[("model", "other"), ("error_type", "no_workers")]
        ),
        20
    );
}

/// Whoever holds the metrics listener's connections holds them for a while only: they are files that
/// clients could need.
#[tokio::test(start_paused = true)]
async fn a_scrape_has_its_time_and_its_connection_ends_with_it() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let whole = "GET /metrics HTTP/1.1\r\nhost: gw\r\n\r\n";
    for (said, room, secs) in
        [(whole, 1 << 20, 0), (whole, 64, 30), ("GET /metr", 64, 30), ("", 64, 30)]
    {
        let (mut client, theirs) = tokio::io::duplex(room);
        let begun = tokio::time::Instant::now();
        let scraped = tokio::spawn(std::sync::Arc::clone(&rig.gw).scraped(theirs));
        tokio::io::AsyncWriteExt::write_all(&mut client, said.as_bytes()).await.unwrap();
        within("it ends", scraped).await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), secs, "{said:?} into {room} bytes");
        if secs == 0 {
            let mut answer = String::new();
            tokio::io::AsyncReadExt::read_to_string(&mut client, &mut answer).await.unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("smg_worker_health")
            );
        }
    }
}
