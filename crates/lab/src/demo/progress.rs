//! Shows that something happens: one line that grows on a terminal, a few plain lines elsewhere.

use std::io::{self, Write};

use crate::player::{Script, Turn};

pub(super) struct Progress<'a> {
    out: &'a mut (dyn Write + Send),
    title: String,
    done: usize,
    all: usize,
    live: bool,
    /// The first write that failed; the play itself goes on to its end.
    broken: io::Result<()>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(
        out: &'a mut (dyn Write + Send),
        title: &str,
        script: &Script,
        live: bool,
    ) -> Self {
        Self {
            out,
            title: title.to_owned(),
            done: 0,
            all: script.conversations * script.turns,
            live,
            broken: Ok(()),
        }
    }

    pub(super) fn note(&mut self, _: &Turn) {
        self.done += 1;
        if self.broken.is_ok() {
            self.broken = self.show();
        }
    }

    pub(super) fn end(self) -> io::Result<()> {
        self.broken?;
        if self.live {
            writeln!(self.out)?;
        }
        self.out.flush()
    }

    fn show(&mut self) -> io::Result<()> {
        let (title, done, all) = (&self.title, self.done, self.all);
        if self.live {
            let bar = super::print::bar(done, all, 30);
            write!(self.out, "\r  {title:<16} {bar} {done:>3} of {all} turns")?;
        } else if done == all || done.is_multiple_of(all.div_ceil(4).max(1)) {
            writeln!(self.out, "  {title:<16} {done:>3} of {all} turns")?;
        }
        self.out.flush()
    }
}
