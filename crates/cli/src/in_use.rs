//! Devices in use: finds their users, and waits for the devices.
//!
//! A process that has a drive's image open holds a lock on it. A mounted device is refused at once,
//! as by other checkers. A device that is locked but not mounted usually becomes free soon: its
//! daemon is writing its last checkpoint, for which umount(8) does not wait. So the functions here
//! wait, and tell the user so.

use crate::raid::client;
use crate::raid::status::Status;
use anyhow::{Result, anyhow};
use furrow_emu::Holder;
use furrow_fuse::endpoint;
use furrow_rt::Rt;
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind, ZonedDevice};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Default time to wait for a locked device.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// After this time, a message names the device that the command waits for.
const SILENCE: Duration = Duration::from_secs(1);
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Opens a device, and warns of damage that was found. A device in use is refused at once, unless
/// it is an image that the daemon of its last mount is about to release: umount(8) does not wait
/// for that daemon, so a script may check right after an unmount.
///
/// # Errors
/// The errors of [`crate::holds::open`]; `Busy` says which process uses the device and what to do.
pub fn open_now(rt: &Rt, spec: &DeviceSpec, access: Access) -> Result<Rc<dyn ZonedDevice>, Error> {
    let patience = match spec {
        DeviceSpec::Image(image) if is_left(Path::new(&image.path)) => PATIENCE,
        _ => Duration::ZERO,
    };
    let opened = open(rt, spec, access, patience, crate::complain);
    let drive = opened.map_err(|error| explain(spec, error))?;
    warn(&*drive);
    Ok(drive)
}

/// Tells the damage that was found when `drive` was opened.
pub fn warn(drive: &dyn ZonedDevice) {
    for warning in drive.warnings() {
        crate::complain(&format!("warning: {warning}"));
    }
}

/// Warns, if `spec` is a drive in memory, that the `made` content is lost when the command ends.
pub fn warn_of_memory(spec: &DeviceSpec, made: &str) {
    if spec.path().is_none() {
        crate::complain(&format!(
            "warning: the drive is in this command's memory: {made} is lost when the command ends. \
             'furrow device create' makes an image that stays"
        ));
    }
}

/// Adds to the `error` of opening `spec`, if it is `Busy`, which process uses the drive and what
/// to do.
pub fn explain(spec: &DeviceSpec, error: Error) -> Error {
    let (ErrorKind::Busy, Some(path)) = (error.kind(), spec.path().map(Path::new)) else {
        return error;
    };
    match (used_by(path), spec) {
        (Some(refusal), _) => refusal,
        // The kernel reports which process has a file locked, but not which has a device open.
        (None, DeviceSpec::Image(_)) => {
            Error::new(ErrorKind::Busy, still_in_use(path, Duration::ZERO))
        }
        (None, _) => error,
    }
}

/// The refusal of a drive at `path` that a mount or an array uses, with what to do.
fn used_by(path: &Path) -> Option<Error> {
    let known = mounted(path).or_else(|| assembled(path));
    known.map(|refusal| Error::new(ErrorKind::Busy, refusal))
}

/// The mount or the array that uses a drive. It goes on until an administrator ends it.
pub enum User {
    /// The running array of this name.
    Array(String),
    /// A mount, with the refusal that names it.
    Mount(String),
}

/// The mount, or the array among `arrays`, that uses the drive at `path`. `None` if the user of the
/// drive is not known, or is another program, which may end soon.
pub fn known_user(path: &Path, arrays: &[Status]) -> Option<User> {
    let array = || client::user_among(arrays, path).map(|array| User::Array(array.array.clone()));
    mounted(path).map(User::Mount).or_else(array)
}

/// Adds to the `error` of making a drive at `path`, if it is `Busy`, the user of the drive and what
/// to do.
pub fn explain_path(path: &Path, error: Error) -> Error {
    let refusal = (error.kind() == ErrorKind::Busy).then(|| used_by(path)).flatten();
    refusal.unwrap_or(error)
}

/// Opens a device. If it is an image that is locked and not mounted, waits for `patience`; `say`
/// gets a line if the wait takes longer than a second.
///
/// # Errors
/// The errors of [`crate::holds::open`]; `Busy` names the process, if known.
pub fn open(
    rt: &Rt,
    spec: &DeviceSpec,
    access: Access,
    patience: Duration,
    say: impl Fn(&str),
) -> Result<Rc<dyn ZonedDevice>, Error> {
    let path = Path::new(spec.path().unwrap_or_default());
    let busy = |refusal: String| Err(Error::new(ErrorKind::Busy, refusal));
    let mut attempts = 0;
    let opened = wait(path, patience, say, || {
        match (crate::holds::open(rt, spec, access), spec) {
            (Err(error), DeviceSpec::Image(_)) if error.kind() == ErrorKind::Busy => {}
            (done, _) => return Some(done),
        }
        // A daemon that does not answer delays the query for arrays. So the query is made once, and
        // only if there is time to wait, which there is if a second attempt is made.
        attempts += 1;
        let array = || if attempts == 2 { assembled(path) } else { None };
        mounted(path).or_else(array).map(busy)
    });
    opened.unwrap_or_else(|| busy(still_in_use(path, patience)))
}

