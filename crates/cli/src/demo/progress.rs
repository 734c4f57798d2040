//! A line that shows the progress of a long step: redrawn on a terminal, repeated from time to time
//! in a log.

use crate::show::{bar, redraw, say};
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Items (mostly files) and bytes done so far, shared by the threads that work on them.
#[derive(Default)]
pub struct Progress {
    things: AtomicU64,
    bytes: AtomicU64,
}

impl Progress {
    /// Adds to the work done.
    pub fn add(&self, things: u64, bytes: u64) {
        self.things.fetch_add(things, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn line(&self, what: &str, (of, unit): (u64, &str), since: Instant) -> String {
        let (things, bytes) =
            (self.things.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let seconds = since.elapsed().as_secs_f64();
        let bar = bar(things as f64 * 100.0 / of.max(1) as f64);
        let left = match left(things, of, seconds) {
            Some(left) if things < of => format!(", {left:.0} s to go"),
            _ => String::new(),
        };
        let done = format!("{things} of {of} {unit}, {} MiB", bytes >> 20);
        format!("  {bar} {what}: {done}, {seconds:.1} s{left}")
    }
}

/// Seconds left at the pace so far; `None` as long as that is unknown.
fn left(done: u64, of: u64, seconds: f64) -> Option<f64> {
    let told = seconds >= 0.5 && done > 0;
    told.then(|| seconds * of.saturating_sub(done) as f64 / done as f64)
}

/// Runs `work` and shows its progress as a part of `of`: the number of all items, and their unit.
/// Returns the result of `work` and the seconds it took.
pub fn shown<T>(what: &str, of: (u64, &str), work: impl FnOnce(&Progress) -> T) -> (T, f64) {
    let (progress, done, since) = (Progress::default(), AtomicBool::new(false), Instant::now());
    let terminal = io::stderr().is_terminal();
    let (tick, ticks_per_line) = if terminal { (100, 1) } else { (100, 100) };
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ticks = 0;
            while !done.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(tick));
                ticks += 1;
                if ticks % ticks_per_line == 0 {
                    redraw(&progress.line(what, of, since), terminal);
                }
            }
        });
        // The flag is set even if `work` panics; otherwise the scope would wait forever for the
        // other thread.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let _done = Done(&done);
        work(&progress)
    });
    redraw(&progress.line(what, of, since), terminal);
    if terminal {
        say("\n");
    }
    (result, since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_bar_and_says_how_long_it_will_still_take() {
        let progress = Progress::default();
        progress.add(25, 3 << 20);
        let since = Instant::now() - Duration::from_secs(10);
        let line = progress.line("copied", (100, "files"), since);
        assert!(line.starts_with("  [##........] copied: 25 of 100 files, 3 MiB, 10."), "{line}");
        assert!(line.ends_with(" s, 30 s to go"), "{line}");
        progress.add(75, 0);
        let line = progress.line("copied", (100, "files"), since);
        assert!(line.starts_with("  [##########]") && !line.contains("to go"), "{line}");
        assert_eq!(left(0, 100, 9.0), None);
        assert_eq!(left(9, 100, 0.1), None);
    }
}
