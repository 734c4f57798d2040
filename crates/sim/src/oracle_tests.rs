//! The oracle accepts what the contract allows and rejects what it forbids.

use super::*;
use crate::history::History;
use crate::model::Model;
use crate::op::{Op, Value, fill};
use furrow_rt::Nanos;
use furrow_zone::ErrorKind;

/// A run of clients on a perfect file system in memory.
#[derive(Default)]
struct Run {
    history: History,
    models: BTreeMap<u8, Model>,
    inos: u32,
}

impl Run {
    fn new() -> Run {
        let mut history = History::new();
        history.know(Object(1), Ino(2));
        history.know(Object(2), Ino(3));
        Run { history, models: BTreeMap::new(), inos: 3 }
    }

    fn op(&mut self, client: u8, op: Op) {
        let id = self.history.begin(Nanos(0), client, op);
        let result = self.models.entry(client).or_default().apply(&op);
        if let (Op::Create { object, .. }, Ok(())) = (op, result) {
            self.inos += 1;
            self.history.know(object, Ino(self.inos));
        }
        self.history.end(Nanos(0), id, result);
    }

    fn create(&mut self, client: u8, index: u32, dir: Object, make: Make) -> Object {
        let object = Object::made_by(client, index);
        let name = Name { client, index: index as u16 };
        self.op(client, Op::Create { make, object, dir, name, mode: 0o644 });
        object
    }

    fn fsync(&mut self, client: u8, object: Object) {
        self.op(client, Op::Fsync { object, data_only: false, background: false });
    }

    fn write(&mut self, object: Object, sector: u64, sectors: u32, version: u32) {
        self.op((object.0 >> 24) as u8 - 1, Op::Write { object, sector, sectors, version });
    }

    /// The tree an engine shows that has applied the first `counts` name changes of each client.
    fn tree(&self, counts: &[(u8, usize)]) -> Observed {
        let expected = self.history.cut(self.history.mark());
        let directory = || Found {
            kind: Kind::Directory,
            mode: 0o644,
            links: 0,
            size: 0,
            target: Vec::new(),
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
        };
        let mut observed = Observed::default();
        for object in Object::SHARED {
            observed.nodes.insert(self.history.ino(object).unwrap(), directory());
            if let Some(name) = object.shared_name() {
                let root = observed.nodes.get_mut(&Ino::ROOT).unwrap();
                root.entries.insert(name.to_vec(), self.history.ino(object).unwrap());
            }
        }
        for &(client, count) in counts {
            let names = expected.names_after(client, count);
            for (object, node) in names.objects().filter(|(o, n)| !o.is_shared() && n.names > 0) {
                let target = match node.make {
                    Make::Symlink(length) => symlink_target(object, length),
                    _ => Vec::new(),
                };
                let found =
                    Found { kind: kind_of(node.make), links: node.names, target, ..directory() };
                observed.nodes.insert(self.history.ino(object).unwrap(), found);
            }
            for (dir, name, object) in names.names() {
                let dir = observed.nodes.get_mut(&self.history.ino(dir).unwrap()).unwrap();
                dir.entries.insert(name.bytes(), self.history.ino(object).unwrap());
            }
        }
        let counted: Vec<(Ino, u32)> = observed
            .nodes
            .iter()
            .filter(|(_, found)| found.kind == Kind::Directory)
            .map(|(&ino, found)| (ino, 2 + observed.subdirectories(found)))
            .collect();
        for (ino, links) in counted {
            observed.nodes.get_mut(&ino).unwrap().links = links;
        }
        observed
    }

    fn check(&self, counts: &[(u8, usize)]) -> Result<Names, String> {
        self.history.cut(self.history.mark()).check_names(&self.tree(counts))
    }
}

fn file(size: u64) -> Found {
    Found {
        kind: Kind::File,
        mode: 0o644,
        links: 1,
        size,
        target: Vec::new(),
        entries: BTreeMap::new(),
        xattrs: BTreeMap::new(),
    }
}

fn payload(object: Object, first: u64, versions: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; versions.len() * SECTOR];
    for (at, (out, &version)) in bytes.chunks_mut(SECTOR).zip(versions).enumerate() {
        if version > 0 {
            fill(out, object, first + at as u64, version);
        }
    }
    bytes
}

