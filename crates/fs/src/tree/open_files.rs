//! Files that are open: one that is removed keeps its content until it is open no more.
//!
//! A checkpoint lists such files, so that a mount after a crash frees them, and has room for so
//! many only. Therefore the number of open files is limited: one that opens another is refused,
//! and nobody is refused to remove a file or to rename over it. Recovery knows no limit: it frees
//! what a removal leaves as it replays.

use crate::blocked::NotApplied;
use crate::core::Core;
use crate::types::{Attr, Ino};
use furrow_zone::{Error, ErrorKind};

impl Core {
    /// See [`crate::Fs::open`].
    pub(crate) fn open_file(&mut self, ino: Ino) -> Result<Attr, NotApplied> {
        let attr = self.getattr(ino)?;
        if !self.tree.open.contains_key(&ino) {
            self.check_open()?;
        }
        *self.tree.open.entry(ino).or_default() += 1;
        Ok(attr)
    }

    /// Refuses to have one more file open than there may be.
    pub(crate) fn check_open(&self) -> Result<(), NotApplied> {
        let most = self.layout.open_max();
        if self.tree.open.len() < most || self.replaying {
            return Ok(());
        }
        let message = format!("{most} files are open, as many as there may be");
        Err(NotApplied::Failed(Error::new(ErrorKind::TooManyOpen, message)))
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

    /// With as many files open as there may be, opening is refused, and nothing else: all of them
    /// can be removed, and the checkpoint that lists them fits its zone and is read again.
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
            let before = fs.0.core.borrow().tree.inodes;
            let most = fs.0.core.borrow().layout.open_max();
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
            // One that is open already may be opened again, and what is closed makes room.
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
            assert_eq!(fs.0.core.borrow().tree.inodes, before + 2, "what was removed is freed");
            fs.unmount().await
        });
        done.unwrap();
        rt.clear();
    }
}
