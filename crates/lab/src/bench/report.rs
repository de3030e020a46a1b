//! From readings to the table and the stored baseline.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use serde::Serialize;

use super::Reading;
use super::contender::{ALL, Contender};
use super::rows::{Limit, Metric, Row};

/// Paced work off its pace by more than this is remarked on: below it is late, above it works off a backlog.
const OFF_PACE: f64 = 0.05;

/// How a run was made.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) rounds: u32,
    pub(crate) seconds: u32,
}

/// All readings of a row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    row: Row,
    readings: BTreeMap<Contender, Vec<Reading>>,
}

impl Table {
    pub(crate) fn new(row: Row) -> Self {
        Self { row, readings: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, contender: Contender, reading: Reading) {
        self.readings.entry(contender).or_default().push(reading);
    }

    /// One line for each metric.
    fn lines(&self) -> Vec<Line> {
        let metrics = self.row.metrics().iter().enumerate();
        metrics
            .map(|(index, metric)| {
                let figures = self.readings.iter().filter_map(|(&contender, readings)| {
                    let rounds =
                        readings.iter().filter_map(|reading| reading.figures.get(index).copied());
                    Some((contender, Figures::of(rounds.collect())?))
                });
                Line::new(self.row, metric, figures.collect())
            })
            .collect()
    }

    /// The pace farthest from 1 that each contender had, if this row is paced.
    fn paces(&self) -> Vec<(Contender, f64)> {
        let worst = |readings: &[Reading]| {
            readings
                .iter()
                .filter_map(|reading| reading.pace)
                .max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()))
        };
        self.readings
            .iter()
            .filter_map(|(&contender, readings)| Some((contender, worst(readings)?)))
            .collect()
    }

    /// The most CPU that other processes took in any window, in cores.
    fn others(&self) -> f64 {
        self.readings.values().flatten().map(|reading| reading.others).fold(0.0, f64::max)
    }
}

/// One contender's figures for one metric.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    median: f64,
    lowest: f64,
    rounds: Vec<f64>,
}

impl Figures {
    fn of(rounds: Vec<f64>) -> Option<Self> {
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let lowest = *sorted.first()?;
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let median = if sorted.len() % 2 == 1 {
            upper
        } else {
            f64::midpoint(*sorted.get(middle - 1)?, upper)
        };
        Some(Self { median, lowest, rounds })
    }
}

/// Ours against another, both ways of taking several rounds together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Ratio {
    median: f64,
    lowest: f64,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Line {
    row: Row,
    work: String,
    unit: &'static str,
    figures: BTreeMap<Contender, Figures>,
    to_peer: Option<Ratio>,
    to_haproxy: Option<Ratio>,
    /// HTTP/2 to the workers against HTTP/1.1.
    to_http1: Option<Ratio>,
    must: Verdict,
    aim: Verdict,
}

/// A limit and whether smg keeps it; `None` without a figure to judge.
#[derive(Debug, Serialize)]
struct Verdict {
    limit: String,
    met: Option<bool>,
}

impl Line {
    fn new(row: Row, metric: &Metric, figures: BTreeMap<Contender, Figures>) -> Self {
        let ratio = |ours: Contender, other: Contender| {
            let (ours, other) = (figures.get(&ours)?, figures.get(&other)?);
            Some(Ratio { median: ours.median / other.median, lowest: ours.lowest / other.lowest })
        };
        let to_peer = ratio(Contender::Ours, Contender::Peer);
        let to_haproxy = ratio(Contender::Ours, Contender::Haproxy);
        let to_http1 = ratio(Contender::OursHttp2, Contender::Ours);
        let judge = |limit: Limit| {
            // Noise only ever adds, so the lowest round is the one that tells most about the code.
            let (text, bound, figure) = match limit {
                Limit::OfPeer(bound) => {
                    (format!("≤ {bound:.2} of smg 1.13.0"), bound, to_peer.map(|it| it.lowest))
                }
                Limit::OfHaproxy(bound) => {
                    (format!("≤ {bound:.1}× HAProxy"), bound, to_haproxy.map(|it| it.lowest))
                }
                Limit::OfHttp1(bound) => {
                    (format!("≤ {bound:.1}× HTTP/1.1"), bound, to_http1.map(|it| it.lowest))
                }
                Limit::AtMost(bound) => {
                    let ours = figures.get(&row.subject()).map(|ours| ours.lowest);
                    (format!("≤ {bound} {}", metric.unit), bound, ours)
                }
            };
            Verdict { limit: text, met: figure.map(|figure| figure <= bound) }
        };
        Self {
            row,
            work: format!("{}: {}", row.label(), metric.name),
            unit: metric.unit,
            must: judge(metric.must),
            aim: judge(metric.aim),
            figures,
            to_peer,
            to_haproxy,
            to_http1,
        }
    }

