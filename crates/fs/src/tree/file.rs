//! Attributes and content of files: getattr, setattr, read, write, readlink.

use crate::alloc::space::Claim;
use crate::blocked::NotApplied;
use crate::core::Core;
use crate::tree::node::{attr, stamp};
use crate::types::WRITE_BLOCKS_MAX;
use crate::types::{Attr, Ino, Kind, ReadData, SetAttr, WriteData};
use furrow_rt::{PAGE_SIZE, Page, Pages};
use furrow_zone::{Error, ErrorKind};

fn fail<T>(kind: ErrorKind, message: impl Into<String>) -> Result<T, NotApplied> {
    Err(NotApplied::Failed(Error::new(kind, message)))
}

impl Core {
    /// See [`crate::Fs::getattr`].
    pub(crate) fn getattr(&mut self, ino: Ino) -> Result<Attr, NotApplied> {
        self.attr(ino)
    }

    /// See [`crate::Fs::setattr`]. `None` if a step of a truncation was applied and more
    /// steps follow.
    pub(crate) fn setattr(
        &mut self,
        ino: Ino,
        changes: &SetAttr,
    ) -> Result<Option<Attr>, NotApplied> {
        self.writable()?;
        self.throttle()?;
        let old = self.attr(ino)?;
        if let Some(size) = changes.size {
            check_regular(&old)?;
            self.check_size(size)?;
        }
        let xattrs = match changes.mode {
            Some(mode) => self.chmod_xattrs(ino, mode)?,
            None => None,
        };
        self.reserve(1, 4, Claim::Removal)?;
        if let Some(size) = changes.size
            && !self.shrink(ino, size)?
        {
            return Ok(None);
        }
        // Apply the change.
        let now = stamp(self.now());
        self.take_access(ino);
        if let Some(packed) = xattrs {
            self.store_xattrs(ino, &packed)?;
        }
        let head = &mut self.inode_mut(ino).head;
        if let Some(mode) = changes.mode {
            head.mode = (mode & 0o7777).into();
        }
        if let Some(uid) = changes.uid {
            head.uid = uid.into();
        }
        if let Some(gid) = changes.gid {
            head.gid = gid.into();
        }
        if let Some(size) = changes.size {
            head.size = size.into();
            head.mtime = now;
        }
        if let Some(time) = changes.atime {
            head.atime = stamp(time);
        }
        if let Some(time) = changes.mtime {
            head.mtime = stamp(time);
        }
        head.ctime = changes.ctime.map_or(now, stamp);
        Ok(Some(attr(head)))
    }

    /// See [`crate::Fs::readlink`].
    pub(crate) fn readlink(&mut self, ino: Ino) -> Result<Vec<u8>, NotApplied> {
        let attr = self.getattr(ino)?;
        if attr.kind != Kind::Symlink {
            return fail(ErrorKind::Invalid, format!("inode {ino} is not a symbolic link"));
        }
        let size = (attr.size as usize).min(PAGE_SIZE);
        match self.data(ino, 0)? {
            Some(page) => {
                let target = page.bytes()[..size].to_vec();
                self.note_access(ino);
                Ok(target)
            }
            None => Err(self.corrupt(format!("symbolic link {ino} has no target"))),
        }
    }

