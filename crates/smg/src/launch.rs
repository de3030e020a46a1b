//! `smg launch`: parse, build, announce, run, drain.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use smg_gateway::Gateway;
use smg_gateway::settings::Settings;
use smg_gateway::upstream::TcpDial;
use tokio::signal::unix::{SignalKind, signal};

use crate::flags::Flags;
use crate::logging;
use crate::meant::{self, Complaint};
use crate::open_files;
use crate::runtimes::{Runtimes, listen};

/// Runs a gateway until it is told to leave.
pub(crate) fn run(flags: &Flags) -> Result<(), Complaint> {
    open_files::raise();
    let settings = meant::settings(flags)?;
    if let Some(file) = &settings.sticky.snapshot {
        smg_gateway::settings::try_snapshot(file).map_err(|why| {
            Complaint(format!("--sticky-snapshot {}: cannot be written: {why}", file.display()))
        })?;
    }
    logging::start(&flags.process);
    let runtimes = Runtimes::build(flags.process.runtime).map_err(|error| {
        Complaint(format!("the threads of --runtime could not be started: {error}"))
    })?;
    let gateway = build(&runtimes, settings.clone())?;
    announce(&settings);
    warn_of_open_doors(&settings);
    runtimes.block_on(leave(&gateway, &settings));
    runtimes.end();
    Ok(())
}

/// Opens the doors, then starts the gateway behind them.
pub(crate) fn build(runtimes: &Runtimes, settings: Settings) -> Result<Arc<Gateway>, Complaint> {
    let (address, metrics) = (settings.listen, settings.metrics);
    let doors =
        runtimes.listen(address).map_err(|why| taken("--host and --port", address, &why))?;
    let metrics = {
        let _on_control = runtimes.control().enter();
        listen(metrics, false)
            .map_err(|why| taken("--prometheus-host and --prometheus-port", metrics, &why))?
    };
    let dial = TcpDial::new(settings.worker_tls.clone());
    let gateway = Gateway::start(settings, Arc::new(dial), runtimes.control().clone())
        .map_err(|error| Complaint(format!("the gateway could not be started: {error}")))?;
    runtimes.control().spawn(Arc::clone(&gateway).listen_metrics(metrics));
    for (runtime, door) in doors {
        runtime.spawn(Arc::clone(&gateway).listen(door));
    }
    Ok(gateway)
}

fn taken(flags: &str, address: SocketAddr, why: &std::io::Error) -> Complaint {
    Complaint(format!("{flags}: cannot listen on {address}: {why}"))
}

/// The banner stays plain text whatever the log format.
fn announce(settings: &Settings) {
    let workers = settings.workers.len();
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let pins = if settings.sticky.key_override { "on" } else { "off" };
    let banner = format!(
        "smg {} listens on {scheme}://{} (metrics on http://{}/metrics), {workers} workers configured, \
         sticky sessions {pins}\n",
        env!("CARGO_PKG_VERSION"),
        settings.listen,
        settings.metrics,
    );
    // A gateway whose stdout is closed still serves.
    let _ = std::io::stdout().write_all(banner.as_bytes());
}

/// Without a key, whoever reaches the port is client and operator (docs/security.md).
fn warn_of_open_doors(settings: &Settings) {
    let access = &settings.access;
    let keys = access.api_key.is_some() || !access.tenants.is_empty() || access.admin_key.is_some();
    let address = settings.listen;
    if !keys && !address.ip().to_canonical().is_loopback() {
        tracing::warn!(
            %address,
            "no API key is configured: whoever reaches this address may send requests and see the \
             workers; set --api-key and --admin-api-key, or --host 127.0.0.1"
        );
    }
}

/// Waits for SIGTERM or SIGINT, then lets running requests end. A second signal ends it at once.
async fn leave(gateway: &Gateway, settings: &Settings) {
    told_to_leave().await;
    let drained = tokio::select! {
        drained = gateway.drain(settings.shutdown_grace) => drained,
        () = told_to_leave() => false,
    };
    gateway.save_pins();
    if drained {
        tracing::info!("every request has ended; leaving");
    } else {
        let connections = gateway.connections();
        tracing::warn!(connections, "leaving while clients are still being answered");
    }
}

async fn told_to_leave() {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
        // Without handlers the default action of the signal ends the process.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
