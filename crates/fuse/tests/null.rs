//! Endpoint and session with the server that does nothing.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a server")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{Scratch, skip};
use furrow_fuse::null::{FILE, Null};
use furrow_fuse::{Endpoint, Session, Unmount, endpoint};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

fn endpoint_of(name: &str) -> Endpoint {
    Endpoint { source: name.to_owned(), ..Endpoint::default() }
}

#[test]
fn it_mounts_answers_and_unmounts() {
    if skip() {
        return;
    }
    let scratch = Scratch::new("null");
    let directory = scratch.mount_point();
    let before = std::fs::metadata(&directory).unwrap().dev();
    let session =
        Session::mount(Null::new(Duration::ZERO), &endpoint_of("null device"), &directory).unwrap();
    let served = session.spawn().unwrap();

    let listed = endpoint::mounted().unwrap();
    let ours = listed.iter().find(|m| m.directory == directory).expect("in the mount table");
    assert_eq!(ours.source, "null device");
    assert_ne!(std::fs::metadata(&directory).unwrap().dev(), before);
    assert_eq!(std::fs::read(directory.join(FILE)).unwrap(), vec![0x5a; 4096]);
    assert_eq!(std::fs::metadata(directory.join(FILE)).unwrap().len(), 4096);
    assert!(std::fs::metadata(directory.join("other")).is_err());

    // While the mount is in use, a plain unmount is refused and the mount stays.
    let held = std::fs::File::open(directory.join(FILE)).unwrap();
    let busy = endpoint::unmount(&directory, Unmount::Plain).unwrap_err();
    assert_eq!(busy, rustix::io::Errno::BUSY);
    drop(held);
    served.unmount().unwrap();
    assert_eq!(std::fs::metadata(&directory).unwrap().dev(), before);
    assert!(endpoint::mounted().unwrap().iter().all(|m| m.directory != directory));
}

#[test]
fn a_mount_without_its_daemon_is_recognised_and_refused() {
    if skip() {
        return;
    }
    let scratch = Scratch::new("dead");
    let directory = scratch.mount_point();
    // Dropping the channel closes it, as the death of a daemon does.
    drop(endpoint_of("dead").mount(&directory).unwrap());
    assert!(endpoint::is_dead(&directory));
    let error = Session::mount(Null::new(Duration::ZERO), &endpoint_of("next"), &directory)
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains("is a dead mount"), "{error}");
    assert!(error.contains("furrow umount"), "{error}");
    endpoint::unmount(&directory, Unmount::Plain).unwrap();
    assert!(!endpoint::is_dead(&directory));
    // After the unmount, the directory can be mounted on again.
    let session =
        Session::mount(Null::new(Duration::ZERO), &endpoint_of("next"), &directory).unwrap();
    session.spawn().unwrap().unmount().unwrap();
}

#[test]
fn dropping_a_mount_that_is_in_use_ends_it() {
    if skip() {
        return;
    }
    let scratch = Scratch::new("drop");
    let directory = scratch.mount_point();
    let session = Session::mount(Null::new(Duration::ZERO), &endpoint_of("null"), &directory);
    let served = session.unwrap().spawn().unwrap();
    let held = std::fs::File::open(directory.join(FILE)).unwrap();
    drop(served);
    assert!(held.metadata().is_err(), "cut off");
    assert!(endpoint::mounted().unwrap().iter().all(|m| m.directory != directory));
}
