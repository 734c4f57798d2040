//! Furrow's library in the process of its user, as a contestant.

use crate::contestant::{FileSystem, OpenFile};
use crate::kind::CACHE_MIB;
use anyhow::{Result, ensure};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, WriteData};
use furrow_rt::{Config, PAGE_SIZE, Pool, Port, Rt};
use furrow_zone::spec::{DeviceSpec, Node};
use furrow_zone::{Access, Error, ZonedDevice};
use std::cell::RefCell;
use std::rc::Rc;

/// Number of pages of the engine's cache: as many as a mount has in a comparison.
const CACHE_PAGES: usize = (CACHE_MIB << 20) / PAGE_SIZE;

/// The state on the engine's thread.
struct Engine {
    drive: Rc<dyn ZonedDevice>,
    fs: RefCell<Fs>,
}

/// A file system of the library, used from one thread. Its engine has another thread, as in a
/// mount's daemon: that thread handles the drive's answers, writes back and cleans while the user
/// does something else.
#[derive(Clone)]
pub struct Library {
    port: Port<Rc<Engine>>,
    /// Pool of pages for written data.
    pool: Pool,
}

impl Library {
    /// Makes a file system on the block device at `path`, and mounts it in this process. The device
    /// is opened in the same way as by the commands `furrow mkfs` and `furrow mount`.
    ///
    /// # Errors
    /// If the device cannot be opened, or the file system cannot be made or mounted.
    pub fn on_node(path: &str, seed: u64) -> Result<Library> {
        let spec = DeviceSpec::Node(Node::new(path));
        Library::on(seed, move |rt| furrow_drives::open(rt, &spec, Access::ReadWrite))
    }

    /// Makes and mounts a file system on the drive that `open` opens.
    ///
    /// # Errors
    /// The errors of [`Library::on_node`].
    pub fn on(
        seed: u64,
        open: impl FnOnce(&Rt) -> Result<Rc<dyn ZonedDevice>, Error> + Send + 'static,
    ) -> Result<Library> {
        let config = Config { seed, ..Config::real() };
        let port = Port::start(config, move |rt| {
            let drive = open(rt)?;
            let (engine, device) = (rt.clone(), drive.clone());
            let fs = rt.block_on(async move {
                Fs::format(&engine, device.clone(), &MkfsOptions::default()).await?;
                mount(&engine, device).await
            })?;
            Ok::<_, Error>(Rc::new(Engine { drive, fs: RefCell::new(fs) }))
        })?;
        Ok(Library { port, pool: Pool::new(CACHE_PAGES) })
    }

    /// Runs `operation` on the file system and waits for it.
    fn call<T: Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(Fs) -> Result<T, Error> + Send + 'static,
    ) -> Result<T> {
        let called = self.port.try_call(move |_, engine| {
            let fs = engine.fs.borrow().clone();
            async move { operation(fs).await }
        });
        Ok(called??)
    }

    fn file(
        &self,
        find: impl AsyncFnOnce(Fs) -> Result<Ino, Error> + Send + 'static,
    ) -> Result<Box<dyn OpenFile>> {
        Ok(Box::new(LibraryFile { library: self.clone(), ino: self.call(find)? }))
    }
}

async fn mount(rt: &Rt, drive: Rc<dyn ZonedDevice>) -> Result<Fs, Error> {
    let options = MountOptions { cache_pages: CACHE_PAGES, ..MountOptions::default() };
    Fs::mount(rt, drive, options).await
}

/// The inode of the directory of `path`, and the name in that directory.
async fn locate<'a>(fs: &Fs, path: &'a str) -> Result<(Ino, &'a [u8]), Error> {
    let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut directory = Ino::ROOT;
    for part in directories.split('/').filter(|part| !part.is_empty()) {
        directory = fs.lookup(directory, part.as_bytes()).await?.ino;
    }
    Ok((directory, name.as_bytes()))
}

async fn create(fs: &Fs, path: &str, node: NewNode) -> Result<Ino, Error> {
    let (directory, name) = locate(fs, path).await?;
    Ok(fs.create(directory, name, &node).await?.ino)
}

impl FileSystem for Library {
    fn make_directory(&self, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.call(async move |fs| create(&fs, &path, NewNode::directory()).await.map(drop))
    }

    fn create(&self, path: &str) -> Result<Box<dyn OpenFile>> {
        let path = path.to_owned();
        self.file(async move |fs| create(&fs, &path, NewNode::file()).await)
    }

    fn open(&self, path: &str, _write: bool) -> Result<Box<dyn OpenFile>> {
        let path = path.to_owned();
        self.file(async move |fs| {
            let (directory, name) = locate(&fs, &path).await?;
            Ok(fs.lookup(directory, name).await?.ino)
        })
    }

    fn space(&self) -> Result<(u64, u64)> {
        let space = self.call(async |fs| Ok(fs.statfs()))?;
        let block = u64::from(space.block_size);
        Ok((space.blocks * block, (space.blocks - space.blocks_available) * block))
    }

    fn sync(&self) -> Result<()> {
        self.call(async |fs| fs.sync().await)
    }

    /// Unmounts and mounts again, whatever `again` is: there is no other way to drop the
    /// engine's cache.
    fn drop_caches(&self, _again: bool) -> Result<()> {
        let called = self.port.try_call(|rt, engine| {
            let (rt, engine) = (rt.clone(), engine.clone());
            async move {
                let fs = engine.fs.borrow().clone();
                fs.unmount().await?;
                let fs = mount(&rt, engine.drive.clone()).await?;
                engine.fs.replace(fs);
                Ok::<_, Error>(())
            }
        });
        Ok(called??)
    }

    fn end(self: Box<Self>) -> Result<()> {
        let ended = self.port.try_stop(|_, engine| {
            let fs = engine.fs.borrow().clone();
            async move { fs.unmount().await }
        });
        Ok(ended??)
    }
}

struct LibraryFile {
    library: Library,
    ino: Ino,
}

impl OpenFile for LibraryFile {
    fn size(&self) -> Result<u64> {
        let ino = self.ino;
        self.library.call(async move |fs| Ok(fs.getattr(ino).await?.size))
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (ino, data) = (self.ino, WriteData::copy(&self.library.pool, offset, bytes));
        self.library.call(async move |fs| fs.write(ino, data).await)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let (ino, length) = (self.ino, bytes.len());
        let data = self.library.call(async move |fs| fs.read(ino, offset, length).await)?;
        ensure!(data.len() == length, "{} of {length} bytes read at {offset}", data.len());
        data.copy_to(bytes);
        Ok(())
    }

    fn fsync(&self) -> Result<()> {
        let ino = self.ino;
        self.library.call(async move |fs| fs.fsync(ino, false).await)
    }
}
