//! Recorded runs on a file store, as the plugin uses it.

use super::{Ahead, Files, Id, Keeper, found, path_of};
use crate::host::Host;
use crate::policy::StorePolicy;
use anyhow::{Context as _, Result};
use furrow_kv::trace::Op;
use furrow_kv::{FileId, FormatOptions, Lifetime, Store};
use furrow_rt::Rt;
use furrow_zone::ZonedDevice;
use std::cell::RefCell;
use std::rc::Rc;

/// Maximum size, in bytes, of an append to files that are made before the run.
const PIECE: usize = 1 << 20;

struct File {
    id: FileId,
    ahead: Ahead,
}

/// A file store that carries out the calls of recorded runs.
pub struct StoreKeeper {
    rt: Rt,
    store: Store,
    files: Files<File>,
    /// Number of bytes read ahead; 0: none.
    ahead: u64,
    /// The content of writes, which makes no difference in virtual time.
    content: Vec<u8>,
}

impl StoreKeeper {
    /// Makes a store on `device` and opens it.
    ///
    /// # Errors
    /// If the drive cannot hold the store.
    pub async fn new(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        policy: &StorePolicy,
        host: &Host,
    ) -> Result<StoreKeeper> {
        let format =
            FormatOptions { label: "replay".to_owned(), force: true, ..FormatOptions::default() };
        Store::format(rt, device.clone(), &format).await.context("making the store")?;
        let store = Store::open(rt, device, policy.options()?).await.context("opening it")?;
        Ok(StoreKeeper {
            rt: rt.clone(),
            store,
            files: RefCell::default(),
            ahead: host.readahead.0,
            content: vec![0; PIECE],
        })
    }

    fn file(&self, copy: u32, file: u64) -> Result<Rc<File>> {
        found(&self.files, copy, file)
    }

    fn create(&self, id: Id, path: &str, lifetime: Lifetime) -> Result<FileId> {
        let made = self.store.create(path, lifetime)?;
        self.files.borrow_mut().insert(id, Rc::new(File { id: made, ahead: Ahead::default() }));
        Ok(made)
    }

    async fn append(&self, id: FileId, len: u64) -> Result<u64> {
        let mut left = len;
        while left > 0 {
            let piece = left.min(PIECE as u64);
            self.store.append(id, &self.content[..piece as usize]).await?;
            left -= piece;
        }
        Ok(len)
    }

    async fn read(&self, copy: u32, file: u64, offset: u64, len: u64) -> Result<u64> {
        let file = self.file(copy, file)?;
        let (store, id) = (self.store.clone(), file.id);
        let fetch = move |at, bytes: u64| {
            let store = store.clone();
            async move { Ok(store.read(id, at, bytes as usize).await.map(drop)?) }
        };
        let size = self.store.size(id)?;
        file.ahead.read(&self.rt, (offset, len, size), self.ahead, fetch).await?;
        Ok(len.min(size.saturating_sub(offset)))
    }
}

impl Keeper for StoreKeeper {
    async fn make_directory(&self, path: &str) -> Result<()> {
        match self.store.stat(path) {
            Ok(_) => Ok(()),
            Err(_) => Ok(self.store.make_directory(path)?),
        }
    }

    async fn make_file(&self, id: Id, path: &str, size: u64) -> Result<()> {
        let made = self.create(id, path, Lifetime::Medium)?;
        self.append(made, size).await?;
        self.store.sync(made).await?;
        Ok(self.store.close(made).await?)
    }

    async fn begin(&mut self) -> Result<()> {
        Ok(self.store.sync_all().await?)
    }

    async fn perform(&self, copy: u32, op: &Op) -> Result<u64> {
        match op {
            Op::Create { file, lifetime, path } => {
                self.create(Id { copy, file: *file }, &path_of(copy, path), *lifetime)?;
            }
            Op::Open { path, .. } => drop(self.store.open_file(&path_of(copy, path))?),
            Op::Close { file } => self.store.close(self.file(copy, *file)?.id).await?,
            Op::Append { file, len, .. } => {
                return self.append(self.file(copy, *file)?.id, *len).await;
            }
            Op::AppendAt { file, offset, len, .. } => {
                let id = self.file(copy, *file)?.id;
                self.store.truncate(id, *offset).await?;
                return self.append(id, *len).await;
            }
            Op::Truncate { file, size } => {
                self.store.truncate(self.file(copy, *file)?.id, *size).await?;
            }
            Op::Sync { file } => self.store.sync(self.file(copy, *file)?.id).await?,
            Op::SetLifetime { file, lifetime } => {
                self.store.set_lifetime(self.file(copy, *file)?.id, *lifetime)?;
            }
            Op::Read { file, offset, len, .. } => {
                return self.read(copy, *file, *offset, *len).await;
            }
            Op::SyncNames => self.store.sync_names().await?,
            Op::SyncAll => self.store.sync_all().await?,
            Op::Rename { from, to } => {
                self.store.rename(&path_of(copy, from), &path_of(copy, to))?;
            }
            Op::Link { from, to } => self.store.link(&path_of(copy, from), &path_of(copy, to))?,
            Op::Remove { path } => self.store.remove(&path_of(copy, path))?,
            Op::MakeDirectory { path } => self.make_directory(&path_of(copy, path)).await?,
            Op::RemoveDirectory { path } => self.store.remove_directory(&path_of(copy, path))?,
            Op::SetFamily { path, family } => {
                self.store.set_family(&path_of(copy, path), family)?;
            }
            Op::Found { .. }
            | Op::FoundDirectory { .. }
            | Op::Flush { .. }
            | Op::RangeSync { .. }
            | Op::Stat { .. }
            | Op::List { .. }
            | Op::ReadBegin { .. }
            | Op::ReadWait { .. } => {}
        }
        Ok(0)
    }
}
