//! The kernel's side of a mount: `/dev/fuse`, mount(2), umount(2), the mount table.
//!
//! Invariants: this module runs no helper program and needs no library, only `/dev/fuse`
//! and CAP_SYS_ADMIN. It accesses no path *inside* a mount that this process serves,
//! because the process would wait for itself. The exception is [`Root`]: another thread
//! must answer its requests.
//!
//! Not supported: mounts by users without CAP_SYS_ADMIN (they need fusermount3).

pub use crate::channel::Transport;
use anyhow::{Context as _, Result, anyhow, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::fmt::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// How long a mount waits for a block device that is busy because another process looks at it:
/// udev's rules, or an array that searches for a missing member. On a slow machine that takes
/// seconds.
const LOOKED_AT: Duration = Duration::from_secs(10);
/// The device through which the kernel sends requests.
const DEVICE: &str = "/dev/fuse";
/// How long the kernel may take to report that a daemon is dead. A short time is enough, because
/// the kernel reports this without asking the daemon.
const DEAD_PATIENCE: Duration = Duration::from_secs(2);
/// Type of Furrow's mounts in the mount table.
///
/// The two dots are deliberate. mount(8) looks for a helper for the whole type and, if there is
/// none, for the type up to its last dot. So it finds `mount.fuse.furrow` if Furrow's helpers are
/// installed, and otherwise remounts without a helper. With the type `fuse.furrow` it would try the
/// `mount.fuse` of Debian's fuse packages, which looks for a command `furrow` in PATH.
pub const FS_TYPE: &str = "fuse.furrow.fs";
/// Type of Furrow's file systems in fstab, and of mounts by earlier versions.
const FS_TYPE_SHORT: &str = "fuse.furrow";
/// Type of a mount whose source is a block device that the kernel holds during the mount.
const FS_TYPE_BLOCK: &str = "fuseblk.furrow.fs";
/// The first kernel version that passes sync(2) and syncfs(2) on to the servers of mounts of
/// type [`FS_TYPE_BLOCK`].
const SYNCS: (u32, u32) = (6, 18);
/// Longest read in bytes that the kernel may request.
const MAX_READ: u32 = 1 << 20;
/// Longest write in bytes that the kernel may send.
pub(crate) const MAX_WRITE: u32 = 1 << 20;

/// Options of a mount.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    /// The source in the mount table, which names the device.
    pub source: String,
    /// Whether the kernel refuses every change.
    pub read_only: bool,
    /// Whether the kernel ignores set-id bits.
    pub no_suid: bool,
    /// Whether the kernel refuses to open device nodes.
    pub no_dev: bool,
    /// Whether the kernel refuses to execute programs.
    pub no_exec: bool,
    /// Whether every write is synchronous.
    pub synchronous: bool,
    /// Whether the kernel skips permission checks, for benchmarks only.
    pub no_permissions: bool,
    /// The way by which requests come from the kernel.
    pub transport: Transport,
    /// Whether the source is a block device that the kernel holds during the mount. sync(2) and
    /// syncfs(2) then reach the server, if [`syncs`] is true, and an unmount returns only after
    /// the server has written its last block. At the time of the mount, no other program may hold
    /// the device.
    pub block_device: bool,
}

/// Whether this kernel passes sync(2) on to the servers of block devices.
pub fn syncs() -> bool {
    let uname = rustix::system::uname();
    let mut numbers = uname.release().to_str().unwrap_or_default().split(['.', '-']);
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let version = (number(), number());
    matches!(version, (Some(major), Some(minor)) if (major, minor) >= SYNCS)
}

impl Endpoint {
    /// Mounts at `directory`. Returns the channel on which the kernel sends requests. Every access
    /// to the mount waits until the server has answered the first message.
    ///
    /// # Errors
    /// An error if `/dev/fuse` is missing, the caller is not root, or `directory` cannot be mounted
    /// on. The error says what to do.
    pub fn mount(&self, directory: &Path) -> Result<OwnedFd> {
        let mode = mountable(directory)?;
        let channel = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| anyhow!(device_help(errno)))?;
        let mut options = String::new();
        // Writing to a `String` cannot fail.
        let _ = write!(
            options,
            "fd={},rootmode={:o},user_id={},group_id={},allow_other,max_read={MAX_READ}",
            channel.as_raw_fd(),
            mode,
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        if !self.no_permissions {
            options.push_str(",default_permissions");
        }
        if self.block_device {
            // The unit in which the kernel counts the device's blocks.
            options.push_str(",blksize=4096");
        }
        let options = CString::new(options).context("mount options")?;
        let fs_type = if self.block_device { FS_TYPE_BLOCK } else { FS_TYPE };
        let begun = Instant::now();
        loop {
            let options = options.as_c_str();
            match rustix::mount::mount(&*self.source, directory, fs_type, self.flags(), options) {
                Ok(()) => return Ok(channel),
                // Another process may look at the device after this process has given up its claim
                // and before the kernel claims it.
                Err(Errno::BUSY) if self.block_device && begun.elapsed() < LOOKED_AT => {
                    std::thread::sleep(LOOKED_AT / 1000);
                }
                Err(Errno::BUSY) if self.block_device => bail!(
                    "{}: in use by another program or mount (fuser and findmnt show it): end that \
                     first",
                    self.source
                ),
                Err(errno) => bail!("{}: {}", directory.display(), mount_help(errno)),
            }
        }
    }

