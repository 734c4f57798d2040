//! Who does the work that is compared: a program on a mounted file system, or on Furrow's library.

use crate::kind::{Kind, run};
use crate::library::Library;
use anyhow::Result;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Where file systems are mounted.
const PLACE: &str = "/mnt";

/// A contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// A program that reaches a file system through the kernel.
    Mounted(Kind),
    /// A program that has Furrow's library in its process: no FUSE, no cache of the kernel.
    Library,
}

impl clap::ValueEnum for Contestant {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Contestant::Mounted(Kind::Xfs),
            Contestant::Mounted(Kind::Btrfs),
            Contestant::Mounted(Kind::F2fs),
            Contestant::Mounted(Kind::Furrow),
            Contestant::Library,
        ]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.name().into())
    }
}

impl Contestant {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Contestant::Mounted(kind) => kind.name(),
            Contestant::Library => "furrow-library",
        }
    }

    /// Makes a file system on the block device `device` and begins to use it.
    ///
    /// # Errors
    /// If it cannot be made or mounted.
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
    /// What the file system says, here and below.
    fn make_directory(&self, path: &str) -> Result<()>;

    /// Makes an empty file and opens it for writing.
    ///
    /// # Errors
    /// As above.
    fn create(&self, path: &str) -> Result<Box<dyn OpenFile>>;

    /// Opens a file for writing, or for reading.
    ///
    /// # Errors
    /// As above.
    fn open(&self, path: &str, write: bool) -> Result<Box<dyn OpenFile>>;

    /// The file system's own size, and what is used or withheld of it, in bytes.
    ///
    /// # Errors
    /// As above.
    fn space(&self) -> Result<(u64, u64)>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// As above.
    fn sync(&self) -> Result<()>;

    /// Empties caches: the kernel's, and the library's. A daemon's own cache is empty only if the
    /// file system is mounted `again`.
    ///
    /// # Errors
    /// As above.
    fn drop_caches(&self, again: bool) -> Result<()>;

    /// Ends the use.
    ///
    /// # Errors
    /// As above.
    fn end(self: Box<Self>) -> Result<()>;
}

/// An open file.
pub trait OpenFile {
    /// Its size in bytes.
    ///
    /// # Errors
    /// What the file system says, here and below.
    fn size(&self) -> Result<u64>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// As above.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Fills `bytes` with what is at `offset`.
    ///
    /// # Errors
    /// As above; if the file ends before.
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()>;

    /// fsync.
    ///
    /// # Errors
    /// As above.
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
