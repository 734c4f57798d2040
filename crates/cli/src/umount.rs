//! `furrow umount`: unmounts and waits for the daemon.

use crate::tags::Tag;
use crate::target::{mount_at, source_name, tagged};
use anyhow::{Context as _, Result, anyhow, bail};
use furrow_fuse::{Mounted, Unmount, endpoint, report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Seconds that the daemon may take for its last checkpoint.
const PATIENCE: i64 = 300;
/// Seconds between two searches for other mount namespaces that hold the mount.
const LOOK_EVERY: i64 = 2;

/// Unmount a file system
///
/// Returns when the daemon has ended: everything is durable and the device is free. If that takes
/// long, it names the reason; if another mount namespace still has the mount, it says so after two
/// seconds and fails. Also removes the dead mount of a crashed daemon. umount(8) works too, but
/// waits for the daemon only if a block device is mounted by its own name.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, or the mounted device, also as LABEL= or UUID=
    #[arg(value_name = "DIR|DEVICE")]
    target: PathBuf,
    /// Detach the mount now, even if it is in use; it ends when its last user is gone
    #[arg(short, long)]
    lazy: bool,
    /// Cut the mount off now, also from a drive that does not answer: programs that use it get
    /// errors, and changes that are not durable may be lost
    #[arg(short, long, conflicts_with = "lazy")]
    force: bool,
}

/// Times for messages while the command waits until everything is durable: before the first
/// message, and between later messages.
const SILENT: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];
/// Time that the daemon of a mount that was cut off may take to end.
const ENDS_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Number of retries for a busy mount, one each [`TRY_EVERY`], before an error.
const BUSY_TRIES: u32 = 20;
const TRY_EVERY: Duration = Duration::from_millis(25);

/// Runs the command.
pub fn run(args: &Args, _out: &mut dyn Write) -> Result<u8> {
    let Mounted { directory, number, .. } = find(&args.target)?;
    if endpoint::is_dead(&directory) {
        unmount(&directory, Unmount::Lazy)?;
        return Ok(0);
    }
    if args.force {
        return cut_off(&directory).map(|()| 0);
    }
    // The sync comes first, while the user still waits for errors.
    let synced = sync(&directory, args.lazy);
    if let Some(error) = synced.as_ref().err().filter(|error| error.is::<report::NoRoot>()) {
        // This command cannot sync without root, but the daemon makes everything durable when the
        // mount ends.
        crate::complain(&format!("{error}"));
        let how = if args.lazy { Unmount::Lazy } else { Unmount::Plain };
        return unmount(&directory, how).map(|()| 0);
    }
    if !args.lazy {
        synced.as_ref().map_err(|error| {
            anyhow!(
                "{error:#}; still mounted, as not everything is durable: to unmount nevertheless \
                 run: furrow umount -l {}",
                directory.display()
            )
        })?;
    }
    let pid = report::ask_status(&directory).ok().map(|status| status.info.pid);
    let daemon = pid.and_then(|pid| Some((pid, watch(pid)?)));
    if args.lazy {
        unmount(&directory, Unmount::Lazy)?;
    } else {
        unmount_patiently(&directory)?;
    }
    match daemon {
        Some((pid, daemon)) if !args.lazy => wait(&daemon, &directory, (pid, &number))?,
        _ => {}
    }
    synced?;
    Ok(0)
}

/// Makes everything durable, and prints a message if that takes long. Before a lazy unmount, gives
/// up instead of waiting longer. If the drive does not answer, fails without waiting: a process
/// that waits in the kernel for such a mount cannot even be killed.
fn sync(directory: &Path, lazy: bool) -> Result<()> {
    let at = directory.display();
    let silence = || report::ask_status(directory).ok().and_then(|status| status.silence);
    if let Some(report::Silence { seconds, waiting }) = silence() {
        bail!(
            "{at}: its drive has not answered for {seconds} s ({waiting}): wait until it does, or \
             run furrow umount -f {at}, which loses what is not durable"
        );
    }
    let (tell, told) = channel();
    let asked = directory.to_owned();
    // The send fails if this function has returned before the sync ended.
    std::thread::spawn(move || drop(tell.send(report::ask_sync(&asked))));
    let (mut pause, begun) = (SILENT[0], Instant::now());
    loop {
        match told.recv_timeout(pause) {
            Ok(synced) => return synced,
            Err(RecvTimeoutError::Disconnected) => bail!("{at}: the thread that syncs died"),
            Err(RecvTimeoutError::Timeout) => pause = SILENT[1],
        }
        let why = silence().map_or_else(String::new, |silence| {
            format!(": its drive has not answered for {} s ({})", silence.seconds, silence.waiting)
        });
        let seconds = begun.elapsed().as_secs();
        if lazy {
            bail!("{at}: not everything is durable after {seconds} s{why}");
        }
        crate::complain(&format!(
            "{at}: waiting for {seconds} s until everything is durable{why}; to stop waiting, and \
             lose what is not durable: furrow umount -f {at}"
        ));
    }
}

