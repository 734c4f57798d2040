//! A file system reached through the library, in this process: for the demo if nothing can
//! be mounted.

use super::files::{Attributes, Files, OpenFile};
use anyhow::Context;
use furrow_fs::{Attr, Fs, Ino, Kind, MountOptions, NewNode, RenameMode, SetAttr, Time, WriteData};
use furrow_rt::{Pool, Port, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Access, Error, ErrorKind, Result};
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::mpsc::channel;

/// Number of names read at a time.
const LIST_STEP: usize = 1024;

/// An open file system.
pub struct Library {
    port: Port<Fs>,
    pool: Pool,
}

impl Library {
    /// Opens the file system on the drive whose image is `image`, and recovers what a crash left.
    ///
    /// # Errors
    /// An error if the file system cannot be opened.
    pub fn open(image: &Path) -> anyhow::Result<Library> {
        let spec: DeviceSpec = super::spec_of(image)?.parse()?;
        let (sender, receiver) = channel();
        let port = Port::start(crate::daemon::config()?, move |rt| {
            let device = furrow_drives::open(rt, &spec, Access::ReadWrite)?;
            let engine = rt.clone();
            let options = MountOptions::default();
            let fs = rt.block_on(async move { Fs::mount(&engine, device, options).await })?;
            // The receiver waits for this message below, so the send succeeds.
            let _ = sender.send(fs.pool().clone());
            Ok::<Fs, Error>(fs)
        })?;
        let pool = receiver.recv().context("the engine did not start")?;
        Ok(Library { port, pool })
    }

    /// Makes everything durable.
    pub fn sync(&self) -> io::Result<()> {
        self.call(|fs| async move { fs.sync().await })
    }

    /// Writes the last checkpoint and closes the drive.
    pub fn close(self) -> anyhow::Result<()> {
        let unmounted = self.port.try_stop(|_, fs| {
            let fs = fs.clone();
            async move { fs.unmount().await }
        });
        Ok(unmounted??)
    }

    /// Runs `look` on the engine.
    pub fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Fs) -> T + Send + 'static,
    ) -> io::Result<T> {
        self.call(|fs| async move { Ok(look(&fs)) })
    }

    /// Runs a request on the engine and waits for its result.
    fn call<T, F>(&self, request: impl FnOnce(Fs) -> F + Send + 'static) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        let answer = self.port.try_call(move |_: &Rt, fs| request(fs.clone()));
        answer.map_err(io::Error::other)?.map_err(to_io)
    }

    /// Runs a request on the inode at `path`.
    fn at<T, F>(
        &self,
        path: &str,
        request: impl FnOnce(Fs, Ino) -> F + Send + 'static,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        let path = path.to_owned();
        self.call(move |fs| async move {
            let ino = find(&fs, &path).await?;
            request(fs, ino).await
        })
    }

    /// Makes a node; fails if the name exists.
    fn make(&self, path: &str, node: NewNode) -> io::Result<Ino> {
        let (folder, name) = split(path);
        self.at(&folder, move |fs, folder| async move {
            Ok(fs.create(folder, name.as_bytes(), &node).await?.ino)
        })
    }
}

/// The inode at `path`.
async fn find(fs: &Fs, path: &str) -> Result<Ino> {
    let mut ino = Ino::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        ino = fs.lookup(ino, name.as_bytes()).await?.ino;
    }
    Ok(ino)
}

/// Splits a path into its folder and its last name.
fn split(path: &str) -> (String, String) {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    (folder.to_owned(), name.to_owned())
}

/// The error as the operating system reports it, with its message kept.
fn to_io(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.kind().errno()).kind();
    io::Error::new(kind, error)
}

fn attributes_of(attr: &Attr) -> Result<Attributes> {
    use super::files::Kind as Found;
    let kind = match attr.kind {
        Kind::Directory => Found::Folder,
        Kind::File => Found::Regular,
        Kind::Symlink => Found::Symlink,
        _ => return Err(Error::new(ErrorKind::Invalid, format!("{} is a special file", attr.ino))),
    };
    let modified = (attr.mtime.seconds, attr.mtime.nanoseconds);
    Ok(Attributes {
        kind,
        mode: u32::from(attr.mode),
        size: if kind == Found::Folder { 0 } else { attr.size },
        modified: if kind == Found::Symlink { (0, 0) } else { modified },
    })
}

