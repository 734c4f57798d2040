//! Recorded runs as bytes: decoding returns what was encoded, and no input makes it panic.

use furrow_kv::Lifetime;
use furrow_kv::trace::{Cause, HEAD_BYTES, Op, Record, Recording};
use furrow_zone::ErrorKind;
use proptest::prelude::*;

fn record(order: u64, thread: u32, begin: u64, took: u64, op: Op) -> Record {
    Record { order, thread, begin, took, gap: 0, answer: 0, op }
}

/// A recording of two threads whose calls overlap, with every kind of call.
fn run() -> Recording {
    let (path, to) = ("db/000004.log".to_owned(), "db/CURRENT".to_owned());
    let ops = vec![
        Op::FoundDirectory { path: "db".to_owned() },
        Op::Found { file: 1, size: 77, path: "db/IDENTITY".to_owned() },
        Op::MakeDirectory { path: "db/archive".to_owned() },
        Op::Create { file: 2, lifetime: Lifetime::Short, path: path.clone() },
        Op::SetLifetime { file: 2, lifetime: Lifetime::Extreme },
        Op::Append { file: 2, offset: 0, len: 1 << 40, sum: u32::MAX },
        Op::AppendAt { file: 2, offset: 4096, len: 0, sum: 0 },
        Op::Flush { file: 2 },
        Op::RangeSync { file: 2, offset: 0, len: 4096 },
        Op::Sync { file: 2 },
        Op::Truncate { file: 2, size: 9 },
        Op::Close { file: 2 },
        Op::Open { file: 2, path: path.clone() },
        Op::Read { file: 2, offset: u64::MAX, len: u64::MAX, got: 0 },
        Op::ReadBegin { read: 7, file: 2, offset: 5, len: 4 },
        Op::ReadWait { read: 7, got: 4 },
        Op::Stat { path: path.clone() },
        Op::List { path: String::new() },
        Op::SetFamily { path: path.clone(), family: "default".to_owned() },
        Op::Rename { from: path.clone(), to: to.clone() },
        Op::Link { from: to.clone(), to: path.clone() },
        Op::Remove { path },
        Op::RemoveDirectory { path: to },
        Op::SyncNames,
        Op::SyncAll,
    ];
    let mut records = Vec::new();
    let mut ends = [0; 2];
    for (index, op) in ops.into_iter().enumerate() {
        let index = index as u64;
        let (thread, begin) = ((index % 2) as u32, 10 + 5 * index);
        let gap = begin - std::mem::replace(&mut ends[thread as usize], begin + 7);
        let answer = (index % 16) as u8;
        records.push(Record { gap, answer, ..record(index, thread, begin, 7, op) });
    }
    Recording { records, whole: true }
}

#[test]
fn what_was_encoded_is_decoded() {
    let run = run();
    assert_eq!(Recording::decode(&run.encode()).expect("it is whole"), run);
}

#[test]
fn a_recording_that_was_cut_off_counts_up_to_there() {
    let run = run();
    let bytes = run.encode();
    let mut seen = 0;
    for end in HEAD_BYTES..bytes.len() {
        let found = Recording::decode(&bytes[..end]).expect("the rest is missing, nothing more");
        assert!(!found.whole && found.records.len() >= seen, "{end}");
        seen = found.records.len();
        // In this recording, calls ended in the order of their records.
        assert_eq!(found.records, run.records[..seen], "{end}");
    }
    assert_eq!(seen, run.records.len());
}

#[test]
fn what_is_wrong_is_said() {
    let bytes = run().encode();
    let kind = |bytes: &[u8]| Recording::decode(bytes).expect_err("it is wrong").kind();
    assert_eq!(kind(b""), ErrorKind::WrongFormat);
    assert_eq!(kind(b"something else, longer than a head"), ErrorKind::WrongFormat);
    let mut newer = bytes.clone();
    newer[8] += 1;
    assert_eq!(kind(&newer), ErrorKind::WrongFormat);
    let mut longer = bytes.clone();
    longer.push(1);
    assert_eq!(kind(&longer), ErrorKind::Corrupt);
    // The checksum at the end detects changes that no field shows, here of the first record's time.
    let mut other = bytes.clone();
    other[HEAD_BYTES + 4] ^= 1;
    assert_eq!(kind(&other), ErrorKind::Corrupt);
    // Lengths that no record can have.
    let mut huge = bytes[..HEAD_BYTES].to_vec();
    huge.extend([0xff, 0xff, 0xff, 0x7f, 0]);
    assert_eq!(kind(&huge), ErrorKind::Corrupt);
    let mut endless = bytes[..HEAD_BYTES].to_vec();
    endless.extend([0xff; 12]);
    assert_eq!(kind(&endless), ErrorKind::Corrupt);
}

#[test]
fn a_call_waits_for_those_that_had_ended() {
    let close = || Op::Close { file: 1 };
    // A long sync of one thread, two calls of another thread during it, and then one call
    // that took no time.
    let records = vec![
        record(0, 0, 0, 100, Op::Sync { file: 1 }),
        record(1, 1, 10, 20, close()),
        record(2, 1, 30, 20, close()),
        record(3, 1, 100, 0, close()),
        record(4, 0, 100, 0, close()),
    ];
    let recording = Recording { records, whole: true };
    let cause = |after, ended| Cause { after, ended };
    let expected = [cause(0, 2), cause(0, 0), cause(1, 1), cause(3, 3), cause(4, 4)];
    assert_eq!(recording.causes(), expected);
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut all = run().encode()[..HEAD_BYTES].to_vec();
        all.extend(&bytes);
        if let Ok(found) = Recording::decode(&all) {
            found.causes();
            Recording::decode(&found.encode()).expect("what was understood can be written");
        }
    }

    #[test]
    fn nor_does_a_recording_with_a_byte_changed(at in 0..10_000usize, byte in any::<u8>()) {
        let mut bytes = run().encode();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(found) = Recording::decode(&bytes) {
            found.causes();
        }
    }
}
