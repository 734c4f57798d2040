//! Recorded runs on the file system, through the library: buffered, as RocksDB uses a kernel's.
//!
//! A sync is an fsync; `Flush` and `RangeSync` do nothing by default. The file system gets hints of
//! lifetimes, as RocksDB gives them to the kernel.

use super::{Ahead, Files, Id, Keeper, found, path_of};
use crate::catalogue::Profile;
use crate::host::Host;
use crate::inside::Ended;
use crate::target::files::Library;
use anyhow::{Context as _, Result};
use furrow_fs::{Ino, Lifetime, NewNode, RenameMode};
use furrow_kv::Lifetime as Hint;
use furrow_kv::trace::Op;
use furrow_rt::Rt;
use furrow_zone::ZonedDevice;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

struct File {
    ino: Ino,
    size: Cell<u64>,
    ahead: Ahead,
}

/// A file system that carries out the calls of recorded runs.
pub struct FsKeeper {
    rt: Rt,
    library: Rc<Library>,
    directories: RefCell<BTreeMap<String, Ino>>,
    files: Files<File>,
    /// Number of bytes read ahead; 0: none.
    ahead: u64,
}

impl FsKeeper {
    /// Makes a file system for `profile` on `device`, and mounts it.
    ///
    /// # Errors
    /// If the drive cannot hold the file system, or the host model asks for something that the
    /// engine lacks.
    pub async fn new(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        profile: &Profile,
        host: &Host,
    ) -> Result<FsKeeper> {
        Ok(FsKeeper {
            rt: rt.clone(),
            library: Rc::new(Library::new(rt, device, profile, host).await?),
            directories: RefCell::default(),
            files: RefCell::default(),
            ahead: host.readahead.0,
        })
    }

    /// The inode of the directory of `path`, and the name in that directory.
    fn place<'a>(&self, path: &'a str) -> Result<(Ino, &'a [u8])> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let found = match parent {
            "" => Some(Ino::ROOT),
            _ => self.directories.borrow().get(parent).copied(),
        };
        Ok((found.with_context(|| format!("{parent}: no such directory"))?, name.as_bytes()))
    }

    fn file(&self, copy: u32, file: u64) -> Result<Rc<File>> {
        found(&self.files, copy, file)
    }

    async fn create(&self, id: Id, path: &str) -> Result<Rc<File>> {
        let (parent, name) = self.place(path)?;
        // A new file replaces an existing file of the same name.
        if self.library.fs.lookup(parent, name).await.is_ok() {
            self.library.fs.unlink(parent, name).await?;
        }
        let ino = self.library.fs.create(parent, name, &NewNode::file()).await?.ino;
        let file = Rc::new(File { ino, size: Cell::new(0), ahead: Ahead::default() });
        self.files.borrow_mut().insert(id, file.clone());
        Ok(file)
    }

    async fn hint(&self, file: &File, hint: Hint) -> Result<()> {
        let lifetime = match hint {
            Hint::NotSet | Hint::None => return Ok(()),
            Hint::Short => Lifetime::Short,
            Hint::Medium => Lifetime::Medium,
            Hint::Long => Lifetime::Long,
            Hint::Extreme => Lifetime::Extreme,
        };
        Ok(self.library.fs.set_lifetime(file.ino, Some(lifetime)).await?)
    }

    async fn append(&self, file: &File, at: u64, len: u64) -> Result<u64> {
        self.library.write(file.ino, at, len).await?;
        file.size.set(at + len);
        Ok(len)
    }

    async fn truncate(&self, file: &File, size: u64) -> Result<()> {
        if size < file.size.replace(size) {
            let changes = furrow_fs::SetAttr { size: Some(size), ..Default::default() };
            self.library.fs.setattr(file.ino, changes).await?;
        }
        Ok(())
    }

    async fn read(&self, copy: u32, file: u64, offset: u64, len: u64) -> Result<u64> {
        let file = self.file(copy, file)?;
        let (library, ino) = (self.library.clone(), file.ino);
        let fetch = move |at, bytes| {
            let library = library.clone();
            async move { library.read(ino, at, bytes).await.map(drop) }
        };
        let size = file.size.get();
        file.ahead.read(&self.rt, (offset, len, size), self.ahead, fetch).await?;
        Ok(len.min(size.saturating_sub(offset)))
    }
}

