//! Limits of the starter (ulimit) that would end a daemon or spoil an image.

use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Turns the signal for a file that exceeds its size limit into an error, in this thread and the
/// threads that it starts: the signal would end the program in the middle of a write.
pub fn make_errors() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGXFSZ);
    // If the signal cannot be blocked, it ends the program, as it ends any other program.
    let _ = set.thread_block();
}

/// Lifts the limits on file size and CPU time: the limits of the program that started a daemon must
/// not apply to the daemon.
pub fn lift() {
    lift_one(Resource::Fsize);
    lift_one(Resource::Cpu);
}

/// Raises a limit as far as this process may. Returns the limit that remains; `None` if there
/// is none.
fn lift_one(resource: Resource) -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(resource);
    current?;
    let none = Rlimit { current: None, maximum: None };
    let most = Rlimit { current: maximum, maximum };
    match setrlimit(resource, none).or_else(|_| setrlimit(resource, most)) {
        Ok(()) => getrlimit(resource).current,
        Err(_) => current,
    }
}

/// Refuses an amount of memory that exceeds the memory of this machine: the kernel would run out of
/// memory and kill the daemon in the middle of its work. Refuses nothing if the kernel does not
/// report its memory.
///
/// # Errors
/// The reason, to be appended to the amount.
pub fn check_memory(bytes: u64) -> Result<(), String> {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match total_memory(&told) {
        Some(total) if bytes > total => {
            Err(format!("more than the memory of this machine, {}", crate::show::bytes(total)))
        }
        _ => Ok(()),
    }
}

/// The machine's memory in bytes, from the text of /proc/meminfo.
fn total_memory(told: &str) -> Option<u64> {
    let line = told.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Refuses to write an image that is larger than the files that this process may write.
///
/// # Errors
/// `TooLarge` for such an image.
pub fn check(spec: &DeviceSpec, access: Access) -> Result<(), Error> {
    let DeviceSpec::Image(image) = spec else { return Ok(()) };
    if !access.writes() {
        return Ok(());
    }
    let Some(most) = lift_one(Resource::Fsize) else { return Ok(()) };
    let length = std::fs::metadata(&image.path).ok().filter(|meta| meta.is_file());
    match length.map(|meta| meta.len()) {
        Some(length) if length > most => Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "{}: an image of {length} bytes, but this process may write files only up to \
                 {most} bytes: raise the limit (ulimit -f), or run this as root",
                image.path
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_memory_is_taken_than_there_is() {
        assert_eq!(total_memory("MemTotal:  2048 kB\nMemFree: 9 kB\n"), Some(2 << 20));
        for wrong in ["", "MemTotal:", "MemTotal: x kB", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(total_memory(wrong), None, "{wrong}");
        }
        assert!(check_memory(1 << 20).is_ok());
        let refused = check_memory(1 << 60).expect_err("an exbibyte");
        assert!(refused.contains("memory of this machine"), "{refused}");
    }
}
