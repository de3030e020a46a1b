//! The laws of `lab crowd`, with a crowd that any machine can bear. The whole one runs by hand (docs/soak.md).

use smg_lab::bench::{CrowdArgs, crowd};

#[test]
fn a_crowd_leaves_nothing_behind_and_stops_no_heartbeat() {
    let args = CrowdArgs {
        streams: 50,
        idle: 500,
        events: 30,
        every_ms: 50,
        margin_mib: 32,
        gateway: Some(env!("CARGO_BIN_EXE_smg").into()),
    };
    assert_eq!(crowd(&args), Ok(true), "what was broken stands above");
}
