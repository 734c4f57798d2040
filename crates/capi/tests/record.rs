//! Calls through the C interface are recorded in the order in which the engine took them.

#![allow(unsafe_code, reason = "it calls an interface for C")]
#![allow(clippy::disallowed_methods, reason = "it starts threads and reads a file")]

use furrow::error::furrow_error;
use furrow::file::*;
use furrow::store::*;
use furrow_kv::crc32c;
use furrow_kv::trace::{Op, Record, Recording};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr::null_mut;

const NOBODY: *mut furrow_error = null_mut();

/// A handle that several threads share.
struct Shared(*mut furrow_store);

// SAFETY: the interface says that any thread may use it.
unsafe impl Sync for Shared {}

fn c(text: &str) -> CString {
    CString::new(text).expect("no zeros in it")
}

/// The work of a thread: it makes its own file, appends, writes at an offset, and syncs.
fn work(store: &Shared, number: u8) {
    let (path, mut file) = (c(&format!("d/{number}")), null_mut());
    // SAFETY: strings end with a zero, buffers have the stated lengths, handles are closed once.
    unsafe {
        assert_eq!(furrow_create(store.0, path.as_ptr(), 2, &mut file, NOBODY), 0);
        for round in 0..20u8 {
            let bytes = vec![number ^ round; 3000];
            assert_eq!(furrow_file_append(file, bytes.as_ptr().cast(), 3000, NOBODY), 0);
            assert_eq!(furrow_file_sync(file, NOBODY), 0);
        }
        let (mut got, mut buffer) = (0, [0u8; 100]);
        let to = buffer.as_mut_ptr();
        assert_eq!(furrow_file_read(file, 59_950, to.cast(), 100, &mut got, NOBODY), 0);
        let bytes = [7u8; 10];
        assert_eq!(furrow_file_append_at(file, 5000, bytes.as_ptr().cast(), 10, NOBODY), 0);
        assert_eq!(furrow_file_flush(file, NOBODY), 0);
        assert_eq!(furrow_file_range_sync(file, 1, 2, NOBODY), 0);
        let mut read = null_mut();
        assert_eq!(furrow_read_begin(file, 0, 50, &mut read, NOBODY), 0);
        assert_eq!(furrow_read_wait(read, to.cast(), 50, &mut got, NOBODY), 0);
        furrow_read_end(read);
        assert_eq!(furrow_file_close(file, NOBODY), 0);
    }
}

fn open(options: &str) -> i32 {
    let (device, options, mut store) = (c("mem:zones=32,zone-size=1MiB"), c(options), null_mut());
    // SAFETY: the strings end with a zero, and the store is closed once and not used after that.
    unsafe {
        let kind = furrow_store_open(device.as_ptr(), options.as_ptr(), &mut store, NOBODY);
        if kind == 0 {
            furrow_store_close(store, NOBODY);
        }
        kind
    }
}

#[test]
fn calls_are_recorded_in_their_order() {
    let path = std::env::temp_dir().join(format!("furrow-record-{}", std::process::id()));
    let (device, mut store) = (c("mem:zones=64,zone-size=1MiB"), null_mut());
    let options = c(&format!("record={}", path.display()));
    // SAFETY: the strings end with a zero, and the store stays open during all of these calls.
    unsafe {
        assert_eq!(furrow_store_open(device.as_ptr(), options.as_ptr(), &mut store, NOBODY), 0);
        assert_eq!(furrow_make_directory(store, c("d").as_ptr(), NOBODY), 0);
        // This call fails, and is recorded too.
        assert_eq!(furrow_remove(store, c("d/none").as_ptr(), NOBODY), 1);
        let shared = Shared(store);
        std::thread::scope(|scope| {
            for number in 0..3 {
                let shared = &shared;
                scope.spawn(move || work(shared, number));
            }
        });
        assert_eq!(furrow_rename(store, c("d/0").as_ptr(), c("d/1").as_ptr(), NOBODY), 0);
        assert_eq!(furrow_store_sync(store, NOBODY), 0);
        // After this sync the recording is complete, even if more calls follow.
        assert_eq!(furrow_store_sync_all(store, NOBODY), 0);
    }
    let sooner = Recording::decode(&std::fs::read(&path).unwrap()).expect("it can be read");
    assert!(sooner.whole);
    // SAFETY: no other thread uses the store any more, and it is closed once.
    unsafe {
        assert_eq!(furrow_store_close(store, NOBODY), 0);
    }
    let found = Recording::decode(&std::fs::read(&path).unwrap()).expect("it can be read");
    std::fs::remove_file(&path).unwrap();
    assert!(found.whole);
    assert_eq!(found.records.len(), sooner.records.len() + 1);
    let Record { op, answer, .. } = &found.records[1];
    assert_eq!((op, *answer), (&Op::Remove { path: "d/none".to_owned() }, 1));
    let last: Vec<&Op> = found.records.iter().rev().map(|record| &record.op).take(4).collect();
    let (from, to) = ("d/0".to_owned(), "d/1".to_owned());
    let expected = [&Op::SyncAll, &Op::SyncAll, &Op::SyncNames, &Op::Rename { from, to }];
    assert_eq!(last, expected);

    let (mut sizes, mut kinds) = (BTreeMap::new(), BTreeMap::<&str, u32>::new());
    assert!(found.records.is_sorted_by(|one, next| one.order < next.order));
    for record in &found.records {
        *kinds.entry(record.op.name()).or_default() += 1;
        match &record.op {
            Op::Create { file, path, .. } => {
                let number: u8 = path["d/".len()..].parse().unwrap();
                assert!(sizes.insert(*file, (0, number)).is_none());
            }
            Op::Append { file, offset, len, sum } => {
                let (size, number) = sizes.get_mut(file).expect("made before");
                assert_eq!((*offset, *len), (*size, 3000));
                let round = (*size / 3000) as u8;
                assert_eq!(*sum, crc32c(&vec![*number ^ round; 3000]));
                *size += len;
            }
            Op::Read { got, len, .. } => assert_eq!((*got, *len), (50, 100)),
            _ => {}
        }
    }
    let count = |kind| kinds.get(kind).copied().unwrap_or(0);
    assert_eq!((count("create"), count("append"), count("sync")), (3, 60, 60));
    for kind in ["append-at", "flush", "range-sync", "read", "read-begin", "read-wait", "close"] {
        assert_eq!(count(kind), 3, "{kind}");
    }
    // The calls of a thread follow each other, and the recording shows which results each call
    // waited for.
    let mut ends = BTreeMap::new();
    let causes = found.causes();
    let mut by_end: Vec<(u32, &Record)> =
        causes.iter().map(|cause| cause.ended).zip(&found.records).collect();
    by_end.sort_by_key(|(ended, _)| *ended);
    for (_, record) in by_end {
        let end = ends.insert(record.thread, record.end()).unwrap_or(0);
        assert_eq!(record.begin, end + record.gap);
    }
    assert_eq!(ends.len(), 4);
}

#[test]
fn what_cannot_be_recorded_is_an_error() {
    assert_eq!(open("record=/no/such/directory/x"), 8);
    assert_eq!(open("record="), 6);
    assert_eq!(open("policy=baza"), 0);
}
