//! Keys, the operator's machine, pages of other origins.

use smg_gateway::settings::{Access, Cors, Secret, Settings, origin};

use super::rig::*;

fn secret(key: &str) -> Option<Secret> {
    key.parse().ok()
}

/// `--api-key k --tenant-api-key acme=t`, and maybe `--admin-api-key op`.
fn keys(admin: bool) -> impl FnOnce(&mut Settings) {
    move |settings| {
        settings.access = Access {
            api_key: secret("k"),
            tenants: secret("t").map(|key| ("acme".to_owned(), key)).into_iter().collect(),
            admin_key: secret("op").filter(|_| admin),
            cors: Cors::default(),
        };
    }
}

fn get_with(path: &str, header: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n\r\n")
}

#[tokio::test(start_paused = true)]
async fn inference_wants_a_key_in_the_words_of_its_route() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], keys(true)).await;
    for path in ["/v1/chat/completions", "/v1/messages", "/generate", "/v1/responses"] {
        for headers in [&[][..], &[("authorization", "Bearer no")], &[("x-api-key", "op")]] {
            let reply = rig.client().post(path, headers, CHAT).await;
            reply.is_refusal(401, "invalid_api_key");
            assert_eq!(reply.header("www-authenticate").as_deref(), Some("Bearer"));
            let anthropic = reply.json()["type"] == "error";
            assert_eq!(anthropic, path == "/v1/messages", "{path}");
        }
    }
    rig.get("/v1/models").await.is_refusal(401, "invalid_api_key");
    assert_eq!(w.served(), 0);
    for header in [("authorization", "bearer k"), ("x-api-key", "k"), ("authorization", "Bearer t")]
    {
        assert_eq!(rig.chat_with(&[header], CHAT).await.status, 200, "{header:?}");
    }
    for path in ["/health", "/liveness", "/readiness"] {
        assert_eq!(rig.get(path).await.status, 200, "{path}");
    }
    let refused = [("status_code", "401"), ("error_code", "invalid_api_key")];
    assert_eq!(rig.count("smg_http_responses_total", &refused), 13);
    rig.is_at_rest().await;
}

#[tokio::test(start_paused = true)]
async fn exactly_one_credential_reaches_the_worker() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], keys(true)).await;
    let dummy = [("authorization", "Bearer dummy"), ("x-api-key", "t")];
    for headers in [&[("authorization", "Bearer t")][..], &[("x-api-key", "k")], &dummy] {
        assert_eq!(rig.chat_with(headers, CHAT).await.status, 200);
        assert_eq!(w.last().header("authorization"), ["Bearer k"]);
        assert!(w.last().header("x-api-key").is_empty());
    }
    assert!(w.now(|story| story.keys.iter().all(|key| key == "Bearer k")), "probes carry it");
    let tenants_only = |settings: &mut Settings| {
        keys(false)(settings);
        settings.access.api_key = None;
    };
    let rig = Rig::start(&[&w], tenants_only).await;
    assert_eq!(rig.chat_with(&[("x-api-key", "t")], CHAT).await.status, 200);
    assert!(w.last().header("authorization").is_empty(), "a client's key stays here");
    let admin_only = |settings: &mut Settings| settings.access.admin_key = secret("op");
    let rig = Rig::start(&[&w], admin_only).await;
    for (key, goes) in [("Bearer theirs", &["Bearer theirs"][..]), ("Bearer op", &[])] {
        assert_eq!(rig.chat_with(&[("authorization", key)], CHAT).await.status, 200);
        assert_eq!(w.last().header("authorization"), goes);
    }
}

#[tokio::test(start_paused = true)]
async fn what_engines_are_asked_has_its_doors() {
    let w = Worker::new("w1");
    for path in ["/get_model_info", "/get_server_info", "/health_generate"] {
        w.page(path, "{}");
    }
    let rig = Rig::start(&[&w], keys(true)).await;
    for (path, door) in [
        ("/get_model_info", Some("k")),
        ("/get_server_info", Some("k")),
        ("/v1/responses/r1", Some("k")),
        ("/get_loads", Some("op")),
        ("/flush_cache", Some("op")),
        ("/health_generate", None),
    ] {
        for key in ["k", "op", ""] {
            let mut client = rig.client();
            client.send(get_with(path, &format!("x-api-key: {key}"))).await;
            let reply = client.reply().await;
            let open = door.is_none_or(|door| door == key);
            assert_eq!(reply.status != 401, open, "{path} with {key:?}");
        }
    }
    let rig = Rig::start(&[&w], keys(false)).await;
    for path in ["/get_loads", "/flush_cache"] {
        rig.client_at("10.0.0.9").get(path).await.is_refusal(403, "admin_loopback_only");
        assert_eq!(rig.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_admin_key_only_this_machine_is_the_operator() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], keys(false)).await;
    assert_eq!(rig.get("/workers").await.status, 200);
    for far in ["10.0.0.9", "2001:db8::1", "::ffff:10.0.0.9"] {
        let mut client = rig.client_at(far);
        client.get("/workers").await.is_refusal(403, "admin_loopback_only");
        client.send(get_with("/workers", "authorization: Bearer k")).await;
        client.reply().await.is_refusal(403, "admin_loopback_only");
        assert_eq!(client.get("/health").await.status, 200);
    }
    for near in ["127.0.0.9", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(rig.client_at(near).get("/workers").await.status, 200, "{near}");
    }
    let asked = |host: &str| format!("GET /workers HTTP/1.1\r\n{host}\r\n");
    for host in [
        "host: rebound.example:30000\r\n",
        "host: localhost\r\nhost: rebound.example\r\n",
        "host:\r\n",
    ] {
        let mut client = rig.client();
        client.send(asked(host)).await;
        client.reply().await.is_refusal(403, "admin_loopback_only");
    }
    for host in ["host: 127.0.0.1:30000\r\n", "host: [::1]:30000\r\n", ""] {
        let mut client = rig.client();
        client.send(asked(host)).await;
        assert_eq!(client.reply().await.status, 200, "{host}");
    }
    let mut proxied = rig.client();
    proxied.send(get_with("/workers", "x-forwarded-for: 10.0.0.9")).await;
    proxied.reply().await.is_refusal(403, "admin_loopback_only");
}

