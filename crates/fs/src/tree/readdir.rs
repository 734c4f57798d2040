//! Lists directories.
//!
//! The blocks of a directory with many levels are mostly holes, and its names may be in any block.
//! So a listing skips the holes, a few blocks at a time.

use crate::blocked::{Blocked, NotApplied};
use crate::core::Core;
use crate::tree::dirent;
use crate::tree::holes::Sought;
use crate::types::{DirEntry, Ino};

/// Largest number of blocks of a directory read in one step of a listing.
const LISTED_BLOCKS: u32 = 32;

/// The result of one step of a listing.
#[derive(Debug)]
pub(crate) enum Listed {
    /// The entries found; an empty list means the end of the directory.
    Entries(Vec<DirEntry>),
    /// No entry was found yet: the listing continues at this cookie.
    NotBefore(u64),
}

impl Core {
    /// Applies one step of [`crate::Fs::readdir`].
    pub(crate) fn readdir(
        &mut self,
        ino: Ino,
        cookie: u64,
        max: usize,
    ) -> Result<Listed, NotApplied> {
        let levels = self.directory(ino)?;
        let (first, mut from) = dirent::decode_cookie(cookie).unwrap_or((0, 0));
        let end = dirent::blocks(levels);
        // Read ahead, because a listing usually continues.
        self.want(ino, first.min(end)..(first.saturating_add(16)).min(end))?;
        let mut entries = Vec::new();
        let mut at = first;
        for _ in 0..LISTED_BLOCKS {
            let next = match self.next_block(ino, u64::from(at)) {
                Ok(next) => next,
                // Return the entries found so far instead of waiting for the block.
                Err(NotApplied::Blocked(Blocked::Load(_))) if !entries.is_empty() => {
                    return Ok(Listed::Entries(entries));
                }
                Err(stop) => return Err(stop),
            };
            let block = match next {
                Sought::Found(block) if block < u64::from(end) => block as u32,
                Sought::More(block) if block < u64::from(end) => {
                    at = block as u32;
                    break;
                }
                _ => return Ok(Listed::Entries(entries)),
            };
            if block != first {
                from = 0;
            }
            let page = match self.data(ino, block) {
                Ok(page) => page,
                Err(NotApplied::Blocked(Blocked::Load(_))) if !entries.is_empty() => {
                    return Ok(Listed::Entries(entries));
                }
                Err(stop) => return Err(stop),
            };
            if let Some(page) = page {
                for entry in dirent::iter_from(page.bytes(), from) {
                    if entries.len() == max {
                        return Ok(Listed::Entries(entries));
                    }
                    entries.push(DirEntry {
                        ino: Ino(entry.ino),
                        kind: entry.kind,
                        name: entry.name.to_vec(),
                        cookie: dirent::cookie_after(block, entry.offset),
                    });
                }
            }
            at = block + 1;
            if at >= end {
                return Ok(Listed::Entries(entries));
            }
        }
        self.cache.look(entries.len() as u64);
        Ok(match entries.is_empty() {
            true => Listed::NotBefore(dirent::cookie(at, 0)),
            false => Listed::Entries(entries),
        })
    }
}
