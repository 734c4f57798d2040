//! Drives without zones: block devices, their partitions, and files.
//!
//! Each is accessed like a zoned drive that has one conventional zone, through the same ring.

use crate::claim::Claim;
use crate::drive::{Drive, Held, Opened, Use, open_node, refuse_obstacles};
use crate::ioctl;
use crate::layout::plain_geometry;
use crate::names::{self, Obstacle};
use crate::sysfs::{Limits, Model};
use crate::transport::Transport;
use furrow_rt::{Clock, Completion, PAGE_SIZE, Pages, Rt};
use furrow_zone::{
    Access, BlockCount, ByteLen, Command, Error, ErrorKind, Geometry, Lba, Outcome, PlainDevice,
    QueueId, Request, Result, ZonedDevice,
};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind as IoKind, Read as _, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A block device or file without zones, opened for this process alone. A clone is another handle
/// of it; it stays open until the last clone and the last drive on it are dropped.
#[derive(Clone, Debug)]
pub struct PlainFile {
    name: String,
    folder: PathBuf,
    geometry: Geometry,
    access: Access,
    file: Arc<File>,
    /// The claim on a block device; `None` for a file.
    claim: Option<Arc<Claim>>,
    /// Number of write streams.
    streams: u8,
    warnings: Vec<String>,
}

fn io_error(name: &str, what: &str, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        IoKind::NotFound => ErrorKind::NotFound,
        IoKind::PermissionDenied => ErrorKind::Denied,
        IoKind::AlreadyExists => ErrorKind::Exists,
        IoKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        IoKind::StorageFull | IoKind::QuotaExceeded => ErrorKind::NoSpace,
        IoKind::FileTooLarge => ErrorKind::TooLarge,
        IoKind::IsADirectory => ErrorKind::IsDirectory,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{name}: {what}: {error}"))
}

/// Makes a file of `size` bytes at `path`, with all blocks allocated.
///
/// # Errors
/// `Exists`, `NotFound` (no such folder), `Denied`, `ReadOnly`, `NoSpace`, `TooLarge`,
/// `Unsupported` (the file system cannot allocate blocks), `Io`. If the allocation fails, the file
/// is removed.
pub fn allocate(path: &Path, size: ByteLen) -> Result<()> {
    let name = path.display().to_string();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    let file = file.map_err(|error| io_error(&name, "cannot be created", &error))?;
    fill(&file, &name, size).inspect_err(|_| {
        // This call made the file, so removing it loses nothing.
        let _ = std::fs::remove_file(path);
    })
}

/// Allocates the blocks of the first `size` bytes of `file`, which grows to that size if it
/// is smaller.
fn fill(file: &File, name: &str, size: ByteLen) -> Result<()> {
    let allocated = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size.0);
    let synced = allocated.map_err(std::io::Error::from).and_then(|()| file.sync_all());
    synced.map_err(|error| {
        let mut failed = io_error(name, &format!("{size} bytes cannot be allocated"), &error);
        if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) {
            let what = format!("{failed}: put it on a file system that allocates (ext4, XFS)");
            failed = Error::new(ErrorKind::Unsupported, what);
        }
        failed
    })
}

/// Locks the file called `name`: for this process alone, or shared among readers.
pub(crate) fn lock(name: &str, file: &File, access: Access) -> Result<()> {
    let locked = match access.writes() {
        true => file.try_lock(),
        false => file.try_lock_shared(),
    };
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => Error::new(
            ErrorKind::Busy,
            format!("{name}: in use by another process (fuser shows it): end that first"),
        ),
        TryLockError::Error(error) => io_error(name, "cannot be locked", &error),
    })
}

/// Opens a file, bypassing the page cache if its file system can.
fn open_file(path: &Path, access: Access) -> Result<(File, bool)> {
    let name = path.display().to_string();
    let open = |flags: OFlags| {
        OpenOptions::new()
            .read(true)
            .write(access.writes())
            .custom_flags(flags.bits() as i32)
            .open(path)
    };
    let (file, direct) = match open(OFlags::DIRECT | OFlags::CLOEXEC) {
        Err(error) if error.kind() == IoKind::InvalidInput => (open(OFlags::CLOEXEC), false),
        other => (other, true),
    };
    let file = file.map_err(|error| io_error(&name, "cannot be opened", &error))?;
    lock(&name, &file, access)?;
    Ok((file, direct))
}

impl PlainFile {
    /// Opens the block device or file at `path`. Until it is closed, no other program can mount the
    /// device or open it exclusively, or lock the file.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `Busy` (in use), `WrongFormat` (it has zones, or cannot be used),
    /// `ReadOnly`, `Io`. Nothing has been written.
    pub fn open(path: &str, access: Access) -> Result<PlainFile> {
        PlainFile::open_unless(path, access, names::plain_obstacles)
    }

