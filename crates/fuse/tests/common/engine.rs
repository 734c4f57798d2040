//! A file system on an emulated drive, mounted by this process.
#![allow(clippy::disallowed_types, reason = "a test's choice is its thread's: each test has one")]

use furrow_emu::create_image;
use furrow_fs::{Fs, MkfsOptions, MountOptions};
use furrow_fuse::{Background, Endpoint, FuseServer, Info, Session, Transport};
use furrow_rt::{Config, Port, Rt};
use furrow_zone::spec::{DeviceSpec, parse_geometry};
use furrow_zone::{Access, Error, ErrorKind, ZonedDevice};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;
use std::time::Duration;

thread_local! {
    /// Whether mounts that this thread makes have a write-back cache.
    pub static WRITEBACK: Cell<bool> = const { Cell::new(false) };
    /// The way by which requests of these mounts come from the kernel.
    pub static TRANSPORT: Cell<Transport> = const { Cell::new(Transport::Channel) };
}

/// How often a mount with a write-back cache makes the kernel write back.
const WRITE_BACK_EVERY: Duration = Duration::from_millis(500);

/// Drives of the tests: small zones, so that many are used.
pub const GEOMETRY: &str = "capacity=512MiB,zone-size=4MiB,max-active=32";

/// Opens the drive `spec` names.
pub fn open(rt: &Rt, spec: &str) -> Result<Rc<dyn ZonedDevice>, Error> {
    let spec: DeviceSpec = spec.parse()?;
    let mut tries = 0;
    loop {
        match furrow_emu::open(rt, &spec, Access::ReadWrite) {
            // A program that another test is starting still shares the open files of this process,
            // and with them the lock of an image that was just closed.
            Err(error) if error.kind() == ErrorKind::Busy && tries < 100 => {
                std::thread::sleep(Duration::from_millis(10));
                tries += 1;
            }
            opened => return Ok(opened?),
        }
    }
}

/// A new image of a drive with a file system on it.
pub fn image(path: &Path, geometry: &str) -> String {
    let geometry = parse_geometry(geometry).unwrap();
    create_image(path, &geometry, false).unwrap();
    let name = path.to_str().unwrap().to_owned();
    let rt = Rt::new(Config::real());
    let device = open(&rt, &name).unwrap();
    let engine = rt.clone();
    rt.block_on(async move { Fs::format(&engine, device, &MkfsOptions::default()).await }).unwrap();
    rt.clear();
    name
}

/// A mounted file system and its engine.
pub struct Mounted {
    pub port: Port<Fs>,
    served: Background,
}

impl Mounted {
    /// Mounts the image at `directory`.
    pub fn new(image: &str, directory: &Path, ttl: Duration) -> Mounted {
        let (sender, receiver) = channel();
        let name = image.to_owned();
        let writeback = WRITEBACK.get();
        let config = Config { coarse_wall: writeback, ..Config::real() };
        let port = Port::start(config, move |rt| {
            let device = open(rt, &name)?;
            let info = Info {
                device: name,
                directory: String::new(),
                pid: std::process::id(),
                read_only: false,
                zone_blocks: device.geometry().zone_capacity.0,
            };
            let engine = rt.clone();
            let mounting = async move { Fs::mount(&engine, device, MountOptions::default()).await };
            let fs = rt.block_on(mounting)?;
            sender.send((fs.pool().clone(), info)).unwrap();
            Ok::<Fs, Error>(fs)
        })
        .unwrap();
        let (pool, info) = receiver.recv().unwrap();
        let log = Box::new(|line: &str| eprintln!("{line}"));
        let server = FuseServer::new(port.clone(), pool, ttl, info, log)
            .with_writeback_cache(writeback)
            .with_handles(true);
        let source = image.to_owned();
        let endpoint = Endpoint { source, transport: TRANSPORT.get(), ..Endpoint::default() };
        let mut session = Session::mount(server, &endpoint, directory).unwrap();
        if writeback {
            let interval = Arc::new(AtomicU64::new(WRITE_BACK_EVERY.as_nanos() as u64));
            session.write_back_every(interval, |line| eprintln!("{line}")).unwrap();
        }
        let served = session.spawn().unwrap();
        Mounted { port, served }
    }

    /// Unmounts, and waits for the last checkpoint.
    pub fn end(self) {
        self.served.unmount().unwrap();
        self.port
            .stop(|_, fs| {
                let fs = fs.clone();
                async move { fs.unmount().await }
            })
            .unwrap();
    }
}
