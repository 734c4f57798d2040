//! This process: its forks, its priority, its configuration for engines, its locks.

use crate::error::{Failure, Outcome, furrow_kind};
use furrow_rt::Config;
use std::fs::File;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// True in the child of a fork.
static FORKED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    // POSIX: https://pubs.opengroup.org/onlinepubs/9699919799/functions/pthread_atfork.html
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Registers the handler for forks.
pub(crate) fn notice_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function that is passed lives as long as the process; it stores to an atomic,
        // which is safe between fork and exec.
        let failed = unsafe { pthread_atfork(None, None, Some(in_child)) };
        assert!(failed == 0, "no memory to register the handler of forks");
    });
}

/// Fails if this process is the child of a fork.
pub(crate) fn check_fork() -> Outcome {
    if !FORKED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let message = "the store belongs to the process that this one was forked from: a program that \
                   forks and uses stores must exec";
    Err(Failure::new(furrow_kind::FURROW_FORKED, message))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded values are consistent after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The nice value of this thread: a higher value is a lower priority.
pub(crate) fn nice() -> i32 {
    // On Linux this is the value of the calling thread.
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// Configuration with real time and an unpredictable seed.
pub(crate) fn config() -> Outcome<Config> {
    let mut seed = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed));
    read.map_err(|why| Failure::new(furrow_kind::FURROW_IO, format!("/dev/urandom: {why}")))?;
    Ok(Config { seed: u64::from_ne_bytes(seed), ..Config::real() })
}
