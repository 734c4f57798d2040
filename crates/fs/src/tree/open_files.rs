//! Open files: a removed file keeps its content until its last close.
//!
//! A checkpoint lists removed files that are open, so that a mount after a crash frees them. A
//! checkpoint has space for only a limited number of such files. Therefore the number of open files
//! is limited: opening one more file is refused, while removing a file or renaming over it is not.
//! A front end, however, may ask that the removal of a file's last name opens the file
//! ([`LastName::Opens`]); such a removal is refused too. Recovery has no limit: it frees a file as
//! soon as it has replayed the removal.

use crate::types::Ino;
use furrow_log::audit::expect;
use furrow_zone::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};

/// The treatment of an inode that loses its last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastName {
    /// The caller frees the inode, unless it is open.
    Frees,
    /// The removal opens the inode once more, for the caller, who may use it by number until the
    /// caller releases it.
    Opens,
}

/// Open files, and inodes without a name.
///
/// Invariants:
/// - The count of each file in `open` is at least one.
/// - Each inode in `unnamed` is in `orphans` too.
/// - `removed` is empty except during a replay.
#[derive(Default)]
pub(crate) struct OpenFiles {
    open: BTreeMap<Ino, u32>,
    /// Inodes without a name; each is freed once it is no longer open.
    orphans: BTreeSet<Ino>,
    /// Orphans that never had a name, and may get one.
    unnamed: BTreeSet<Ino>,
    /// Inodes that the replay has removed and not yet freed.
    removed: Vec<Ino>,
}

impl OpenFiles {
    /// Builds the state of a mount: no file is open, and `orphans` come from the checkpoint.
    pub(super) fn new(orphans: BTreeSet<Ino>) -> OpenFiles {
        OpenFiles { orphans, ..OpenFiles::default() }
    }

    /// True if `ino` is open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.open.contains_key(&ino)
    }

    /// Open files.
    pub(crate) fn open(&self) -> impl Iterator<Item = Ino> + '_ {
        self.open.keys().copied()
    }

    /// Number of open files.
    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    /// Counts another opening of `ino`.
    pub(super) fn open_once_more(&mut self, ino: Ino) {
        *self.open.entry(ino).or_default() += 1;
    }

    /// Undoes one opening of `ino`. True if it was the last one.
    ///
    /// # Errors
    /// `Invalid` if `ino` is not open.
    pub(crate) fn close(&mut self, ino: Ino) -> Result<bool> {
        let Some(count) = self.open.get_mut(&ino) else {
            let message = format!("inode {ino} is not open");
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.open.remove(&ino);
        }
        Ok(last)
    }

    /// Inodes without a name.
    pub(crate) fn orphans(&self) -> &BTreeSet<Ino> {
        &self.orphans
    }

    /// True if `ino` has no name.
    pub(crate) fn is_orphan(&self, ino: Ino) -> bool {
        self.orphans.contains(&ino)
    }

    /// True if `ino` never had a name, and may get one.
    pub(crate) fn is_unnamed(&self, ino: Ino) -> bool {
        self.unnamed.contains(&ino)
    }

    /// Adds `ino`, which is new and has no name.
    pub(super) fn add_unnamed(&mut self, ino: Ino) {
        self.orphans.insert(ino);
        self.unnamed.insert(ino);
    }

    /// Notes that `ino` is no longer an orphan: the inode got a name, or is freed.
    pub(crate) fn remove_orphan(&mut self, ino: Ino) {
        self.orphans.remove(&ino);
        self.unnamed.remove(&ino);
    }

    /// Notes that the last name of `ino` was removed. During a replay, recovery then frees
    /// the inode.
    pub(crate) fn lost_last_name(&mut self, ino: Ino, replayed: bool) {
        self.orphans.insert(ino);
        self.removed.extend(replayed.then_some(ino));
    }

    /// Takes an inode that the replay has removed and not yet freed.
    pub(crate) fn take_removed(&mut self) -> Option<Ino> {
        self.removed.pop()
    }

    /// True if the replay has freed all inodes that it removed.
    pub(crate) fn none_removed(&self) -> bool {
        self.removed.is_empty()
    }

    /// Ends the replay, and forgets the inodes that it removed.
    pub(crate) fn forget_removed(&mut self) {
        self.removed.clear();
    }

    /// Compares the lists with each other.
    ///
    /// # Errors
    /// `Internal`, naming the account that is wrong.
    pub(crate) fn audit(&self) -> Result<()> {
        for ino in &self.unnamed {
            let account = format_args!("orphans, inode {ino}");
            expect(account, self.orphans.contains(ino), "unnamed too")?;
        }
        for (ino, count) in &self.open {
            expect(format_args!("open, inode {ino}"), *count > 0, "open at least once")?;
        }
        Ok(())
    }
}