#[test]
fn names_are_a_prefix_that_holds_all_that_was_fsynced() {
    let mut run = Run::new();
    let dir = run.create(0, 0, Object::ROOT, Make::Directory);
    let one = run.create(0, 1, dir, Make::File);
    run.fsync(0, one);
    run.create(0, 2, Object(1), Make::Symlink(30));
    run.op(0, Op::Unlink { dir, name: Name { client: 0, index: 1 } });
    assert!(run.check(&[(0, 1)]).unwrap_err().contains("no prefix of 2 to 4"));
    for count in 2..=4 {
        run.check(&[(0, count)]).unwrap();
    }
}

#[test]
fn a_rename_is_never_seen_half() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    let to = (Object(1), Name { client: 0, index: 7 });
    let from = (Object::ROOT, Name { client: 0, index: 0 });
    run.op(0, Op::Rename { from, to, exchange: false });
    run.check(&[(0, 1)]).unwrap();
    run.check(&[(0, 2)]).unwrap();
    let ino = run.history.ino(one).unwrap();
    let expected = run.history.cut(run.history.mark());
    // Both names.
    let mut both = run.tree(&[(0, 1)]);
    both.nodes.get_mut(&Ino(2)).unwrap().entries.insert(to.1.bytes(), ino);
    both.nodes.get_mut(&ino).unwrap().links = 2;
    assert!(expected.check_names(&both).is_err());
    // Neither, although the file was made and fsynced before.
    run.fsync(0, one);
    assert!(run.check(&[(0, 0)]).is_err());
    assert!(run.check(&[(0, 1)]).is_err());
    run.check(&[(0, 2)]).unwrap();
}

#[test]
fn an_fsync_covers_name_changes_of_all_clients() {
    let mut run = Run::new();
    run.create(0, 0, Object::ROOT, Make::File);
    let two = run.create(1, 0, Object::ROOT, Make::File);
    run.fsync(1, two);
    assert!(run.check(&[(1, 1)]).is_err());
    run.check(&[(0, 1), (1, 1)]).unwrap();
}

#[test]
fn nothing_survives_without_what_was_answered_before_it_began() {
    let mut run = Run::new();
    run.create(0, 0, Object::ROOT, Make::File);
    run.create(1, 0, Object::ROOT, Make::File);
    run.check(&[]).unwrap();
    run.check(&[(0, 1)]).unwrap();
    let why = run.check(&[(1, 1)]).unwrap_err();
    assert!(why.contains("a later change of another client is there"), "{why}");
    // Overlapping in time: either alone is fine.
    let mut run = Run::new();
    let (a, b) = (Object::made_by(0, 0), Object::made_by(1, 0));
    let create = |object, client| Op::Create {
        make: Make::File,
        object,
        dir: Object::ROOT,
        name: Name { client, index: 0 },
        mode: 0o644,
    };
    let first = run.history.begin(Nanos(0), 0, create(a, 0));
    let second = run.history.begin(Nanos(0), 1, create(b, 1));
    run.history.know(a, Ino(4));
    run.history.know(b, Ino(5));
    run.history.end(Nanos(0), first, Ok(()));
    run.history.end(Nanos(0), second, Ok(()));
    run.check(&[(0, 1)]).unwrap();
    run.check(&[(1, 1)]).unwrap();
}

#[test]
fn wrong_links_names_and_kinds_are_seen() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.create(0, 1, Object::ROOT, Make::Directory);
    run.fsync(0, one);
    let expected = run.history.cut(run.history.mark());
    let good = run.tree(&[(0, 2)]);
    expected.check_names(&good).unwrap();
    let ino = run.history.ino(one).unwrap();
    let with = |change: &dyn Fn(&mut Observed)| {
        let mut tree = good.clone();
        change(&mut tree);
        expected.check_names(&tree).unwrap_err()
    };
    with(&|t| t.nodes.get_mut(&ino).unwrap().links = 2);
    with(&|t| t.nodes.get_mut(&Ino::ROOT).unwrap().links += 1);
    with(&|t| t.nodes.get_mut(&ino).unwrap().kind = Kind::Fifo);
    with(&|t| {
        t.nodes.get_mut(&Ino(2)).unwrap().entries.insert(b"lost".to_vec(), ino);
    });
    with(&|t| {
        // The right names, but another inode.
        let found = t.nodes.remove(&ino).unwrap();
        t.nodes.insert(Ino(99), found);
        let root = t.nodes.get_mut(&Ino::ROOT).unwrap();
        root.entries.insert(Name { client: 0, index: 0 }.bytes(), Ino(99));
    });
}