    fn cells(&self) -> Vec<String> {
        let figure = |contender: &Contender| {
            self.figures
                .get(contender)
                .map_or("–".to_owned(), |it| format!("{:.1} ({:.1})", it.median, it.lowest))
        };
        let ratio = |ratio: Option<Ratio>| {
            ratio.map_or("–".to_owned(), |it| format!("{:.2} ({:.2})", it.median, it.lowest))
        };
        let verdict = |verdict: &Verdict| {
            let word = match verdict.met {
                Some(true) => ": met",
                Some(false) => ": MISSED",
                None => "",
            };
            format!("{}{word}", verdict.limit)
        };
        let mut cells = vec![format!("{}, {}", self.work, self.unit)];
        cells.extend(ALL.iter().map(figure));
        cells.extend([
            ratio(self.to_peer),
            ratio(self.to_haproxy),
            ratio(self.to_http1),
            verdict(&self.must),
            verdict(&self.aim),
        ]);
        cells
    }
}

/// A row that was not measured, and why.
#[derive(Debug, Serialize)]
struct Refused {
    row: Row,
    error: String,
}

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    settings: Settings,
    machine: Machine,
    /// The most CPU other processes took in any window, in cores.
    others: f64,
    lines: Vec<Line>,
    readings: Vec<Table>,
    refused: Vec<Refused>,
}

/// Where a run was made; figures of different machines do not compare.
#[derive(Debug, Serialize)]
struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
}

impl Machine {
    fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let cpu = model.and_then(|line| line.split_once(": ")).map(|(_, name)| name.to_owned());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: cpu.unwrap_or_default(),
            kernel: kernel.trim().to_owned(),
        }
    }
}

impl Report {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            machine: Machine::here(),
            others: 0.0,
            lines: Vec::new(),
            readings: Vec::new(),
            refused: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, table: Table) {
        self.others = self.others.max(table.others());
        self.lines.extend(table.lines());
        self.readings.push(table);
    }

    pub(crate) fn refuse(&mut self, row: Row, error: String) {
        self.refused.push(Refused { row, error });
    }

    /// Whether every row has its figures.
    pub(crate) fn complete(&self) -> bool {
        self.refused.is_empty()
    }

    pub(crate) fn json(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| format!("cannot write the baseline: {error}"))?;
        Ok(text + "\n")
    }

    /// The table in Markdown, with what a reader must know about the run below it.
    pub(crate) fn render(&self) -> String {
        let mut rows: Vec<Vec<String>> = vec![
            ["work"]
                .into_iter()
                .chain(ALL.map(Contender::label))
                .chain(["ours/smg", "ours/HAProxy", "HTTP/2/HTTP/1.1", "must", "aim"])
                .map(str::to_owned)
                .collect(),
        ];
        rows.extend(self.lines.iter().map(Line::cells));
        let mut text = align(&rows);
        let Settings { rounds, seconds } = self.settings;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\nMedian (lowest) of {rounds} interleaved rounds of {seconds} s; limits are judged by the lowest."
        );
        let Machine { cores, cpu, kernel } = &self.machine;
        let _ = writeln!(
            text,
            "{cores} cores, {cpu}, Linux {kernel}; other processes took up to {:.2} cores.",
            self.others
        );
        for (contender, pace) in self.readings.iter().flat_map(Table::paces) {
            if (pace - 1.0).abs() > OFF_PACE {
                let _ = writeln!(
                    text,
                    "Paced events through {} came at {:.0} % of their pace: the machine was too busy for a fair figure.",
                    contender.label(),
                    pace * 100.0
                );
            }
        }
        for Refused { row, error } in &self.refused {
            let _ = writeln!(text, "No figures for {}: {error}", row.label());
        }
        text
    }
}

