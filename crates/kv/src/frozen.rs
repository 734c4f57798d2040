//! A view of an open store at one instant, for slow readers.
//!
//! The view has all names and all content of its instant, synced or not, as a reader inside the
//! program would have found it. A file that is removed later is dropped with the last view that has
//! it, and blocks that a truncation takes away are kept in memory (`kept`).
//!
//! Invariant: a view reads what the store held at its instant, or fails. Only bytes that the
//! program has declared dead may read as zeros.

use crate::extent::{Extent, FileId};
use crate::file::File;
use crate::file_io::Data;
use crate::inspect::{FileInfo, ZoneInfo, zone_infos};
use crate::kept::Kept;
use crate::namespace::paths::Node;
use crate::store::Store;
use furrow_log::survey;
use furrow_rt::{Boxed, PAGE_SIZE, Pages};
use furrow_zone::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A view of a store. Dropping it lets the store drop files that were removed meanwhile.
pub struct Frozen {
    store: Store,
    names: BTreeMap<String, Node>,
    files: BTreeMap<FileId, (FileInfo, Rc<Kept>)>,
}

impl Store {
    /// Creates a view of all names and files as they are now.
    ///
    /// # Errors
    /// `Io` if the store died.
    pub fn freeze(&self) -> Result<Frozen> {
        self.check_alive()?;
        let mut files = BTreeMap::new();
        for (id, file) in self.0.files.borrow_mut().iter_mut().filter(|(_, file)| file.names > 0) {
            let kept = Rc::new(Kept::new(file.size));
            file.views.push(kept.clone());
            files.insert(*id, (info_of(*id, file), kept));
        }
        let names = self.0.names.borrow().nodes.clone();
        Ok(Frozen { store: self.clone(), names, files })
    }

    /// Reads the blocks that a truncation to `last` blocks will remove, and keeps them for
    /// the file's views. No await follows the last read, so nothing changes before the
    /// caller truncates.
    pub(crate) async fn keep_for_views(&self, id: FileId, last: u32) -> Result<()> {
        loop {
            let next = self.with(id, |file| {
                let mut views = file.views.iter();
                views.find_map(|kept| Some((kept.clone(), kept.missing(last)?)))
            })?;
            let Some((kept, block)) = next else { return Ok(()) };
            match self.read_run(id, block, kept.end()).await {
                Ok(pages) => kept.keep(block, pages),
                // The block cannot be read: the view loses it, and the truncation continues.
                Err(_) => kept.cut(u64::from(block) * PAGE_SIZE as u64),
            }
        }
    }

    /// Describes the content of each zone, in zone order.
    ///
    /// # Errors
    /// `Io` if the drive does not report its zones.
    #[inline(never)]
    pub fn zones(&self) -> Boxed<'_, Result<Vec<ZoneInfo>>> {
        Box::pin(async move {
            let writer = &self.0.zones.writer;
            let reports = survey::reports(&**writer.device()).await?;
            let files = self.0.files.borrow();
            let extents = files.iter().map(|(id, file)| (*id, file.extents.as_slice()));
            let ring = self.0.ring.borrow();
            Ok(zone_infos(&reports, writer.geometry(), (self.0.ring_zones, ring.half()), extents))
        })
    }
}

fn info_of(id: FileId, file: &File) -> FileInfo {
    let places = file.extents.iter().flat_map(Extent::places);
    FileInfo {
        id,
        size: file.size,
        modified: file.modified,
        lifetime: file.lifetime,
        extents: file.extents.len() as u32,
        blocks: places.map(|(_, blocks)| u64::from(blocks)).sum(),
        names: file.names,
    }
}

impl Frozen {
    /// Iterates over all paths in ascending order, each with its file or directory.
    pub fn names(&self) -> impl Iterator<Item = (&str, Node)> {
        self.names.iter().map(|(path, node)| (path.as_str(), *node))
    }

    /// Returns the metadata of a file; `None` if the view does not have it.
    pub fn file(&self, id: FileId) -> Option<&FileInfo> {
        self.files.get(&id).map(|(info, _)| info)
    }

    /// Reads from a file; returns less than `len` bytes at its end.
    ///
    /// # Errors
    /// `NotFound` if the view has no such file; `Busy` if the program has truncated more of the
    /// file than the view keeps; `Corrupt` and `Io` as [`Store::read`].
    pub async fn read(&self, id: FileId, offset: u64, len: usize) -> Result<Data> {
        let missing = || Error::new(ErrorKind::NotFound, format!("file {} is not there", id.0));
        let (info, kept) = self.files.get(&id).ok_or_else(missing)?;
        let len = (len as u64).min(info.size.saturating_sub(offset)) as usize;
        let mut block = (offset / PAGE_SIZE as u64) as u32;
        let end = (offset + len as u64).div_ceil(PAGE_SIZE as u64) as u32;
        let mut pages = Pages::new();
        while len > 0 && block < end {
            if let Some(page) = kept.page(block) {
                pages.push(page);
                block += 1;
                continue;
            }
            let run = (block..end).take_while(|block| kept.is_intact(*block)).count() as u32;
            if run == 0 {
                let name = self.name_of(id);
                let (size, left) = (info.size, kept.intact());
                let message = format!("{name}: the program has cut it from {size} to {left} bytes");
                return Err(Error::new(ErrorKind::Busy, message));
            }
            let more = self.store.read_run(id, block, block + run).await?;
            block += more.len() as u32;
            pages.extend(more);
        }
        Ok(Data::new(pages, (offset % PAGE_SIZE as u64) as usize, len))
    }

    fn name_of(&self, id: FileId) -> &str {
        let mut names = self.names.iter();
        names.find(|(_, node)| **node == Node::File(id)).map_or("", |(path, _)| path.as_str())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for (id, (_, kept)) in &self.files {
            let gone = self.store.with(*id, |file| {
                file.views.retain(|view| !Rc::ptr_eq(view, kept));
            });
            // A store that has stopped drops nothing any more.
            if gone.is_ok() && self.store.check_alive().is_ok() {
                self.store.drop_unused(*id);
            }
        }
    }
}