impl Keeper for FsKeeper {
    async fn make_directory(&self, path: &str) -> Result<()> {
        if self.directories.borrow().contains_key(path) {
            return Ok(());
        }
        let (parent, name) = self.place(path)?;
        let ino = self.library.fs.create(parent, name, &NewNode::directory()).await?.ino;
        self.directories.borrow_mut().insert(path.to_owned(), ino);
        Ok(())
    }

    async fn make_file(&self, id: Id, path: &str, size: u64) -> Result<()> {
        let file = self.create(id, path).await?;
        self.append(&file, 0, size).await.map(drop)
    }

    async fn begin(&mut self) -> Result<()> {
        self.library.fs.sync().await?;
        let library = Rc::get_mut(&mut self.library).context("the library is in use")?;
        library.mount_again().await
    }

    async fn perform(&self, copy: u32, op: &Op) -> Result<u64> {
        let fs = &self.library.fs;
        match op {
            Op::Create { file, lifetime, path } => {
                let file = self.create(Id { copy, file: *file }, &path_of(copy, path)).await?;
                self.hint(&file, *lifetime).await?;
            }
            Op::SetLifetime { file, lifetime } => {
                self.hint(&*self.file(copy, *file)?, *lifetime).await?;
            }
            Op::Append { file, len, .. } => {
                let file = self.file(copy, *file)?;
                return self.append(&file, file.size.get(), *len).await;
            }
            Op::AppendAt { file, offset, len, .. } => {
                let file = self.file(copy, *file)?;
                return self.append(&file, *offset, *len).await;
            }
            Op::Truncate { file, size } => self.truncate(&*self.file(copy, *file)?, *size).await?,
            Op::Sync { file } => self.library.fsync(self.file(copy, *file)?.ino, true).await?,
            Op::Read { file, offset, len, .. } => {
                return self.read(copy, *file, *offset, *len).await;
            }
            Op::SyncNames => {
                let directory = self.place(&path_of(copy, ""))?.0;
                self.library.fsync(directory, false).await?;
            }
            Op::SyncAll => fs.sync().await?,
            Op::Rename { from, to } => {
                let (from, to) = (path_of(copy, from), path_of(copy, to));
                let (before, after) = (self.place(&from)?, self.place(&to)?);
                fs.rename(before, after, RenameMode::Replace).await?;
                let moved = self.directories.borrow_mut().remove(&from);
                moved.map(|ino| self.directories.borrow_mut().insert(to, ino));
            }
            Op::Link { from, to } => {
                let (from, to) = (path_of(copy, from), path_of(copy, to));
                let (parent, name) = self.place(&from)?;
                let ino = fs.lookup(parent, name).await?.ino;
                let (parent, name) = self.place(&to)?;
                fs.link(ino, parent, name).await?;
            }
            Op::Remove { path } => {
                let path = path_of(copy, path);
                let (parent, name) = self.place(&path)?;
                fs.unlink(parent, name).await?;
            }
            Op::MakeDirectory { path } => self.make_directory(&path_of(copy, path)).await?,
            Op::RemoveDirectory { path } => {
                let path = path_of(copy, path);
                let (parent, name) = self.place(&path)?;
                fs.rmdir(parent, name).await?;
                self.directories.borrow_mut().remove(&path);
            }
            // For these calls, a kernel's file system has nothing to do, or only looks into its
            // cache, which costs only processor time.
            Op::Found { .. }
            | Op::FoundDirectory { .. }
            | Op::Open { .. }
            | Op::Close { .. }
            | Op::Flush { .. }
            | Op::RangeSync { .. }
            | Op::Stat { .. }
            | Op::List { .. }
            | Op::SetFamily { .. }
            | Op::ReadBegin { .. }
            | Op::ReadWait { .. } => {}
        }
        Ok(0)
    }

    async fn end(&self) -> Result<Option<Ended>> {
        self.library.end().await.map(Some)
    }
}