    /// Opens a device like [`PlainFile::open`], to destroy its content. Partitions are not an
    /// obstacle, unless one of them is in use.
    ///
    /// # Errors
    /// The errors of [`PlainFile::open`].
    pub fn open_to_destroy(path: &str) -> Result<PlainFile> {
        let refused = |at: &Path| {
            let mut obstacles = names::plain_obstacles(at);
            obstacles.retain(|one| one.code != "partitioned");
            obstacles
        };
        PlainFile::open_unless(path, Access::ReadWrite, refused)
    }

    /// Takes over the whole device or file. Makes the kernel forget a device's partitions, so that
    /// no program accesses the new content through them; the partition table stays on the device.
    /// Allocates the holes of a file.
    ///
    /// # Errors
    /// `Busy` if the kernel does not forget a partition, usually because a program has it open. The
    /// kernel has then forgotten the partitions before that one, until it reads the table again.
    /// The errors of [`allocate`].
    pub fn take_all(&self) -> Result<()> {
        let meta = self.file.metadata();
        if let Some(meta) = meta.ok().filter(std::fs::Metadata::is_file) {
            return fill(&self.file, &self.name, ByteLen(meta.len()));
        }
        for (partition, number) in names::partitions(&self.folder) {
            ioctl::forget_partition(&self.file, number).map_err(|errno| {
                let what = format!(
                    "{}: its partition {partition}: {errno}: end what uses it (fuser shows it)",
                    self.name
                );
                Error::new(ErrorKind::Busy, what)
            })?;
        }
        Ok(())
    }

    fn open_unless(
        path: &str,
        access: Access,
        refused: impl Fn(&Path) -> Vec<Obstacle>,
    ) -> Result<PlainFile> {
        let at = Path::new(path);
        let meta =
            std::fs::metadata(at).map_err(|error| io_error(path, "cannot be used", &error))?;
        let wrong = |what: &str| Error::new(ErrorKind::WrongFormat, format!("{path}: {what}"));
        let kind = meta.file_type();
        let (folder, limits, (mut file, claim), direct) = if kind.is_block_device() {
            let folder = names::folder(at).map_err(|obstacle| wrong(&obstacle.what))?;
            refuse_obstacles(path, refused(at), access)?;
            let limits = Limits::read(&names::with_limits(&folder)).map_err(|what| wrong(&what))?;
            let Held { file, claim } = open_node(at, access)?;
            (folder, Some(limits), (file, Some(Arc::new(claim))), true)
        } else if kind.is_file() {
            let (file, direct) = open_file(at, access)?;
            (PathBuf::from("/"), None, (file, None), direct)
        } else {
            return Err(wrong("neither a block device nor a file"));
        };
        // The kernel does not offer streams on partitions.
        let streams = match names::is_partition(&folder) {
            true => 0,
            false => limits.as_ref().map_or(0, |limits| limits.streams),
        };
        let size = file.seek(SeekFrom::End(0));
        let size = size.map_err(|error| io_error(path, "its size", &error))?;
        let geometry = plain_geometry(size, limits.as_ref()).map_err(|what| wrong(&what))?;
        let mut warnings = Vec::new();
        if !direct {
            warnings.push(format!(
                "{path}: its file system knows no direct access: the page cache is used"
            ));
        }
        let (name, file) = (path.to_owned(), Arc::new(file));
        Ok(PlainFile { name, folder, geometry, access, file, claim, streams, warnings })
    }

    /// Reads the first block of the file or block device at `path`: less if it is shorter, nothing
    /// if it cannot be read. Other kinds of files, such as pipes, are not opened, because that
    /// could wait for ever.
    pub fn first_block(path: &str) -> Vec<u8> {
        let mut front = Vec::new();
        let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
        if kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
            let read = File::open(path)
                .and_then(|file| file.take(PAGE_SIZE as u64).read_to_end(&mut front));
            if read.is_err() {
                front.clear();
            }
        }
        front
    }

    /// Reads the first bytes, at most `most`, where other programs keep signatures.
    ///
    /// # Errors
    /// `Io`.
    pub fn front(&self, most: usize) -> Result<Vec<u8>> {
        // Reads that bypass the page cache need aligned memory.
        let mut page = furrow_rt::Page::zeroed();
        let mut bytes = Vec::new();
        while bytes.len() < most {
            let read = self.file.read_at(&mut page.make_mut()[..], bytes.len() as u64);
            match read.map_err(|error| io_error(&self.name, "cannot be read", &error))? {
                PAGE_SIZE => bytes.extend_from_slice(&page[..]),
                rest => {
                    bytes.extend_from_slice(&page[..rest]);
                    break;
                }
            }
        }
        bytes.truncate(most);
        Ok(bytes)
    }

    /// Starts a drive on the file, on the executor `rt`, whose clock must be real.
    ///
    /// # Errors
    /// `Invalid` (a virtual clock), `Unsupported` (no io_uring), `Io`.
    pub fn start(&self, rt: &Rt) -> Result<PlainDrive> {
        if rt.config().clock == Clock::Virtual {
            let what = format!("{}: a real drive needs a real clock", self.name);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let PlainFile { name, folder, geometry, access, file, claim, streams, warnings } =
            self.clone();
        let claims = claim.into_iter().collect();
        let opened = Opened { name, folder, geometry, access, file, claims, warnings };
        let usage = Use { model: Model::None, queued: false, streams };
        Drive::start(rt, opened, usage, Transport::block).map(PlainDrive)
    }
}