#[cfg(test)]
impl OpenFiles {
    /// Forgets all inodes without a name.
    pub(crate) fn forget_orphans(&mut self) {
        self.orphans.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod tests {
    use crate::{Fs, Ino, MkfsOptions, MountOptions, NewNode, RenameMode};
    use furrow_emu::{Emulator, Medium, Options};
    use furrow_rt::{Config, Rt};
    use furrow_zone::{ErrorKind, Result};
    use std::rc::Rc;

    /// At the largest number of open files, only calls that open a file are refused. All open files
    /// can be removed, and the checkpoint that lists them fits its zone and can be read back.
    #[test]
    fn as_many_files_are_open_as_can_be_removed() {
        let rt = Rt::new(Config::simulated(1));
        let spec = "zones=2400,zone-size=80KiB,max-active=14,channels=1";
        let geometry = furrow_zone::spec::parse_geometry(spec).unwrap();
        let medium = Medium::memory(&geometry);
        let drive = Rc::new(Emulator::new(&rt, geometry, medium, Options::fast()).unwrap());
        let on = rt.clone();
        let done: Result<()> = rt.block_on(async move {
            let format = MkfsOptions { segment_blocks: Some(10), ..MkfsOptions::default() };
            Fs::format(&on, drive.clone(), &format).await?;
            let fs = Fs::mount(&on, drive.clone(), MountOptions::default()).await?;
            let before = fs.0.core.borrow().tree.inodes();
            let most = fs.0.core.borrow().env.layout.open_max();
            assert!((2048..8192).contains(&most), "{most}");
            let mut inos = Vec::new();
            for n in 0..=most {
                let name = n.to_string();
                inos.push(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino);
            }
            for ino in &inos[..most] {
                fs.open(*ino).await?;
            }
            let refused = fs.open(inos[most]).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::TooManyOpen, "{refused}");
            let unnamed = fs.create_unnamed(Ino::ROOT, &NewNode::file()).await.unwrap_err();
            assert_eq!(unnamed.kind(), ErrorKind::TooManyOpen, "{unnamed}");
            let (last, first) = (most.to_string(), (Ino::ROOT, &b"0"[..]));
            let kept = fs.remove_open(Ino::ROOT, last.as_bytes(), false).await.unwrap_err();
            assert_eq!(kept.kind(), ErrorKind::TooManyOpen, "{kept}");
            let to = (Ino::ROOT, last.as_bytes());
            let kept = fs.rename_open(first, to, RenameMode::Replace).await.unwrap_err();
            assert_eq!(kept.kind(), ErrorKind::TooManyOpen, "{kept}");
            let still = fs.lookup(Ino::ROOT, last.as_bytes()).await?;
            assert_eq!(still.ino, inos[most], "a removal that is refused removes nothing");
            // A file that is open may be opened again, and closing a file permits opening
            // another one.
            fs.open(inos[0]).await?;
            fs.release(inos[0]).await?;
            fs.release(inos[0]).await?;
            fs.open(inos[most]).await?;
            for n in 2..most {
                fs.unlink(Ino::ROOT, n.to_string().as_bytes()).await?;
            }
            let (from, to) = ((Ino::ROOT, &b"0"[..]), (Ino::ROOT, &b"1"[..]));
            fs.rename(from, to, RenameMode::Replace).await?;
            fs.sync().await?;
            drop(fs);
            let fs = Fs::mount(&on, drive.clone(), MountOptions::default()).await?;
            assert_eq!(fs.0.core.borrow().tree.inodes(), before + 2, "what was removed is freed");
            fs.unmount().await
        });
        done.unwrap();
        rt.clear();
    }
}
