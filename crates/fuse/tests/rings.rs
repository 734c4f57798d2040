//! Requests by io_uring: the other tests again, and tests of the differences.
//!
//! They need a machine whose owner allows rings; elsewhere they pass, and say so. No test allows
//! rings itself, because that would change the whole machine. `scripts/guest.sh rings` runs the
//! tests in a guest.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test on a mount")]

use crate::common::engine::{TRANSPORT, WRITEBACK};
use crate::common::place::{Place, SMALL, pattern};
use crate::common::{Scratch, skip, this_test};
use furrow_fuse::null::{FILE, Null};
use furrow_fuse::{Endpoint, Session, Transport, rings_are_allowed};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

/// True if the tests of rings must be skipped.
fn none() -> bool {
    let none = !rings_are_allowed();
    if none {
        let test = this_test();
        eprintln!("SKIPPED {test}: this machine has no FUSE by io_uring, or it is not allowed");
    }
    none || skip()
}

mod plain {
    again!({
        if super::none() {
            return;
        }
        super::TRANSPORT.set(super::Transport::Rings)
    });
}

mod writeback {
    again!({
        if super::none() {
            return;
        }
        super::WRITEBACK.set(true);
        super::TRANSPORT.set(super::Transport::Rings)
    });
}

#[test]
fn rings_serve_or_the_message_says_how_to_get_them() {
    if skip() {
        return;
    }
    let scratch = Scratch::new("rings");
    let directory = scratch.mount_point();
    let mount = |transport| {
        let endpoint = Endpoint { source: "rings".into(), transport, ..Endpoint::default() };
        Session::mount(Null::new(Duration::ZERO), &endpoint, &directory)
    };
    let session = match mount(Transport::Rings) {
        Ok(session) => session,
        Err(error) => {
            let error = format!("{error:#}");
            assert!(!rings_are_allowed(), "{error}");
            assert!(error.contains("leave the option io_uring out"), "{error}");
            mount(Transport::Offered).unwrap()
        }
    };
    assert_eq!(session.has_rings(), rings_are_allowed());
    let served = session.spawn().unwrap();
    assert_eq!(fs::read(directory.join(FILE)).unwrap(), vec![0x5a; 4096]);
    served.unmount().unwrap();

    let session = mount(Transport::Channel).unwrap();
    assert!(!session.has_rings());
    let served = session.spawn().unwrap();
    assert_eq!(fs::read(directory.join(FILE)).unwrap(), vec![0x5a; 4096]);
    served.unmount().unwrap();
}

#[test]
fn more_requests_than_a_ring_has_entries_are_all_answered() {
    if none() {
        return;
    }
    const CLIENTS: u64 = 100;
    TRANSPORT.set(Transport::Rings);
    let Some(place) = Place::new("many") else { return };
    let path = place.at("file");
    File::create(&path).unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let path = &path;
            scope.spawn(move || {
                let file = File::options().write(true).open(path).unwrap();
                for round in 0..4 {
                    let piece = pattern(4096, 2 * client);
                    file.write_all_at(&piece, (round * CLIENTS + client) * 4096).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len() as u64, 4 * CLIENTS * 4096);
    for (at, piece) in content.chunks(4096).enumerate() {
        assert!(piece == pattern(4096, 2 * (at as u64 % CLIENTS)), "piece {at}");
    }
}

#[test]
fn a_mount_that_is_cut_off_under_load_ends() {
    if none() {
        return;
    }
    TRANSPORT.set(Transport::Rings);
    for round in 0..8 {
        let scratch = Scratch::new("cut");
        let directory = scratch.mount_point();
        let transport = Transport::Rings;
        let endpoint = Endpoint { source: "cut".into(), transport, ..Endpoint::default() };
        let session = Session::mount(Null::new(Duration::ZERO), &endpoint, &directory).unwrap();
        let served = session.spawn().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // Loops until the mount is gone.
                    while fs::metadata(directory.join(FILE)).is_ok() {}
                });
            }
            std::thread::sleep(Duration::from_millis(5 * round));
            drop(served);
        });
    }
}

#[test]
fn a_removed_file_makes_room_for_the_next_one() {
    if none() {
        return;
    }
    TRANSPORT.set(Transport::Rings);
    let Some(place) = Place::on("room", SMALL) else { return };
    let write = |name: u64, size| fs::write(place.at(&name.to_string()), pattern(size, name));
    let full = (0..).find(|name| write(*name, 1_000_000).is_err()).unwrap();
    let full = (full..).find(|name| write(*name, 4096).is_err()).unwrap();
    assert!(full > 60, "{full} files");
    for name in 0..60 {
        fs::remove_file(place.at(&name.to_string())).unwrap();
        // Writes less than was removed.
        write(1000 + name, 900_000).unwrap_or_else(|error| panic!("file {name}: {error}"));
        // At each removal, the thread that reads forgets must be waiting.
        std::thread::sleep(Duration::from_millis(10));
    }
}
