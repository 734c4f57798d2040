//! Mounts against what limits them: a FUSE server that does nothing, and the file system of this
//! machine's disk.
//!
//! All contestants work in one run, on one disk: that of the folder for temporary files (`TMPDIR`),
//! where Furrow's drive is an image. Furrow and the server that does nothing are mounted by each
//! transport, without and with the kernel's write-back cache; Furrow is compared with the server
//! that has the same options. Everything is then repeated with all threads of this process bound to
//! one processor: the time of a request depends on whether the kernel wakes the server on another
//! processor. The io_uring transport is left out where the owner of the machine has not allowed it
//! (`/sys/module/fuse/parameters/enable_uring`). Operations:
//!
//! - fstat(2) that the kernel must pass to the server, creating and removing empty files;
//! - buffered writes of 4 KiB and 1 MiB into a file of 256 MiB, without fsync;
//! - buffered reads of the same file, from the server's memory (its pages are dropped from the
//!   kernel's cache before each pass) or, on the disk's own file system, from the kernel's cache;
//! - 4 KiB appended, and fsync;
//! - dbench with 1 and 4 clients, if it is installed; cloning a git repository of 2,000 files, and
//!   unpacking them by tar.

use crate::bench::repeat;
use crate::{Bench, Contestant, Effort, Row, compare, noise};
use anyhow::{Context as _, Result, ensure};
use furrow_emu::create_image;
use furrow_fs::{Fs, MkfsOptions, MountOptions};
use furrow_fuse::null::{BIG, Null};
use furrow_fuse::{Background, Endpoint, FuseServer, Info, Session, Transport, USUAL_TTL};
use furrow_rt::{Config, Port};
use furrow_zone::spec::parse_geometry;
use furrow_zone::{Access, Error};
use rustix::fs::{Advice, AtFlags, Mode, OFlags, StatxFlags};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The benchmark.
pub const MOUNT: Bench = Bench {
    name: "mount",
    about: "a mount by each option, against a FUSE server that does nothing and the file system of \
            this machine's disk",
    run,
};

/// The drive: large enough for the tree, its clones and dbench.
const DRIVE: &str = "capacity=4GiB,zone-size=16MiB,max-active=32";
/// Bytes of the big file.
const LENGTH: u64 = 256 << 20;
const SMALL: usize = 4096;
const LARGE: usize = 1 << 20;
/// Interval at which the kernel writes back, as `commit=` would set it.
const WRITE_BACK: Duration = Duration::from_secs(5);
/// Minimum run time of dbench in seconds, a part of which is its warm-up.
const DBENCH: u64 = 5;
/// Number of files in the tree, and number of files in a folder.
const FILES: usize = 2000;
const IN_FOLDER: usize = 40;

fn run(effort: Effort) -> Result<Vec<Row>> {
    let place = Place::new()?;
    let nulls = mounts(&place, "null server", Mount::null)?;
    let engines = mounts(&place, "furrow", Mount::engine)?;
    let own = place.0.join("disk");
    fs::create_dir(&own).context("a folder on the disk")?;
    let disk = disk_name(&own);
    let mut folders: Vec<(&str, &Path)> = nulls
        .iter()
        .chain(&engines)
        .map(|(name, mount)| (name.as_str(), mount.directory.as_path()))
        .collect();
    folders.push((&disk, &own));
    // Each mount of Furrow is compared with the null server that has the same options.
    let against = |place: usize| place.checked_sub(nulls.len()).filter(|at| *at < engines.len());
    for (_, folder) in &folders[nulls.len()..] {
        let file = File::create(folder.join(BIG)).context("the big file")?;
        let piece = noise(LARGE, 1);
        for at in (0..LENGTH).step_by(LARGE) {
            file.write_all_at(&piece, at)?;
        }
        file.sync_all()?;
    }
    let mut rows = Vec::new();
    for bound in [false, true] {
        let _bound = bound.then(Bound::new).transpose()?;
        let unit = |what: &str| match bound {
            true => format!("{what}, one processor"),
            false => what.to_owned(),
        };
        for (what, operation) in OPERATIONS {
            let mut contestants: Vec<Contestant<'_>> = folders
                .iter()
                .enumerate()
                .map(|(place, (name, folder))| {
                    let name = format!("{}: {name}", unit(what));
                    let own = *folder == own;
                    Contestant::new(name, move |slice| operation(folder, own, slice))
                        .against(against(place).unwrap_or(0))
                })
                .collect();
            rows.extend(compare(effort, &mut contestants)?);
        }
    }
    rows.extend(programs(effort, &place, &folders[nulls.len()..])?);
    for (_, mount) in nulls.into_iter().chain(engines) {
        mount.end()?;
    }
    Ok(rows)
}

