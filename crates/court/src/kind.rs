//! The file systems: how each is made, mounted and unmounted.

use anyhow::{Context as _, Result, bail};
use std::process::Command;

/// Mebibytes of the cache that Furrow has, of which half may be dirty: as much as the kernel's file
/// systems may have in a comparison.
pub const CACHE_MIB: usize = 64;

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// XFS with an internal zoned section.
    Xfs,
    /// btrfs, zoned.
    Btrfs,
    /// F2FS, zoned.
    F2fs,
    /// Furrow, mounted through FUSE.
    Furrow,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::F2fs => "f2fs",
            Kind::Furrow => "furrow",
        }
    }

    /// Makes one on `device`, with `more` words of its command.
    ///
    /// # Errors
    /// What its own command says.
    pub fn make(self, device: &str, more: &[&str]) -> Result<()> {
        let words: &[&str] = match self {
            Kind::Xfs => &["mkfs.xfs", "-q", "-f", "-r", "zoned=1"],
            Kind::Btrfs => &["mkfs.btrfs", "-q", "-f", "-O", "zoned"],
            Kind::F2fs => &["mkfs.f2fs", "-q", "-f", "-m"],
            Kind::Furrow => &["furrow", "mkfs"],
        };
        run(&[words, more, &[device]].concat())
    }

    /// Mounts `device` at `place`.
    ///
    /// # Errors
    /// What mount says.
    pub fn mount(self, device: &str, place: &str) -> Result<()> {
        self.mount_with(device, place, "")
    }

    /// Mounts `device` at `place` with `options`, such as `ro`; none if the text is empty.
    ///
    /// # Errors
    /// What mount says.
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
            kind if options.is_empty() => run(&["mount", "-t", kind.name(), device, place]),
            kind => run(&["mount", "-t", kind.name(), "-o", options, device, place]),
        }
    }

    /// Makes everything in the file system at `place` durable: syncfs(2), which FUSE does not pass
    /// on (docs/use/mounting.md), and so Furrow's own command for it.
    ///
    /// # Errors
    /// What it says.
    pub fn sync(self, place: &str) -> Result<()> {
        match self {
            Kind::Furrow => run(&["furrow", "sync", place]),
            _ => Ok(rustix::fs::syncfs(std::fs::File::open(place)?)?),
        }
    }

    /// Unmounts `place`.
    ///
    /// # Errors
    /// What umount says.
    pub fn unmount(self, place: &str) -> Result<()> {
        match self {
            Kind::Furrow => run(&["furrow", "umount", place]),
            _ => run(&["umount", place]),
        }
    }
}

/// Runs a command to its end.
///
/// # Errors
/// What it says, if it fails.
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

/// What the kernel has said since the last call, its last `lines` lines.
pub fn kernel_said(lines: usize) -> Vec<String> {
    let Ok(done) = Command::new("dmesg").arg("-c").output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let all: Vec<String> = text.lines().map(str::to_owned).collect();
    all[all.len().saturating_sub(lines)..].to_vec()
}
