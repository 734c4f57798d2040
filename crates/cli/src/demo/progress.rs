//! One line that says how far a long step is: redrawn on a terminal, repeated now and then in a
//! log.

use crate::show::{redraw, say};
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Things (files, mostly) and bytes done so far, shared by the threads that do them.
#[derive(Default)]
pub struct Progress {
    things: AtomicU64,
    bytes: AtomicU64,
}

impl Progress {
    /// Counts `things` and `bytes` as done.
    pub fn add(&self, things: u64, bytes: u64) {
        self.things.fetch_add(things, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn line(&self, what: &str, (of, unit): (u64, &str), since: Instant) -> String {
        let (things, bytes) =
            (self.things.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let seconds = since.elapsed().as_secs_f64();
        format!("  {what}: {things} of {of} {unit}, {} MiB, {seconds:.1} s", bytes >> 20)
    }
}

/// Runs `work` while showing its progress, `of` so many things of a kind, and returns what it
/// returned and the seconds it took.
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
        // Set also when `work` panics, or the scope would wait for the other thread forever.
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
