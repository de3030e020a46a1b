//! Pins that outlive a restart: one file, written beside and renamed over.
//!
//! The file holds the hashing secret, the workers' addresses and a record for each pin, never a key.
//! All numbers are little-endian.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use smg_decide::fleet::WorkerId;
use smg_decide::keys::scope::{Hashing, KeyHash};
use smg_decide::pins::Pin;
use smg_decide::pins::records::Record;
use smg_decide::pins::table::Table;

use super::Session;
use crate::fleet::Roster;

/// First bytes of a snapshot of this layout.
const MAGIC: &[u8; 8] = b"smgpins1";
/// Bytes of one record: a hash, two places in the list of workers, idle seconds.
const RECORD: usize = 28;
/// Longest URL that is believed.
const MAX_URL: usize = 8192;

/// Writes all pins; returns how many.
pub(super) fn save(session: &Session, file: &Path, fleet: &Roster) -> io::Result<usize> {
    let beside = file.with_extension("new");
    // Whoever reads the secret can aim keys at each other's pins.
    let out =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    let mut out = BufWriter::new(out);
    let workers = fleet.known();
    out.write_all(MAGIC)?;
    out.write_all(&session.hashing.secret())?;
    out.write_all(&unix_secs().to_le_bytes())?;
    out.write_all(&length(workers.len())?)?;
    for (_, url) in &workers {
        out.write_all(&length(url.len())?)?;
        out.write_all(url.as_bytes())?;
    }
    let places = workers.iter().zip(0_u32..).map(|((id, _), place)| (*id, place)).collect();
    let pins = table(&mut out, &session.pins, &places, session.now())?
        + table(&mut out, &session.manual, &places, session.now())?;
    out.into_inner()?.sync_all()?;
    fs::rename(&beside, file)?;
    Ok(pins)
}

fn table(
    out: &mut BufWriter<File>,
    table: &Table,
    places: &HashMap<WorkerId, u32>,
    now: u32,
) -> io::Result<usize> {
    let mut all = Vec::new();
    let mut count = 0_usize;
    for shard in table.records() {
        for Record { key, pin, used } in shard {
            let (primary, candidate) = pin.workers();
            let (Some(primary), Some(candidate)) = (places.get(&primary), places.get(&candidate))
            else {
                continue;
            };
            let [a, b, c, d] = key.words();
            let words = [a, b, c, d, *primary, *candidate, now.saturating_sub(used)];
            all.extend(words.into_iter().flat_map(u32::to_le_bytes));
            count += 1;
        }
    }
    out.write_all(&(count as u64).to_le_bytes())?;
    out.write_all(&all)?;
    Ok(count)
}

/// Takes what the file holds. A file that is missing, cut short or of another layout is a cold
/// start, not an error.
pub(super) fn restore(session: &mut Session, file: &Path, fleet: &Roster) {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "sticky snapshot not read; starting cold");
            return;
        }
    };
    if let Some(pins) = read(session, &bytes, fleet) {
        tracing::info!(pins, file = %file.display(), "sticky snapshot read");
    } else {
        tracing::warn!(file = %file.display(), "sticky snapshot is damaged; starting cold");
    }
}

fn read(session: &mut Session, bytes: &[u8], fleet: &Roster) -> Option<usize> {
    let mut rest = Rest(bytes);
    if rest.take(MAGIC.len())? != MAGIC {
        return None;
    }
    let secret = rest.take(16)?.try_into().ok()?;
    let written = u64::from_le_bytes(rest.take(8)?.try_into().ok()?);
    let age = u32::try_from(unix_secs().saturating_sub(written)).unwrap_or(u32::MAX);
    let mut workers = Vec::new();
    for _ in 0..rest.word()? {
        let length = rest.word()? as usize;
        let url = std::str::from_utf8(rest.take(length.min(MAX_URL))?).ok()?;
        workers.push(fleet.intern(url));
    }
    session.hashing = Hashing::new(secret);
    let count =
        restore_table(&mut rest, &session.pins, &workers, session.now().saturating_sub(age))?
            + restore_table(
                &mut rest,
                &session.manual,
                &workers,
                session.now().saturating_sub(age),
            )?;
    rest.0.is_empty().then_some(count)
}

