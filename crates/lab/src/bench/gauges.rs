//! What the gateway says of itself at its metrics listener.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::bench::load::once;
use crate::bench::payload::get_request;

/// How long workers and gauges may take to be where they belong.
const CALM: Duration = Duration::from_secs(20);

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Gauges of what a request holds for as long as it runs.
const HELD: [&str; 6] = [
    "smg_http_connections_active",
    "smg_admission_inflight",
    "smg_admission_queue_depth",
    "smg_worker_requests_active",
    "smg_worker_routing_keys_active",
    "smg_worker_connections_active",
];

/// One reading.
#[derive(Debug)]
pub(crate) struct Gauges(String);

impl Gauges {
    async fn read(metrics: SocketAddr) -> Result<Self, String> {
        let text = once(metrics, &get_request("/metrics"))
            .await
            .map_err(|error| format!("cannot read the metrics: {error}"))?;
        Ok(Self(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The sum over all series of a metric.
    fn sum(&self, name: &str) -> Option<f64> {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            if !rest.starts_with(['{', ' ']) {
                return None;
            }
            rest.rsplit(' ').next()?.parse::<f64>().ok()
        });
        values.fold(None, |sum, value| Some(sum.unwrap_or_default() + value))
    }

    /// How many workers are ready.
    fn ready(&self) -> f64 {
        self.sum("smg_worker_health").unwrap_or_default()
    }

    /// What is still held. A gauge that is missing is not at zero.
    fn held(&self) -> Vec<String> {
        let told = HELD.iter().filter_map(|name| match self.sum(name) {
            Some(0.0) => None,
            Some(value) => Some(format!("{name} {value}")),
            None => Some(format!("{name} is missing")),
        });
        told.collect()
    }
}

/// The sum over all series of a metric; one that is missing is an error.
pub(crate) async fn total(metrics: SocketAddr, name: &str) -> Result<f64, String> {
    let sum = Gauges::read(metrics).await?.sum(name);
    sum.ok_or_else(|| format!("{name} is missing"))
}

/// Waits until so many workers are in service.
pub(crate) async fn until_in_service(metrics: SocketAddr, workers: usize) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let missing = match Gauges::read(metrics).await {
            Ok(gauges) if gauges.ready() == workers as f64 => return Ok(()),
            Ok(gauges) => format!("{} of {workers} workers in service", gauges.ready()),
            Err(error) => error,
        };
        if began.elapsed() > CALM {
            return Err(missing);
        }
        sleep(LOOK).await;
    }
}

/// Waits until nothing is held for any request; the error says what still is.
pub(crate) async fn until_let_go(metrics: SocketAddr) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let held = Gauges::read(metrics).await?.held();
        if held.is_empty() {
            return Ok(());
        }
        if began.elapsed() > CALM {
            return Err(format!("not back to zero: {}", held.join(", ")));
        }
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_add_up_and_names_are_whole() {
        let text = "# TYPE smg_a gauge\nsmg_a{worker=\"http://x y\"} 1\nsmg_a{worker=\"b\"} 2\nsmg_ab 7\nsmg_c 0\n";
        let gauges = Gauges(text.to_owned());
        assert_eq!(gauges.sum("smg_a"), Some(3.0));
        assert_eq!(gauges.sum("smg_c"), Some(0.0));
        assert_eq!(gauges.sum("smg_d"), None);
        assert_eq!(gauges.held().len(), HELD.len());
    }
}
