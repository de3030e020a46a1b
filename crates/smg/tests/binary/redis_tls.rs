//! A Redis that speaks TLS alone and lets nobody in but one user, who may do little.

use super::redis::{Redis, ops, until};
use super::rig::{Gateway, Worker, launch, post_with};
use super::tls::Authority;

/// What docs/affinity.md asks an ACL user to have, and no more.
const USER: &str = "gate on >hush ~smg:pin:* +set +get +pttl +pexpire +eval +evalsha +script|load +ping \
                    +hello +client";

#[test]
fn a_redis_with_tls_and_a_user_of_few_rights_serves_both_kinds_of_keys() {
    let (ca, other) = (Authority::new("redis"), Authority::new("stranger"));
    let Some(redis) = Redis::guarded([ca.path(0), ca.path(1), ca.path(2)], USER) else {
        use std::io::Write as _;
        let why = "not tested: this redis-server was built without TLS";
        writeln!(std::io::stderr(), "{why}").unwrap();
        return;
    };
    let workers: Vec<_> = (0..2).map(|_| Worker::start()).collect();
    let urls: Vec<_> = workers.iter().map(|worker| &*worker.url).collect();
    let start = |user: &str, roots: &str| {
        let url = format!("rediss://{user}@127.0.0.1:{}", redis.port);
        let mut command = launch(["--sticky-store", "redis", "--redis-url", &url]);
        // Stands for the system's CAs.
        command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR");
        Gateway::of(command, &urls, &["--policy", "session_affinity", "--lock-policy"])
    };
    let turn = |gateway: &Gateway, key: &str| {
        let header = format!("x-aibrix-session-key: {key}");
        let (status, body) = post_with(gateway.port, &header, r#"{"model":"m","messages":[]}"#);
        assert_eq!(status, 200, "{body}");
    };
    let gateway = start("gate:hush", ca.path(0));
    until("the store is used", || {
        turn(&gateway, "k");
        ops(&gateway, "claim", "ok") > 0
    });
    assert_eq!(ops(&gateway, "claim", "error"), 0);
    turn(&gateway, "k");
    assert_eq!(ops(&gateway, "claim", "ok"), 1, "tracking is allowed, so that a copy is kept");

    for (user, roots) in [("gate:wrong", ca.path(0)), ("gate:hush", other.path(0))] {
        let refused = start(user, roots);
        let said = refused.has_logged("cannot be reached");
        assert!(!said.contains("hush") && !said.contains(user), "{said}");
        turn(&refused, "k");
        assert_eq!(ops(&refused, "claim", "ok"), 0);
    }
}
