//! The load and its check on a folder of this machine, which loses nothing. The check must pass at
//! whatever moment the load stops, and must notice each kind of loss made by hand.

use super::age::Aging;
use super::files::{Attributes, Files, Mounted, OpenFile};
use super::load::{Load, Report};
use super::plan::{BLOCK, FileId, Plan, State};
use super::progress::{Progress, shown};
use super::tree::{Counts, Tree};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// A folder that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("furrow-{name}-{}", std::process::id()));
        // Remove the folder that a killed test left.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("load")).expect("a folder for the test");
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file system that allows a number of changes and then fails all others, like a mount whose
/// daemon died.
struct Dying {
    inner: Mounted,
    left: AtomicI64,
}

impl Dying {
    fn pass(&self) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            Ok(())
        } else {
            Err(io::ErrorKind::NotConnected.into())
        }
    }
}

struct DyingFile<'a>(&'a Dying, Box<dyn OpenFile + 'a>);

impl OpenFile for DyingFile<'_> {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.pass().and_then(|()| self.1.write_at(offset, data))
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.1.read_at(offset, buffer)
    }
    fn truncate(&self, size: u64) -> io::Result<()> {
        self.0.pass().and_then(|()| self.1.truncate(size))
    }
    fn sync(&self) -> io::Result<()> {
        self.0.pass()
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.pass()
    }
}

impl Files for Dying {
    fn make_folder(&self, path: &str, mode: u32) -> io::Result<()> {
        self.pass().and_then(|()| self.inner.make_folder(path, mode))
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }
    fn attributes(&self, path: &str) -> io::Result<Attributes> {
        self.inner.attributes(path)
    }
    fn set_attributes(&self, path: &str, attributes: &Attributes) -> io::Result<()> {
        self.pass().and_then(|()| self.inner.set_attributes(path, attributes))
    }
    fn make_link(&self, path: &str, target: &str) -> io::Result<()> {
        self.pass().and_then(|()| self.inner.make_link(path, target))
    }
    fn read_link(&self, path: &str) -> io::Result<String> {
        self.inner.read_link(path)
    }
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenFile + '_>> {
        if create {
            self.pass()?;
        }
        Ok(Box::new(DyingFile(self, self.inner.open(path, create)?)))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.pass().and_then(|()| self.inner.rename(from, to))
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.pass().and_then(|()| self.inner.remove(path))
    }
    fn sync_folder(&self, _path: &str) -> io::Result<()> {
        self.pass()
    }
}

fn load<'a>(files: &'a dyn Files, seed: u64) -> Load<'a> {
    Load { files, folder: "load".to_owned(), plan: Plan { seed }, writers: 2, rate_max: u64::MAX }
}

/// Runs a load that dies after `operations` changes, and returns its journal.
fn run_and_die(folder: &Path, seed: u64, operations: i64) -> String {
    let dying = Dying { inner: Mounted::at(folder.to_owned()), left: AtomicI64::new(operations) };
    let mut journal = Vec::new();
    let result = load(&dying, seed).run(&mut journal, &AtomicBool::new(false));
    let error = result.expect_err("it runs until it dies");
    let died = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    assert_eq!(died.map(io::Error::kind).collect::<Vec<_>>(), [io::ErrorKind::NotConnected]);
    String::from_utf8(journal).expect("a journal is text")
}

fn check(folder: &Path, seed: u64, journal: &str) -> Report {
    let files = Mounted::at(folder.to_owned());
    load(&files, seed).check(journal).expect("a journal as written")
}

#[test]
fn whenever_the_load_dies_nothing_is_missing() {
    let mut fsyncs = 0;
    for (seed, operations) in [1, 2, 3, 7, 20, 55, 150, 400, 1000, 1500].into_iter().enumerate() {
        let scratch = Scratch::new(&format!("dies-{operations}"));
        let journal = run_and_die(&scratch.0, seed as u64, operations);
        let report = check(&scratch.0, seed as u64, &journal);
        assert_eq!(report.problems, Vec::<String>::new(), "after {operations} operations");
        assert_eq!(report.fsyncs, journal.lines().count() as u64);
        fsyncs += report.fsyncs;
    }
    assert!(fsyncs > 800, "only {fsyncs} fsyncs");
}

