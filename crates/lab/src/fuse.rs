//! FUSE: what the engine adds to a request that the kernel does not answer itself.
//!
//! The requests are fstat, with attributes that the kernel never caches, and 4 KiB reads of a file
//! in the engine's cache that bypass the kernel's page cache (O_DIRECT). The benchmark also
//! compares the cost of finding or making a name among a million names and among a thousand. Client
//! and server are threads of one process.

use crate::bench::repeat;
use crate::directory::{SIZES, fill, name};
use crate::{Contestant, Effort, Row, compare, noise};
use anyhow::{Context as _, Result};
use furrow_fs::{Fs, MkfsOptions, MountOptions};
use furrow_fuse::null::{self, Null};
use furrow_fuse::{Background, Endpoint, FuseServer, Info, Session};
use furrow_rt::{Config, Port, Rng};
use furrow_zone::{Access, Error};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

const DEVICE: &str = "mem:capacity=1GiB";
const BLOCK: usize = 4096;
/// Requests between looks at the clock.
const BATCH: u32 = 64;

/// Runs the benchmark.
pub fn run(effort: Effort) -> Result<Vec<Row>> {
    let null = Mount::null()?;
    let engine = Mount::engine()?;
    let (null_file, engine_file) = (null.open()?, engine.open()?);
    let mut rows = compare(
        effort,
        "getattr",
        &mut [
            Contestant::new("getattr, null server", |slice| getattrs(&null_file, slice)),
            Contestant::new("getattr, furrow", |slice| getattrs(&engine_file, slice)),
        ],
    )?;
    rows.extend(compare(
        effort,
        "read",
        &mut [
            Contestant::new("4 KiB read, null server", |slice| reads(&null_file, slice)),
            Contestant::new("4 KiB read, furrow", |slice| reads(&engine_file, slice)),
        ],
    )?);
    drop((null_file, engine_file));
    rows.extend(names(effort, &engine)?);
    null.end()?;
    engine.end()?;
    Ok(rows)
}

/// Operations on names among few and among many, through the mount.
fn names(effort: Effort, engine: &Mount) -> Result<Vec<Row>> {
    let port = engine.port.as_ref().context("the engine is not mounted")?;
    for (size, _) in SIZES {
        port.call(move |_, fs| {
            let fs = fs.clone();
            async move { fill(&fs, size).await }
        })?;
    }
    let mut rows = Vec::new();
    for unit in ["lookup", "create"] {
        let mut contestants: Vec<Contestant<'_>> = SIZES
            .into_iter()
            .map(|(size, label)| {
                let directory = engine.directory.join(format!("of-{size}"));
                Contestant::new(format!("{unit}: among {label}"), move |slice| match unit {
                    "lookup" => lookups(&directory, size, slice),
                    _ => creates(&directory, slice),
                })
            })
            .collect();
        rows.extend(compare(effort, unit, &mut contestants)?);
    }
    Ok(rows)
}

/// Looks up existing names at random places in the directory.
fn lookups(directory: &Path, size: u32, slice: Duration) -> Result<f64> {
    let directory = open_directory(directory)?;
    let mut rng = Rng::new(5);
    let names: Vec<Vec<u8>> =
        (0..10_000).map(|_| name(rng.below(u64::from(size)) as u32)).collect();
    let mut names = names.iter().cycle();
    repeat(slice, BATCH, || {
        let name = &names.next().context("a cycle ends")?[..];
        rustix::fs::accessat(&directory, name, rustix::fs::Access::EXISTS, AtFlags::empty())
            .context("access")
    })
}

/// Makes an empty file and removes it again.
fn creates(directory: &Path, slice: Duration) -> Result<f64> {
    let directory = open_directory(directory)?;
    let mut number = 1 << 30;
    repeat(slice, BATCH, || {
        let name = &name(number)[..];
        number += 1;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        drop(rustix::fs::openat(&directory, name, flags, Mode::RWXU).context("create")?);
        rustix::fs::unlinkat(&directory, name, AtFlags::empty()).context("unlink")
    })
}

fn open_directory(directory: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::empty())
        .with_context(|| directory.display().to_string())
}

/// One of the two servers, mounted.
struct Mount {
    served: Background,
    directory: PathBuf,
    port: Option<Port<Fs>>,
}

impl Mount {
    fn null() -> Result<Mount> {
        let directory = directory("null")?;
        let session =
            Session::mount(Null::new(Duration::ZERO), &endpoint("furrow-null"), &directory)?;
        Ok(Mount { served: session.spawn()?, directory, port: None })
    }

    fn engine() -> Result<Mount> {
        let directory = directory("engine")?;
        let (sender, receiver) = channel();
        let port = Port::start(Config::real(), move |rt| {
            let device = furrow_emu::open(rt, &DEVICE.parse()?, Access::ReadWrite)?;
            let engine = rt.clone();
            let fs = rt.block_on(async move {
                Fs::format(&engine, device.clone(), &MkfsOptions::default()).await?;
                Fs::mount(&engine, device, MountOptions::default()).await
            })?;
            // Sending cannot fail, because the receiver waits below.
            let _ = sender.send(fs.pool().clone());
            Ok::<Fs, Error>(fs)
        })?;
        let pool = receiver.recv().context("the engine did not start")?;
        let log = Box::new(|line: &str| {
            use std::io::Write as _;
            // A failure to print is ignored.
            let _ = writeln!(std::io::stderr(), "{line}");
        });
        let server = FuseServer::new(port.clone(), pool, Duration::ZERO, Info::default(), log);
        let session = Session::mount(server, &endpoint("furrow-bench"), &directory)?;
        let mount = Mount { served: session.spawn()?, directory, port: Some(port) };
        std::fs::write(mount.file(), noise(BLOCK, 1)).context("cannot write the file to read")?;
        Ok(mount)
    }

    fn file(&self) -> PathBuf {
        self.directory.join(null::FILE)
    }

    fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = self.file();
        rustix::fs::open(&file, flags, Mode::empty()).with_context(|| file.display().to_string())
    }

    fn end(self) -> Result<()> {
        self.served.unmount()?;
        if let Some(port) = self.port {
            port.stop(|_, fs| {
                let fs = fs.clone();
                async move { fs.unmount().await }
            })?;
        }
        std::fs::remove_dir(&self.directory).context("cannot remove the mount point")
    }
}

fn endpoint(source: &str) -> Endpoint {
    Endpoint { source: source.to_owned(), ..Endpoint::default() }
}

fn directory(name: &str) -> Result<PathBuf> {
    let unique = format!("furrow-bench-{}-{name}", std::process::id());
    let path: PathBuf = Path::new(&std::env::temp_dir()).join(unique);
    std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn getattrs(file: &OwnedFd, slice: Duration) -> Result<f64> {
    repeat(slice, BATCH, || rustix::fs::fstat(file).map(drop).context("fstat"))
}

fn reads(file: &OwnedFd, slice: Duration) -> Result<f64> {
    let mut block = Aligned([0; BLOCK]);
    repeat(slice, BATCH, || {
        let length = rustix::io::pread(file, &mut block.0[..], 0).context("pread")?;
        anyhow::ensure!(length == BLOCK, "read {length} bytes of {BLOCK}");
        Ok(())
    })
}

/// A buffer with the alignment that O_DIRECT needs on some kernels.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);
