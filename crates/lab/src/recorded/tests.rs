//! Tests: the order between recorded calls, and recordings that are refused.

use super::*;
use furrow_kv::Lifetime;

/// Makes a run of calls, each with thread, begin, duration and operation.
pub(crate) fn run(calls: &[(u32, u64, u64, Op)]) -> Recorded {
    parse(calls).unwrap_or_else(|error| panic!("{error:#}"))
}

fn parse(calls: &[(u32, u64, u64, Op)]) -> Result<Recorded> {
    let record = |(order, (thread, begin, took, op)): (usize, &(u32, u64, u64, Op))| Record {
        order: order as u64,
        thread: *thread,
        begin: *begin,
        took: *took,
        gap: 0,
        answer: 0,
        op: op.clone(),
    };
    let records = calls.iter().enumerate().map(record).collect();
    let bytes = Recording { records, whole: true }.encode();
    Recorded::parse("tiny.run".to_owned(), &bytes)
}

pub(crate) fn create(file: u64, path: &str) -> Op {
    Op::Create { file, lifetime: Lifetime::Medium, path: path.to_owned() }
}

pub(crate) fn append(file: u64, offset: u64, len: u64) -> Op {
    Op::Append { file, offset, len, sum: 0 }
}

pub(crate) fn read(file: u64, offset: u64, len: u64) -> Op {
    Op::Read { file, offset, len, got: len }
}

/// For each resource of call `number`: how many calls on it must have ended. Sorted.
fn after(run: &Recorded, number: usize) -> Vec<u32> {
    let mut after: Vec<u32> = run.needs(number).iter().map(|need| need.after).collect();
    after.sort_unstable();
    after
}

#[test]
fn changes_wait_for_all_before_them_and_readers_for_the_last_change() {
    let run = run(&[
        (0, 0, 1, create(7, "d/a")),
        (0, 2, 1, append(7, 0, 10)),
        (1, 2, 5, read(7, 0, 10)),
        (2, 2, 5, read(7, 0, 10)),
        (0, 10, 1, append(7, 10, 10)),
        (1, 10, 5, Op::Sync { file: 7 }),
        (2, 10, 1, create(8, "d/b")),
        (2, 12, 1, Op::Rename { from: "d/b".into(), to: "d/a".into() }),
    ]);
    let file: Vec<u32> = (1..6).map(|number| after(&run, number)[0]).collect();
    // The append waits for the create, both reads for the append, the next append for both reads,
    // and the sync for that append.
    assert_eq!(file, [1, 2, 2, 4, 5]);
    // The file that loses its name had six calls, and each of the two names one; the directory has
    // not changed.
    assert_eq!(after(&run, 7), [0, 1, 1, 6]);
    assert_eq!(run.threads, [vec![0, 1, 4], vec![2, 5], vec![3, 6, 7]]);
}

#[test]
fn what_was_there_before_is_no_call() {
    let before = Op::Found { file: 3, size: 9, path: "x".into() };
    let run = run(&[(0, 0, 0, before), (0, 5, 1, Op::Remove { path: "x".into() })]);
    assert_eq!(run.before, [Before::File(3, "x".into(), 9)]);
    assert_eq!((run.calls.len(), run.calls[0].gap), (1, 5));
    // The call touches the name and the file.
    assert_eq!(after(&run, 0), [0, 0]);
}

#[test]
fn what_does_nothing_is_left_out_but_for_the_gap_before_it() {
    let flush = Op::Flush { file: 7 };
    let run = run(&[
        (0, 0, 1, create(7, "a")),
        (0, 11, 5, flush),
        (1, 12, 1, append(7, 0, 1)),
        (0, 20, 1, append(7, 1, 1)),
    ]);
    let gaps: Vec<u64> = run.calls.iter().map(|call| call.gap).collect();
    assert_eq!(gaps, [0, 12, 14]);
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let error = format!("{:#}", parse(&[]).unwrap_err());
    assert!(error.contains("no calls"), "{error}");
    let whole = run(&[(0, 0, 1, create(7, "a"))]);
    assert_eq!(whole.name.requests, 1);
    let records = vec![Record {
        order: 0,
        thread: 0,
        begin: 0,
        took: 1,
        gap: 0,
        answer: 0,
        op: create(7, "a"),
    }];
    let bytes = Recording { records, whole: true }.encode();
    let cut = Recorded::parse("cut.run".to_owned(), &bytes[..bytes.len() - 1]);
    let error = format!("{:#}", cut.unwrap_err());
    assert!(error.contains("stops short"), "{error}");
    let error = format!("{:#}", directory(Path::new("/nowhere")).unwrap_err());
    assert!(error.contains("cannot read /nowhere"), "{error}");
}
