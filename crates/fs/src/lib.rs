//! A log-structured POSIX file system, alone on a zoned drive.
//!
//! [`Fs`] is the engine of a mounted file system: make one with [`Fs::format`], mount it with
//! [`Fs::mount`], use it through its methods. It runs on one [`Rt`] and stays there.
//!
//! **What survives a crash.** Each fsynced file holds, block by block, the fsynced version or a
//! later written one; its size likewise. A name is reachable if its file or its directory was
//! fsynced after the change. A rename shows old or new, never both, never neither; a rename over an
//! existing name brings the content that the moved file had by then. Changes not fsynced may
//! vanish, but none older than the commit interval. No file ever shows blocks of another file or
//! stale data.
//!
//! # Example
//! ```
//! use furrow_emu::{Emulator, Medium, Options};
//! use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, WriteData};
//! use furrow_rt::{Config, Rt};
//! use std::rc::Rc;
//!
//! let rt = Rt::new(Config::simulated(1));
//! let geometry = furrow_zone::spec::parse_geometry("zones=64,zone-size=1MiB,max-active=14")?;
//! let medium = Medium::memory(&geometry);
//! let drive = Emulator::new(&rt, geometry, medium, Options::fast())?;
//! let drive: Rc<dyn furrow_zone::ZonedDevice> = Rc::new(drive);
//! let on = rt.clone();
//! rt.block_on(async move {
//!     Fs::format(&on, drive.clone(), &MkfsOptions::default()).await?;
//!     let fs = Fs::mount(&on, drive.clone(), MountOptions::default()).await?;
//!     let file = fs.create(Ino::ROOT, b"greeting", &NewNode::file()).await?;
//!     fs.write(file.ino, WriteData::copy(fs.pool(), 0, b"hello")).await?;
//!     fs.fsync(file.ino, false).await?;
//!     fs.unmount().await?;
//!
//!     let fs = Fs::mount(&on, drive, MountOptions::default()).await?;
//!     let file = fs.lookup(Ino::ROOT, b"greeting").await?;
//!     assert_eq!(fs.read(file.ino, 0, 100).await?.to_vec(), b"hello");
//!     fs.unmount().await
//! })?;
//! # Ok::<(), furrow_zone::Error>(())
//! ```

mod accounts;
pub mod alloc;
mod audit;
mod blocked;
mod clean;
mod core;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod damage_tests;
mod durability;
mod env;
mod fetch;
pub mod format;
mod fsck;
mod health;
mod layout;
mod memory;
mod mkfs;
mod repair;
mod reserve;
mod scrub;
mod silence;
mod statfs;
mod stats;
mod stretch;
mod tables;
pub mod tree;
pub mod types;

pub use clean::{CleanOptions, CleanReport, GcOptions};
pub use fsck::dump;
pub use fsck::{About, Finding, FsckOptions, FsckReport, FsckStatistics, fsck};
pub use furrow_log::scrub::{ScrubFinding, ScrubOrder, ScrubReport, ScrubState};
pub use furrow_log::victim::Policy as VictimPolicy;
use furrow_log::writer::Kind as WriteKind;
use furrow_rt::{Boxed, Pool, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZonedDevice};
pub use memory::Memory;
pub use repair::{Action, Fate, Repair, RepairOptions, Verdict};
pub use silence::Silence;
use std::rc::Rc;
pub use tree::lifetime::{ATTRIBUTE as LIFETIME_ATTRIBUTE, Extensions, Lifetime};
use tree::open_files::LastName;
use tree::readdir::Listed;
pub use types::*;

/// UUID and label of the file system on `device`, whether or not it can be mounted; `None` if
/// there is none.
///
/// # Errors
/// If the drive does not report its zones, or the file system is of another format.
pub async fn identify(device: &dyn ZonedDevice) -> Result<Option<(furrow_log::Uuid, String)>> {
    durability::recover::read::identify(device).await
}

/// Refuses a file system without a root directory: nothing in it could be reached.
async fn with_root(fs: Fs) -> Result<Fs> {
    let Err(error) = fs.getattr(Ino::ROOT).await else { return Ok(fs) };
    // What it ends with follows from the same damage.
    let _ = fs.unmount().await;
    let message = format!("the root directory is damaged or cannot be read: {error}");
    Err(Error::new(ErrorKind::Corrupt, message))
}