fn restore_table(
    rest: &mut Rest<'_>,
    table: &Table,
    workers: &[WorkerId],
    written: u32,
) -> Option<usize> {
    let count = usize::try_from(u64::from_le_bytes(rest.take(8)?.try_into().ok()?)).ok()?;
    let mut records = Rest(rest.take(count.checked_mul(RECORD)?)?);
    for _ in 0..count {
        let key = [records.word()?, records.word()?, records.word()?, records.word()?];
        let primary = *workers.get(records.word()? as usize)?;
        let candidate = *workers.get(records.word()? as usize)?;
        let used = written.saturating_sub(records.word()?);
        let pin = Pin::of_two(primary, candidate);
        table.restore(Record { key: KeyHash::from_words(key), pin, used });
    }
    Some(count)
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
}

fn length(of: usize) -> io::Result<[u8; 4]> {
    u32::try_from(of).map(u32::to_le_bytes).map_err(io::Error::other)
}

fn unix_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::settings::testing::placement;
    use crate::settings::{PolicyName, Sticky};
    use smg_decide::fleet::Leg;
    use smg_decide::keys::scope::Scope;
    use smg_decide::pins::table::Turn;
    use smg_decide::place::Assignment;

    fn rules(file: &Path) -> Sticky {
        Sticky {
            key_override: true,
            headers: Vec::new(),
            assignment: None,
            eviction: None,
            max_keys: None,
            snapshot: Some(file.to_owned()),
        }
    }

    fn key(session: &Session, n: u32) -> KeyHash {
        let scope = Scope { model: Some("m"), leg: Leg::Regular };
        session.hashing.hash(scope, &n.to_le_bytes())
    }

    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let file = std::env::temp_dir().join(format!("smg-{}-{name}", std::process::id()));
            let _ = fs::remove_file(&file);
            Self(file)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[tokio::test]
    async fn a_restart_keeps_every_pin_whatever_the_order_of_workers() {
        let place = Place::new("restart");
        let fleet = Roster::new(placement(PolicyName::RoundRobin), Assignment::Random);
        let session = Session::new(rules(&place.0), &fleet, Clock::start());
        let urls = ["http://a", "http://b", "http://c"];
        for n in 0..3000 {
            let id = fleet.intern(urls[n as usize % 3]);
            let table = if n % 2 == 0 { &session.pins } else { &session.manual };
            let turn = table.turn(key(&session, n), Some(id), session.now(), |_| true);
            assert!(matches!(turn, Turn::Fly { .. }));
        }
        assert_eq!(save(&session, &place.0, &fleet).unwrap(), 3000);

        let other = Roster::new(placement(PolicyName::RoundRobin), Assignment::Random);
        let ids = ["http://c", "http://a", "http://b"].map(|url| (url, other.intern(url)));
        let back = Session::new(rules(&place.0), &other, Clock::start());
        assert_eq!(back.entries(), 3000);
        for n in 0..3000 {
            let url = urls[n as usize % 3];
            let wanted = ids.iter().find(|(known, _)| *known == url).unwrap().1;
            let table = if n % 2 == 0 { &back.pins } else { &back.manual };
            let turn = table.turn(key(&back, n), None, back.now(), |_| true);
            assert!(matches!(turn, Turn::Fly { worker, .. } if worker == wanted), "{n}: {turn:?}");
        }
    }

    #[tokio::test]
    async fn a_damaged_file_is_a_cold_start() {
        let place = Place::new("damaged");
        let fleet = Roster::new(placement(PolicyName::RoundRobin), Assignment::Random);
        let session = Session::new(rules(&place.0), &fleet, Clock::start());
        let id = fleet.intern("http://a");
        session.pins.turn(key(&session, 1), Some(id), session.now(), |_| true);
        save(&session, &place.0, &fleet).unwrap();
        let whole = fs::read(&place.0).unwrap();
        for cut in [0, 7, 20, whole.len() / 2, whole.len() - 1] {
            fs::write(&place.0, &whole[..cut]).unwrap();
            let _ = Session::new(rules(&place.0), &fleet, Clock::start());
        }
        fs::write(&place.0, b"something else entirely, and long enough to look at").unwrap();
        assert_eq!(Session::new(rules(&place.0), &fleet, Clock::start()).entries(), 0);
    }
}