#[test]
fn blocks_are_the_fsynced_version_or_a_later_one() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.write(one, 0, 16, 1);
    run.write(one, 0, 16, 2);
    run.fsync(0, one);
    run.write(one, 2, 2, 3);
    run.write(one, 8, 16, 4);
    let expected = run.history.cut(run.history.mark());
    let check = |size: u64, blocks: &[Vec<u8>]| {
        let blocks = blocks.iter().enumerate().map(|(at, b)| (at as u64, b.clone())).collect();
        expected.check_content(one, &file(size), &blocks)
    };
    let (old, new) = ([2; 8], [2, 2, 3, 3, 2, 2, 2, 2]);
    let block = |at: u64, versions: &[u32]| payload(one, at * 8, versions);
    check(8192, &[block(0, &old), block(1, &[2; 8])]).unwrap();
    check(8192, &[block(0, &new), block(1, &[4; 8])]).unwrap();
    check(12288, &[block(0, &old), block(1, &[4; 8]), block(2, &[4; 8])]).unwrap();
    check(12288, &[block(0, &old), block(1, &[2; 8]), block(2, &[0; 8])]).unwrap();
    // An older version, half of a later one, a wrong size, another file's block, a wrong place.
    check(8192, &[block(0, &[1; 8]), block(1, &[2; 8])]).unwrap_err();
    check(8192, &[block(0, &[2, 2, 3, 2, 2, 2, 2, 2]), block(1, &[2; 8])]).unwrap_err();
    check(4096, &[block(0, &old)]).unwrap_err();
    let foreign = payload(Object::made_by(0, 9), 0, &[2; 8]);
    let why = check(8192, &[foreign, block(1, &[2; 8])]).unwrap_err();
    assert!(why.contains("found a9 sector 0 version 2"), "{why}");
    check(8192, &[block(0, &old), block(0, &old)]).unwrap_err();
    check(8192, &[block(0, &old), block(1, &[0; 8])]).unwrap_err();
}

#[test]
fn unsynced_files_may_be_empty_but_never_show_anything_else() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.write(one, 0, 8, 1);
    run.op(0, Op::Truncate { object: one, size: 700 });
    run.op(0, Op::Truncate { object: one, size: 4096 });
    let expected = run.history.cut(run.history.mark());
    let check = |size: u64, bytes: Vec<u8>| {
        expected.check_content(one, &file(size), &BTreeMap::from([(0, bytes)]))
    };
    expected.check_content(one, &file(0), &BTreeMap::new()).unwrap();
    check(4096, payload(one, 0, &[1; 8])).unwrap();
    check(4096, vec![0; 4096]).unwrap();
    let mut cut = payload(one, 0, &[1; 8]);
    cut[700..].fill(0);
    check(4096, cut.clone()).unwrap();
    check(700, cut[..700].to_vec()).unwrap();
    cut[900] = 7;
    check(4096, cut).unwrap_err();
    check(5000, vec![0; 4096]).unwrap_err();
}

#[test]
fn an_operation_in_flight_may_have_happened_and_a_failed_one_has_not() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.fsync(0, one);
    let unlink = Op::Unlink { dir: Object::ROOT, name: Name { client: 0, index: 0 } };
    let id = run.history.begin(Nanos(0), 0, unlink);
    run.check(&[(0, 1)]).unwrap();
    run.check(&[(0, 2)]).unwrap();
    let mark = run.history.mark();
    run.history.end(Nanos(0), id, Err(ErrorKind::NoSpace));
    let kept = run.tree(&[(0, 1)]);
    run.history.cut(mark).check_names(&kept).unwrap();
    assert!(run.history.cut(mark).check_names(&run.tree(&[])).is_err());
}

#[test]
fn permission_bits_follow_fsync_but_not_fdatasync() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.op(0, Op::Chmod { object: one, mode: 0o600 });
    run.op(0, Op::Fsync { object: one, data_only: true, background: false });
    let check = |run: &Run, mode| {
        let found = Found { mode, ..file(0) };
        run.history.cut(run.history.mark()).check_content(one, &found, &BTreeMap::new())
    };
    check(&run, 0o644).unwrap();
    check(&run, 0o600).unwrap();
    check(&run, 0o777).unwrap_err();
    run.fsync(0, one);
    check(&run, 0o644).unwrap_err();
    check(&run, 0o600).unwrap();
}