/// The error of a refused mount, with the commands that can help.
async fn with_choices(device: &dyn ZonedDevice, error: Error) -> Error {
    match repair::choices(device).await {
        Some(choices) => Error::new(error.kind(), format!("{error}: {choices}")),
        None => error,
    }
}

/// A mounted file system. Cloning shares it; it stays on its executor.
#[derive(Clone)]
pub struct Fs(Rc<core::Inner>);

impl Fs {
    /// Makes a file system on `device`, whose content is lost.
    ///
    /// # Errors
    /// `Invalid` if the drive is too small or has too few active zones (the message has the sum),
    /// `Busy` if it is not empty and `force` is not set: nothing was written then.
    #[inline(never)]
    pub fn format<'a>(
        rt: &'a Rt,
        device: Rc<dyn ZonedDevice>,
        options: &'a MkfsOptions,
    ) -> Boxed<'a, Result<MkfsReport>> {
        Box::pin(async move { mkfs::format(rt, device, options).await })
    }

    /// Mounts, after recovery from a crash if there was one. If something is damaged that the mount
    /// needs, it is refused, and nothing is lost by that; a mount for reading shows what can be
    /// read, and [`Fs::losses`] tells what cannot.
    ///
    /// # Errors
    /// `WrongFormat` if there is no file system or one of a newer version, `Corrupt` if something
    /// is damaged, `Io`.
    #[inline(never)]
    pub fn mount(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        options: MountOptions,
    ) -> Boxed<'_, Result<Fs>> {
        Box::pin(async move {
            let mounted = durability::recover::mount(rt, device.clone(), options.clone()).await;
            // What cannot be read is as good as damaged, as long as the drive answers.
            let unread = |error: &Error| error.kind() == ErrorKind::Io && device.answers();
            let rooted = match mounted {
                Ok(inner) if options.read_only => with_root(Fs(inner)).await,
                mounted => mounted.map(Fs),
            };
            let error = match rooted {
                Err(error) if error.kind() == ErrorKind::Corrupt || unread(&error) => error,
                rooted => return rooted,
            };
            if !options.read_only {
                return Err(with_choices(&*device, error).await);
            }
            let Ok((view, lost)) = repair::readable(rt, device).await else { return Err(error) };
            let notice = options.notice;
            let inner = durability::recover::mount(rt, view, options).await?;
            let lost: Vec<String> = std::iter::once(error.to_string()).chain(lost).collect();
            lost.iter().for_each(|line| notice(&format!("not shown: {line}")));
            *inner.losses.borrow_mut() = lost;
            Ok(Fs(inner))
        })
    }

    /// Ends a file system on `device` in which no name leads anywhere, because its root directory
    /// is damaged or cannot be read. What is known by its number could still be used.
    ///
    /// # Errors
    /// `Corrupt`, with what can be done.
    pub async fn with_names(self, device: &dyn ZonedDevice) -> Result<Fs> {
        match with_root(self).await {
            Err(error) => Err(with_choices(device, error).await),
            rooted => rooted,
        }
    }

    /// What a mount for reading found damaged: a line for each loss, the first for the damage that
    /// a mount for writing is refused for.
    pub fn losses(&self) -> Vec<String> {
        self.0.losses.borrow().clone()
    }

    /// Makes everything durable and ends the engine. The handle and its clones then answer errors.
    ///
    /// # Errors
    /// If the last checkpoint fails; the engine has ended nevertheless.
    #[inline(never)]
    pub fn unmount(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.0.check_ended()?;
            self.0.stop_cleaning().await;
            self.0.scrub.stop().await;
            let read_only = {
                let core = self.0.core.borrow();
                core.env.options.read_only || core.health.failed().is_some()
            };
            let result = if read_only { Ok(()) } else { self.end().await };
            self.0.closed().await;
            self.0.ended.set(true);
            self.0.progress.notify_all();
            let writer = self.0.core.borrow().env.writer.clone();
            // Zones being released, reads under way: nothing may outlive the engine.
            writer.completed().await;
            let failed = self.failure().filter(|_| !self.failed_without_loss());
            result.and(failed.map_or(Ok(()), Err))
        })
    }

    async fn end(&self) -> Result<()> {
        self.take_access_times().await?;
        self.0.checkpoint(true).await?;
        self.0.left_aside(None)
    }

    /// Writes access times that are only in memory to their inodes.
    async fn take_access_times(&self) -> Result<()> {
        if self.failed_without_loss() {
            return Ok(());
        }
        loop {
            match self.0.run(|core| core.take_one_access()).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // Access times are not worth an error.
                Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The error after which the engine no longer writes, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.0.core.borrow().health.failed().cloned()
    }

    /// True if everything written before the failure is durable all the same: the engine stopped
    /// writing because of damage ([`OnDamage::ReadOnly`]), not because it could not write.
    pub fn failed_without_loss(&self) -> bool {
        self.0.core.borrow().health.is_nothing_lost()
    }

    /// Waits until the engine, if damage makes it stop writing, has stopped: it first writes what
    /// it has accepted.
    pub async fn settled(&self) {
        while self.is_stopping() && !self.0.ended.get() {
            self.0.progress.wait().await;
        }
    }

    /// True while the engine writes what it has accepted, after damage that makes it stop writing.
    pub fn is_stopping(&self) -> bool {
        let health = &self.0.core.borrow().health;
        health.stopping().is_some() && health.failed().is_none()
    }

    /// Looks from now on whether the drive owes an answer. [`MountOptions::notice`] gets a line
    /// after five seconds, again each time that it has been twice as long, and when the answer has
    /// come.
    pub fn watch_drive(&self) {
        self.0.watch_drive();
    }

    /// For how long the drive has owed an answer, if that is more than a few seconds and the drive
    /// [is watched](Fs::watch_drive).
    pub fn silence(&self) -> Option<Silence> {
        self.0.silence()
    }

    /// The executor.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// Pages for [`WriteData::copy`].
    pub fn pool(&self) -> &Pool {
        &self.0.pages
    }

    /// The inode `name` of `parent`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`, `Corrupt`, `Io`.
    pub async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.0.run(|core| core.lookup(parent, name)).await
    }

    /// Attributes.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub async fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.0.run(|core| core.getattr(ino)).await
    }

    /// Changes attributes; a new size truncates or extends. A crash in the middle of cutting off
    /// more than 126 MiB may show a size in between.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory` or `Invalid` for the size of an inode that has none, `TooLarge`,
    /// `NoSpace`, `ReadOnly`, `Corrupt`, `Io`.
    pub async fn setattr(&self, ino: Ino, changes: SetAttr) -> Result<Attr> {
        loop {
            // One step of a truncation at a time; the last step makes the rest of the changes too.
            if let Some(attr) = self.0.run(|core| core.setattr(ino, &changes)).await? {
                return Ok(attr);
            }
        }
    }

    /// Makes an inode of any kind (create, mkdir, symlink, mknod). In a directory with the
    /// set-group-id bit the inode gets the directory's group, and a new directory gets the bit too.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NotDirectory`, `NameTooLong`, `Invalid`, `TooManyLinks`, `NoSpace`,
    /// `ReadOnly`, `Corrupt`, `Io`.
    pub async fn create(&self, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let op = self.0.core.borrow_mut().plan_create(parent, name, node);
        self.0.run(|core| core.create_inheriting(parent, &op, node.umask)).await
    }

    /// Makes a regular file without a name (open with O_TMPFILE), which inherits from `directory`
    /// as a named one would. The file is open once: [`Fs::release`] frees it, unless [`Fs::link`]
    /// has given it a name. Its synced content survives a crash if the file gets a name that
    /// survives.
    ///
    /// # Errors
    /// As [`Fs::create`] and [`Fs::open`].
    pub async fn create_unnamed(&self, directory: Ino, node: &NewNode) -> Result<Attr> {
        if node.kind != Kind::File {
            let message = "only a regular file can be made without a name";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let op = self.0.core.borrow_mut().plan_create(Ino(format::NO_NODE), b"", node);
        self.0.run(|core| core.create_inheriting(directory, &op, node.umask)).await
    }

    /// Another name for `ino`, which is no directory.
    ///
    /// # Errors
    /// As [`Fs::create`]; `IsDirectory`.
    pub async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let time = self.0.core.borrow().now();
        self.0.run(|core| core.link(ino, parent, name, time)).await
    }

    /// Removes a name of an inode that is no directory.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `NotDirectory`, `NoSpace`, `ReadOnly`, `Corrupt`, `Io`.
    pub async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let gone = self.remove(parent, name, false, LastName::Frees).await?;
        self.reap(gone).await;
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Fs::unlink`]; `NotEmpty`.
    pub async fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let gone = self.remove(parent, name, true, LastName::Frees).await?;
        self.reap(gone).await;
        Ok(())
    }

    /// [`Fs::rmdir`] if `directory`, else [`Fs::unlink`], but an inode that loses its last name
    /// stays, and is open once more: [`Fs::release`] frees it. Returns that inode.
    ///
    /// # Errors
    /// As [`Fs::rmdir`] or [`Fs::unlink`]; `TooManyOpen`.
    pub async fn remove_open(
        &self,
        parent: Ino,
        name: &[u8],
        directory: bool,
    ) -> Result<Option<Ino>> {
        self.remove(parent, name, directory, LastName::Opens).await
    }

    async fn remove(
        &self,
        parent: Ino,
        name: &[u8],
        directory: bool,
        last: LastName,
    ) -> Result<Option<Ino>> {
        let time = self.0.core.borrow().now();
        self.0.run(|core| core.remove(parent, name, Some(directory), (time, last))).await
    }

    /// Frees an inode that lost its last name, unless it is open. The removal itself is done
    /// already: an inode that cannot be freed now stays an orphan, and the next mount tries again.
    async fn reap(&self, ino: Option<Ino>) {
        let Some(ino) = ino else { return };
        while let Ok(false) = self.0.run(|core| core.reap(ino)).await {}
    }

    /// Renames.
    ///
    /// # Errors
    /// As [`Fs::create`] and [`Fs::unlink`]; `Invalid` if a directory would move below itself.
    pub async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let time = self.0.core.borrow().now();
        let gone = self.0.rename(from, to, mode, (time, LastName::Frees)).await?;
        self.reap(gone).await;
        Ok(())
    }

    /// [`Fs::rename`], but an inode that loses its last name stays, and is open once more:
    /// [`Fs::release`] frees it. Returns that inode.
    ///
    /// # Errors
    /// As [`Fs::rename`]; `TooManyOpen`.
    pub async fn rename_open(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<Ino>> {
        let time = self.0.core.borrow().now();
        self.0.rename(from, to, mode, (time, LastName::Opens)).await
    }

    /// A symbolic link's target.
    ///
    /// # Errors
    /// `Invalid` if it is none; `NotFound`, `Corrupt`, `Io`.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.run(|core| core.readlink(ino)).await
    }

    /// The value of extended attribute `name`, its prefix included.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`, `Corrupt`, `Io`.
    pub async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.0.run(|core| core.getxattr(ino, name)).await
    }

    /// The names of all extended attributes, ascending.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub async fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.0.run(|core| core.listxattr(ino)).await
    }

    /// Sets an extended attribute: `user.`, `trusted.` or `security.` and a name, or one of the two
    /// POSIX access lists, which change permission bits too. It becomes durable as other attributes
    /// do.
    ///
    /// # Errors
    /// `Exists` and `NoAttribute` as `mode` says; `Unsupported` for another prefix, `NameTooLong`,
    /// `Invalid` or `Denied` for a malformed access list or one that is not allowed here; `NoSpace`
    /// for a value above 65,536 bytes, for more than 128 KiB in all, and where the drive is full;
    /// `NotFound`, `ReadOnly`, `Corrupt`, `Io`.
    pub async fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.0.run(|core| core.change_xattr(ino, name, Some(value), mode)).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `Unsupported`, `NotFound`, `NoSpace`, `ReadOnly`, `Corrupt`, `Io`.
    pub async fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.0.run(|core| core.change_xattr(ino, name, None, XattrMode::Replace)).await
    }

    /// Sets how long the data of `ino` is expected to live (`RWH_WRITE_LIFE_*` of fcntl(2)), from
    /// its next write on. For a directory, sets the lifetime of the files made in it. `None`: as
    /// for any other file. It is the attribute [`LIFETIME_ATTRIBUTE`].
    ///
    /// # Errors
    /// As [`Fs::setxattr`].
    pub async fn set_lifetime(&self, ino: Ino, lifetime: Option<Lifetime>) -> Result<()> {
        let done = match lifetime {
            Some(said) => {
                let value = said.name().as_bytes();
                self.setxattr(ino, LIFETIME_ATTRIBUTE, value, XattrMode::Set).await
            }
            None => self.removexattr(ino, LIFETIME_ATTRIBUTE).await,
        };
        match done {
            Err(error) if lifetime.is_none() && error.kind() == ErrorKind::NoAttribute => Ok(()),
            done => done,
        }
    }

    /// The lifetime set by [`Fs::set_lifetime`] for `ino`, or for the directory it was made in.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub async fn lifetime(&self, ino: Ino) -> Result<Option<Lifetime>> {
        match self.getxattr(ino, LIFETIME_ATTRIBUTE).await {
            Ok(value) => Ok(Lifetime::parse(&value)),
            Err(error) if error.kind() == ErrorKind::NoAttribute => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Up to `max` entries after `cookie` (0 = from the start), without `.` and `..`. One call
    /// returns the entries of a few blocks at most, and none at the end.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Corrupt`, `Io`.
    pub async fn readdir(&self, ino: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        let listed = self.readdir_noatime(ino, cookie, max).await?;
        let note = |core: &mut core::Core| {
            core.note_access(ino);
            Ok(())
        };
        self.0.run(note).await?;
        Ok(listed)
    }

    /// As [`Fs::readdir`]; it is no access, as with `O_NOATIME`.
    ///
    /// # Errors
    /// As [`Fs::readdir`].
    pub async fn readdir_noatime(
        &self,
        ino: Ino,
        mut cookie: u64,
        max: usize,
    ) -> Result<Vec<DirEntry>> {
        loop {
            match self.0.run(|core| core.readdir(ino, cookie, max)).await? {
                Listed::Entries(entries) => return Ok(entries),
                Listed::NotBefore(later) => cookie = later,
            }
        }
    }

    /// The directory that holds directory `ino` (`..`).
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Corrupt`, `Io`.
    pub async fn parent(&self, ino: Ino) -> Result<Ino> {
        self.0.run(|core| core.parent(ino)).await
    }

    /// Reads up to `len` bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Corrupt`, `Io`.
    pub async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<ReadData> {
        let read = |core: &mut core::Core| {
            let read = core.read(ino, offset, len)?;
            if !read.is_empty() {
                core.note_access(ino);
            }
            Ok(read)
        };
        self.0.run(read).await
    }

    /// As [`Fs::read`]; it is no access, as with `O_NOATIME`.
    ///
    /// # Errors
    /// As [`Fs::read`].
    pub async fn read_noatime(&self, ino: Ino, offset: u64, len: usize) -> Result<ReadData> {
        self.0.run(|core| core.read(ino, offset, len)).await
    }

    /// Writes; all or nothing, of at most [`WRITE_MAX`] bytes.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Invalid`, `TooLarge`, `NoSpace`, `ReadOnly`, `Corrupt`, `Io`.
    pub async fn write(&self, ino: Ino, data: WriteData) -> Result<()> {
        self.0.run(|core| core.write(ino, &data)).await
    }

    /// Keeps `ino` alive, though its last name may go, until [`Fs::release`].
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`; `TooManyOpen` at the limit of open files.
    pub async fn open(&self, ino: Ino) -> Result<Attr> {
        self.0.run(|core| core.open_file(ino)).await
    }

    /// Undoes one [`Fs::open`].
    ///
    /// # Errors
    /// `Invalid` if it is not open.
    pub async fn release(&self, ino: Ino) -> Result<()> {
        let last = {
            let mut core = self.0.core.borrow_mut();
            core.tree.files_mut().close(ino)? && core.tree.files().is_orphan(ino)
        };
        self.reap(last.then_some(ino)).await;
        Ok(())
    }

    /// Makes `ino` durable: content and attributes, and every change of a name so far. With
    /// `data_only` (fdatasync) attributes may be left out; this version always writes them.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `NoSpace`, `Io`: nothing may be assumed durable then.
    pub async fn fsync(&self, ino: Ino, _data_only: bool) -> Result<()> {
        self.0.run(|core| core.inode(ino).map(|_| ())).await?;
        self.0.fsync(ino).await?;
        self.0.core.borrow_mut().stats.counters.fsyncs += 1;
        Ok(())
    }

    /// Makes everything durable (a checkpoint).
    ///
    /// # Errors
    /// `ReadOnly`, `NoSpace`, `Io`; `Corrupt` or `Io` also if changed blocks of a file could not be
    /// placed, because its own nodes are damaged: everything else is durable then.
    #[inline(never)]
    pub fn sync(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.0.check_ended()?;
            self.take_access_times().await?;
            self.0.checkpoint(false).await?;
            self.0.left_aside(None)
        })
    }

    /// Cleans: empties superzones that are partly garbage. Blocks that cannot be read or do not
    /// verify stay, and are named in the report.
    ///
    /// # Errors
    /// `ReadOnly`, `Io`. Blocks moved before the error stay moved.
    #[inline(never)]
    pub fn clean(&self, options: CleanOptions) -> Boxed<'_, Result<CleanReport>> {
        Box::pin(async move {
            self.0.check_ended()?;
            self.0.core.borrow().writable().map_err(blocked::error_of)?;
            self.0.clean(options).await
        })
    }

    /// Blocks that requests or cleaning found damaged or unreadable since the mount: the newest,
    /// with their places, owners and reasons. [`Counters::damaged_reads`] and
    /// [`Counters::clean_failed_blocks`] count how often.
    pub fn damaged_blocks(&self) -> Vec<String> {
        self.0.core.borrow().damaged_blocks().to_vec()
    }

    /// Begins a scrub in the background, or changes the pace of the one that runs. A scrub reads
    /// everything written that counts, and compares it with its checksums.
    ///
    /// # Errors
    /// `Busy` if a scrub runs already, or none does; `ReadOnly` if it is to repair.
    pub fn scrub(&self, order: ScrubOrder) -> Result<()> {
        self.0.order_scrub(order)
    }

    /// The running scrub, or the last one since the mount.
    pub fn scrub_report(&self) -> Option<ScrubReport> {
        self.0.scrub_report()
    }

    /// Makes those of `options` valid that may change while a file system is mounted:
    /// `commit_interval`, `on_damage`, `extensions`, `gc`, and what is said of times of access. The
    /// others stay as they are.
    pub fn reconfigure(&self, options: &MountOptions) {
        let mut core = self.0.core.borrow_mut();
        let now = &mut core.env.options;
        now.commit_interval = options.commit_interval;
        now.on_damage = options.on_damage;
        now.extensions = options.extensions.clone();
        now.gc = options.gc;
        now.access_time = options.access_time;
        now.directory_access_time = options.directory_access_time;
        now.lazy_time = options.lazy_time;
        drop(core);
        self.0.reconfigured.notify_all();
    }

    /// Space and inodes.
    pub fn statfs(&self) -> StatFs {
        self.0.core.borrow().statfs()
    }

    /// Label and UUID.
    pub fn identity(&self) -> (String, String) {
        let core = self.0.core.borrow();
        (core.env.layout.label.clone(), core.env.layout.uuid.to_string())
    }

    /// Changes the label; durable when this returns. The next checkpoint begins a zone of the ring,
    /// and with it goes a superblock with the new label. The zone with the old one is then reset.
    ///
    /// # Errors
    /// `Invalid` if a superblock cannot hold the label; else as [`Fs::sync`].
    #[inline(never)]
    pub fn set_label<'a>(&'a self, label: &'a str) -> Boxed<'a, Result<()>> {
        Box::pin(async move { self.0.set_label(label).await })
    }

    /// Counters since the mount.
    pub fn counters(&self) -> Counters {
        let core = self.0.core.borrow();
        let written = core.env.writer.counters();
        let cache = core.cache.stats();
        Counters {
            data_bytes: written.of(WriteKind::Data),
            node_bytes: written.of(WriteKind::Node),
            summary_bytes: written.of(WriteKind::Summary),
            checkpoint_bytes: written.of(WriteKind::Checkpoint),
            delta_bytes: written.of(WriteKind::Delta),
            table_bytes: written.of(WriteKind::Table),
            sync_bytes: written.of(WriteKind::Sync),
            padding_bytes: written.of(WriteKind::Padding),
            zone_resets: written.resets,
            write_commands: written.commands,
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            ..core.stats.counters
        }
    }

    /// Memory the file system holds: now, and at its peak since the mount. The peak is noted after
    /// each operation and at each checkpoint.
    pub fn memory(&self) -> (Memory, Memory) {
        let mut core = self.0.core.borrow_mut();
        core.note_memory();
        (core.memory(), core.stats.memory_peak())
    }

    /// Log streams: the superzones that each may have and does write to.
    pub fn streams(&self) -> Vec<StreamInfo> {
        self.0.core.borrow().alloc.stream_infos()
    }

    /// Active zones the file system may hold at most, and how many it holds permits for.
    pub fn permits(&self) -> (u32, u32) {
        self.0.core.borrow().alloc.permits()
    }

    /// Use and content of every zone of the drive.
    ///
    /// # Errors
    /// `Io` if the drive does not report.
    #[inline(never)]
    pub fn zone_map(&self) -> Boxed<'_, Result<Vec<ZoneInfo>>> {
        Box::pin(async move {
            let device = self.0.core.borrow().env.device.clone();
            let reports = durability::recover::report(&*device).await?;
            Ok(self.0.core.borrow().zone_map(&reports))
        })
    }
}
