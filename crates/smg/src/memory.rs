//! How much memory there is.

use std::fs::read_to_string;

/// Bytes this process may use: the machine's, or its control group's if that is less. `None` where
/// neither is told.
pub(crate) fn total() -> Option<u64> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let group = read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_whole_memory() {
        assert_eq!(of_machine("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(of_machine("MemFree: 1 kB"), None);
        assert!(total().is_none_or(|bytes| bytes > 1 << 20));
    }
}