/// The ways to mount: the end of the name, the transport, whether the write-back cache is on.
const WAYS: [(&str, Transport, bool); 4] = [
    ("", Transport::Channel, false),
    (", writeback_cache", Transport::Channel, true),
    (", io_uring", Transport::Rings, false),
    (", io_uring, writeback_cache", Transport::Rings, true),
];

/// Mounts the server `name` in each way that this machine allows, with the options in its name.
fn mounts(
    place: &Place,
    name: &str,
    mount: impl Fn(&Place, &str, Transport, bool) -> Result<Mount>,
) -> Result<Vec<(String, Mount)>> {
    let possible = |(_, transport, _): &&(&str, Transport, bool)| {
        *transport == Transport::Channel || furrow_fuse::rings_are_allowed()
    };
    let ways = WAYS.iter().filter(possible);
    ways.map(|(options, transport, writeback)| {
        let name = format!("{name}{options}");
        let folder = name.replace([' ', ','], "-");
        Ok((name, mount(place, &folder, *transport, *writeback)?))
    })
    .collect()
}

/// An operation. It gets a folder, whether that is on the disk's own file system, and about how
/// long it should run; it returns a rate.
type Operation = fn(&Path, bool, Duration) -> Result<f64>;

const OPERATIONS: [(&str, Operation); 8] = [
    ("getattr", getattr),
    ("create", |folder, _, slice| names(folder, slice, true)),
    ("unlink", |folder, _, slice| names(folder, slice, false)),
    ("4 KiB write", |folder, _, slice| writes(folder, slice, SMALL)),
    ("1 MiB write", |folder, _, slice| writes(folder, slice, LARGE)),
    ("4 KiB read", |folder, own, slice| reads(folder, own, slice, SMALL)),
    ("1 MiB read", |folder, own, slice| reads(folder, own, slice, LARGE)),
    ("append and fsync", |folder, _, slice| fsyncs(folder, slice)),
];

fn getattr(folder: &Path, _: bool, slice: Duration) -> Result<f64> {
    let file = File::open(folder.join(BIG))?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    repeat(slice, 64, || {
        rustix::fs::statx(&file, c"", flags, StatxFlags::BASIC_STATS).map(drop).context("statx")
    })
}

/// Makes and removes empty files; `made` selects which of the two is counted.
fn names(folder: &Path, slice: Duration, made: bool) -> Result<f64> {
    const BATCH: u32 = 256;
    let directory = File::open(folder)?;
    let (mut counted, mut done) = (Duration::ZERO, 0u64);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    while counted < slice {
        let started = Instant::now();
        for number in 0..BATCH {
            let name = format!("n{number}");
            drop(rustix::fs::openat(&directory, name, flags, Mode::RWXU).context("create")?);
        }
        let between = Instant::now();
        for number in 0..BATCH {
            let name = format!("n{number}");
            rustix::fs::unlinkat(&directory, name, AtFlags::empty()).context("unlink")?;
        }
        counted += if made { between - started } else { between.elapsed() };
        done += u64::from(BATCH);
    }
    Ok(done as f64 / counted.as_secs_f64())
}

fn writes(folder: &Path, slice: Duration, length: usize) -> Result<f64> {
    let file = File::options().write(true).open(folder.join(BIG))?;
    let piece = noise(length, 2);
    let mut at = 0;
    repeat(slice, (LARGE / length) as u32, || {
        file.write_all_at(&piece, at).context("write")?;
        at = (at + length as u64) % LENGTH;
        Ok(())
    })
}

/// Reads through the file. If `own`, the only cache is the kernel's, so its pages are not
/// dropped first.
fn reads(folder: &Path, own: bool, slice: Duration, length: usize) -> Result<f64> {
    let file = File::open(folder.join(BIG))?;
    let mut piece = vec![0; length];
    let mut at = LENGTH;
    repeat(slice, (LARGE / length) as u32, || {
        if at == LENGTH {
            at = 0;
            if !own {
                file.sync_data().context("sync")?;
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).context("fadvise")?;
            }
        }
        file.read_exact_at(&mut piece, at).context("read")?;
        at += length as u64;
        Ok(())
    })
}