/// A block device or file without zones, with a ring of its own. A clone is another handle of the
/// same drive.
#[derive(Clone, Debug)]
pub struct PlainDrive(Drive);

impl PlainDrive {
    fn range(&self, offset: u64, pages: usize) -> (Lba, BlockCount) {
        (Lba(offset / PAGE_SIZE as u64), BlockCount(pages as u64))
    }
}

impl PlainDevice for PlainDrive {
    fn size(&self) -> ByteLen {
        self.0.geometry().capacity()
    }

    fn max_transfer(&self) -> ByteLen {
        let geometry = self.0.geometry();
        geometry.bytes(geometry.max_transfer.unwrap_or(BlockCount(1)))
    }

    fn read(&self, offset: u64, data: Pages) -> Completion<Outcome> {
        let (lba, blocks) = self.range(offset, data.len());
        self.0.submit(QueueId(0), Request::with_data(Command::Read { lba, blocks }, data))
    }

    fn streams(&self) -> u8 {
        self.0.streams()
    }

    fn write(&self, offset: u64, data: Pages, stream: u8) -> Completion<Outcome> {
        let (lba, blocks) = self.range(offset, data.len());
        self.0.write(Request::with_data(Command::Write { lba, blocks }, data), stream)
    }

    fn flush(&self) -> Completion<Outcome> {
        self.0.submit(QueueId(0), Request::bare(Command::Flush))
    }

    fn discard(&self, offset: u64, length: u64) -> Completion<Outcome> {
        self.0.discard(offset, length)
    }

    fn misses(&self) -> u64 {
        self.0.misses()
    }

    fn oldest(&self) -> Option<u64> {
        self.0.oldest()
    }

    fn give_up(&self) {
        self.0.give_up();
    }

    fn warnings(&self) -> &[String] {
        self.0.warnings()
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Page};

    #[test]
    fn a_file_is_written_read_flushed_and_locked() {
        let path = std::env::temp_dir().join(format!("furrow-plain-{}", std::process::id()));
        allocate(&path, ByteLen(1 << 20)).expect("a file system that allocates");
        assert_eq!(allocate(&path, ByteLen(1)).expect_err("it exists").kind(), ErrorKind::Exists);
        let name = path.display().to_string();
        let file = PlainFile::open(&name, Access::ReadWrite).expect("a file");
        let busy = PlainFile::open(&name, Access::ReadOnly).expect_err("locked");
        assert_eq!(busy.kind(), ErrorKind::Busy);
        let rt = Rt::new(Config::real());
        let drive = file.start(&rt).expect("a kernel with io_uring");
        assert_eq!(drive.size(), ByteLen(1 << 20));
        rt.block_on(async move {
            let data: Pages = (1..4).map(|fill| Page::from_slice(&[fill; PAGE_SIZE])).collect();
            assert_eq!(drive.streams(), 0, "files have none");
            assert!(drive.write(8 * 4096, data, 3).await.status.is_ok());
            assert!(drive.flush().await.status.is_ok());
            assert!(drive.discard(0, 4096).await.status.is_ok());
            let pages = (0..2).map(|_| Page::zeroed()).collect();
            let read = drive.read(9 * 4096, pages).await;
            assert_eq!((read.data[0][5], read.data[1][4095]), (2, 3));
            let beyond = (0..2).map(|_| Page::zeroed()).collect();
            assert!(!drive.read((1 << 20) - 4096, beyond).await.status.is_ok());
        });
        rt.clear();
        assert_eq!(file.front(6).expect("it can be read"), [0; 6]);
        drop(file);
        assert!(PlainFile::open(&name, Access::ReadOnly).is_ok());
        std::fs::remove_file(&path).expect("ours");
    }
}
