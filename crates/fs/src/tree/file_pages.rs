//! The data pages of files in the cache: finding, requesting and changing them.

use crate::blocked::{Blocked, Fetch, NotApplied};
use crate::core::Core;
use crate::format::{FILE_MAX, HOLE};
use crate::tree::cache::{Entry, Key};
use crate::types::Ino;
use furrow_rt::{PAGE_SIZE, Page};
use furrow_zone::{Error, ErrorKind};
use smallvec::SmallVec;

impl Core {
    /// The page of block `block` of `ino`, from the cache; `None` for a hole.
    pub(crate) fn data(&mut self, ino: Ino, block: u32) -> Result<Option<&Page>, NotApplied> {
        let key = Key::Data(ino.0, block);
        if let Some(place) = self.cache.find(&key) {
            return Ok(Some(self.cache.at(place).page()));
        }
        let pointer = self.pointer(ino, block)?;
        if pointer.addr.get() == HOLE {
            return Ok(None);
        }
        Err(Blocked::Load(smallvec::smallvec![Fetch { key, pointer }]).into())
    }

    /// Makes sure that no block of `blocks` has to be read. Otherwise the error requests all
    /// missing blocks, and missing nodes on their paths, at once.
    pub(crate) fn want(
        &mut self,
        ino: Ino,
        blocks: std::ops::Range<u32>,
    ) -> Result<(), NotApplied> {
        let mut missing: SmallVec<[Fetch; 4]> = SmallVec::new();
        for block in blocks {
            let key = Key::Data(ino.0, block);
            if self.cache.contains(&key) {
                continue;
            }
            match self.pointer(ino, block) {
                Ok(pointer) if pointer.addr.get() == HOLE => {}
                Ok(pointer) => missing.push(Fetch { key, pointer }),
                Err(NotApplied::Blocked(Blocked::Load(nodes))) => missing.extend(nodes),
                Err(stop) => return Err(stop),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(Blocked::Load(missing).into()) }
    }

    /// Prepares a change of `block`: loads its path and, if the change is `partial`, its content.
    /// Returns the number of nodes that the change adds.
    pub(crate) fn prepare_block(
        &mut self,
        ino: Ino,
        block: u32,
        partial: bool,
    ) -> Result<u32, NotApplied> {
        let nodes = self.prepare_path(ino, block)?;
        if partial {
            self.data(ino, block)?;
        }
        Ok(nodes)
    }

    /// The bytes of the prepared `block` of `ino`, to be changed; a hole becomes zeros. Counts the
    /// block if it is new.
    pub(crate) fn data_mut(&mut self, ino: Ino, block: u32) -> &mut [u8; PAGE_SIZE] {
        let key = Key::Data(ino.0, block);
        self.account_block(ino, block);
        if !self.cache.contains(&key) {
            self.cache.insert(key, Entry::dirty(self.env.pages.take()));
        }
        self.cache.get_mut(&key).expect("invariant: inserted just now")
    }

    /// Replaces the whole content of the prepared `block` of `ino` by `page`, whose checksum is
    /// `crc` if it is known.
    pub(crate) fn replace_data(&mut self, ino: Ino, block: u32, page: Page, crc: Option<u32>) {
        self.account_block(ino, block);
        let key = Key::Data(ino.0, block);
        self.cache.insert(key, Entry::dirty(page).with_crc(crc));
    }

    /// Accounts for a block that is about to change: makes the nodes on the block's path, and marks
    /// the node that holds the block's pointer dirty. If the block is new, the inode counts it.
    fn account_block(&mut self, ino: Ino, block: u32) {
        let holder = self.grow(ino, block);
        let cached_dirty = self.cache.peek(&Key::Data(ino.0, block)).is_some_and(Entry::is_dirty);
        if !cached_dirty && self.slot(holder).addr.get() == HOLE {
            let blocks = &mut self.inode_mut(ino).head.blocks;
            *blocks = (blocks.get() + 1).into();
        }
    }

    /// Checks that a file may be `size` bytes long.
    pub(crate) fn check_size(&self, size: u64) -> Result<(), NotApplied> {
        if size > FILE_MAX {
            let message = format!("{size} bytes are above the largest file, {FILE_MAX} bytes");
            return Err(NotApplied::Failed(Error::new(ErrorKind::TooLarge, message)));
        }
        Ok(())
    }
}