    /// Sets the flags of the mount at `directory`. The daemon does not learn of the change.
    ///
    /// # Errors
    /// An error if no Furrow file system is mounted there, or the kernel refuses.
    pub fn remount(&self, directory: &Path) -> Result<()> {
        let here = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        if !mounted()?.iter().any(|mount| mount.directory == here) {
            bail!("{}: no Furrow file system is mounted here", directory.display());
        }
        rustix::mount::mount_remount(directory, self.flags(), c"")
            .map_err(|errno| anyhow!("{}: remount: {errno}", directory.display()))
    }

    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::NOATIME;
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.no_suid);
        flags.set(MountFlags::NODEV, self.no_dev);
        flags.set(MountFlags::NOEXEC, self.no_exec);
        flags.set(MountFlags::SYNCHRONOUS, self.synchronous);
        flags
    }
}

fn device_help(errno: Errno) -> String {
    match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => format!(
            "{DEVICE} is missing: load the kernel module (modprobe fuse), and in a container \
             pass the device in (docker run --device {DEVICE} --cap-add SYS_ADMIN)"
        ),
        Errno::ACCESS | Errno::PERM => {
            format!("{DEVICE}: {errno}: mounting needs root and access to this device")
        }
        _ => format!("{DEVICE}: {errno}"),
    }
}

fn mount_help(errno: Errno) -> String {
    match errno {
        Errno::PERM => "mounting is not permitted: it needs root (CAP_SYS_ADMIN)".to_owned(),
        Errno::NODEV => "the kernel has no FUSE: load its module (modprobe fuse)".to_owned(),
        Errno::BUSY => "busy: something is mounted here or uses this directory".to_owned(),
        _ => format!("cannot mount: {errno}"),
    }
}

/// Checks that `directory` can be mounted on, and returns its mode.
fn mountable(directory: &Path) -> Result<u32> {
    if is_dead(directory) {
        bail!(dead_mount(directory));
    }
    let stat = match rustix::fs::stat(directory) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => {
            bail!("{0}: no such directory: make it (mkdir {0})", directory.display())
        }
        Err(errno) => bail!("{}: {errno}", directory.display()),
    };
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        bail!("{}: not a directory: a mount needs one", directory.display());
    }
    Ok(stat.st_mode)
}

/// The message for the user about a mount whose daemon has died.
pub fn dead_mount(directory: &Path) -> String {
    format!(
        "{0} is a dead mount, its daemon is gone: run: furrow umount {0} (or umount {0}), then \
         mount again",
        directory.display()
    )
}

/// Whether `directory` is a mount whose daemon has died ("Transport endpoint is not connected").
pub fn is_dead(directory: &Path) -> bool {
    // statfs(2) instead of stat(2), which the kernel may answer from its cache.
    let asked = within(DEAD_PATIENCE, directory, |directory| rustix::fs::statfs(directory).err());
    // A daemon that hangs does not count as dead.
    asked.flatten().is_some_and(is_end)
}

/// The result of `call` on a mount; `None` if the mount's daemon does not answer within
/// `limit`. The call runs on a separate thread, because the kernel waits without limit for a
/// daemon that hangs.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    directory: &Path,
    call: impl FnOnce(&Path) -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = sync_channel(1);
    let directory = directory.to_owned();
    // The send fails if the receiver has stopped waiting.
    let asks = move || drop(tell.send(call(&directory)));
    std::thread::Builder::new().name("ask".to_owned()).spawn(asks).ok()?;
    told.recv_timeout(limit).ok()
}

