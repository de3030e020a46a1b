//! A child process with everything it starts: killed as a whole when we let go of it.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};

use super::worker::WorkerArgs;

/// A child in a process group of its own. Dropping it kills the group, so that no error path and no Ctrl-C (which
/// drops the bench's one future) leaves a gateway behind.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    log: Option<PathBuf>,
    pub(crate) started: Instant,
}

impl Group {
    /// Starts `command` with its output in the file `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let open = || -> io::Result<(File, File)> {
            let file = File::create(log)?;
            Ok((file.try_clone()?, file))
        };
        let (out, err) =
            open().map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let started = Instant::now();
        let child = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        Ok(Self { child, log: Some(log.to_owned()), started })
    }

    /// Starts a mock worker and returns where it listens.
    pub(crate) fn worker(args: &WorkerArgs) -> Result<(Self, SocketAddr), String> {
        let (group, line) = Self::lab(&[
            "bench-worker",
            "--number",
            &args.number.to_string(),
            "--events",
            &args.events.to_string(),
            "--every-ms",
            &args.every_ms.to_string(),
        ])?;
        let port: u16 =
            line.parse().map_err(|_| "a mock worker did not say its port".to_owned())?;
        Ok((group, SocketAddr::from(([127, 0, 0, 1], port))))
    }

    /// Starts this same binary and returns the first line it prints. What it runs must call [`end_with_parent`].
    pub(crate) fn lab(words: &[&str]) -> Result<(Self, String), String> {
        let failed = |error: io::Error| format!("cannot start a worker: {error}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(words);
        // The pipe to its standard input is its life line: it ends when we do, even if we are killed.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut group =
            Self { child: command.spawn().map_err(failed)?, log: None, started: Instant::now() };
        let mut line = String::new();
        if let Some(out) = group.child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(failed)?;
        }
        Ok((group, line.trim().to_owned()))
    }

    /// Stops the whole group where it stands, or lets it go on.
    pub(crate) fn freeze(&self, frozen: bool) -> Result<(), String> {
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        kill_process_group(Pid::from_child(&self.child), signal)
            .map_err(|error| format!("cannot stop or continue a worker: {error}"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the process has ended, with the last lines it wrote.
    pub(crate) fn check_alive(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("it ended by itself ({status}){}", self.last_words())),
            Err(error) => Err(format!("it cannot be watched: {error}")),
        }
    }

    /// The end of the log, indented, for an error message.
    pub(crate) fn last_words(&self) -> String {
        let Some(log) = &self.log else {
            return String::new();
        };
        let text = fs::read(log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        if lines.is_empty() {
            return "; it wrote nothing".to_owned();
        }
        let tail = lines.get(lines.len().saturating_sub(8)..).unwrap_or_default();
        let tail: String = tail.iter().map(|line| format!("\n    {line}")).collect();
        format!("; the end of {}:{tail}", log.display())
    }
}

/// Ends this process when its standard input closes, that is when whoever started it ends, however it ends.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}

impl Drop for Group {
    fn drop(&mut self) {
        // Either may fail because the process has already ended, which is what we want.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