fn fsyncs(folder: &Path, slice: Duration) -> Result<f64> {
    let path = folder.join("appended");
    let file = File::options().append(true).create(true).open(&path)?;
    let piece = noise(SMALL, 3);
    let rate = repeat(slice, 1, || {
        std::io::Write::write_all(&mut &file, &piece).context("write")?;
        file.sync_data().context("fsync")
    });
    drop(file);
    fs::remove_file(path)?;
    rate
}

/// Measures programs that work in a folder, once per round each.
fn programs(effort: Effort, place: &Place, folders: &[(&str, &Path)]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let tree = place.0.join("tree");
    make_tree(&tree)?;
    let mut one = |what: &str, work: &dyn Fn(&Path, Duration) -> Result<f64>| -> Result<()> {
        let mut contestants: Vec<Contestant<'_>> = folders
            .iter()
            .map(|(name, folder)| {
                Contestant::new(format!("{what}: {name}"), move |slice| work(folder, slice))
            })
            .collect();
        rows.extend(compare(effort, &mut contestants)?);
        Ok(())
    };
    // In a very short turn, dbench would not even begin to measure.
    if has("dbench") && effort.slice >= Duration::from_millis(100) {
        for clients in ["1", "4"] {
            let what = format!("dbench by {clients}, MB");
            one(&what, &|folder, slice| dbench(folder, clients, slice))?;
        }
    }
    if has("git") {
        let source = tree.to_string_lossy().into_owned();
        one("git clone", &|folder, _| {
            let to = folder.join("clone");
            let target = to.to_string_lossy().into_owned();
            let clone = ["clone", "--quiet", "--no-local", &source, &target];
            let rate = seconds("git", &clone).map(|seconds| 1.0 / seconds);
            fs::remove_dir_all(to)?;
            rate
        })?;
    }
    let archive = place.0.join("tree.tar").to_string_lossy().into_owned();
    let source = tree.to_string_lossy().into_owned();
    seconds("tar", &["cf", &archive, "--exclude=.git", "-C", &source, "."])?;
    one("untar", &|folder, _| {
        let to = folder.join("unpacked");
        fs::create_dir(&to)?;
        let target = to.to_string_lossy().into_owned();
        let rate = seconds("tar", &["xf", &archive, "-C", &target]).map(|seconds| 1.0 / seconds);
        fs::remove_dir_all(to)?;
        rate
    })?;
    Ok(rows)
}

/// A tree of source files of 1 to 16 KiB, and its git repository.
fn make_tree(tree: &Path) -> Result<()> {
    let bytes = noise(16 << 10, 4);
    for number in 0..FILES {
        let folder = tree.join(format!("d{}", number / IN_FOLDER));
        fs::create_dir_all(&folder)?;
        let length = 1024 + number * 7919 % (15 << 10);
        // git would store two files of the same content as one object, so each content is unique.
        let content = [&number.to_le_bytes()[..], &bytes[..length]].concat();
        fs::write(folder.join(format!("f{number}")), content)?;
    }
    if has("git") {
        let at = tree.to_string_lossy().into_owned();
        seconds("git", &["-C", &at, "init", "--quiet"])?;
        seconds("git", &["-C", &at, "add", "."])?;
        let name = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
        let commit = ["commit", "--quiet", "-m", "tree"];
        seconds("git", &[&["-C", &at][..], &name, &commit].concat())?;
    }
    Ok(())
}

/// Megabytes per second, as reported by dbench.
fn dbench(folder: &Path, clients: &str, slice: Duration) -> Result<f64> {
    let time = slice.as_secs().max(DBENCH).to_string();
    let at = folder.to_string_lossy().into_owned();
    let out = Command::new("dbench").args(["-t", &time, "-D", &at, clients]).output();
    let out = out.context("dbench")?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    ensure!(out.status.success(), "dbench: {text}{}", String::from_utf8_lossy(&out.stderr));
    let _ = fs::remove_dir_all(folder.join("clients"));
    let rate = text.lines().find_map(|line| line.strip_prefix("Throughput ")?.split(' ').next());
    rate.and_then(|rate| rate.parse().ok()).with_context(|| format!("dbench: {text}"))
}