/// The last acknowledged step of each file of a journal.
fn acknowledged(journal: &str) -> BTreeMap<FileId, u64> {
    let lines = journal.lines().map(|line| {
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
        (FileId { writer: numbers[0] as u32, index: numbers[1] as u32 }, numbers[2])
    });
    lines.collect()
}

/// A file of at least `size` bytes that has not changed since its last fsync, and the path of
/// that file.
fn victim(folder: &Path, plan: Plan, journal: &str, size: u64) -> (FileId, PathBuf) {
    for (file, steps) in acknowledged(journal) {
        let mut state = State::created();
        while state.steps < steps {
            state.apply(plan.step(file, &state));
        }
        let path = folder.join("load").join(plan.name(file, state.renamed));
        let finished = steps == plan.life(file) && state.size.is_some_and(|found| found >= size);
        if finished && state.blocks.first().is_some_and(Option::is_some) {
            return (file, path);
        }
    }
    panic!("no file has reached the end of its life");
}

#[test]
fn each_kind_of_loss_is_seen() {
    let scratch = Scratch::new("loss");
    let (seed, folder) = (11, scratch.0.as_path());
    let journal = run_and_die(folder, seed, 1500);
    let plan = Plan { seed };
    let (file, path) = victim(folder, plan, &journal, 3 * BLOCK as u64);
    let whole = fs::read(&path).expect("the victim is there");
    let problem = |what: &str| {
        let problems = check(folder, seed, &journal).problems;
        assert!(problems.len() == 1 && problems[0].contains(what), "{what}: {problems:?}");
    };

    fs::remove_file(&path).expect("removed");
    problem("lost");
    fs::write(&path, &whole[..whole.len() - 1]).expect("cut");
    problem("bytes, may be");
    fs::write(&path, &whole).expect("whole again");
    assert!(check(folder, seed, &journal).problems.is_empty());

    let other = if path.extension().is_some() {
        path.with_extension("")
    } else {
        path.with_extension("renamed")
    };
    fs::copy(&path, &other).expect("a second name");
    problem("under its old and its new name");
    fs::remove_file(&path).expect("only the other name");
    problem("wrong name");
    fs::rename(&other, &path).expect("back");

    let open = fs::OpenOptions::new().write(true).open(&path).expect("the victim is there");
    let mut stale = [0; BLOCK];
    for version in [0, plan.life(file) + 1] {
        plan.content(file, 0, version, &mut stale);
        open.write_all_at(&stale, 0).expect("stale data");
        problem("block 0 is none of");
    }
    open.write_all_at(&whole[BLOCK..2 * BLOCK], 0).expect("misplaced data");
    problem("block 0");
    open.write_all_at(&[0; BLOCK], 0).expect("zeros");
    problem("block 0 (zeros)");
    open.write_all_at(&whole, 0).expect("whole again");

    fs::write(folder.join("load/w0/stranger"), "").expect("a stranger");
    problem("nobody made it");
    fs::remove_file(folder.join("load/w0/stranger")).expect("gone again");
    assert!(check(folder, seed, &journal).problems.is_empty());
}

#[test]
fn a_removed_file_that_is_back_is_seen() {
    let scratch = Scratch::new("back");
    let (seed, folder) = (5, scratch.0.as_path());
    let journal = run_and_die(folder, seed, 1500);
    let plan = Plan { seed };
    let removed = acknowledged(&journal).into_iter().find(|(file, steps)| {
        *steps == plan.life(*file)
            && [false, true]
                .iter()
                .all(|renamed| !folder.join("load").join(plan.name(*file, *renamed)).exists())
    });
    let (file, _) = removed.expect("a quarter of the files is removed");
    fs::write(folder.join("load").join(plan.name(file, false)), "").expect("back");
    let problems = check(folder, seed, &journal).problems;
    assert!(problems.len() == 1 && problems[0].contains("removal was fsynced"), "{problems:?}");
}

