//! Tests of the oracle: what it reports as broken, and what it accepts.

use super::*;
use crate::workload::{Op, pattern};

const A: Name = Name { directory: 1, number: 0 };
const B: Name = Name { directory: 2, number: 1 };

fn history(ops: &[Op]) -> History {
    let mut history = History::default();
    ops.iter().for_each(|op| history.apply(*op));
    history
}

fn found(names: &[(Name, Vec<u8>)]) -> Found {
    let names = names.iter().map(|(name, bytes)| (*name, Ok(bytes.clone()))).collect();
    Found { names, ..Found::default() }
}

fn promises(ops: &[Op], progress: (usize, usize), names: &[(Name, Vec<u8>)]) -> Vec<Promise> {
    let progress = Progress { begun: progress.0, ended: progress.1 };
    let accusations = judge(&history(ops), progress, &found(names));
    accusations.into_iter().map(|accusation| accusation.promise).collect()
}

fn write(offset: u64, length: u64) -> Op {
    Op::Write { name: A, offset, length }
}

/// Calls that make a durable file of two blocks.
fn durable() -> Vec<Op> {
    vec![Op::Create(A), write(0, 8192), Op::Fsync(A), Op::FsyncDirectory(1)]
}

#[test]
fn a_file_is_as_its_fsync_left_it_or_later() {
    let ops = [durable(), vec![write(4096, 6000)]].concat();
    let old = pattern(1, 0, 8192);
    let new = [pattern(1, 0, 4096), pattern(4, 4096, 6000)].concat();
    let mixed = [&old[..], &new[8192..]].concat();
    let shorter = new[..9000].to_vec();
    let hole = [&new[..8192], &[0; 1904]].concat();
    for good in [&old, &new, &mixed, &shorter, &hole] {
        assert_eq!(promises(&ops, (5, 4), &[(A, good.clone())]), []);
    }
    assert_eq!(promises(&ops, (4, 4), &[(A, old.clone())]), []);
    assert_eq!(promises(&ops, (4, 4), &[(A, new.clone())]), [Promise::Data, Promise::File]);
    for bad in [old[..8191].to_vec(), vec![0; 8192], [&old[..4096], &[0; 4096]].concat()] {
        assert_eq!(promises(&ops, (5, 4), &[(A, bad)]), [Promise::Data, Promise::File]);
    }
    // With a further fdatasync, call 4 is durable as well.
    let ops = [&ops[..], &[Op::Fdatasync(A)]].concat();
    assert_eq!(promises(&ops, (6, 5), &[(A, old.clone())]), []);
    assert_eq!(promises(&ops, (6, 6), &[(A, old)]), [Promise::Data, Promise::File]);
    assert_eq!(promises(&ops, (6, 6), &[(A, new)]), []);
}

#[test]
fn without_an_fsync_only_what_was_never_written_is_accused() {
    let ops = [Op::Create(A), Op::FsyncDirectory(1), write(0, 8192)];
    for good in [vec![], vec![0; 5000], pattern(2, 0, 8192), pattern(2, 0, 100)] {
        assert_eq!(promises(&ops, (3, 2), &[(A, good)]), []);
    }
    let late = promises(&ops, (2, 2), &[(A, pattern(2, 0, 8192))]);
    assert_eq!(late, [Promise::Foreign, Promise::File]);
    let odd = promises(&ops, (3, 2), &[(A, vec![7; 4096])]);
    assert_eq!(odd, [Promise::Foreign, Promise::File]);
}

#[test]
fn names_are_promised_by_the_fsync_of_their_directory_alone() {
    let content = pattern(1, 0, 8192);
    let ops = [Op::Create(A), write(0, 8192), Op::Fsync(A)];
    assert_eq!(promises(&ops, (3, 3), &[]), [], "fsync of a file promises no name");
    assert_eq!(promises(&durable(), (4, 3), &[]), []);
    assert_eq!(promises(&durable(), (4, 4), &[]), [Promise::Names, Promise::File]);
    let gone = [durable(), vec![Op::Unlink(A), Op::FsyncDirectory(1)]].concat();
    assert_eq!(promises(&gone, (5, 4), &[]), []);
    assert_eq!(promises(&gone, (6, 5), &[(A, content.clone())]), []);
    assert_eq!(promises(&gone, (6, 6), &[(A, content)]), [Promise::Names]);
    assert_eq!(promises(&gone, (6, 6), &[]), []);
}

