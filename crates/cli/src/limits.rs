//! Limits of the starter (ulimit) that would end a daemon or spoil an image.

use furrow_emu::OpenMode;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Error, ErrorKind};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Makes a file that would become too large an error, in this thread and those that it starts: the
/// kernel's signal would end the program in the middle of a write.
pub fn make_errors() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGXFSZ);
    // Where that is refused, the signal ends the program, as it does others.
    let _ = set.thread_block();
}

/// Lifts the limits that a daemon must not have: its files and its time are not those of the
/// program that started it.
pub fn lift() {
    lift_one(Resource::Fsize);
    lift_one(Resource::Cpu);
}

/// Raises a limit as far as this process may; what stays of it.
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

/// Refuses to write an image that is larger than the files that this process may write.
///
/// # Errors
/// `TooLarge`.
pub fn check(spec: &DeviceSpec, mode: OpenMode) -> Result<(), Error> {
    let image = match (spec, mode) {
        (DeviceSpec::Image(image), OpenMode::ReadWrite) => image,
        _ => return Ok(()),
    };
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
