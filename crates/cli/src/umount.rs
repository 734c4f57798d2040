//! `furrow umount`: end a mount and see it end.

use crate::in_use;
use crate::target::{mount_at, source_name};
use anyhow::{Context as _, Result, anyhow, bail};
use furrow_fuse::{Mounted, Unmount, endpoint, report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the daemon may take for its last checkpoint.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a daemon that was killed may take to be gone.
const BURIAL: Duration = Duration::from_secs(10);
/// After so long, who waits is told what for.
const SILENCE: Duration = Duration::from_secs(2);

/// Unmount a file system
///
/// Returns when the daemon has ended: everything is durable and the device is free. Also takes
/// off a dead mount that a crashed daemon left behind. umount(8) works too, but does not wait for
/// the daemon, unless /sbin/umount.fuse.furrow is a link to this command.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, or the device mounted
    #[arg(value_name = "DIR|DEVICE")]
    target: PathBuf,
    /// Take it off the tree now; it ends when its last user is gone
    #[arg(short, long)]
    lazy: bool,
}

/// A daemon that is watched until it ends.
struct Daemon {
    pid: u32,
    process: OwnedFd,
}

/// Runs the command.
pub fn run(args: &Args, _out: &mut dyn Write) -> Result<u8> {
    let mount = find(&args.target)?;
    let directory = &mount.directory;
    if endpoint::is_dead(directory) {
        return take_off(&mount);
    }
    // Errors must be said while somebody can still hear them.
    let synced = report::ask_sync(directory);
    let daemon = report::ask_status(directory).ok().and_then(|status| watch(status.info.pid));
    // A daemon that was killed a moment ago may die only now, with these questions unanswered.
    if (synced.is_err() || daemon.is_none()) && endpoint::is_dead(directory) {
        return take_off(&mount);
    }
    if !args.lazy {
        synced.as_ref().map_err(|error| {
            anyhow!(
                "{error:#}; still mounted, as not everything is durable: to give that up run: \
                 furrow umount -l {}",
                directory.display()
            )
        })?;
    }
    unmount(directory, if args.lazy { Unmount::Lazy } else { Unmount::Plain })?;
    match daemon {
        Some(daemon) if args.lazy => linger(&daemon, directory)?,
        Some(daemon) => wait(&daemon, directory)?,
        // In another PID namespace, or not ours to watch: its lock on the device tells.
        None if !args.lazy => in_use::until_free(Path::new(&mount.source), PATIENCE)?,
        None => {}
    }
    synced?;
    Ok(0)
}

/// Takes off a mount whose daemon is dead, and sees its device free.
fn take_off(mount: &Mounted) -> Result<u8> {
    unmount(&mount.directory, Unmount::Lazy)?;
    // The kernel may still be taking the process apart, its lock on the device last.
    in_use::until_free(Path::new(&mount.source), BURIAL)?;
    Ok(0)
}

fn find(target: &Path) -> Result<Mounted> {
    let mounted = endpoint::mounted()?;
    if let Some(mount) = mount_at(&mounted, target) {
        return Ok(mount.clone());
    }
    // A directory reached through links, or a device.
    let full = target.canonicalize().ok();
    let source = target.to_str().map(source_name);
    mounted
        .into_iter()
        .rfind(|mount| {
            Some(&mount.directory) == full.as_ref() || Some(&mount.source) == source.as_ref()
        })
        .ok_or_else(|| anyhow!("{}: no Furrow file system is mounted there", target.display()))
}

fn unmount(directory: &Path, how: Unmount) -> Result<()> {
    match endpoint::unmount(directory, how) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => bail!(
            "{0}: in use: close its files and leave its directories (fuser -vm {0} lists who), \
             or unmount with -l",
            directory.display()
        ),
        Err(Errno::PERM) => bail!("{}: unmounting needs root", directory.display()),
        // Somebody else was faster: a signal to the daemon, or umount(8).
        Err(Errno::INVAL | Errno::NOENT)
            if mount_at(&endpoint::mounted()?, directory).is_none() =>
        {
            Ok(())
        }
        Err(errno) => bail!("{}: {errno}", directory.display()),
    }
}

fn watch(pid: u32) -> Option<Daemon> {
    let id = i32::try_from(pid).ok().filter(|_| pid != std::process::id())?;
    let process = pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()?;
    Some(Daemon { pid, process })
}

/// Waits until the daemon has ended, and says so if that takes its time.
fn wait(daemon: &Daemon, directory: &Path) -> Result<()> {
    let place = directory.display();
    if ends(daemon, SILENCE)? {
        return Ok(());
    }
    crate::complain(&format!(
        "{place}: unmounted; its daemon (process {}) is writing its last checkpoint",
        daemon.pid
    ));
    if ends(daemon, PATIENCE)? {
        return Ok(());
    }
    bail!(
        "{place}: unmounted, but its daemon (process {}) has not ended after {} s: see its log",
        daemon.pid,
        PATIENCE.as_secs()
    )
}

/// After a lazy unmount nobody can say when the daemon ends: says that it has not.
fn linger(daemon: &Daemon, directory: &Path) -> Result<()> {
    if !ends(daemon, SILENCE)? {
        crate::complain(&format!(
            "{}: taken off; still in use, so its daemon (process {}) goes on until it is not",
            directory.display(),
            daemon.pid
        ));
    }
    Ok(())
}

/// True if the daemon ends within `patience`.
fn ends(daemon: &Daemon, patience: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(&daemon.process, PollFlags::IN)];
    let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
    loop {
        match poll(&mut fds, Some(&limit)) {
            Err(Errno::INTR) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(errno) => return Err(errno).context("waiting for the daemon"),
        }
    }
}

/// Turns the call of an unmount helper, `umount.fuse.furrow DIR [-flnrv] [-N NAMESPACE]
/// [-t TYPE]`, into that of this command. `None` if the program was called by another name.
pub fn helper(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    if !matches!(name, "umount.furrow" | "umount.fuse.furrow") {
        return None;
    }
    let mut call: Vec<OsString> = vec!["furrow".into(), "umount".into()];
    let mut places = Vec::new();
    let mut rest = arguments.iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-t" | "-N") => drop(rest.next()),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        'l' => call.push("--lazy".into()),
                        // Force is for servers that do not answer; no mtab, read-only if busy,
                        // verbose: nothing to do.
                        'f' | 'n' | 'r' | 'v' => {}
                        other => call.push(format!("-{other}").into()),
                    }
                }
            }
            _ => places.push(argument.clone()),
        }
    }
    call.push("--".into());
    call.extend(places);
    Some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_call_becomes_an_unmount() {
        let words =
            |text: &str| -> Vec<OsString> { text.split_whitespace().map(OsString::from).collect() };
        let call = helper(&words("/sbin/umount.fuse.furrow /mnt -vl -t fuse.furrow"));
        assert_eq!(call.unwrap(), words("furrow umount --lazy -- /mnt"));
        assert_eq!(helper(&words("/usr/bin/furrow umount /mnt")), None);
        assert_eq!(helper(&[]), None);
    }
}