/// A Markdown table whose columns also line up as plain text.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!(" {cell:width$} |"));
        text.extend(["|".to_owned()].into_iter().chain(cells).chain(["\n".to_owned()]));
        if index == 0 {
            let rules = widths.iter().map(|&width| format!("{}|", "-".repeat(width + 2)));
            text.extend(["|".to_owned()].into_iter().chain(rules).chain(["\n".to_owned()]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(row: Row, figures: &[(Contender, &[f64])]) -> Table {
        let mut table = Table::new(row);
        for (contender, rounds) in figures {
            for &figure in *rounds {
                table.add(
                    *contender,
                    Reading { figures: vec![figure], rate: 1.0, pace: Some(0.5), others: 0.0 },
                );
            }
        }
        table
    }

    #[test]
    fn several_rounds_give_median_and_lowest() {
        let odd = Figures::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.lowest), (2.0, 1.0));
        let even = Figures::of(vec![4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((even.median, even.lowest), (2.5, 1.0));
        assert!(Figures::of(Vec::new()).is_none());
    }

    #[test]
    fn limits_are_judged_against_the_others_of_the_run() {
        use Contender::{Haproxy, Ours, Peer};
        let lines = table(
            Row::Sticky,
            &[(Ours, &[50.0, 40.0]), (Peer, &[200.0, 200.0]), (Haproxy, &[20.0, 20.0])],
        )
        .lines();
        let [line] = lines.as_slice() else { panic!("one metric, one line") };
        assert_eq!(line.to_peer, Some(Ratio { median: 0.225, lowest: 0.2 }));
        assert_eq!(line.must.met, Some(true));
        assert_eq!(line.aim.met, Some(false));
        assert_eq!(line.cells()[1], "45.0 (40.0)");
    }

    #[test]
    fn http2_to_the_workers_is_judged_against_http1() {
        use Contender::{Ours, OursHttp2};
        let lines = table(Row::StickyHttp2, &[(Ours, &[40.0, 50.0]), (OursHttp2, &[50.0])]).lines();
        assert_eq!(lines[0].to_http1, Some(Ratio { median: 50.0 / 45.0, lowest: 1.25 }));
        assert_eq!((lines[0].must.met, lines[0].aim.met), (Some(true), Some(false)));
        assert_eq!(lines[0].to_peer, None);
    }

    #[test]
    fn a_missing_contender_leaves_its_verdict_open() {
        let lines = table(Row::Sticky, &[(Contender::Peer, &[200.0])]).lines();
        assert_eq!((lines[0].must.met, lines[0].to_peer), (None, None));
        assert!(lines[0].cells().contains(&"–".to_owned()));
    }

    #[test]
    fn the_report_names_refused_rows() {
        let mut report = Report::new(Settings { rounds: 1, seconds: 1 });
        report.add(table(Row::RoundRobin, &[(Contender::Ours, &[1.0])]));
        report.refuse(Row::SseBurst, "a client failed".to_owned());
        assert!(!report.complete());
        assert!(report.render().contains("through ours came at 50 % of their pace"));
        assert!(
            report.render().contains(
                "No figures for SSE, 64 streams × 200 events back to back: a client failed"
            )
        );
        let value: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(value["lines"][0]["figures"]["ours"]["lowest"], 1.0);
        assert_eq!(value["refused"][0]["row"], "sse_burst");
    }
}
