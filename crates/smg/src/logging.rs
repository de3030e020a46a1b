//! Where log lines go: stdout, as lines for a person or as JSON.

use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

use crate::flags::{LevelChoice, ProcessFlags};

/// Starts logging. Our own crates log at the level asked for, libraries only warnings; `RUST_LOG`
/// is heard last.
pub(crate) fn start(flags: &ProcessFlags) {
    let level = match flags.log_level {
        LevelChoice::Debug => "debug",
        LevelChoice::Info => "info",
        LevelChoice::Warn => "warn",
        LevelChoice::Error => "error",
    };
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let directives = format!("warn,smg={level},{asked}");
    let known = directives.split(',').filter_map(|one| one.parse::<Directive>().ok());
    let filter = known.fold(EnvFilter::default(), EnvFilter::add_directive);
    let colours = !flags.log_json && io::stdout().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter);
    let lines = lines.with_writer(move || OneLine { out: io::stdout(), colours });
    // A second start, as in tests, leaves the first one in place.
    let _ = if flags.log_json {
        lines.json().flatten_event(true).try_init()
    } else {
        lines.with_ansi(colours).try_init()
    };
}

/// Writes each event as one line, whatever a client or a worker put into it: control characters
/// come out escaped, so that nobody can write log lines of his own or talk to the terminal.
struct OneLine<W> {
    out: W,
    /// Colours are escape sequences, of which only the subscriber's own get here: it quotes what
    /// fields hold.
    colours: bool,
}

impl<W: Write> Write for OneLine<W> {
    /// The subscriber hands over an event at a time.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let harmless = |c: char| !c.is_control() || (self.colours && c == '\x1b');
        let mut clean = String::with_capacity(line.len() + 1);
        for c in line.chars() {
            match harmless(c) {
                true => clean.push(c),
                false => clean.extend(c.escape_default()),
            }
        }
        clean.push('\n');
        // A log that nobody reads any more is no reason to stop serving: told of an error, the
        // subscriber would panic where stderr is closed as well.
        let _ = self.out.write_all(clean.as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.out.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(event: &str, colours: bool) -> String {
        let mut line = OneLine { out: Vec::new(), colours };
        line.write_all(event.as_bytes()).unwrap();
        String::from_utf8(line.out).unwrap()
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let sly = "key=a\nFAKE\r\x1b[31m\u{9b}31m\x07 end\n";
        assert_eq!(written(sly, false), "key=a\\nFAKE\\r\\u{1b}[31m\\u{9b}31m\\u{7} end\n");
        assert_eq!(written("\x1b[2mdim\x1b[0m a\nb\n", true), "\x1b[2mdim\x1b[0m a\\nb\n");
        assert_eq!(written("plain, größer\n", false), "plain, größer\n");
    }
}