#[test]
fn a_rename_loses_no_file() {
    let content = pattern(1, 0, 8192);
    let ops = [durable(), vec![Op::Rename(A, B)]].concat();
    let (at_a, at_b) = ((A, content.clone()), (B, content));
    assert_eq!(promises(&ops, (5, 4), std::slice::from_ref(&at_a)), []);
    assert_eq!(promises(&ops, (5, 5), std::slice::from_ref(&at_b)), []);
    assert_eq!(promises(&ops, (5, 5), &[at_a.clone(), at_b.clone()]), [], "both for a moment");
    assert_eq!(promises(&ops, (5, 5), &[]), [Promise::File]);
    let ops = [ops, vec![Op::FsyncDirectory(1)]].concat();
    assert_eq!(promises(&ops, (6, 6), std::slice::from_ref(&at_b)), []);
    assert_eq!(promises(&ops, (6, 6), &[]), [Promise::File], "its one durable name is gone");
    let left = promises(&ops, (6, 6), std::slice::from_ref(&at_a));
    assert_eq!(left, [Promise::Names, Promise::File]);
    let ops = [ops, vec![Op::FsyncDirectory(2)]].concat();
    assert_eq!(promises(&ops, (7, 7), std::slice::from_ref(&at_b)), []);
    assert_eq!(promises(&ops, (7, 7), &[]), [Promise::Names, Promise::File]);
}

#[test]
fn a_name_that_is_replaced_is_one_file_or_the_other() {
    let ops = [
        durable(),
        vec![
            Op::Create(B),
            Op::Write { name: B, offset: 0, length: 5000 },
            Op::Fsync(B),
            Op::FsyncDirectory(2),
            Op::Rename(B, A),
        ],
    ]
    .concat();
    let (old, new) = ((A, pattern(1, 0, 8192)), (A, pattern(5, 0, 5000)));
    let from = (B, pattern(5, 0, 5000));
    assert_eq!(promises(&ops, (9, 8), &[old.clone(), from.clone()]), []);
    assert_eq!(promises(&ops, (9, 8), std::slice::from_ref(&new)), []);
    assert_eq!(promises(&ops, (9, 8), std::slice::from_ref(&from)), [Promise::Names]);
    assert_eq!(promises(&ops, (9, 8), &[old]), [Promise::File]);
}

#[test]
fn what_cannot_be_read_and_what_nobody_made_is_accused() {
    let mut there = found(&[]);
    there.names.insert(A, Err("EIO".to_owned()));
    there.strange.push("x".to_owned());
    let progress = Progress { begun: 4, ended: 4 };
    let accusations = judge(&history(&durable()), progress, &there);
    let promises: Vec<_> = accusations.iter().map(|accusation| accusation.promise).collect();
    assert_eq!(promises, [Promise::Foreign, Promise::Readable]);
}

#[test]
fn the_model_itself_is_never_accused() {
    for seed in 0..8 {
        let history = History::generate(seed, 200);
        let mut now = History::default();
        for (call, op) in history.ops.iter().enumerate() {
            now.apply(*op);
            let whole = |file: &FileHistory| {
                let zeros = vec![0; BLOCK as usize];
                let last = |block: &Vec<(usize, Vec<u8>)>| match block.last() {
                    Some((_, content)) => content.clone(),
                    None => zeros.clone(),
                };
                let mut bytes: Vec<u8> = file.blocks.iter().flat_map(last).collect();
                bytes.resize(file.size() as usize, 0);
                bytes
            };
            let names = now
                .names
                .keys()
                .filter_map(|name| now.file(*name).map(|file| (*name, whole(&now.files[file]))));
            let there = found(&names.collect::<Vec<_>>());
            let progress = Progress { begun: call + 1, ended: call + 1 };
            assert_eq!(judge(&history, progress, &there), [], "seed {seed}, call {call}: {op:?}");
        }
    }
}