/// Whether `errno` is the error of a mount whose daemon has died: ECONNABORTED for requests in
/// flight at that time, ENOTCONN for later ones.
pub(crate) fn is_end(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// Ways to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fails while the mount is in use.
    Plain,
    /// Detaches the mount now; the file system ends when its last user is gone.
    Lazy,
    /// Detaches the mount now and disconnects programs that use it.
    Force,
}

/// Unmounts the file system at `directory`.
///
/// # Errors
/// The kernel's error: EBUSY if the mount is in use (see [`Unmount`]), EINVAL if nothing
/// is mounted.
pub fn unmount(directory: &Path, how: Unmount) -> Result<(), Errno> {
    let flags = match how {
        Unmount::Plain => UnmountFlags::empty(),
        Unmount::Lazy => UnmountFlags::DETACH,
        Unmount::Force => UnmountFlags::FORCE | UnmountFlags::DETACH,
    };
    rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW)
}

/// Access to the file system of a mount, without keeping the mount in use.
#[derive(Debug)]
pub struct Root {
    directory: PathBuf,
    /// Device number of the file system.
    device: u64,
}

impl Root {
    /// The file system mounted at `directory`. Another thread must answer the mount's requests
    /// during the call.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of(directory: &Path) -> Result<Root, Errno> {
        let device = rustix::fs::fstat(Root::open(directory)?)?.st_dev;
        Ok(Root { directory: directory.to_owned(), device })
    }

    /// Opens the root directory through a private mount, so that the visible mount can be unmounted
    /// at the same time.
    fn open(directory: &Path) -> Result<OwnedFd, Errno> {
        use rustix::mount::{OpenTreeFlags, open_tree};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        match open_tree(rustix::fs::CWD, directory, own) {
            Ok(tree) => rustix::fs::openat(&tree, ".", flags, Mode::empty()),
            // A container may forbid open_tree(2), and kernels before 5.2 do not have it.
            Err(Errno::NOSYS | Errno::PERM) => rustix::fs::open(directory, flags, Mode::empty()),
            Err(errno) => Err(errno),
        }
    }

    /// Opens the root directory if the file system is still mounted there.
    fn reopen(&self) -> Result<OwnedFd, Errno> {
        let root = Root::open(&self.directory)?;
        match rustix::fs::fstat(&root)?.st_dev == self.device {
            true => Ok(root),
            false => Err(Errno::NODEV),
        }
    }

    /// Makes the kernel write back its dirty pages of the file system, and waits until it has.
    ///
    /// # Errors
    /// `NODEV` if the file system is no longer mounted there; otherwise the kernel's error.
    pub fn write_back(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(self.reopen()?)
    }
}

/// The device number of the newest mount at `directory`.
pub(crate) fn number_of(directory: &Path) -> Option<String> {
    let mounts = mounted().ok()?;
    mounts.into_iter().rfind(|mount| mount.directory == directory).map(|mount| mount.number)
}

/// Whether the kernel refuses changes of the file system at `directory`. The server itself cannot
/// know that, because the kernel does not tell it about a remount with `ro`.
pub(crate) fn is_read_only(directory: &Path) -> bool {
    let newest = |mount: &Mounted| mount.directory == directory;
    mounted().is_ok_and(|all| all.into_iter().rfind(newest).is_some_and(|mount| mount.read_only))
}

/// The kernel's number for a mount's connection: the device number in the kernel's internal form.
/// For a mount without a block device it is the minor number.
fn connection(number: &str) -> Option<u32> {
    let (major, minor) = number.split_once(':')?;
    Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?)
}

/// Ends the kernel's connection of the file system with the device number `number`, wherever it is
/// mounted: from then on, every request to it fails.
///
/// # Errors
/// The kernel's error; `NOENT` if there is no such connection.
pub(crate) fn abort(number: &str) -> Result<(), Errno> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
    use rustix::mount::{fsconfig_create, fsmount, fsopen};
    // A private mount of fusectl is used, because the usual one may be missing.
    let control = fsopen(c"fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&control)?;
    let control = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let connection = connection(number).ok_or(Errno::NOENT)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let abort = rustix::fs::openat(&control, format!("{connection}/abort"), flags, Mode::empty())?;
    rustix::io::write(&abort, b"1").map(drop)
}

/// A process in another mount namespace where the file system is mounted, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Id of the process.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// The processes that use the file system with device number `number` in other mount namespaces:
/// for each namespace, the process with the lowest id. Namespaces whose processes /proc does not
/// show are missing.
pub fn held_elsewhere(number: &str) -> Vec<Holder> {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut seen: Vec<PathBuf> = namespace("self").into_iter().collect();
    let mut holders = Vec::new();
    for pid in pids {
        let Some(found) = namespace(&pid.to_string()).filter(|found| !seen.contains(found)) else {
            continue;
        };
        let Ok(table) = std::fs::read(format!("/proc/{pid}/mountinfo")) else { continue };
        seen.push(found);
        if parse_table(&table).any(|mount| mount.number == number) {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            holders.push(Holder { pid, name: name.trim_end().to_owned() });
        }
    }
    holders
}

