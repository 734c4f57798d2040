//! A log-structured POSIX file system, alone on a zoned drive.
//!
//! [`Fs`] is the engine of a mounted file system: make one with [`Fs::format`], mount it with
//! [`Fs::mount`], use it through its methods. It runs on one [`Rt`] and stays there.
//!
//! **What survives a crash.** Each block of an fsynced file has the content that it had at the
//! fsync, or content written later. The same holds for the file's size. A new or changed name is
//! reachable if its file or its directory was fsynced after the change. After a rename either the
//! old or the new name exists, never both, never neither. A rename over an existing name also
//! preserves the content that the moved file had at the rename. Changes without an fsync may
//! vanish, unless they are older than the commit interval. No file ever shows blocks of another
//! file or stale data.
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
mod memory_use;
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
pub use memory_use::Memory;
pub use repair::{Action, Fate, Repair, RepairOptions, Verdict};
pub use silence::Silence;
use std::rc::Rc;
pub use tree::lifetime::{ATTRIBUTE as LIFETIME_ATTRIBUTE, Extensions, Lifetime};
use tree::open_files::LastName;
use tree::readdir::Listed;
pub use types::*;

/// UUID and label of the file system on `device`, even if it cannot be mounted; `None` if there is
/// no file system.
///
/// # Errors
/// If the drive does not report its zones or cannot read a superblock, or if this version cannot
/// read the file system.
pub async fn identify(device: &dyn ZonedDevice) -> Result<Option<(furrow_log::Uuid, String)>> {
    durability::recover::read::identify(device).await
}

