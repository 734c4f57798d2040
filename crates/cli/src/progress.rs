//! A line on the terminal that shows the progress of a long command.

use crate::show;
use std::cell::Cell;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(200);

/// The progress of a command.
pub struct Progress {
    what: &'static str,
    shown: bool,
    next: Cell<Instant>,
}

impl Progress {
    /// The progress of a command that does `what`; shows nothing if the output is JSON.
    pub fn new(what: &'static str, json: bool) -> Progress {
        let shown = !json && std::io::stderr().is_terminal();
        Progress { what, shown, next: Cell::new(Instant::now() + EVERY) }
    }

    /// Shows the progress: `done` of `of` bytes; `of` is 0 if the total is unknown.
    pub fn at(&self, done: u64, of: u64) {
        self.tell(|| match of {
            0 => format!("{}: {}", self.what, show::bytes(done)),
            of => {
                let bar = show::bar(done as f64 * 100.0 / of as f64);
                let (done, of) = (show::bytes(done), show::bytes(of));
                format!("{bar} {}: {done} of {of}", self.what)
            }
        });
    }

    /// Shows `line`, unless another line was shown less than 200 ms ago.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if self.shown && Instant::now() >= self.next.get() {
            self.next.set(Instant::now() + EVERY);
            show::redraw(&line(), true);
        }
    }

    /// Removes the line when the work has ended.
    pub fn end(&self) {
        if self.shown {
            show::redraw("", true);
        }
    }
}