fn has(program: &str) -> bool {
    let mut asked = Command::new(program);
    asked.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// The time that a program takes, in seconds.
fn seconds(program: &str, arguments: &[&str]) -> Result<f64> {
    let started = Instant::now();
    let done = Command::new(program).args(arguments).output().context("no such program")?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    ensure!(done.status.success(), "{program} {arguments:?}: {said}");
    Ok(started.elapsed().as_secs_f64())
}

/// The name of the file system at `folder`.
fn disk_name(folder: &Path) -> String {
    let out = Command::new("stat").args(["-f", "-c", "%T"]).arg(folder).output();
    let name = out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    match name {
        // stat(1) reports ext4 under the name of its ancestors.
        Ok(name) if name == "ext2/ext3" => "ext4".to_owned(),
        Ok(name) if !name.is_empty() => name,
        _ => "the disk's file system".to_owned(),
    }
}

/// A folder for this benchmark on the disk, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Place> {
        let place = std::env::temp_dir().join(format!("furrow-mount-{}", std::process::id()));
        fs::create_dir(&place).with_context(|| place.display().to_string())?;
        Ok(Place(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Binds all threads of this process to one processor. When dropped, restores the processors of
/// each thread.
struct Bound(Vec<(Pid, CpuSet)>);

impl Bound {
    fn new() -> Result<Bound> {
        let all = sched_getaffinity(None).context("processors")?;
        let mut first = CpuSet::new();
        let number = (0..CpuSet::MAX_CPU).find(|number| all.is_set(*number)).unwrap_or(0);
        first.set(number);
        let mut bound = Bound(Vec::new());
        for thread in fs::read_dir("/proc/self/task")? {
            let number = thread?.file_name().to_string_lossy().parse().ok();
            let Some(thread) = number.and_then(Pid::from_raw) else { continue };
            bound.0.push((thread, sched_getaffinity(Some(thread)).context("processors")?));
            sched_setaffinity(Some(thread), &first).context("processors")?;
        }
        Ok(bound)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        for (thread, processors) in &self.0 {
            let _ = sched_setaffinity(Some(*thread), processors);
        }
    }
}

/// A mount of this process.
struct Mount {
    served: Background,
    directory: PathBuf,
    port: Option<Port<Fs>>,
}

impl Mount {
    fn null(place: &Place, name: &str, transport: Transport, writeback: bool) -> Result<Mount> {
        let directory = place.0.join(name);
        fs::create_dir(&directory)?;
        let server = Null::new(USUAL_TTL).with_writeback_cache(writeback);
        let session = Session::mount(server, &endpoint(name, transport), &directory)?;
        Ok(Mount { served: session.spawn()?, directory, port: None })
    }

    fn engine(place: &Place, name: &str, transport: Transport, writeback: bool) -> Result<Mount> {
        let (directory, image) = (place.0.join(name), place.0.join(format!("{name}.zns")));
        fs::create_dir(&directory)?;
        let geometry = parse_geometry(DRIVE)?;
        create_image(&image, &geometry, false)?;
        let (sender, receiver) = channel();
        let config = Config { coarse_wall: writeback, ..Config::real() };
        // The disk's own file system makes an fsync durable on the disk, so the image must do
        // the same.
        let spec = format!("{},sync=on", image.display());
        let port = Port::start(config, move |rt| {
            let device = furrow_emu::open(rt, &spec.parse()?, Access::ReadWrite)?;
            let engine = rt.clone();
            // The cache is large enough for the big file.
            let options = MountOptions { cache_pages: 512 << 8, ..MountOptions::default() };
            let fs = rt.block_on(async move {
                Fs::format(&engine, device.clone(), &MkfsOptions::default()).await?;
                Fs::mount(&engine, device, options).await
            })?;
            // Sending cannot fail, because the receiver waits below.
            let _ = sender.send(fs.pool().clone());
            Ok::<Fs, Error>(fs)
        })?;
        let pool = receiver.recv().context("the engine did not start")?;
        let log = |line: &str| {
            use std::io::Write as _;
            // A failure to print is ignored.
            let _ = writeln!(std::io::stderr(), "{line}");
        };
        let server = FuseServer::new(port.clone(), pool, USUAL_TTL, Info::default(), Box::new(log))
            .with_writeback_cache(writeback);
        let mut session = Session::mount(server, &endpoint(name, transport), &directory)?;
        if writeback {
            session
                .write_back_every(Arc::new(AtomicU64::new(WRITE_BACK.as_nanos() as u64)), log)?;
        }
        Ok(Mount { served: session.spawn()?, directory, port: Some(port) })
    }

    fn end(self) -> Result<()> {
        self.served.unmount()?;
        if let Some(port) = self.port {
            port.stop(|_, fs| {
                let fs = fs.clone();
                async move { fs.unmount().await }
            })?;
        }
        Ok(())
    }
}

fn endpoint(source: &str, transport: Transport) -> Endpoint {
    Endpoint { source: source.to_owned(), transport, ..Endpoint::default() }
}
