//! The file in which pins outlive a restart, written beside and renamed over. What is in it is told
//! in `smg_decide::pins::saved`.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use smg_decide::keys::scope::Hashing;
use smg_decide::pins::saved::{self, Head, Saved};

use super::Session;
use crate::fleet::Roster;

/// One writer at a time: the last snapshot of a drain would meet that of the minute.
static WRITING: Mutex<()> = Mutex::new(());

/// Writes all pins; returns how many.
pub(super) fn save(session: &Session, file: &Path, fleet: &Roster) -> io::Result<usize> {
    let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let (beside, out) = open_beside(file)?;
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let head = Head {
        secret: session.hashing.secret(),
        written: unix_secs(),
        now: session.now(),
        workers: &fleet.known(),
    };
    let pins = saved::write(&mut out, &head, &[&session.pins])?;
    out.into_inner()?.sync_all()?;
    fs::rename(&beside, file)?;
    Ok(pins)
}

/// Whether the file could be written, asked before anybody relies on it.
///
/// # Errors
/// Those of opening a file beside it, and of reading it if it is there.
pub fn try_out(file: &Path) -> io::Result<()> {
    if file.exists() {
        File::open(file).and_then(|there| match there.metadata()?.is_file() {
            true => Ok(()),
            false => Err(io::Error::other("it is no file")),
        })?;
    }
    let (beside, _) = open_beside(file)?;
    fs::remove_file(beside)
}

/// A new file beside, which only its owner may read: whoever knows the secret in it can aim keys at
/// each other's pins. It is this process's own, even where another one still writes the same
/// snapshot, and never one that somebody has left there.
fn open_beside(file: &Path) -> io::Result<(PathBuf, File)> {
    let beside = beside(file);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    Ok((beside, out))
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().map_or_else(OsString::new, OsString::from);
    name.push(format!(".{}.new", std::process::id()));
    file.with_file_name(name)
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
    // Earlier versions kept the pins of `manual` apart.
    let Some(saved) = [1, 2].into_iter().find_map(|tables| Saved::read(&bytes, tables)) else {
        tracing::warn!(file = %file.display(), "sticky snapshot is damaged; starting cold");
        return;
    };
    let ids: Vec<_> = saved.workers.iter().map(|url| fleet.intern(url)).collect();
    let age = u32::try_from(unix_secs().saturating_sub(saved.written)).unwrap_or(u32::MAX);
    let then = session.now().saturating_sub(age);
    session.hashing = Hashing::new(saved.secret);
    for table in 0..2 {
        saved.restore(table, &session.pins, &ids, then);
    }
    let pins = session.entries();
    tracing::info!(pins, file = %file.display(), "sticky snapshot read");
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
    use smg_decide::keys::scope::{KeyHash, Scope};
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

    struct Place(PathBuf);

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
            assert_eq!(
                Session::new(rules(&place.0), &fleet, Clock::start()).entries(),
                0,
                "cut at {cut}"
            );
        }
        fs::write(&place.0, b"something else entirely, and long enough to look at").unwrap();
        assert_eq!(Session::new(rules(&place.0), &fleet, Clock::start()).entries(), 0);
    }

    #[tokio::test]
    async fn a_snapshot_is_for_its_owner_alone_and_touches_no_other_file() {
        let dir = Place::new("dir");
        fs::create_dir(&dir.0).unwrap();
        let names = ["pins", "pins.a", "pins.b", "pins.new"].map(|name| dir.0.join(name));
        let fleet = Roster::new(placement(PolicyName::RoundRobin), Assignment::Random);
        for (n, file) in (1_u32..).zip(&names) {
            let session = Session::new(rules(file), &fleet, Clock::start());
            for key_of in 0..n {
                let id = Some(fleet.intern("http://a"));
                session.pins.turn(key(&session, key_of), id, session.now(), |_| true);
            }
            // Something left over, open to everybody.
            fs::write(beside(file), b"x").unwrap();
            save(&session, file, &fleet).unwrap();
            let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(file).unwrap());
            assert_eq!(mode & 0o777, 0o600);
        }
        for (n, file) in (1..).zip(&names) {
            assert_eq!(
                Session::new(rules(file), &fleet, Clock::start()).entries(),
                n,
                "{}",
                file.display()
            );
        }
        let here = fs::read_dir(&dir.0).unwrap().count();
        assert_eq!(here, names.len(), "nothing is left beside");
        fs::remove_dir_all(&dir.0).unwrap();
    }

    #[test]
    fn a_place_where_nothing_can_be_written_is_told_at_once() {
        let dir = std::env::temp_dir();
        for bad in [dir.join("no-such-directory/pins"), dir.clone(), PathBuf::from("/")] {
            assert!(try_out(&bad).is_err(), "{}", bad.display());
        }
        let place = Place::new("tried");
        try_out(&place.0).unwrap();
        assert!(!place.0.exists(), "trying leaves nothing");
    }
}
