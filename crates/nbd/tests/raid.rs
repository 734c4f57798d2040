//! A RAID volume over NBD: stock clients write and verify while a drive fails, and all data is
//! there after the next assembly.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::common::bytes::{self, request};
use crate::common::{Answer, Client};

use crate::tools::{self, run};
use furrow_emu::{Emulator, Fault, FaultKind, Medium, Options as DriveOptions};
use furrow_nbd::{Export, Listen, Options, Server};
use furrow_raid::{Config, Level, Volume, assemble, create};
use furrow_rt::Rt;
use furrow_zone::{Geometry, ZonedDevice};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// A drive of half a gibibyte, with 64 out-of-band bytes per block.
fn geometry() -> Geometry {
    Geometry {
        oob_bytes: 64,
        max_open: Some(14),
        max_active: Some(14),
        ..Geometry::unlimited(64, 2048, 2048)
    }
}

/// Serves an array of four drives, and obeys orders from the test.
fn serve(socket: PathBuf, ear: UnixStream, mut answer: UnixStream) {
    let rt = Rt::new(furrow_rt::Config::real());
    let drives: Vec<Rc<Emulator>> = (0..4)
        .map(|index| {
            let options = DriveOptions { name: format!("drive{index}"), ..DriveOptions::fast() };
            let medium = Medium::memory(&geometry());
            Rc::new(Emulator::new(&rt, geometry(), medium, options).unwrap())
        })
        .collect();
    let devices = || drives.iter().map(|d| d.clone() as Rc<dyn ZonedDevice>).collect::<Vec<_>>();
    let (rt2, all) = (rt.clone(), devices());
    let made = rt.block_on(async move {
        let config = Config::new(Level::Raid5, &geometry());
        create(&rt2, all, &config, &furrow_raid::Options::default(), false).await
    });
    let mut volume: Volume = made.unwrap();
    ear.set_nonblocking(true).unwrap();
    let ear = Arc::new(OwnedFd::from(ear));
    loop {
        let exports = vec![Export::new("array", Rc::new(volume.clone()))];
        let place = Listen::Unix(socket.clone());
        let server = Server::bind(&rt, &[place], exports, Options::default()).unwrap();
        answer.write_all(b"s").unwrap();
        let mut order = [0];
        loop {
            let (wait, hears) = (rt.clone(), ear.clone());
            rt.block_on(async move { wait.readable(hears).await });
            rustix::io::read(&ear, &mut order).unwrap();
            if order != *b"f" {
                break;
            }
            // One drive disappears for good.
            let kind = FaultKind::Disappear { commands: None };
            drives[2].inject(Fault::new(kind)).unwrap();
            answer.write_all(b"f").unwrap();
        }
        let (stopping, ending) = (server.clone(), volume.clone());
        rt.block_on(async move {
            stopping.shutdown().await;
            ending.stop().await.unwrap();
        });
        if order == *b"q" {
            break;
        }
        // Assemble the array again without the failed drive.
        let mut left = devices();
        left.remove(2);
        let (rt2, all) = (rt.clone(), left);
        volume = rt
            .block_on(async move { assemble(&rt2, all, &furrow_raid::Options::default()).await })
            .unwrap();
    }
    rt.clear();
}

/// A running [`serve`]: the socket, its folder, the control channels in both directions, and
/// the thread.
struct Served {
    folder: PathBuf,
    socket: PathBuf,
    orders: UnixStream,
    answers: UnixStream,
    thread: std::thread::JoinHandle<()>,
}

impl Served {
    fn start(name: &str) -> Served {
        let name = format!("furrow-nbd-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("socket");
        let (orders, ear) = UnixStream::pair().unwrap();
        let (answer, answers) = UnixStream::pair().unwrap();
        let at = socket.clone();
        let thread = std::thread::spawn(move || serve(at, ear, answer));
        let mut served = Served { folder, socket, orders, answers, thread };
        served.hears(b"s");
        served
    }

    fn hears(&mut self, expected: &[u8; 1]) {
        let mut said = [0];
        self.answers.read_exact(&mut said).unwrap();
        assert_eq!(&said, expected);
    }

    fn stop(mut self) {
        self.orders.write_all(b"q").unwrap();
        self.thread.join().unwrap();
        std::fs::remove_dir_all(self.folder).unwrap();
    }
}

/// Each trim of the whole volume is a record and a walk over the map. A write that was sent after
/// many such trims on the same connection must not wait for them all.
#[test]
fn a_write_passes_trims_of_the_whole_volume() {
    const TRIMS: u64 = 1000;
    let served = Served::start("trims");
    let mut client = Client::new(UnixStream::connect(&served.socket).unwrap());
    client.greet(bytes::FIXED | bytes::NO_ZEROES);
    client.go("array", false);
    let mut all: Vec<u8> =
        (0..TRIMS).flat_map(|n| request(bytes::TRIM, 0, n, 0, 256 << 20)).collect();
    all.extend(bytes::write(0, TRIMS, 1 << 20, &[5; 8192]));
    client.send(&all);
    let mut before = None;
    for answered in 0..=TRIMS {
        match client.answer() {
            Answer::Simple(TRIMS, 0) => before = Some(answered),
            Answer::Simple(_, 0) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(before.is_some_and(|before| before < TRIMS / 2), "{before:?} of {TRIMS} trims first");
    drop(client);
    served.stop();
}

#[test]
fn an_array_is_written_loses_a_drive_and_is_read_again() {
    let mut served = Served::start("raid");
    let (folder, socket) = (served.folder.clone(), served.socket.clone());
    let uri = format!("nbd+unix:///array?socket={}", socket.display());
    let (there, back) = (folder.join("there"), folder.join("back"));
    let data = tools::image(&there, 77_777_777);
    let (there, back) = (there.to_str().unwrap(), back.to_str().unwrap());
    let copied = run("nbdcopy", &["--connections", "4", "--flush", there, &uri]);
    if copied.is_some() {
        let read_back = |what: &str| {
            run("nbdcopy", &["--connections", "2", &uri, back]);
            let found = std::fs::read(back).unwrap();
            assert!(found[..data.len()] == data[..], "{what}");
            let _ = std::fs::remove_file(back);
        };
        read_back("whole");
        // fio writes behind the image while the drive fails.
        let uri_option = format!("--uri={uri}");
        let fio = |size: &str, job: &str| {
            run(
                "fio",
                &[
                    "--name=verify",
                    "--ioengine=nbd",
                    &uri_option,
                    "--offset=128m",
                    "--size=64m",
                    size,
                    job,
                    "--iodepth=32",
                    "--verify=crc32c",
                    "--verify_fatal=1",
                    "--verify_state_save=0",
                    "--serialize_overlap=1",
                    "--fsync=100",
                ],
            );
        };
        fio("--bs=4k", "--rw=randwrite");
        served.orders.write_all(b"f").unwrap();
        served.hears(b"f");
        fio("--bsrange=512-100k", "--rw=randrw");
        read_back("with a drive less");
        served.orders.write_all(b"a").unwrap();
        served.hears(b"s");
        read_back("assembled again");
    }
    served.stop();
}
