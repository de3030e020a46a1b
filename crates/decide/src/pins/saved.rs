//! Pins as bytes, so that they outlive a restart: the hashing secret, the workers' addresses, and a
//! record for each pin, never a key. All numbers are little-endian.
//!
//! A table goes out shard by shard and never stands twice in memory. What is read is looked through
//! to its end before any of it counts: half a file is no file.

use std::collections::HashMap;
use std::io::{self, Write};

use super::Pin;
use super::records::Record;
use super::table::Table;
use crate::fleet::WorkerId;
use crate::keys::scope::KeyHash;

/// First bytes of this layout.
const MAGIC: &[u8; 8] = b"smgpins2";
/// Bytes of one record: a hash, two places in the list of workers, idle seconds.
const RECORD: usize = 28;

/// What stands before the pins.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// What keys are hashed with.
    pub secret: [u8; 16],
    /// When it is written, in seconds on a clock that outlives the process.
    pub written: u64,
    /// The same moment on the pins' own clock.
    pub now: u32,
    /// Every worker a pin may name.
    pub workers: &'a [(WorkerId, Box<str>)],
}

/// Writes these tables; returns how many pins that were.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, head: &Head<'_>, tables: &[&Table]) -> io::Result<usize> {
    out.write_all(MAGIC)?;
    out.write_all(&head.secret)?;
    out.write_all(&head.written.to_le_bytes())?;
    out.write_all(&word(head.workers.len())?)?;
    for (_, url) in head.workers {
        out.write_all(&word(url.len())?)?;
        out.write_all(url.as_bytes())?;
    }
    let places = head.workers.iter().zip(0_u32..).map(|((id, _), place)| (*id, place)).collect();
    let mut pins = 0;
    for table in tables {
        pins += write_table(out, head.now, &places, table)?;
    }
    Ok(pins)
}

/// Chunks of records, each after its count; a count of nought ends the table.
fn write_table(
    out: &mut impl Write,
    now: u32,
    places: &HashMap<WorkerId, u32>,
    table: &Table,
) -> io::Result<usize> {
    let mut pins = 0;
    for shard in table.records() {
        let known = shard.iter().filter_map(|record| bytes(record, now, places));
        let chunk: Vec<_> = known.collect();
        if chunk.is_empty() {
            continue;
        }
        out.write_all(&word(chunk.len())?)?;
        out.write_all(chunk.as_flattened())?;
        pins += chunk.len();
    }
    out.write_all(&word(0)?)?;
    Ok(pins)
}

/// `None` for a pin to a worker that joined after the list of workers was made.
fn bytes(record: &Record, now: u32, places: &HashMap<WorkerId, u32>) -> Option<[u8; RECORD]> {
    let (primary, candidate) = record.pin.workers();
    let [a, b, c, d] = record.key.words();
    let idle = now.saturating_sub(record.used);
    let words = [a, b, c, d, *places.get(&primary)?, *places.get(&candidate)?, idle];
    let mut bytes = [0; RECORD];
    for (room, word) in bytes.chunks_exact_mut(4).zip(words) {
        room.copy_from_slice(&word.to_le_bytes());
    }
    Some(bytes)
}

fn word(of: usize) -> io::Result<[u8; 4]> {
    u32::try_from(of).map(u32::to_le_bytes).map_err(io::Error::other)
}

/// What was written, found whole.
#[derive(Debug)]
pub struct Saved<'a> {
    /// What keys were hashed with.
    pub secret: [u8; 16],
    /// When it was written, in seconds on the writer's lasting clock.
    pub written: u64,
    /// The workers' addresses, in the order in which records name them.
    pub workers: Vec<&'a str>,
    /// The chunks of each table.
    tables: Vec<Vec<&'a [u8]>>,
}

impl<'a> Saved<'a> {
    /// Reads `tables` tables; `None` unless every byte is as it must be.
    #[must_use]
    pub fn read(bytes: &'a [u8], tables: usize) -> Option<Self> {
        let mut rest = Rest(bytes);
        if rest.take(MAGIC.len())? != MAGIC {
            return None;
        }
        let secret = rest.take(16)?.try_into().ok()?;
        let written = u64::from_le_bytes(rest.take(8)?.try_into().ok()?);
        let mut workers = Vec::new();
        for _ in 0..rest.word()? {
            let length = rest.word()? as usize;
            workers.push(std::str::from_utf8(rest.take(length)?).ok()?);
        }
        let tables = (0..tables).map(|_| rest.chunks()).collect::<Option<_>>()?;
        let saved = Self { secret, written, workers, tables };
        (rest.0.is_empty() && saved.names_only_its_workers()).then_some(saved)
    }

    fn names_only_its_workers(&self) -> bool {
        let known = |place: u32| (place as usize) < self.workers.len();
        let records = self.tables.iter().flatten().flat_map(|chunk| words(chunk));
        records.into_iter().all(|[.., primary, candidate, _]| known(primary) && known(candidate))
    }