/// A Furrow mount in the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Name of the device, as in [`Endpoint::source`].
    pub source: String,
    /// The mount point.
    pub directory: PathBuf,
    /// Device number of the file system, as `major:minor`.
    pub number: String,
    /// Whether the kernel refuses changes of the file system, at this mount or at all of
    /// its mounts.
    pub read_only: bool,
}

/// All Furrow mounts, in the order of mounting.
///
/// # Errors
/// An error if the mount table cannot be read.
pub fn mounted() -> Result<Vec<Mounted>> {
    let table = "/proc/self/mountinfo";
    let text = std::fs::read(table).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow!(
            "{table}: {error}: it shows what is mounted and so in use: mount -t proc proc /proc"
        ),
        _ => anyhow!("{table}: {error}"),
    })?;
    Ok(parse_table(&text).collect())
}

fn parse_table(table: &[u8]) -> impl Iterator<Item = Mounted> {
    table.split(|&b| b == b'\n').filter_map(parse_mountinfo)
}

/// Parses a line of mountinfo: `id parent dev root mountpoint options [optional…] - type
/// source super-options`.
fn parse_mountinfo(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    let kind = *fields.get(dash + 1)?;
    if ![FS_TYPE, FS_TYPE_SHORT, FS_TYPE_BLOCK].iter().any(|ours| kind == ours.as_bytes()) {
        return None;
    }
    let directory = std::ffi::OsString::from_vec(unescape(fields.get(4)?));
    let source = String::from_utf8_lossy(&unescape(fields.get(dash + 2)?)).into_owned();
    let number = String::from_utf8_lossy(fields.get(2)?).into_owned();
    let read_only =
        fields.get(dash + 3).is_some_and(|flags| flags.split(|&b| b == b',').any(|f| f == b"ro"));
    Some(Mounted { source, directory: directory.into(), number, read_only })
}

/// Decodes `\ooo`, the form in which the mount table shows blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits =
            field.get(at + 1..at + 4).filter(|d| d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match (field[at], digits) {
            (b'\\', Some(digits)) => {
                let value = digits.iter().fold(0u32, |v, d| v * 8 + u32::from(d - b'0'));
                out.push(value as u8);
                at += 4;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_read_as_the_kernel_writes_it() {
        for kind in [FS_TYPE, FS_TYPE_SHORT, FS_TYPE_BLOCK] {
            let line = r"61 28 0:49 / /mnt/a\040b rw,noatime shared:3 - KIND /d/x\134y.zns rw,a=0";
            let found = parse_mountinfo(line.replace("KIND", kind).as_bytes()).expect("ours");
            assert_eq!(found.directory, Path::new("/mnt/a b"));
            assert_eq!(found.source, r"/d/x\y.zns");
            assert_eq!(found.number, "0:49");
            assert!(!found.read_only);
            let remounted = line.replace("rw,a=0", "ro,a=0").replace("KIND", kind);
            assert!(parse_mountinfo(remounted.as_bytes()).expect("ours").read_only);
        }
    }

    #[test]
    fn a_connection_has_the_number_of_its_device() {
        assert_eq!(connection("0:49"), Some(49));
        assert_eq!(connection("7:3"), Some((7 << 20) + 3));
        assert_eq!((connection("7"), connection("a:b")), (None, None));
    }

    #[test]
    fn other_and_broken_lines_are_passed_over() {
        assert_eq!(parse_mountinfo(b"61 28 0:49 / /mnt rw - fuse.sshfs host: rw"), None);
        assert_eq!(parse_mountinfo(b""), None);
        assert_eq!(parse_mountinfo(b"1 2 - fuse.furrow"), None);
        assert_eq!(unescape(br"a\04"), br"a\04");
        assert_eq!(unescape(br"\777"), [0xff]);
    }

    #[test]
    fn a_directory_that_cannot_be_mounted_on_is_said() {
        let missing = mountable(Path::new("/nonexistent/x")).expect_err("refused").to_string();
        assert!(missing.contains("/nonexistent/x: no such directory"), "{missing}");
        let file = mountable(Path::new("/proc/self/status")).expect_err("refused").to_string();
        assert!(file.contains("not a directory"), "{file}");
    }
}
