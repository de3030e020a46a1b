//! `smg demo`: two gateways before simulated engines, one of them sticky.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use smg_gateway::Gateway;
use smg_lab::demo::{self, Stage};
use smg_lab::engine::fleet::Fleet;

use crate::flags::{Cli, Command, DemoFlags, RuntimeChoice};
use crate::launch;
use crate::meant::{self, Complaint};
use crate::runtimes::Runtimes;

/// The model the engines say they serve.
const MODEL: &str = "lab";
/// How long the engines may take to register.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Plays the demo, then serves until Ctrl-C.
pub(crate) fn run(flags: &DemoFlags) -> Result<(), Complaint> {
    // Two gateways, each with a metrics listener a thousand ports below.
    if !(1001..=65534).contains(&flags.port) {
        let why = "expected a port from 1001 to 65534";
        return Err(Complaint(format!("--port {}: {why}", flags.port)));
    }
    let runtimes = Runtimes::build(RuntimeChoice::Shared).map_err(failed)?;
    runtimes.block_on(async {
        let profile = demo::profile(MODEL);
        let (sticky, plain) = (
            Fleet::start(demo::ENGINES, &profile).await,
            Fleet::start(demo::ENGINES, &profile).await,
        );
        let (sticky, plain) = (sticky.map_err(failed)?, plain.map_err(failed)?);
        let sticky_url =
            gateway(&runtimes, flags.port, &sticky, &["--routing-key-override"]).await?;
        let plain_url = gateway(&runtimes, flags.port + 1, &plain, &[]).await?;
        let live = std::io::stdout().is_terminal();
        let stage = Stage {
            sticky_url: &sticky_url,
            plain_url: &plain_url,
            model: MODEL,
            seed: 1,
            live,
            stays: !flags.once,
        };
        demo::play(&mut std::io::stdout(), &stage).await.map_err(failed)?;
        if !flags.once {
            let _ = writeln!(std::io::stdout(), "\nServing on {sticky_url} until Ctrl-C.");
            tokio::signal::ctrl_c().await.map_err(failed)?;
        }
        Ok(())
    })
}

/// Starts a gateway before a fleet, as the same flags on a command line would, and waits until all
/// engines have registered.
async fn gateway(
    runtimes: &Runtimes,
    port: i64,
    fleet: &Fleet,
    more: &[&str],
) -> Result<String, Complaint> {
    let (port, metrics) = (port.to_string(), (port - 1000).to_string());
    let mut line = vec!["smg", "launch", "--host", "127.0.0.1", "--port", &port];
    line.extend(["--prometheus-host", "127.0.0.1", "--prometheus-port", &metrics]);
    line.extend(["--policy", "round_robin"]);
    line.extend(more);
    line.push("--worker-urls");
    line.extend(fleet.urls());
    let Command::Launch(flags) = Cli::try_parse_from(line).map_err(failed)?.command else {
        return Err(Complaint("the demo's own command line is not a launch".to_owned()));
    };
    let gateway = launch::build(runtimes, meant::settings(&flags)?)?;
    ready(&gateway).await?;
    Ok(format!("http://127.0.0.1:{port}"))
}

async fn ready(gateway: &Arc<Gateway>) -> Result<(), Complaint> {
    let all = async {
        while gateway.workers().0 < demo::ENGINES {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(READY_WITHIN, all)
        .await
        .map_err(|_| Complaint("the simulated engines did not register".to_owned()))
}

fn failed(why: impl std::fmt::Display) -> Complaint {
    Complaint(format!("the demo could not be played: {why}"))
}
