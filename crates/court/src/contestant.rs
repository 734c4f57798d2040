//! The programs that do the compared work: on a mounted file system, or on Furrow's library.

use crate::kind::{Kind, run};
use crate::library::Library;
use anyhow::Result;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Directory at which file systems are mounted.
const PLACE: &str = "/mnt";

/// A contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// A program that reaches a file system through the kernel.
    Mounted(Kind),
    /// A program with Furrow's library in its process: no FUSE, and no cache of the kernel.
    Library,
}

impl clap::ValueEnum for Contestant {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Contestant::Mounted(Kind::Xfs),
            Contestant::Mounted(Kind::Btrfs),
            Contestant::Mounted(Kind::F2fs),
            Contestant::Mounted(Kind::DmZoned),
            Contestant::Mounted(Kind::Furrow),
            Contestant::Library,
        ]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.name().into())
    }
}

impl Contestant {
    /// Name of the contestant.
    pub fn name(self) -> &'static str {
        match self {
            Contestant::Mounted(kind) => kind.name(),
            Contestant::Library => "furrow-library",
        }
    }

    /// Makes a file system on the block device `device` and begins to use it.
    ///
    /// # Errors
    /// If the file system cannot be made or mounted.
    pub fn begin(self, device: &str, seed: u64) -> Result<Box<dyn FileSystem>> {
        Ok(match self {
            Contestant::Mounted(kind) => {
                kind.make(device, &[])?;
                kind.mount(device, PLACE)?;
                Box::new(Mount { kind, device: device.to_owned() })
            }
            Contestant::Library => Box::new(Library::on_node(device, seed)?),
        })
    }
}

/// A file system in use. Paths are relative to its root.
pub trait FileSystem {
    /// Makes a directory.
    ///
    /// # Errors
    /// The file system's error.
    fn make_directory(&self, path: &str) -> Result<()>;

    /// Makes an empty file and opens it for writing.
    ///
    /// # Errors
    /// The file system's error.
    fn create(&self, path: &str) -> Result<Box<dyn OpenFile>>;

    /// Opens a file for writing, or for reading.
    ///
    /// # Errors
    /// The file system's error.
    fn open(&self, path: &str, write: bool) -> Result<Box<dyn OpenFile>>;

    /// The file system's own size, and the part of it that is used or withheld, in bytes.
    ///
    /// # Errors
    /// The file system's error.
    fn space(&self) -> Result<(u64, u64)>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// The file system's error.
    fn sync(&self) -> Result<()>;

    /// Empties the kernel's and the library's caches. A daemon's own cache is emptied only if the
    /// file system is mounted `again`.
    ///
    /// # Errors
    /// The file system's error.
    fn drop_caches(&self, again: bool) -> Result<()>;

    /// Ends the use of the file system.
    ///
    /// # Errors
    /// The file system's error.
    fn end(self: Box<Self>) -> Result<()>;
}

/// An open file.
pub trait OpenFile {
    /// Size of the file in bytes.
    ///
    /// # Errors
    /// The file system's error.
    fn size(&self) -> Result<u64>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The file system's error.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Fills `bytes` with the content at `offset`.
    ///
    /// # Errors
    /// The file system's error, or an error if the file is too short.
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()>;

    /// Calls fsync.
    ///
    /// # Errors
    /// The file system's error.
    fn fsync(&self) -> Result<()>;
}

/// A file system mounted at [`PLACE`].
struct Mount {
    kind: Kind,
    device: String,
}

fn at(path: &str) -> PathBuf {
    Path::new(PLACE).join(path)
}

impl FileSystem for Mount {
    fn make_directory(&self, path: &str) -> Result<()> {
        Ok(std::fs::create_dir(at(path))?)
    }

    fn create(&self, path: &str) -> Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::create_new(at(path))?))
    }

    fn open(&self, path: &str, write: bool) -> Result<Box<dyn OpenFile>> {
        Ok(Box::new(OpenOptions::new().read(!write).write(write).open(at(path))?))
    }

    fn space(&self) -> Result<(u64, u64)> {
        let space = rustix::fs::statvfs(PLACE)?;
        let used = space.f_blocks - space.f_bavail.min(space.f_blocks);
        Ok((space.f_blocks * space.f_frsize, used * space.f_frsize))
    }

    fn sync(&self) -> Result<()> {
        self.kind.sync(PLACE)
    }

    fn drop_caches(&self, again: bool) -> Result<()> {
        if again {
            self.kind.unmount(PLACE)?;
        }
        run(&["sync"])?;
        std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        if again {
            self.kind.mount(&self.device, PLACE)?;
        }
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.kind.unmount(PLACE)
    }
}

impl OpenFile for File {
    fn size(&self) -> Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_all_at(bytes, offset)?)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        Ok(self.read_exact_at(bytes, offset)?)
    }

    fn fsync(&self) -> Result<()> {
        Ok(self.sync_all()?)
    }
}