/// Unmounts without asking the daemon to write anything, and waits a little for its end.
fn cut_off(directory: &Path) -> Result<()> {
    let pid = report::ask_status(directory).ok().map(|status| status.info.pid);
    let daemon = pid.and_then(watch);
    unmount(directory, Unmount::Force)?;
    let Some((pid, daemon)) = pid.zip(daemon) else { return Ok(()) };
    match poll(&mut [PollFd::new(&daemon, PollFlags::IN)], Some(&ENDS_WITHIN)) {
        Ok(1..) => Ok(()),
        _ => bail!(
            "{}: cut off, but its daemon still waits for the drive and keeps it in use: to end \
             it, and lose what is not durable, run: kill -9 {pid}",
            directory.display()
        ),
    }
}

fn find(target: &Path) -> Result<Mounted> {
    let mounted = endpoint::mounted()?;
    if let Some(tag) = target.to_str().and_then(Tag::parse) {
        return match tagged(&mounted, &tag)[..] {
            [mount] => Ok(mount.clone()),
            [] => bail!("{}: no mounted file system has it", target.display()),
            _ => bail!("{}: several mounts have it: name one", target.display()),
        };
    }
    if let Some(mount) = mount_at(&mounted, target) {
        return Ok(mount.clone());
    }
    // The target is a directory reached through links, or a device.
    let full = target.canonicalize();
    let source = target.to_str().map(source_name);
    mounted
        .iter()
        .rfind(|mount| {
            full.as_ref().is_ok_and(|full| mount.directory == *full)
                || Some(&mount.source) == source.as_ref()
        })
        .cloned()
        .ok_or_else(|| match full {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                anyhow!("{}: no such directory or device", target.display())
            }
            _ => anyhow!("{}: no Furrow file system is mounted there", target.display()),
        })
}

fn unmount(directory: &Path, how: Unmount) -> Result<()> {
    endpoint::unmount(directory, how).map_err(|errno| match errno {
        Errno::BUSY => anyhow!(
            "{0}: in use: close its files and leave its directories (fuser -vm {0} lists the \
             processes), or unmount with -l",
            directory.display()
        ),
        Errno::PERM => anyhow!("{}: unmounting needs root", directory.display()),
        _ => anyhow!("{}: {errno}", directory.display()),
    })
}

/// Unmounts, and retries for a while: a program that has just ended may appear to use the mount for
/// a moment longer.
fn unmount_patiently(directory: &Path) -> Result<()> {
    for _ in 0..BUSY_TRIES {
        if endpoint::unmount(directory, Unmount::Plain).is_ok() {
            return Ok(());
        }
        std::thread::sleep(TRY_EVERY);
    }
    unmount(directory, Unmount::Plain)
}

fn watch(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().filter(|pid| *pid as u32 != std::process::id())?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits for the end of the daemon `pid`. The daemon ends when its file system, whose device has
/// this `number`, is no longer mounted anywhere.
fn wait(daemon: &OwnedFd, directory: &Path, (pid, number): (u32, &str)) -> Result<()> {
    let mut fds = [PollFd::new(daemon, PollFlags::IN)];
    for _ in 0..PATIENCE / LOOK_EVERY {
        match poll(&mut fds, Some(&Timespec { tv_sec: LOOK_EVERY, tv_nsec: 0 })) {
            Err(Errno::INTR) => {}
            Ok(0) => {
                if let Some(holder) = endpoint::held_elsewhere(number).first() {
                    bail!(
                        "{}: unmounted here, but {holder} has it in another mount namespace: the \
                         device stays in use until it is unmounted there too; to cut that off, \
                         run: kill {pid}",
                        directory.display()
                    );
                }
            }
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno).context("waiting for the daemon"),
        }
    }
    bail!(
        "{}: unmounted, but its daemon has not ended after {PATIENCE} s: see its log",
        directory.display()
    )
}
