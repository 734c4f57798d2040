//! The file systems: how each is made, mounted and unmounted.

use anyhow::{Context as _, Result, bail};
use std::process::Command;

/// Size of Furrow's cache in MiB. Half of it may be dirty, which equals the limit of dirty data
/// that the kernel's file systems get in a comparison ([`DIRTY`](crate::compare::DIRTY)).
pub const CACHE_MIB: usize = 64;

/// The disk that dm-zoned makes of a drive: there is only one at a time.
const DISK: &str = "/dev/mapper/court";

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// XFS with an internal zoned section.
    Xfs,
    /// btrfs, zoned.
    Btrfs,
    /// F2FS, zoned.
    F2fs,
    /// ext4 on the ordinary disk that the kernel's dm-zoned makes of the drive.
    DmZoned,
    /// Furrow, mounted through FUSE.
    Furrow,
}

impl Kind {
    /// Name of the file system.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::F2fs => "f2fs",
            Kind::DmZoned => "dm-zoned",
            Kind::Furrow => "furrow",
        }
    }

    /// Makes a file system of this kind on `device`; `more` is passed to its mkfs command.
    ///
    /// # Errors
    /// The error message of the command.
    pub fn make(self, device: &str, more: &[&str]) -> Result<()> {
        let words: &[&str] = match self {
            Kind::Xfs => &["mkfs.xfs", "-q", "-f", "-r", "zoned=1"],
            Kind::Btrfs => &["mkfs.btrfs", "-q", "-f", "-O", "zoned"],
            Kind::F2fs => &["mkfs.f2fs", "-q", "-f", "-m"],
            Kind::DmZoned => {
                run(&["dmzadm", "--format", device, "--force"])?;
                start_dm_zoned(device)?;
                let made = run(&[&["mkfs.ext4", "-q", "-F"], more, &[DISK]].concat());
                return made.and(stop_dm_zoned());
            }
            Kind::Furrow => &["furrow", "mkfs"],
        };
        run(&[words, more, &[device]].concat())
    }

    /// Mounts `device` at `place`.
    ///
    /// # Errors
    /// The error message of mount.
    pub fn mount(self, device: &str, place: &str) -> Result<()> {
        self.mount_with(device, place, "")
    }

    /// Mounts `device` at `place` with `options`, such as `ro`; an empty text means no options.
    ///
    /// # Errors
    /// The error message of mount.
    pub fn mount_with(self, device: &str, place: &str, options: &str) -> Result<()> {
        match self {
            Kind::Furrow => run(&[
                "furrow",
                "mount",
                device,
                place,
                "-o",
                format!("cache={CACHE_MIB}MiB,{options}").trim_end_matches(','),
                "--log",
                "/run/furrow.log",
            ]),
            Kind::DmZoned => {
                start_dm_zoned(device)?;
                let options = if options.is_empty() { "defaults" } else { options };
                run(&["mount", "-t", "ext4", "-o", options, DISK, place]).inspect_err(|_| {
                    let _ = stop_dm_zoned();
                })
            }
            kind if options.is_empty() => run(&["mount", "-t", kind.name(), device, place]),
            kind => run(&["mount", "-t", kind.name(), "-o", options, device, place]),
        }
    }

    /// Makes everything in the file system at `place` durable by syncfs(2). FUSE does not pass
    /// syncfs on (docs/use/mounting.md), so for Furrow its own command is used.
    ///
    /// # Errors
    /// The error message of the call or command.
    pub fn sync(self, place: &str) -> Result<()> {
        match self {
            Kind::Furrow => run(&["furrow", "sync", place]),
            _ => Ok(rustix::fs::syncfs(std::fs::File::open(place)?)?),
        }
    }

    /// Unmounts `place`.
    ///
    /// # Errors
    /// The error message of umount.
    pub fn unmount(self, place: &str) -> Result<()> {
        match self {
            Kind::Furrow => run(&["furrow", "umount", place]),
            Kind::DmZoned => {
                // Another attempt may have unmounted it already.
                let unmounted = run(&["umount", place]);
                stop_dm_zoned().map_err(|error| unmounted.err().unwrap_or(error))
            }
            _ => run(&["umount", place]),
        }
    }
}

/// Makes an ordinary disk, [`DISK`], of the drive `device`. dm-zoned corrects the size given here.
fn start_dm_zoned(device: &str) -> Result<()> {
    run(&["dmsetup", "create", "court", "--table", &format!("0 1 zoned {device}")])
}

/// Removes [`DISK`], so that its drive is free again.
fn stop_dm_zoned() -> Result<()> {
    run(&["dmsetup", "remove", "court"])
}

/// Runs a command to its end.
///
/// # Errors
/// The command's error output, if it fails.
pub fn run(words: &[&str]) -> Result<()> {
    let (program, arguments) = words.split_first().context("no program")?;
    let done =
        Command::new(program).args(arguments).output().with_context(|| program.to_string())?;
    if !done.status.success() {
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim().replace('\n', " | ");
        bail!("{}: {}: {said}", words.join(" "), done.status);
    }
    Ok(())
}

/// The last `lines` kernel messages since the previous call.
pub fn kernel_said(lines: usize) -> Vec<String> {
    let Ok(done) = Command::new("dmesg").arg("-c").output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let all: Vec<String> = text.lines().map(str::to_owned).collect();
    all[all.len().saturating_sub(lines)..].to_vec()
}