/// Tries until `attempt` returns a result, for at most `patience`; `say` gets a line if the wait
/// takes longer than a second.
fn wait<T>(
    path: &Path,
    patience: Duration,
    say: impl Fn(&str),
    mut attempt: impl FnMut() -> Option<T>,
) -> Option<T> {
    let (begun, mut said) = (Instant::now(), false);
    loop {
        // The last attempt begins after the whole time, however long the attempts take.
        let is_last = begun.elapsed() >= patience;
        match attempt() {
            None if !is_last => {}
            done => return done,
        }
        if !said && begun.elapsed() >= SILENCE {
            say(&format!("{}: {}: waiting for it", path.display(), holder(path)));
            said = true;
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// Waits until no process has the image at `path` open for writing. Anything other than a file
/// counts as free.
///
/// # Errors
/// An error if the image is not free after `patience`; the error names the process that has
/// it open.
pub fn until_free(path: &Path, patience: Duration) -> Result<()> {
    let free = || (!is_locked(path)).then_some(());
    wait(path, patience, crate::complain, free).ok_or_else(|| anyhow!(still_in_use(path, patience)))
}

/// Whether only the daemon of an earlier mount has the image at `path` open.
fn is_left(path: &Path) -> bool {
    mounted(path).is_none() && furrow_emu::holder(path).is_some_and(|holder| is_mount(&holder))
}

/// The reason why the file store on the locked image at `path` cannot be used now.
pub fn of_store(path: &Path) -> String {
    mounted(path).or_else(|| assembled(path)).unwrap_or_else(|| {
        format!(
            "{}: another program uses the store ({}): end it, or wait, and run this again",
            path.display(),
            holder(path)
        )
    })
}

fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    // This lock is released with the descriptor right away; a process that opens the image at this
    // moment waits.
    let shared = flock(&file, FlockOperation::NonBlockingLockShared);
    matches!(shared, Err(rustix::io::Errno::WOULDBLOCK))
}

/// The refusal for an image at `path` that is mounted.
fn mounted(path: &Path) -> Option<String> {
    let full = path.canonicalize().ok()?;
    let mounts = endpoint::mounted().ok()?;
    let mount = mounts.iter().rfind(|mount| Path::new(&mount.source) == full)?;
    if endpoint::is_dead(&mount.directory) {
        return None;
    }
    let at = mount.directory.display();
    Some(format!("{}: in use: mounted on {at}: run: furrow umount {at}", path.display()))
}

/// The refusal for an image at `path` that belongs to a running array.
fn assembled(path: &Path) -> Option<String> {
    client::user_of(path).map(|array| of_array(path, &array))
}

/// The refusal for a drive at `path` that belongs to the running array with this `status`.
fn of_array(path: &Path, status: &Status) -> String {
    let (path, array) = (path.display(), &status.array);
    format!("{path}: in use: a drive of the running array {array}: furrow raid stop {array}")
}

fn still_in_use(path: &Path, waited: Duration) -> String {
    let still = match waited.as_secs() {
        0 => String::new(),
        seconds => format!(", still after {seconds} s"),
    };
    let again = match furrow_emu::holder(path) {
        // The image is mounted in another mount namespace, such as a container, or was
        // just unmounted.
        Some(holder) if is_mount(&holder) => "it ends when nothing is mounted from it any more",
        _ => "wait until it has ended",
    };
    format!("{}: {}{still}: {again}; then run this again", path.display(), holder(path))
}

/// The process that has the file locked, as text, if the kernel reports it.
fn holder(path: &Path) -> String {
    match furrow_emu::holder(path) {
        Some(holder) if is_mount(&holder) => {
            format!("in use by the daemon of its last mount (process {})", holder.pid)
        }
        Some(holder) => holder.to_string(),
        None => "in use by another process".to_owned(),
    }
}

/// Whether `holder` is the daemon of a mount.
fn is_mount(holder: &Holder) -> bool {
    holder.command.get(1).is_some_and(|word| word == "mount")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_file_is_in_use_until_it_is_not() {
        let path = std::env::temp_dir().join(format!("furrow-in-use-{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
        let error = until_free(&path, Duration::ZERO).expect_err("locked").to_string();
        assert!(error.contains("in use by this process"), "{error}");
        let error = until_free(&path, Duration::from_secs(1)).expect_err("locked").to_string();
        assert!(error.contains("still after 1 s"), "{error}");
        flock(&file, FlockOperation::Unlock).expect("ours");
        assert!(until_free(&path, Duration::ZERO).is_ok());
        std::fs::remove_file(&path).expect("ours");
        assert!(until_free(&path, Duration::ZERO).is_ok(), "what is no file is free");
    }
}