    /// See [`crate::Fs::read`].
    pub(crate) fn read(
        &mut self,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Result<ReadData, NotApplied> {
        let attr = self.getattr(ino)?;
        if attr.kind == Kind::Directory {
            return fail(ErrorKind::IsDirectory, format!("inode {ino} is a directory"));
        }
        let len = (len as u64).min(attr.size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(ReadData::default());
        }
        let first = (offset / PAGE_SIZE as u64) as u32;
        let last = ((offset + len as u64 - 1) / PAGE_SIZE as u64) as u32;
        if last > first {
            self.want(ino, first..last + 1)?;
        }
        let mut pages = Pages::new();
        for block in first..=last {
            let page = match self.data(ino, block)? {
                Some(page) => page.clone(),
                None => self.zero_page(),
            };
            pages.push(page);
        }
        self.stats.counters.read_bytes += len as u64;
        Ok(ReadData { pages, skip: (offset % PAGE_SIZE as u64) as usize, len })
    }

    /// See [`crate::Fs::open`].
    pub(crate) fn open_file(&mut self, ino: Ino) -> Result<Attr, NotApplied> {
        let attr = self.getattr(ino)?;
        if !self.tree.files.is_open(ino) {
            self.check_open()?;
        }
        self.tree.files.open_once_more(ino);
        Ok(attr)
    }

    /// Refuses to open a file beyond the limit of open files.
    pub(crate) fn check_open(&self) -> Result<(), NotApplied> {
        let most = self.env.layout.open_max();
        if self.tree.files.count() < most || self.health.replaying() {
            return Ok(());
        }
        fail(ErrorKind::TooManyOpen, format!("{most} files are open, which is the maximum"))
    }

    fn zero_page(&self) -> Page {
        self.tree.zero.clone()
    }

    /// Number of blocks that a write of `blocks` blocks from `first` on adds to the blocks in use,
    /// including `nodes` new nodes. While enough blocks are left, returns an upper bound, which
    /// takes every block for new.
    fn added_by(
        &mut self,
        ino: Ino,
        first: u32,
        blocks: u32,
        nodes: u32,
    ) -> Result<u64, NotApplied> {
        let most = u64::from(blocks) + u64::from(nodes);
        if self.has_blocks(most) {
            return Ok(most);
        }
        let mut added = u64::from(nodes);
        for block in first..first + blocks {
            added += u64::from(!self.has_block(ino, block)?);
        }
        Ok(added)
    }

    /// See [`crate::Fs::write`].
    pub(crate) fn write(&mut self, ino: Ino, data: &WriteData) -> Result<(), NotApplied> {
        self.writable()?;
        let old = self.getattr(ino)?;
        check_regular(&old)?;
        if data.is_empty() {
            return Ok(());
        }
        if data.pages.len() > WRITE_BLOCKS_MAX {
            let most = (WRITE_BLOCKS_MAX - 1) * PAGE_SIZE;
            return fail(ErrorKind::Invalid, format!("write at most {most} bytes at a time"));
        }
        let end = data.offset.saturating_add(data.len as u64);
        self.check_size(end)?;
        self.throttle()?;
        let first = (data.offset / PAGE_SIZE as u64) as u32;
        let mut nodes = 0;
        for (index, crc) in data.crcs.iter().enumerate() {
            nodes += self.prepare_block(ino, first + index as u32, crc.is_none())?;
        }
        // `prepare_block` counts a new leaf once for each block in the leaf, so the sum is limited
        // to the number of leaves that this many blocks can touch.
        let leaves = data.pages.len() as u32 / crate::format::LEAF_POINTERS as u32 + 2;
        let (blocks, nodes) = (data.pages.len() as u32, nodes.min(leaves + 6));
        let added = self.added_by(ino, first, blocks, nodes)?;
        self.reserve(blocks, nodes + 1, Claim::User(added))?;
        // Apply the change.
        let mut from = (data.offset % PAGE_SIZE as u64) as usize;
        let mut left = data.len;
        for (index, (page, crc)) in data.pages.iter().zip(&data.crcs).enumerate() {
            let block = first + index as u32;
            let take = left.min(PAGE_SIZE - from);
            if crc.is_some() {
                self.replace_data(ino, block, page.clone(), *crc);
            } else {
                let bytes = self.data_mut(ino, block);
                bytes[from..from + take].copy_from_slice(&page.bytes()[from..from + take]);
            }
            left -= take;
            from = 0;
        }
        self.take_access(ino);
        let now = stamp(self.now());
        let head = &mut self.inode_mut(ino).head;
        head.size = head.size.get().max(end).into();
        if !data.keeps_times {
            (head.mtime, head.ctime) = (now, now);
        }
        self.stats.counters.user_bytes += data.len as u64;
        Ok(())
    }
}

pub(crate) fn check_regular(attr: &Attr) -> Result<(), NotApplied> {
    match attr.kind {
        Kind::File => Ok(()),
        Kind::Directory => {
            fail(ErrorKind::IsDirectory, format!("inode {} is a directory", attr.ino))
        }
        _ => fail(ErrorKind::Invalid, format!("inode {} is not a regular file", attr.ino)),
    }
}