#[test]
fn attributes_are_those_synced_or_later_ones_never_a_mix() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    let value = |version| Value { version, size: 600 };
    let set = |slot, value| Op::SetXattr { object: one, slot, value };
    run.op(0, set(0, Some(value(1))));
    run.fsync(0, one);
    run.op(0, set(1, Some(value(2))));
    run.op(0, set(0, None));
    let check = |run: &Run, there: &[(u8, u32)]| {
        let bytes = |&(s, v)| (xattr_name(s), value_bytes(one, s, value(v)));
        let found = Found { xattrs: there.iter().map(bytes).collect(), ..file(0) };
        run.history.cut(run.history.mark()).check_xattrs(one, &found)
    };
    check(&run, &[]).unwrap_err();
    check(&run, &[(0, 1)]).unwrap();
    check(&run, &[(0, 1), (1, 2)]).unwrap();
    assert_eq!(check(&run, &[(1, 2)]), Ok(BTreeMap::from([(1, value(2))])));
    check(&run, &[(0, 2), (1, 2)]).unwrap_err();
    run.fsync(0, one);
    check(&run, &[(0, 1), (1, 2)]).unwrap_err();
    check(&run, &[(1, 2)]).unwrap();
}

#[test]
fn what_was_punched_reads_as_zeros_and_stays_so() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.write(one, 0, 24, 1);
    run.fsync(0, one);
    run.op(0, Op::Punch { object: one, sector: 8, sectors: 8 });
    let check = |run: &Run, bytes: &[u8]| {
        let expected = run.history.cut(run.history.mark());
        assert!(expected.blocks_of_interest(one, 3 * 4096).contains(&1));
        let blocks = BTreeMap::from([(1, bytes.to_vec())]);
        expected.check_content(one, &file(3 * 4096), &blocks)
    };
    let (old, zeros) = (payload(one, 8, &[1; 8]), vec![0; 4096]);
    check(&run, &old).unwrap();
    check(&run, &zeros).unwrap();
    run.fsync(0, one);
    check(&run, &old).unwrap_err();
    check(&run, &zeros).unwrap();
    run.op(0, Op::Allocate { object: one, sector: 0, sectors: 80 });
    let longer = run.history.cut(run.history.mark()).check_content(
        one,
        &file(80 * 512),
        &BTreeMap::from([(1, zeros)]),
    );
    assert_eq!(longer.unwrap().size, 80 * 512);
}

#[test]
fn the_commit_interval_makes_changes_durable() {
    let mut run = Run::new();
    run.history.promise_commits(1000);
    run.create(0, 0, Object::ROOT, Make::File);
    run.check(&[]).unwrap();
    let late = run.history.begin(Nanos(1001), 0, Op::Sleep(1));
    run.history.end(Nanos(1001), late, Ok(()));
    assert!(run.check(&[]).is_err());
    run.check(&[(0, 1)]).unwrap();
}

#[test]
fn a_history_goes_on_where_a_recovery_ended() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.write(one, 0, 8, 1);
    run.write(one, 0, 4, 2);
    let expected = run.history.cut(run.history.mark());
    let names = expected.check_names(&run.tree(&[(0, 1)])).unwrap();
    let block = payload(one, 0, &[1; 8]);
    let blocks = BTreeMap::from([(0, block.clone())]);
    let content = expected.check_content(one, &file(4096), &blocks).unwrap();
    let model = Model {
        names: expected.names_after(0, names.prefixes[&0]),
        contents: BTreeMap::from([(one, content)]),
        modes: BTreeMap::from([(one, 0o644)]),
        ..Model::default()
    };
    let mut inos = run.history.inos().clone();
    inos.insert(one, names.matching[&one]);
    run.history = History::resume(BTreeMap::from([(0, model)]), inos);
    let expected = run.history.cut(0);
    expected.check_names(&run.tree(&[(0, 0)])).unwrap();
    expected.check_content(one, &file(4096), &blocks).unwrap();
    let later = BTreeMap::from([(0, payload(one, 0, &[2, 2, 2, 2, 1, 1, 1, 1]))]);
    expected.check_content(one, &file(4096), &later).unwrap_err();
}