#[test]
fn a_journal_of_something_else_is_refused() {
    let scratch = Scratch::new("journal");
    let files = Mounted::at(scratch.0.clone());
    for journal in ["x", "1 2\n", "1 2 3 4\n", "1 2 -3\n"] {
        assert!(load(&files, 1).check(journal).is_err(), "{journal}");
    }
}

#[test]
fn a_copy_compares_equal_and_each_difference_is_seen() {
    let scratch = Scratch::new("copy");
    let from = scratch.0.join("from");
    fs::create_dir_all(from.join("a/b")).expect("folders");
    fs::create_dir(scratch.0.join("to")).expect("the target");
    fs::write(from.join("a/one"), "one").expect("a file");
    fs::write(from.join("a/b/two"), vec![2; 300_000]).expect("a file of several chunks");
    std::os::unix::fs::symlink("a/one", from.join("link")).expect("a link");
    let (source, target) = (Mounted::at(from.clone()), Mounted::at(scratch.0.clone()));
    let tree = Tree::list(&source).expect("listed");
    assert_eq!(tree.counts(), Counts { folders: 2, files: 2, symlinks: 1, bytes: 300_003 });
    let (copied, _) =
        shown("copied", (3, "files"), |progress| tree.copy(&target, "to", 2, progress));
    copied.expect("copied");

    let compare = || match tree.compare(&target, "to", 2, &Progress::default()) {
        Ok(()) => String::new(),
        Err(error) => format!("{error:#}"),
    };
    let to = scratch.0.join("to");
    assert_eq!(compare(), "");
    let modified = fs::metadata(from.join("a/one")).and_then(|m| m.modified()).expect("a time");
    let rewrite = |text: &str| {
        fs::write(to.join("a/one"), text).expect("rewritten");
        let file = fs::File::open(to.join("a/one")).expect("opened");
        file.set_modified(modified).expect("its old time");
    };
    rewrite("onf");
    assert!(compare().contains("to/a/one: differs"), "{}", compare());
    rewrite("ones");
    assert!(compare().contains("to/a/one: found"), "{}", compare());
    rewrite("one");
    fs::remove_file(to.join("link")).expect("removed");
    std::os::unix::fs::symlink("a/two", to.join("link")).expect("another aim");
    assert!(compare().contains("to/link: "), "{}", compare());
    fs::write(to.join("extra"), "").expect("one more");
    assert!(compare().contains("names"), "{}", compare());
}

#[test]
fn a_block_that_is_not_the_newest_is_seen() {
    let scratch = Scratch::new("aged");
    let files = Mounted::at(scratch.0.clone());
    let mut aging = Aging::new("aged", 7);
    aging.fill(&files, 3, &Progress::default()).expect("filled");
    let old = fs::read(scratch.0.join("aged/f1")).expect("a file");
    let mut looks = 0;
    let done = || {
        looks += 1;
        Ok((looks == 3, looks))
    };
    aging.overwrite(&files, u64::MAX, &Progress::default(), done).expect("overwritten");
    aging.compare(&files, &Progress::default()).expect("as written");
    let never = aging.overwrite(&files, 1 << 20, &Progress::default(), || Ok((false, 0)));
    assert!(never.expect_err("it gives up").to_string().contains("nothing was cleaned"));
    aging.compare(&files, &Progress::default()).expect("as written");

    let new = fs::read(scratch.0.join("aged/f1")).expect("a file");
    let changed = (0..256).find(|i| new[i * BLOCK..][..BLOCK] != old[i * BLOCK..][..BLOCK]);
    let changed = changed.expect("a block that was overwritten");
    let open = fs::OpenOptions::new().write(true).open(scratch.0.join("aged/f1")).expect("opened");
    open.write_all_at(&old[changed * BLOCK..][..BLOCK], (changed * BLOCK) as u64).expect("old");
    let found = aging.compare(&files, &Progress::default()).expect_err("an old block");
    assert!(found.to_string().contains(&format!("f1: block {changed} is not")), "{found}");
    open.set_len(9).expect("cut");
    let found = aging.compare(&files, &Progress::default()).expect_err("a short file");
    assert!(found.to_string().contains("9 bytes"), "{found}");
}
