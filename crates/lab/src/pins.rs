//! What a pin costs: bytes of memory, all in, and the time of a snapshot.
//!
//! Bytes are what the process grew by, so that index, spare room and allocator count. Each key comes
//! as a request does: a turn without a proposal, one with, and the end of its flight.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::{Duration, Instant};

use smg_decide::fleet::{Leg, WorkerId};
use smg_decide::keys::scope::{Hashing, Scope};
use smg_decide::pins::saved::{self, Head, Saved};
use smg_decide::pins::table::Table;
use smg_decide::pins::{OVERRIDE_THRESHOLD, Replacement, Rules};

const RULES: Rules = Rules { replacement: Replacement::Leads, threshold: Some(OVERRIDE_THRESHOLD) };
const WORKERS: u32 = 64;
/// As `--max-sticky-keys` has it unless told otherwise.
const BOUND: Option<usize> = Some(8_000_000);

/// What was measured.
#[derive(Debug)]
pub struct Costs {
    /// Pins in the table.
    pub pins: usize,
    /// What the process grew by.
    pub grown: u64,
    /// One key's way in, on average.
    pub pinning: Duration,
    /// The whole table to a file on disk, synced.
    pub writing: Duration,
    /// That file to a whole table.
    pub reading: Duration,
    /// The size of that file.
    pub file: u64,
}

impl Costs {
    /// Bytes a pin.
    #[must_use]
    pub fn bytes_a_pin(&self) -> f64 {
        self.grown as f64 / self.pins as f64
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pins, pinning, writing, reading, file, .. } = self;
        writeln!(f, "pins              {pins}")?;
        writeln!(f, "bytes a pin       {:.1}", self.bytes_a_pin())?;
        writeln!(f, "a new key         {pinning:.0?}")?;
        writeln!(f, "snapshot written  {writing:.0?} ({:.1} MB)", *file as f64 / 1e6)?;
        writeln!(f, "snapshot read     {reading:.0?}")
    }
}

/// Fills a table with `count` keys and takes its measure; the snapshot goes to `file` and away.
///
/// # Errors
/// When the file cannot be written, or does not hold what was written.
pub fn measure(count: u32, file: &Path) -> io::Result<Costs> {
    let before = resident()?;
    let table = Table::new(RULES, BOUND);
    let begun = Instant::now();
    fill(&table, count);
    let pinning = begun.elapsed() / count.max(1);
    let grown = resident()?.saturating_sub(before);
    let begun = Instant::now();
    write(&table, file)?;
    let writing = begun.elapsed();
    let begun = Instant::now();
    let back = read(file)?;
    let reading = begun.elapsed();
    let size = fs::metadata(file)?.len();
    fs::remove_file(file)?;
    if back.len() != table.len() {
        return Err(io::Error::other(format!("{} pins of {} came back", back.len(), table.len())));
    }
    Ok(Costs { pins: table.len(), grown, pinning, writing, reading, file: size })
}

fn fill(table: &Table, count: u32) {
    let hashing = Hashing::new([5; 16]);
    for n in 0..count {
        let key = format!("conversation-{n:05}");
        let scope = Scope { model: Some("model"), leg: Leg::Regular };
        let key = hashing.hash(scope, key.as_bytes());
        let worker = WorkerId(n % WORKERS);
        table.turn(key, None, n, |_| true);
        table.turn(key, Some(worker), n, |_| true);
        table.leave(key, worker, n);
    }
}

fn write(table: &Table, file: &Path) -> io::Result<()> {
    let workers: Vec<_> =
        (0..WORKERS).map(|n| (WorkerId(n), format!("http://worker-{n}:8000").into())).collect();
    let head = Head { secret: [5; 16], written: 0, now: u32::MAX, workers: &workers };
    let mut out = BufWriter::with_capacity(1 << 16, File::create(file)?);
    saved::write(&mut out, &head, &[table])?;
    out.into_inner()?.sync_all()
}

fn read(file: &Path) -> io::Result<Table> {
    let bytes = fs::read(file)?;
    let saved =
        Saved::read(&bytes, 1).ok_or_else(|| io::Error::other("the snapshot is damaged"))?;
    let ids: Vec<_> = (0..).map(WorkerId).take(saved.workers.len()).collect();
    let table = Table::new(RULES, BOUND);
    saved.restore(0, &table, &ids, u32::MAX);
    Ok(table)
}

/// Bytes of this process in memory.
fn resident() -> io::Result<u64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::other("no figures in /proc/self/statm"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_stays_below_64_bytes_and_a_snapshot_comes_back_whole() {
        let name = format!("lab-pins-{}", std::process::id());
        let costs = measure(200_000, &std::env::temp_dir().join(name)).unwrap();
        assert_eq!(costs.pins, 200_000);
        assert!(costs.bytes_a_pin() < 64.0, "{costs}");
        assert!(costs.file < 200_000 * 28 + 10_000, "{costs}");
    }
}