/// Refuses a file system without a root directory: no file in it could be reached.
async fn with_root(fs: Fs) -> Result<Fs> {
    let Err(error) = fs.getattr(Ino::ROOT).await else { return Ok(fs) };
    // Ignore an error of the unmount: it follows from the same damage.
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

/// A mounted file system. A clone is a handle to the same mount; all handles stay on one executor.
#[derive(Clone)]
pub struct Fs(Rc<core::Inner>);

impl Fs {
    /// Makes a file system on `device`, whose previous content is lost.
    ///
    /// # Errors
    /// `Invalid` if the drive is too small or has too few active zones (the message shows the
    /// calculation), or if the label is too long; `Unsupported` for a drive that the format cannot
    /// address; `Busy` if the drive is not empty and `force` is not set. In these cases nothing has
    /// been written. Otherwise `Io`.
    #[inline(never)]
    pub fn format<'a>(
        rt: &'a Rt,
        device: Rc<dyn ZonedDevice>,
        options: &'a MkfsOptions,
    ) -> Boxed<'a, Result<MkfsReport>> {
        Box::pin(async move { mkfs::format(rt, device, options).await })
    }

    /// Mounts the file system, after recovery if there was a crash. If a structure that the mount
    /// needs is damaged, a mount for writing is refused, which loses nothing. A mount for reading
    /// shows everything readable, and [`Fs::losses`] lists the rest.
    ///
    /// # Errors
    /// `WrongFormat` if there is no file system or it has a newer version, `Unsupported` for a
    /// drive that the format cannot address, `Corrupt` if a needed structure is damaged;
    /// `NoSpace`, `Io`.
    #[inline(never)]
    pub fn mount(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        options: MountOptions,
    ) -> Boxed<'_, Result<Fs>> {
        Box::pin(async move {
            let misses = device.misses();
            let mut mounted = durability::recover::mount(rt, device.clone(), options.clone()).await;
            // A drive that was gone for a moment is read again, before anything counts as lost.
            if mounted.is_err() && device.misses() > misses && device.answers() {
                mounted = durability::recover::mount(rt, device.clone(), options.clone()).await;
            }
            // As long as the drive answers, an unreadable block is treated like a damaged one.
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

    /// Checks that the root directory of the file system on `device` is readable. If the root
    /// cannot be read, no name can be looked up, and the file system is unmounted. Without this
    /// check, inodes could still be used by number.
    ///
    /// # Errors
    /// `Corrupt`, with the commands that can help.
    pub async fn with_names(self, device: &dyn ZonedDevice) -> Result<Fs> {
        match with_root(self).await {
            Err(error) => Err(with_choices(device, error).await),
            rooted => rooted,
        }
    }

    /// The damage found by a mount for reading: one line for each loss. The first line is the
    /// damage for which a mount for writing is refused.
    pub fn losses(&self) -> Vec<String> {
        self.0.losses.borrow().clone()
    }

    /// Makes everything durable and ends the engine. Calls to this handle and its clones fail from
    /// then on.
    ///
    /// # Errors
    /// If the last checkpoint fails, or if writing failed earlier; the engine has ended
    /// nevertheless. `Io` if the engine had ended before.
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
            // Wait for zone resets and reads that are under way, because nothing may outlive
            // the engine.
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

    /// Writes access times that exist only in memory to their inodes.
    async fn take_access_times(&self) -> Result<()> {
        if self.failed_without_loss() {
            return Ok(());
        }
        loop {
            match self.0.run(|core| core.take_one_access()).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // Losing access times is better than a failed unmount.
                Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The error after which the engine no longer writes, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.0.core.borrow().health.failed().cloned()
    }

    /// True if all changes accepted before the failure are durable: the engine stopped writing
    /// because of damage ([`OnDamage::ReadOnly`]), not because writing failed.
    pub fn failed_without_loss(&self) -> bool {
        self.0.core.borrow().health.is_nothing_lost()
    }

    /// If damage makes the engine stop writing, waits until it has stopped; the engine first writes
    /// the changes that it has accepted.
    pub async fn settled(&self) {
        while self.is_stopping() && !self.0.ended.get() {
            self.0.progress.wait().await;
        }
    }

    /// True while the engine writes its accepted changes, after damage that makes it stop writing.
    pub fn is_stopping(&self) -> bool {
        let health = &self.0.core.borrow().health;
        health.stopping().is_some() && health.failed().is_none()
    }

    /// Begins to watch the drive for missing answers. [`MountOptions::notice`] gets a line after
    /// five seconds without an answer, another line whenever that time has doubled, and a last one
    /// when the answer has come.
    pub fn watch_drive(&self) {
        self.0.watch_drive();
    }

    /// How long the drive has owed an answer, if that is more than a few seconds and the drive
    /// [is watched](Fs::watch_drive).
    pub fn silence(&self) -> Option<Silence> {
        self.0.silence()
    }

    /// The executor that the file system runs on.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// The pool of pages for [`WriteData::copy`].
    pub fn pool(&self) -> &Pool {
        &self.0.pages
    }

    /// Finds the inode `name` in directory `parent`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`, `Corrupt`, `Io`.
    pub async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.0.run(|core| core.lookup(parent, name)).await
    }

    /// Returns the attributes of `ino`.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub async fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.0.run(|core| core.getattr(ino)).await
    }

    /// Changes attributes; a new size truncates or extends. If a crash interrupts a truncation by
    /// more than 126 MiB, the file may have a size between the old and the new one.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory` or `Invalid` for an inode whose size cannot be set, `TooLarge`,
    /// `NoSpace`, `ReadOnly`, `Corrupt`, `Io`.
    pub async fn setattr(&self, ino: Ino, changes: SetAttr) -> Result<Attr> {
        loop {
            // Truncate step by step; the last step makes the other changes too.
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
    /// as a named file would. The file counts as opened once: [`Fs::release`] frees it, unless
    /// [`Fs::link`] has given it a name. Its synced content survives a crash if the file gets a
    /// name that survives.
    ///
    /// # Errors
    /// `Unsupported` if the file system was made without this feature; otherwise as [`Fs::create`]
    /// and [`Fs::open`].
    pub async fn create_unnamed(&self, directory: Ino, node: &NewNode) -> Result<Attr> {
        if node.kind != Kind::File {
            let message = "only a regular file can be made without a name";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let op = self.0.core.borrow_mut().plan_create(Ino(format::NO_NODE), b"", node);
        self.0.run(|core| core.create_inheriting(directory, &op, node.umask)).await
    }

    /// Gives `ino` another name. `ino` must not be a directory.
    ///
    /// # Errors
    /// `IsDirectory` if `ino` is a directory; otherwise as [`Fs::create`].
    pub async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let time = self.0.core.borrow().now();
        self.0.run(|core| core.link(ino, parent, name, time)).await
    }

    /// Removes a name of an inode that is not a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `NotDirectory`, `NameTooLong`, `Invalid`, `NoSpace`, `ReadOnly`,
    /// `Corrupt`, `Io`.
    pub async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let gone = self.remove(parent, name, false, LastName::Frees).await?;
        self.reap(gone).await;
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty` if the directory has entries; otherwise as [`Fs::unlink`].
    pub async fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let gone = self.remove(parent, name, true, LastName::Frees).await?;
        self.reap(gone).await;
        Ok(())
    }

    /// Like [`Fs::rmdir`] if `directory`, otherwise like [`Fs::unlink`]. But an inode that loses
    /// its last name stays, and counts as opened once more until [`Fs::release`] frees it. Returns
    /// that inode.
    ///
    /// # Errors
    /// `TooManyOpen` at the limit of open files; otherwise as [`Fs::rmdir`] or [`Fs::unlink`].
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

    /// Frees an inode that lost its last name, unless it is open. The removal itself has
    /// already succeeded: an inode that cannot be freed now stays an orphan, and the next mount
    /// tries again.
    async fn reap(&self, ino: Option<Ino>) {
        let Some(ino) = ino else { return };
        while let Ok(false) = self.0.run(|core| core.reap(ino)).await {}
    }

    /// Renames an inode.
    ///
    /// # Errors
    /// `Invalid` if a directory would move below itself; otherwise as [`Fs::create`]
    /// and [`Fs::unlink`].
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

    /// Like [`Fs::rename`], but an inode that loses its last name stays, and counts as opened once
    /// more until [`Fs::release`] frees it. Returns that inode.
    ///
    /// # Errors
    /// `TooManyOpen` at the limit of open files; otherwise as [`Fs::rename`].
    pub async fn rename_open(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<Ino>> {
        let time = self.0.core.borrow().now();
        self.0.rename(from, to, mode, (time, LastName::Opens)).await
    }

    /// Reads the target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` if `ino` is not a symbolic link; `NotFound`, `Corrupt`, `Io`.
    pub async fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.run(|core| core.readlink(ino)).await
    }

    /// The value of the extended attribute `name`, which includes the prefix.
    ///
    /// # Errors
    /// `NoAttribute`, `NotFound`, `Corrupt`, `Io`.
    pub async fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.0.run(|core| core.getxattr(ino, name)).await
    }

    /// The names of all extended attributes, in ascending order.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub async fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.0.run(|core| core.listxattr(ino)).await
    }

    /// Sets an extended attribute. Its name begins with `user.`, `trusted.` or `security.`, or is
    /// the name of a POSIX access list; an access list changes permission bits too. The attribute
    /// becomes durable in the same way as other attributes.
    ///
    /// # Errors
    /// `Exists` and `NoAttribute` as `mode` says; `Unsupported` for another prefix, for the access
    /// list of a symbolic link, and if the file system was made without attributes; `NameTooLong`;
    /// `Invalid` for a malformed access list or an unknown lifetime; `Denied` for a default access
    /// list on anything but a directory; `NoSpace` for a value above 65,536 bytes, for more than
    /// 128 KiB of attributes or 64 KiB of names, and if the drive is full; `NotFound`, `ReadOnly`,
    /// `Corrupt`, `Io`.
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
    /// `NoAttribute`, `Unsupported`, `NameTooLong`, `NotFound`, `NoSpace`, `ReadOnly`,
    /// `Corrupt`, `Io`.
    pub async fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.0.run(|core| core.change_xattr(ino, name, None, XattrMode::Replace)).await
    }

    /// Sets how long the data of `ino` is expected to live (`RWH_WRITE_LIFE_*` of fcntl(2)), from
    /// its next write on. For a directory, sets the lifetime of the files made in it. `None`
    /// removes the lifetime. The lifetime is stored in the attribute [`LIFETIME_ATTRIBUTE`].
    ///
    /// # Errors
    /// The errors of [`Fs::setxattr`].
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

    /// The lifetime that [`Fs::set_lifetime`] has set for `ino`, or for the directory in which
    /// `ino` was made.
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

    /// Reads up to `max` entries after `cookie` (0 = from the start), without `.` and `..`. One
    /// call returns the entries of a few blocks at most; an empty result means the end.
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

    /// Like [`Fs::readdir`], but does not count as an access, like `O_NOATIME`.
    ///
    /// # Errors
    /// The errors of [`Fs::readdir`].
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

    /// The directory that contains directory `ino` (`..`).
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `Corrupt`, `Io`.
    pub async fn parent(&self, ino: Ino) -> Result<Ino> {
        self.0.run(|core| core.parent(ino)).await
    }

    /// Reads `len` bytes; fewer only at the end of the file.
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

    /// Like [`Fs::read`], but does not count as an access, like `O_NOATIME`.
    ///
    /// # Errors
    /// The errors of [`Fs::read`].
    pub async fn read_noatime(&self, ino: Ino, offset: u64, len: usize) -> Result<ReadData> {
        self.0.run(|core| core.read(ino, offset, len)).await
    }

    /// Writes all of `data` or nothing; at most [`WRITE_MAX`] bytes.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Invalid`, `TooLarge`, `NoSpace`, `ReadOnly`, `Corrupt`, `Io`.
    pub async fn write(&self, ino: Ino, data: WriteData) -> Result<()> {
        self.0.run(|core| core.write(ino, &data)).await
    }

    /// Keeps `ino` alive until [`Fs::release`], even if its last name is removed.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`; `TooManyOpen` at the limit of open files.
    pub async fn open(&self, ino: Ino) -> Result<Attr> {
        self.0.run(|core| core.open_file(ino)).await
    }

    /// Undoes one [`Fs::open`].
    ///
    /// # Errors
    /// `Invalid` if `ino` is not open.
    pub async fn release(&self, ino: Ino) -> Result<()> {
        let last = {
            let mut core = self.0.core.borrow_mut();
            core.tree.files_mut().close(ino)? && core.tree.files().is_orphan(ino)
        };
        self.reap(last.then_some(ino)).await;
        Ok(())
    }

    /// Makes the content and attributes of `ino` durable, and every name change so far. With
    /// `data_only` (fdatasync), attributes may be left out; this version always writes them.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `NoSpace`, `Corrupt`, `Io`. After an error, nothing may be
    /// assumed durable.
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
    /// written because the file's nodes are damaged: everything else is durable then.
    #[inline(never)]
    pub fn sync(&self) -> Boxed<'_, Result<()>> {
        Box::pin(async move {
            self.0.check_ended()?;
            self.take_access_times().await?;
            self.0.checkpoint(false).await?;
            self.0.left_aside(None)
        })
    }

    /// Cleans: empties superzones that are partly garbage. Blocks that cannot be read or fail
    /// verification stay where they are, and the report lists them.
    ///
    /// # Errors
    /// `ReadOnly`, `NoSpace`, `Io`. Blocks moved before the error stay moved.
    #[inline(never)]
    pub fn clean(&self, options: CleanOptions) -> Boxed<'_, Result<CleanReport>> {
        Box::pin(async move {
            self.0.check_ended()?;
            self.0.core.borrow().writable().map_err(blocked::error_of)?;
            self.0.clean(options).await
        })
    }

    /// Messages about blocks that requests or cleaning found damaged or unreadable since the mount,
    /// with their places, owners and reasons. Only the newest are kept; [`Counters::damaged_reads`]
    /// and [`Counters::clean_failed_blocks`] count all of them.
    pub fn damaged_blocks(&self) -> Vec<String> {
        self.0.core.borrow().damaged_blocks().to_vec()
    }

    /// Begins a scrub in the background, or changes the pace of the running one. A scrub reads
    /// everything on the drive that is in use, and compares it with its checksums.
    ///
    /// # Errors
    /// `Busy` for an order to begin a scrub while one is running, and for an order to change
    /// a scrub while none is running; `ReadOnly` if the scrub is to repair and the mount
    /// cannot write.
    pub fn scrub(&self, order: ScrubOrder) -> Result<()> {
        self.0.order_scrub(order)
    }

    /// The running scrub, or the last one since the mount.
    pub fn scrub_report(&self) -> Option<ScrubReport> {
        self.0.scrub_report()
    }

    /// Applies those of `options` that can change while the file system is mounted:
    /// `commit_interval`, `on_damage`, `extensions`, `gc`, and the options of access times. The
    /// other options stay as they are.
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

    /// Numbers of blocks and inodes, used and free.
    pub fn statfs(&self) -> StatFs {
        self.0.core.borrow().statfs()
    }

    /// The label and the UUID of the file system.
    pub fn identity(&self) -> (String, String) {
        let core = self.0.core.borrow();
        (core.env.layout.label.clone(), core.env.layout.uuid.to_string())
    }

    /// Changes the label, and makes the change durable before it returns. The next checkpoint goes
    /// to the other zone of the ring, together with a superblock that has the new label. The zone
    /// with the old label is then reset.
    ///
    /// # Errors
    /// `Invalid` if a superblock cannot hold the label; otherwise as [`Fs::sync`].
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

    /// Memory that the file system uses: now, and at its peak since the mount. The peak is updated
    /// after each operation and at each checkpoint.
    pub fn memory(&self) -> (Memory, Memory) {
        let mut core = self.0.core.borrow_mut();
        core.note_memory();
        (core.memory(), core.stats.memory_peak())
    }

    /// The log streams, with their quotas and the superzones that they write to.
    pub fn streams(&self) -> Vec<StreamInfo> {
        self.0.core.borrow().alloc.stream_infos()
    }

    /// The number of active zones that the file system may hold, and how many it holds permits for.
    pub fn permits(&self) -> (u32, u32) {
        self.0.core.borrow().alloc.permits()
    }

    /// Returns the use and the content of every zone of the drive.
    ///
    /// # Errors
    /// `Io` if the drive does not report its zones.
    #[inline(never)]
    pub fn zone_map(&self) -> Boxed<'_, Result<Vec<ZoneInfo>>> {
        Box::pin(async move {
            let device = self.0.core.borrow().env.device.clone();
            let reports = durability::recover::report(&*device).await?;
            Ok(self.0.core.borrow().zone_map(&reports))
        })
    }
}