impl Files for Library {
    fn make_folder(&self, path: &str, mode: u32) -> io::Result<()> {
        self.make(path, NewNode { mode: mode as u16, ..NewNode::directory() }).map(drop)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = self.at(path, |fs, ino| async move {
            let (mut names, mut cookie) = (Vec::new(), 0);
            loop {
                let some = fs.readdir(ino, cookie, LIST_STEP).await?;
                let Some(last) = some.last() else { return Ok(names) };
                cookie = last.cookie;
                names.extend(some.into_iter().map(|entry| entry.name));
            }
        })?;
        names.retain(|name| name != b"." && name != b"..");
        let text = |name| String::from_utf8(name).map_err(io::Error::other);
        let mut names = names.into_iter().map(text).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn attributes(&self, path: &str) -> io::Result<Attributes> {
        self.at(path, |fs, ino| async move { attributes_of(&fs.getattr(ino).await?) })
    }

    fn set_attributes(&self, path: &str, attributes: &Attributes) -> io::Result<()> {
        let (seconds, nanoseconds) = attributes.modified;
        let changes = SetAttr {
            mode: Some(attributes.mode as u16),
            mtime: Some(Time { seconds, nanoseconds }),
            ..SetAttr::default()
        };
        self.at(path, move |fs, ino| async move { fs.setattr(ino, changes).await.map(drop) })
    }

    fn make_link(&self, path: &str, target: &str) -> io::Result<()> {
        self.make(path, NewNode::symlink(target.as_bytes())).map(drop)
    }

    fn read_link(&self, path: &str) -> io::Result<String> {
        let target = self.at(path, |fs, ino| async move { fs.readlink(ino).await })?;
        String::from_utf8(target).map_err(io::Error::other)
    }

    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenFile + '_>> {
        let ino = if create {
            self.make(path, NewNode::file())?
        } else {
            self.at(path, |_, ino| async move { Ok(ino) })?
        };
        self.call(move |fs| async move { fs.open(ino).await })?;
        Ok(Box::new(Open { library: self, ino }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (split(from), split(to));
        self.call(move |fs| async move {
            let folders = (find(&fs, &from.0).await?, find(&fs, &to.0).await?);
            let (old, new) = ((folders.0, from.1.as_bytes()), (folders.1, to.1.as_bytes()));
            fs.rename(old, new, RenameMode::Replace).await
        })
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let (folder, name) = split(path);
        self.at(&folder, move |fs, folder| async move { fs.unlink(folder, name.as_bytes()).await })
    }

    fn sync_folder(&self, path: &str) -> io::Result<()> {
        self.at(path, |fs, ino| async move { fs.fsync(ino, false).await })
    }
}

/// An open file. If the file is removed, its content stays until this value is dropped.
struct Open<'a> {
    library: &'a Library,
    ino: Ino,
}

impl OpenFile for Open<'_> {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (ino, data) = (self.ino, WriteData::copy(&self.library.pool, offset, data));
        self.library.call(move |fs| async move { fs.write(ino, data).await })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let (ino, length) = (self.ino, buffer.len());
        let found =
            self.library.call(move |fs| async move { fs.read(ino, offset, length).await })?;
        found.copy_to(buffer);
        Ok(found.len())
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        let (ino, changes) = (self.ino, SetAttr { size: Some(size), ..SetAttr::default() });
        self.library.call(move |fs| async move { fs.setattr(ino, changes).await.map(drop) })
    }

    fn sync(&self) -> io::Result<()> {
        let ino = self.ino;
        self.library.call(move |fs| async move { fs.fsync(ino, false).await })
    }

    fn sync_data(&self) -> io::Result<()> {
        let ino = self.ino;
        self.library.call(move |fs| async move { fs.fsync(ino, true).await })
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let ino = self.ino;
        // If the engine has stopped, the call fails, but then no file is open.
        let _ = self.library.call(move |fs| async move { fs.release(ino).await });
    }
}
