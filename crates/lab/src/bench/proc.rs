//! What the kernel says about processes: CPU and memory of a process tree, and how busy the machine is.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::http1::broken;

/// CPU time and memory of a process and all its descendants.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// User and system time, of ended and reaped children too.
    pub(crate) cpu: Duration,
    /// Resident bytes.
    pub(crate) resident: u64,
}

/// One process's line in `/proc/PID/stat`, as far as we read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
    pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        let pid = text.split(' ').next()?.parse().ok()?;
        // The command's name may hold spaces and parentheses; only the last one ends it.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            pid,
            parent: u32::try_from(field(1)?).ok()?,
            ticks: field(11)? + field(12)? + field(13)? + field(14)?,
            pages: field(21)?,
        })
    }
}

/// Reads a whole tree. A process that ends while we look is simply not counted.
pub(crate) fn usage(root: u32) -> io::Result<Usage> {
    let all: Vec<Stat> = fs::read_dir("/proc")?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter_map(|entry| Stat::parse(&fs::read_to_string(entry.path().join("stat")).ok()?))
        .collect();
    let members = tree(&all, root);
    if !all.iter().any(|stat| stat.pid == root) {
        return Err(broken(&format!("process {root} is gone")));
    }
    let mut usage = Usage::default();
    for stat in all.iter().filter(|stat| members.contains(&stat.pid)) {
        usage.cpu += ticks(stat.ticks);
        usage.resident += stat.pages * rustix::param::page_size() as u64;
    }
    Ok(usage)
}

/// The ids of `root` and everything below it.
fn tree(all: &[Stat], root: u32) -> HashSet<u32> {
    let mut members = HashSet::from([root]);
    loop {
        let before = members.len();
        let children =
            all.iter().filter(|stat| members.contains(&stat.parent)).map(|stat| stat.pid);
        let children: Vec<u32> = children.collect();
        members.extend(children);
        if members.len() == before {
            return members;
        }
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs(count)
        / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
}

/// CPU time the whole machine has spent working.
fn machine_busy() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> =
        line.split_ascii_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; time stolen by the host disturbs as other processes do.
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|&index| fields.get(index)).sum();
    Ok(ticks(busy))
}

/// Where all counters stood at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    at: Instant,
    gateway: Usage,
    bench: Duration,
    machine: Duration,
}

/// What happened between two moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) elapsed: Duration,
    /// CPU of the gateway's tree.
    pub(crate) cpu: Duration,
    /// Resident bytes of the gateway's tree at the end.
    pub(crate) resident: u64,
    /// CPU of everything that is not this bench, in cores.
    pub(crate) others: f64,
}

impl Moment {
    pub(crate) fn take(gateway: u32) -> io::Result<Self> {
        Ok(Self {
            at: Instant::now(),
            gateway: usage(gateway)?,
            // Workers and gateway are our children, so this is the whole bench.
            bench: usage(std::process::id())?.cpu,
            machine: machine_busy()?,
        })
    }

    pub(crate) fn since(&self, earlier: &Self) -> Window {
        let elapsed = self.at.saturating_duration_since(earlier.at);
        let bench = self.bench.saturating_sub(earlier.bench);
        let machine = self.machine.saturating_sub(earlier.machine);
        Window {
            elapsed,
            cpu: self.gateway.cpu.saturating_sub(earlier.gateway.cpu),
            resident: self.gateway.resident,
            others: machine.saturating_sub(bench).as_secs_f64() / elapsed.as_secs_f64().max(1e-9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_past_any_name() {
        let line = "42 (a ) b (c) S 7 42 42 0 -1 4194304 9 0 0 0 100 20 3 4 20 0 5 0 12345 999 256 18446744073709551615";
        assert_eq!(Stat::parse(line), Some(Stat { pid: 42, parent: 7, ticks: 127, pages: 256 }));
        assert_eq!(Stat::parse("42 (short) S 1"), None);
    }

    #[test]
    fn a_tree_holds_grandchildren_and_no_strangers() {
        let stat = |pid, parent| Stat { pid, parent, ticks: 0, pages: 0 };
        let all = [stat(5, 4), stat(4, 3), stat(3, 1), stat(9, 1)];
        assert_eq!(tree(&all, 3), HashSet::from([3, 4, 5]));
    }

    #[test]
    fn our_own_process_can_be_watched() {
        let own = usage(std::process::id()).unwrap();
        assert!(own.resident > 0);
        let first = Moment::take(std::process::id()).unwrap();
        let window = Moment::take(std::process::id()).unwrap().since(&first);
        assert!(window.resident > 0 && window.others >= 0.0);
        assert!(usage(u32::MAX).is_err());
    }
}
