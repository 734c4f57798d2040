//! The operations of the demo on a file system, independent of how it is reached: through a mount
//! or through the library. Paths are relative to the root of that file system, with `/`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kind of object that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Folder,
    Regular,
    Symlink,
}

/// The attributes that the demo compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Length in bytes; 0 for a folder, where file systems differ.
    pub size: u64,
    /// Modification time in seconds and nanoseconds since 1970; 0 for a symbolic link, whose time
    /// the demo does not set.
    pub modified: (i64, u32),
}

/// A file system under test. Calls may come from several threads.
pub trait Files: Sync {
    fn make_folder(&self, path: &str, mode: u32) -> io::Result<()>;
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    fn attributes(&self, path: &str) -> io::Result<Attributes>;
    fn set_attributes(&self, path: &str, attributes: &Attributes) -> io::Result<()>;
    fn make_link(&self, path: &str, target: &str) -> io::Result<()>;
    fn read_link(&self, path: &str) -> io::Result<String>;
    /// Opens a file for reading and writing. With `create`, makes the file, and fails if it exists.
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenFile + '_>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &str) -> io::Result<()>;
}

/// An open file of a [`Files`]. Offsets and lengths are in bytes.
pub trait OpenFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Reads at most `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    fn truncate(&self, size: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    fn sync_data(&self) -> io::Result<()>;
}

/// The files below a folder of this machine: a mount, or any folder to try the demo on.
pub struct Mounted {
    root: PathBuf,
}

impl Mounted {
    pub fn at(root: PathBuf) -> Mounted {
        Mounted { root }
    }
}

impl Files for Mounted {
    fn make_folder(&self, path: &str, mode: u32) -> io::Result<()> {
        let path = self.root.join(path);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(path))? {
            let name = entry?.file_name();
            names.push(name.into_string().map_err(|name| not_utf8(&name.to_string_lossy()))?);
        }
        names.sort();
        Ok(names)
    }

    fn attributes(&self, path: &str) -> io::Result<Attributes> {
        let found = fs::symlink_metadata(self.root.join(path))?;
        let kind = match found.file_type() {
            kind if kind.is_dir() => Kind::Folder,
            kind if kind.is_file() => Kind::Regular,
            kind if kind.is_symlink() => Kind::Symlink,
            _ => return Err(io::Error::other(format!("{path} is a special file"))),
        };
        let nanoseconds = u32::try_from(found.mtime_nsec()).unwrap_or(0);
        Ok(Attributes {
            kind,
            mode: found.mode() & 0o7777,
            size: if kind == Kind::Folder { 0 } else { found.len() },
            modified: if kind == Kind::Symlink { (0, 0) } else { (found.mtime(), nanoseconds) },
        })
    }

    fn set_attributes(&self, path: &str, attributes: &Attributes) -> io::Result<()> {
        let path = self.root.join(path);
        let (seconds, nanoseconds) = attributes.modified;
        let since = Duration::new(seconds.unsigned_abs(), 0);
        let modified: SystemTime =
            if seconds < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since };
        let modified = modified + Duration::from_nanos(u64::from(nanoseconds));
        File::open(&path)?.set_modified(modified)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(attributes.mode))
    }

    fn make_link(&self, path: &str, target: &str) -> io::Result<()> {
        std::os::unix::fs::symlink(target, self.root.join(path))
    }

    fn read_link(&self, path: &str) -> io::Result<String> {
        let target = fs::read_link(self.root.join(path))?;
        target.into_os_string().into_string().map_err(|t| not_utf8(&t.to_string_lossy()))
    }

    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenFile + '_>> {
        let path = self.root.join(path);
        let file = if create {
            OpenOptions::new().read(true).write(true).create_new(true).open(path)?
        } else {
            // Source trees contain files that their owner may not write; such files are opened only
            // for reading.
            let both = OpenOptions::new().read(true).write(true).open(&path);
            match both {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(path)?,
                other => other?,
            }
        };
        Ok(Box::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }

    fn sync_folder(&self, path: &str) -> io::Result<()> {
        File::open(self.root.join(path))?.sync_all()
    }
}

fn not_utf8(name: &str) -> io::Error {
    io::Error::other(format!("the demo handles UTF-8 names only, not {name}"))
}

impl OpenFile for File {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }
}