    /// Gives a table its pins. `ids` are what the workers are called now, in the order of
    /// [`Self::workers`]; `then` is when this was written, on the pins' own clock.
    pub fn restore(&self, at: usize, table: &Table, ids: &[WorkerId], then: u32) {
        for chunk in self.tables.get(at).into_iter().flatten() {
            for [a, b, c, d, primary, candidate, idle] in words(chunk) {
                let id = |place: u32| ids.get(place as usize).copied();
                let (Some(primary), Some(candidate)) = (id(primary), id(candidate)) else {
                    continue;
                };
                let key = KeyHash::from_words([a, b, c, d]);
                let pin = Pin::of_two(primary, candidate);
                table.restore(Record { key, pin, used: then.saturating_sub(idle) });
            }
        }
    }
}

fn words(chunk: &[u8]) -> impl Iterator<Item = [u32; 7]> {
    chunk.as_chunks::<RECORD>().0.iter().map(|record| {
        let mut words = [0; 7];
        for (word, bytes) in words.iter_mut().zip(record.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        words
    })
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// One table's chunks, up to and with the count of nought.
    fn chunks(&mut self) -> Option<Vec<&'a [u8]>> {
        let mut chunks = Vec::new();
        loop {
            match self.word()? as usize {
                0 => return Some(chunks),
                count => chunks.push(self.take(count.checked_mul(RECORD)?)?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Leg;
    use crate::keys::scope::{Hashing, Scope};
    use crate::pins::{Replacement, Rules};
    use proptest::prelude::*;

    const RULES: Rules = Rules { replacement: Replacement::Leads, threshold: Some(2) };

    fn table(pins: u32) -> Table {
        let table = Table::new(RULES, None);
        for n in 0..pins {
            let scope = Scope { model: None, leg: Leg::Regular };
            let key = Hashing::new([3; 16]).hash(scope, &n.to_le_bytes());
            let pin = Pin::of_two(WorkerId(n % 3), WorkerId((n + 1) % 3));
            table.restore(Record { key, pin, used: n });
        }
        table
    }

    fn saved(first: u32, second: u32) -> Vec<u8> {
        let workers: Vec<_> =
            (0..3).map(|n| (WorkerId(n), format!("http://w{n}").into())).collect();
        let head = Head { secret: [7; 16], written: 99, now: 100, workers: &workers };
        let mut out = Vec::new();
        let pins = write(&mut out, &head, &[&table(first), &table(second)]).unwrap();
        assert_eq!(pins, (first + second) as usize);
        out
    }

    fn all(table: &Table) -> Vec<([u32; 4], Vec<WorkerId>, u32)> {
        let record = |r: Record| (r.key.words(), r.pin.remembered().collect(), r.used);
        let mut all: Vec<_> = table.records().flatten().map(record).collect();
        all.sort();
        all
    }

    #[test]
    fn what_was_saved_comes_back_under_the_names_of_today() {
        let bytes = saved(90, 4);
        let read = Saved::read(&bytes, 2).unwrap();
        assert_eq!((read.secret, read.written), ([7; 16], 99));
        assert_eq!(read.workers, ["http://w0", "http://w1", "http://w2"]);
        for (at, pins) in [(0, 90), (1, 4)] {
            let back = Table::new(RULES, None);
            read.restore(at, &back, &[WorkerId(0), WorkerId(1), WorkerId(2)], 100);
            assert_eq!(all(&back), all(&table(pins)), "the same clock, the same ids");
        }
        let back = Table::new(RULES, None);
        read.restore(1, &back, &[WorkerId(7), WorkerId(8), WorkerId(9)], 1000);
        let uses: Vec<_> = all(&back).into_iter().map(|(_, _, used)| used).collect();
        assert!(uses.iter().all(|used| (900..904).contains(used)), "{uses:?}");
    }

    #[test]
    fn half_a_file_is_no_file() {
        let bytes = saved(20, 3);
        for cut in 0..bytes.len() {
            assert!(Saved::read(&bytes[..cut], 2).is_none(), "cut at {cut}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(Saved::read(&longer, 2).is_none());
        assert!(Saved::read(&bytes, 1).is_none() && Saved::read(&bytes, 3).is_none());
    }

    #[test]
    fn a_record_that_names_nobody_spoils_the_file() {
        let mut bytes = saved(1, 0);
        let place = bytes.len() - 4 - 4 - 12;
        assert_eq!(bytes[place..place + 4], [0; 4]);
        bytes[place] = 3;
        assert!(Saved::read(&bytes, 2).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(tail in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Saved::read(&tail, 2);
            let _ = Saved::read(&[&MAGIC[..], &[0; 24], &tail].concat(), 2);
        }
    }
}