/// A page asks from the operator's own machine, and some of what it asks no browser asks leave for.
#[tokio::test(start_paused = true)]
async fn no_page_is_the_operator_without_an_admin_key() {
    let w = Worker::new("w1");
    let page = "https://chat.example";
    let open = |settings: &mut Settings| {
        settings.access.cors = Cors::new(origin("https://chat.example").into_iter().collect());
    };
    let asked = |method: &str, path: &str, header: &str| {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n{header}\r\n\r\n"
        )
    };
    let rig = Rig::start(&[&w], open).await;
    let shut = Rig::start(&[&w], keys(false)).await;
    for (method, path) in [
        ("GET", "/workers"),
        ("POST", "/workers"),
        ("GET", "/workers/7f"),
        ("DELETE", "/workers/7f"),
        ("GET", "/flush_cache"),
        ("POST", "/flush_cache"),
        ("GET", "/get_loads"),
    ] {
        for header in ["origin: https://evil.example", "origin: null", "sec-fetch-site: cross-site"]
        {
            for (rig, code) in [(&rig, "admin_not_for_pages"), (&shut, "admin_loopback_only")] {
                let mut client = rig.client();
                client.send(asked(method, path, header)).await;
                client.reply().await.is_refusal(403, code);
            }
        }
        for header in [
            &*format!("origin: {page}\r\nsec-fetch-site: cross-site"),
            "sec-fetch-site: none",
            "a: b",
        ] {
            let mut client = rig.client();
            client.send(asked(method, path, header)).await;
            assert_ne!(client.reply().await.status, 403, "{method} {path} {header}");
        }
    }
    assert_eq!(w.served(), 6, "caches are flushed for those alone who may");
    let reply = rig.chat_with(&[("origin", "https://evil.example")], CHAT).await;
    assert_eq!(reply.status, 200, "inference is open to whoever reaches it");
}

#[tokio::test(start_paused = true)]
async fn an_admin_key_guards_the_workers_from_everybody() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], keys(true)).await;
    let mut client = rig.client_at("10.0.0.9");
    client.get("/workers").await.is_refusal(401, "invalid_api_key");
    rig.get("/workers").await.is_refusal(401, "invalid_api_key");
    client.send(get_with("/workers", "authorization: Bearer k")).await;
    client.reply().await.is_refusal(401, "invalid_api_key");
    for header in ["authorization: Bearer op", "x-api-key: op"] {
        client.send(get_with("/workers", header)).await;
        assert_eq!(client.reply().await.status, 200, "{header}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_only_the_gateway_may_say_is_taken_out_of_answers() {
    let w = Worker::new("w1");
    let rig = Rig::start(&[&w], |_| {}).await;
    let lines = ["x-smg-anything: w", "x-session-id: w", "access-control-allow-origin: *"];
    w.next(script().say(answer("200 OK", &lines, "{}")));
    let reply = rig.chat(CHAT).await;
    for name in ["x-smg-anything", "x-session-id", "access-control-allow-origin"] {
        assert_eq!(reply.header(name), None, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_named_origins_may_ask() {
    let w = Worker::new("w1");
    let allow = |settings: &mut Settings| {
        keys(true)(settings);
        settings.access.cors = Cors::new(origin("https://chat.example").into_iter().collect());
    };
    let rig = Rig::start(&[&w], allow).await;
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
                     access-control-request-method: POST\r\norigin: https://chat.example\r\n\r\n";
    let mut client = rig.client();
    client.send(preflight).await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 200, "no key yet: browsers send none");
    let shown = |reply: &Reply| reply.header("access-control-allow-origin");
    assert_eq!(shown(&reply).as_deref(), Some("https://chat.example"));
    assert_eq!(rig.count("smg_http_requests_total", &[]), 0, "a preflight is no request");
    let page = ("origin", "https://chat.example");
    let reply = rig.chat_with(&[page, ("x-api-key", "k")], CHAT).await;
    assert_eq!((reply.status, shown(&reply).as_deref()), (200, Some(page.1)));
    assert_eq!(reply.header("access-control-expose-headers").as_deref(), Some("x-request-id"));
    let reply = rig.chat_with(&[page], CHAT).await;
    assert_eq!((reply.status, shown(&reply).as_deref()), (401, Some(page.1)));
    let reply =
        rig.chat_with(&[("origin", "https://evil.example"), ("x-api-key", "k")], CHAT).await;
    assert_eq!((reply.status, shown(&reply)), (200, None));
    assert_eq!(reply.header("vary").as_deref(), Some("origin"));
    let rig = Rig::start(&[&w], |_| {}).await;
    let mut client = rig.client();
    client.send(preflight).await;
    client.reply().await.is_refusal(405, "method_not_allowed");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_redirects_its_probes_is_not_ready() {
    let w = Worker::new("w1");
    w.health(Some("302 Found"));
    let rig = Rig::unready(&[&w], |_| {});
    later(120.0).await;
    assert_eq!(rig.gw.workers(), (0, 0));
    assert!(w.now(|story| story.probed.iter().all(|path| path == "/health")));
    w.health(Some("200 OK"));
    rig.until("it registers", |gw| gw.workers() == (1, 1)).await;
}
