//! The oracle accepts what the contract allows and rejects what it forbids.

use super::*;
use crate::fs::attributes::{DEFAULT, LIFETIME};
use crate::fs::history::History;
use crate::fs::model::Model;
use crate::fs::op::{How, Op, Value, fill};
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
        let model = self.models.entry(client).or_default();
        let (result, after, effect) = model.foresee(&op);
        self.history.does(id, effect);
        if result.is_ok() {
            *model = after;
        }
        if let (Op::Create { object, .. } | Op::Nameless { object, .. }, Ok(())) = (op, result) {
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
        let (offset, length) = (sector * SECTOR as u64, sectors * SECTOR as u32);
        self.op((object.0 >> 24) as u8 - 1, Op::Write { object, offset, length, version });
    }

    /// The tree of an engine that has applied the first `counts` name changes of each client.
    fn tree(&self, counts: &[(u8, usize)]) -> Observed {
        let expected = self.history.cut(self.history.mark());
        let directory = || Found {
            kind: Kind::Directory,
            mode: 0o644,
            owners: (1000, 2000),
            times: Times::default(),
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

/// The time of all operations here, unless a test sets another.
const NOW: Times =
    Times { atime: (1_577_836_800, 0), mtime: (1_577_836_800, 0), ctime: (1_577_836_800, 0) };

fn file(size: u64) -> Found {
    Found {
        kind: Kind::File,
        mode: 0o644,
        owners: (1000, 2000),
        times: NOW,
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
            fill(out, object, (first + at as u64) * SECTOR as u64, version);
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
    // Both names are found.
    let mut both = run.tree(&[(0, 1)]);
    both.nodes.get_mut(&Ino(2)).unwrap().entries.insert(to.1.bytes(), ino);
    both.nodes.get_mut(&ino).unwrap().links = 2;
    assert!(expected.check_names(&both).is_err());
    // Neither name is found, although the file was made and fsynced before.
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
    // The two operations overlap in time: either alone may survive.
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
        // The names are right, but the inode is another one.
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
    // None of these is allowed: an older version, half of a later one, a wrong size, another file's
    // block, a block at a wrong place.
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
fn a_file_renamed_over_another_is_there_with_what_it_had_by_then() {
    let mut run = Run::new();
    let old = run.create(0, 0, Object::ROOT, Make::File);
    run.write(old, 0, 8, 1);
    run.fsync(0, old);
    let new = run.create(0, 1, Object::ROOT, Make::File);
    run.write(new, 0, 8, 2);
    let at = |index| (Object::ROOT, Name { client: 0, index });
    run.op(0, Op::Rename { from: at(1), to: at(0), exchange: false });
    run.write(new, 0, 8, 3);
    let expected = run.history.cut(run.history.mark());
    let check = |count, size: u64, versions: &[u32]| {
        let expected = expected.carried(&BTreeMap::from([(0, count)]));
        let blocks = BTreeMap::from([(0, payload(new, 0, versions))]);
        expected.check_content(new, &file(size), &blocks)
    };
    // Before the rename the file may be empty, afterwards not.
    check(2, 0, &[]).unwrap();
    check(3, 0, &[]).unwrap_err();
    check(3, 4096, &[0; 8]).unwrap_err();
    check(3, 4096, &[2; 8]).unwrap();
    check(3, 4096, &[3; 8]).unwrap();
    // Without promises, every earlier state is allowed.
    let any = run.history.cut_unpromised(run.history.mark());
    let any = any.carried(&BTreeMap::from([(0, 3)]));
    any.check_content(new, &file(0), &BTreeMap::new()).unwrap();
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
        run.history.cut(run.history.mark()).check_attributes(one, &found)
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
        run.history.cut(run.history.mark()).check_attributes(one, &found).map(|found| found.xattrs)
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
fn what_is_made_has_what_its_directory_said_and_owners_change_with_the_rest() {
    let mut run = Run::new();
    let dir = run.create(0, 0, Object::ROOT, Make::Directory);
    let lifetime = Some(Value { version: 1, size: 0 });
    run.op(0, Op::SetXattr { object: dir, slot: LIFETIME, value: lifetime });
    // Permission bits: 7 for the owner, 6 for a named user, 5 for the group, 4 for the mask, 1
    // for others.
    let list = Some(Value { version: 0o176541, size: 0 });
    run.op(0, Op::SetXattr { object: dir, slot: DEFAULT, value: list });
    let one = run.create(0, 1, dir, Make::File);
    run.op(0, Op::Chown { object: one, uid: Some(7), gid: None });
    run.op(0, Op::Chmod { object: one, mode: 0o600 });
    let states = run.history.cut(run.history.mark()).objects[&one].attributes.clone();
    let seen: Vec<_> = states.iter().map(|a| (a.mode, a.uid, a.gid, a.xattrs.len())).collect();
    let want = [(0o640, 1000, 2000, 2), (0o640, 7, 2000, 2), (0o600, 7, 2000, 2)];
    assert_eq!(seen, want);
    let check = |owners, mode, of: usize| {
        let bytes = |(&s, &v)| (xattr_name(s), value_bytes(one, s, v));
        let xattrs = states[of].xattrs.iter().map(bytes).collect();
        let found = Found { owners, mode, xattrs, ..file(0) };
        run.history.cut(run.history.mark()).check_attributes(one, &found).map(drop)
    };
    check((1000, 2000), 0o640, 0).unwrap();
    check((7, 2000), 0o640, 1).unwrap();
    check((7, 2000), 0o600, 2).unwrap();
    check((1000, 2000), 0o600, 2).unwrap_err();
    check((7, 2000), 0o600, 0).unwrap_err();
}

#[test]
fn times_are_those_of_an_operation_that_may_be_found() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    let at = |run: &mut Run, begin: u64, end: u64, op: Op| {
        let (_, after, effect) = run.models[&0].foresee(&op);
        let id = run.history.begin(Nanos(begin), 0, op);
        run.history.does(id, effect);
        run.history.end(Nanos(end), id, Ok(()));
        run.models.insert(0, after);
    };
    let write = |version| Op::Write { object: one, offset: 0, length: 1, version };
    at(&mut run, 100, 110, write(1));
    at(&mut run, 120, 120, Op::Fsync { object: one, data_only: false, background: false });
    at(&mut run, 200, 210, write(2));
    at(&mut run, 300, 310, Op::Utimens { object: one, mtime: Some(5), atime: None });
    let moment = |nanos| (NOW.mtime.0, nanos);
    let check = |run: &Run, mtime, ctime| {
        let found = Found { times: Times { mtime, ctime, ..NOW }, ..file(1) };
        run.history.cut(run.history.mark()).check_times(one, &found)
    };
    check(&run, moment(105), moment(105)).unwrap();
    check(&run, moment(210), moment(200)).unwrap();
    check(&run, (5, 999_999_999), moment(305)).unwrap();
    check(&run, moment(0), moment(105)).unwrap_err();
    check(&run, moment(105), moment(111)).unwrap_err();
    at(&mut run, 400, 400, Op::Fsync { object: one, data_only: false, background: false });
    check(&run, (5, 999_999_999), moment(305)).unwrap();
    check(&run, (5, 999_999_999), moment(210)).unwrap_err();
    check(&run, moment(210), moment(305)).unwrap_err();
    // If another file's fsync makes a name durable, the time of that change is durable too.
    let two = run.create(0, 1, Object::ROOT, Make::File);
    at(&mut run, 500, 510, Op::Link { object: one, dir: Object::ROOT, name: NAME });
    at(&mut run, 520, 520, Op::Fsync { object: two, data_only: true, background: false });
    check(&run, (5, 999_999_999), moment(505)).unwrap();
    check(&run, (5, 999_999_999), moment(305)).unwrap_err();
}

const NAME: Name = Name { client: 0, index: 9 };

#[test]
fn what_was_punched_reads_as_zeros_and_stays_so() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.write(one, 0, 24, 1);
    run.fsync(0, one);
    let punch = |how, offset, length| Op::Fallocate { object: one, how, offset, length };
    run.op(0, punch(How::Punch, 4096, 4096));
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
    run.op(0, punch(How::Extend, 0, 80 * 512));
    let longer = run.history.cut(run.history.mark()).check_content(
        one,
        &file(80 * 512),
        &BTreeMap::from([(1, zeros)]),
    );
    assert_eq!(longer.unwrap().size, 80 * 512);
}

#[test]
fn a_copy_is_found_block_by_block_and_as_its_source_was_then() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    let two = run.create(0, 1, Object::ROOT, Make::File);
    run.write(one, 8, 16, 1);
    run.write(two, 0, 24, 2);
    run.fsync(0, two);
    // A copy of a block-sized hole and then data: the engine makes the hole first.
    run.op(0, Op::Copy { from: (one, 0), to: (two, 4096), length: 8192 });
    run.write(one, 8, 8, 3);
    let check = |run: &Run, blocks: &[&[u8]]| {
        let blocks = blocks.iter().enumerate().map(|(at, b)| (at as u64, b.to_vec())).collect();
        run.history.cut(run.history.mark()).check_content(two, &file(3 * 4096), &blocks)
    };
    let old = |at: u64| payload(two, at * 8, &[2; 8]);
    let (copy, zeros) = (payload(one, 8, &[1; 8]), vec![0; 4096]);
    check(&run, &[&old(0), &old(1), &old(2)]).unwrap();
    check(&run, &[&old(0), &zeros, &old(2)]).unwrap();
    check(&run, &[&old(0), &zeros, &copy]).unwrap();
    check(&run, &[&old(0), &zeros, &payload(one, 8, &[3; 8])]).unwrap_err();
    run.fsync(0, two);
    check(&run, &[&old(0), &zeros, &copy]).unwrap();
    check(&run, &[&old(0), &old(1), &copy]).unwrap_err();
}

#[test]
fn what_failed_in_the_middle_may_be_done_in_part() {
    let mut run = Run::new();
    let one = run.create(0, 0, Object::ROOT, Make::File);
    run.write(one, 0, 16, 1);
    let zero = Op::Fallocate { object: one, how: How::Zero, offset: 100, length: 8000 };
    run.history.begin(Nanos(0), 0, zero);
    run.fsync(0, one);
    let expected = run.history.cut(run.history.mark()).all_durable();
    let mut first = payload(one, 0, &[1; 8]);
    let second = payload(one, 8, &[1; 8]);
    let check = |first: &[u8]| {
        let blocks = BTreeMap::from([(0, first.to_vec()), (1, second.clone())]);
        expected.check_content(one, &file(8192), &blocks)
    };
    check(&first).unwrap();
    first[100..].fill(0);
    check(&first).unwrap();
    first[99] = 0;
    check(&first).unwrap_err();
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
        attributes: run.models[&0].attributes.clone(),
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
