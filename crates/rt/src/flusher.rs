//! Marks threads through which the kernel writes dirty memory back.

/// Marks the calling thread, and all threads that it starts, as part of the kernel's path to
/// storage (`PR_SET_IO_FLUSHER`, prctl(2)): for a server of a block device or of a file system.
///
/// A kernel that is short of memory writes dirty pages back and waits for these writes. If
/// the server that carries them out requests memory meanwhile, the kernel must not make it
/// wait, because the server would wait for itself. Nor must the kernel slow the server down
/// because too many pages are dirty. Returns false if the process may not set the mark, which
/// needs `CAP_SYS_RESOURCE`.
pub fn become_io_flusher() -> bool {
    rustix::process::configure_io_flusher_behavior(true).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::is_io_flusher;

    #[test]
    fn threads_that_are_started_later_are_flushers_too() {
        let started = std::thread::spawn(|| {
            if !become_io_flusher() {
                return true;
            }
            let own = is_io_flusher().unwrap();
            own && std::thread::spawn(|| is_io_flusher().unwrap()).join().unwrap()
        });
        assert!(started.join().unwrap());
    }
}
