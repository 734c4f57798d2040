//! `furrow mount`: mounts a file system.

mod daemon;
mod options;
mod remount;

use self::daemon::Plan;
use crate::tags;
use crate::target::{mount_at, source_name};
use anyhow::{Result, anyhow};
use furrow_fuse::{Mounted, endpoint};
use furrow_zone::spec::DeviceSpec;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Statuses of mount(8).
const USAGE: u8 = 1;
const FAILURE: u8 = 32;

/// Mount a file system
///
/// Returns once the mount works; a daemon serves it until it is unmounted (furrow umount,
/// umount(8), or SIGTERM to the daemon). Needs root and /dev/fuse. As /usr/sbin/mount.fuse.furrow
/// (a link to this program) it serves mount -t fuse.furrow and fstab.
#[derive(clap::Args)]
#[command(after_long_help = options::help())]
pub struct Args {
    /// The drive: an image (disk.zns), a zoned block device, any device with soft zones, or
    /// LABEL=NAME or UUID=UUID for the block device with that file system
    device: String,
    /// Mount point
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Options, separated by commas: those below, and those of mount(8)
    #[arg(short, long, value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Stay in the foreground, with messages on standard error
    #[arg(long, short_alias = 'f')]
    foreground: bool,
    /// Append the daemon's messages to FILE instead of the journal
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    log: Option<PathBuf>,
    /// Report on standard output when the mount works; the daemon is started with this option.
    #[arg(long, hide = true, requires = "foreground")]
    ready: bool,
    /// Check the arguments only (mount -f).
    #[arg(long, hide = true)]
    fake: bool,
}

/// The options after `-o`, for completions: those that take a value end in `=`.
pub fn option_words() -> Vec<String> {
    options::words()
}

/// Runs the command.
pub fn run(args: &Args, _out: &mut dyn Write) -> Result<u8> {
    if args.ready {
        // The daemon begins a new session, so that signals from the terminal do not reach it.
        let _ = rustix::process::setsid();
    }
    let refuse = |status: u8, error: anyhow::Error| {
        let message = format!("{error:#}");
        if args.ready {
            crate::daemon::say_failed(status, &message);
        }
        crate::complain(&message);
        status
    };
    let device = match tags::device_of(&args.device) {
        Ok(device) => device,
        Err(error) => return Ok(refuse(FAILURE, error)),
    };
    let plan = match plan(args, device) {
        Ok(plan) => plan,
        Err(error) => return Ok(refuse(USAGE, error)),
    };
    if plan.options.remount {
        return Ok(match remount::remount(&plan) {
            Ok(()) => 0,
            Err(error) => refuse(FAILURE, error),
        });
    }
    if let Err(error) = check(&plan) {
        return Ok(refuse(FAILURE, error));
    }
    if args.fake {
        return Ok(0);
    }
    if !args.foreground {
        let (status, message) =
            crate::daemon::start(&again(args, &plan), args.log.as_deref(), FAILURE)?;
        message.lines().for_each(crate::complain);
        return Ok(status);
    }
    let ready = |note: String| match args.ready {
        true => crate::daemon::say_ready(&note),
        false => Ok(()),
    };
    match daemon::serve(plan, ready) {
        Ok(()) => Ok(0),
        // After `ready` the parent does not read the pipe any more, and standard output is
        // /dev/null.
        Err(error) => Ok(refuse(FAILURE, error)),
    }
}

fn plan(args: &Args, device: String) -> Result<Plan> {
    let options =
        options::parse(args.options.iter().map(String::as_str)).map_err(|why| anyhow!(why))?;
    device.parse::<DeviceSpec>()?;
    let source = options.fsname.clone().unwrap_or_else(|| source_name(&device));
    // The path is made absolute, since the daemon changes its working directory.
    let directory = std::path::absolute(&args.directory)?;
    Ok(Plan { device, source, directory, options, texts: args.options.clone() })
}

/// Finds errors before the daemon starts, because they can be reported better here.
fn check(plan: &Plan) -> Result<()> {
    let directory = plan.directory.display();
    if plan.directory.canonicalize().is_ok_and(|full| full == Path::new("/")) {
        return Err(anyhow!("{directory}: the root of the system: name another directory"));
    }
    if endpoint::is_dead(&plan.directory) {
        return Err(anyhow!(endpoint::dead_mount(&plan.directory)));
    }
    let mounted = endpoint::mounted()?;
    if let Some(mount) = mount_at(&mounted, &plan.directory) {
        return Err(anyhow!("{directory}: busy: {} is mounted there", mount.source));
    }
    // Each drive in memory is a different drive, even under the same name.
    let same = |mount: &&Mounted| mount.source == plan.source && !plan.device.starts_with("mem:");
    if let Some(mount) = mounted.iter().find(same) {
        let at = mount.directory.display();
        if endpoint::is_dead(&mount.directory) {
            return Err(anyhow!(endpoint::dead_mount(&mount.directory)));
        }
        return Err(anyhow!(
            "{}: already mounted on {at}: unmount it first (furrow umount {at})",
            plan.source
        ));
    }
    Ok(())
}

/// The arguments for the daemon. They contain the resolved device, so that the daemon does not
/// search for it again.
fn again(args: &Args, plan: &Plan) -> Vec<OsString> {
    let mut again: Vec<OsString> =
        ["mount", "--foreground", "--ready"].into_iter().map(OsString::from).collect();
    for options in &args.options {
        again.extend([OsString::from("-o"), OsString::from(options)]);
    }
    again.push("--".into());
    again.push((&plan.device).into());
    again.push((&args.directory).into());
    again
}
