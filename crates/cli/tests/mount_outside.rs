//! A mount and its surroundings: other mount namespaces, and the open files and limits of the
//! process that started the daemon.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, furrow, is_mounted, kill, refused, said, skip, wait_until};
use rustix::process::Signal;
use std::fs;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};

/// A process that runs the shell's `program` in its own mount namespace. Of Furrow's mounts it
/// keeps only the one at `directory`, since the others belong to tests that run at the same time.
struct Elsewhere(Child);

/// Shell commands that unmount all of Furrow's mounts but the one at `$1`.
const ALONE: &str = "for other in $(grep fuse.furrow /proc/self/mountinfo | cut -d ' ' -f 5); do
    [ \"$other\" = \"$1\" ] || umount -i -l \"$other\"
done";

impl Elsewhere {
    fn new(directory: &str, program: &str) -> Elsewhere {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        let mut child = command
            .arg(format!("{ALONE}; echo here; {program}; exec sleep 300"))
            .args(["sh", directory])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        assert_eq!(&ready, b"here\n");
        Elsewhere(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn runs(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // An ended process may remain as a zombie.
    state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn an_unmount_says_which_other_namespace_holds_the_mount() {
    if skip("an_unmount_says_which_other_namespace_holds_the_mount") {
        return;
    }
    let place = Place::new("elsewhere");
    place.mount();
    let daemon = place.pid();
    let elsewhere = Elsewhere::new(&place.dir(), ":");
    fs::write(place.file("f"), "kept").unwrap();
    let holder = format!("process {} (sleep) has it in another mount namespace", elsewhere.0.id());
    wait_until("the shell is replaced", || {
        let name = fs::read_to_string(format!("/proc/{}/comm", elsewhere.0.id()));
        name.is_ok_and(|name| name == "sleep\n")
    });
    refused(&["umount", &place.dir()], 1, &holder);
    assert!(!is_mounted(&place.dir()) && runs(daemon));
    // The daemon ends with the last mount.
    drop(elsewhere);
    wait_until("the daemon ends", || !runs(daemon));
    place.mount();
    assert_eq!(fs::read(place.file("f")).unwrap(), b"kept");
}

#[test]
fn a_signal_ends_a_mount_that_another_namespace_holds() {
    if skip("a_signal_ends_a_mount_that_another_namespace_holds") {
        return;
    }
    for options in ["rw", "writeback_cache"] {
        let place = Place::new("cut-off");
        place.mount_with(options);
        let daemon = place.pid();
        // The other process writes through a shared mapping, which no sync has passed on yet.
        let store = "import mmap, os, sys, time
f = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.ftruncate(f, 8192)
m = mmap.mmap(f, 8192)
m[5000:5006] = b'stored'
open(sys.argv[2], 'w').close()
time.sleep(300)";
        let stored = place.0.join("stored");
        let program = "exec python3 -c \"$STORE\" \"$FILE\" \"$STORED\"";
        let variables = format!(
            "STORE=$(cat {}); FILE={}; STORED={}; export STORE FILE STORED; {program}",
            place.0.join("store.py").display(),
            place.file("f").display(),
            stored.display()
        );
        fs::write(place.0.join("store.py"), store).unwrap();
        let _elsewhere = Elsewhere::new(&place.dir(), &variables);
        wait_until("the store is made", || stored.exists());
        kill(daemon, Signal::TERM);
        wait_until("the daemon ends", || !runs(daemon));
        let log = fs::read_to_string(place.log()).unwrap();
        assert!(log.contains("still in use outside this mount namespace"), "{log}");
        assert!(log.contains(" unmounted"), "{log}");
        place.mount();
        assert_eq!(&fs::read(place.file("f")).unwrap()[5000..5006], b"stored", "{options}");
    }
}

#[test]
fn the_daemon_has_nothing_open_that_is_its_starters() {
    if skip("the_daemon_has_nothing_open_that_is_its_starters") {
        return;
    }
    let place = Place::new("descriptors");
    let lock = place.0.join("lock");
    let script = "exec 7<>\"$1\" 9<>\"$1\" && flock 9 && shift && exec \"$@\"";
    let out = Command::new("sh")
        .args(["-c", script, "sh", lock.to_str().unwrap(), env!("CARGO_BIN_EXE_furrow")])
        .args(["mount", &place.image(), &place.dir(), "--log", &place.log()])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let open = fs::read_dir(format!("/proc/{}/fd", place.pid())).unwrap();
    let open: Vec<_> = open.map(|entry| fs::read_link(entry.unwrap().path()).unwrap()).collect();
    assert!(!open.contains(&lock), "{open:?}");
    let free = Command::new("flock").arg("-n").arg(&lock).arg("true").status().unwrap();
    assert!(free.success(), "the lock ended with who had it");
}

#[test]
fn a_limit_on_files_is_lifted_or_said_and_kills_nobody() {
    if skip("a_limit_on_files_is_lifted_or_said_and_kills_nobody") {
        return;
    }
    let place = Place::new("limit");
    let limited = |arguments: &[&str]| {
        let script = "ulimit -f 64 && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_furrow")]).args(arguments);
        command.output().unwrap()
    };
    let out = limited(&["mount", &place.image(), &place.dir(), "--log", &place.log()]);
    if out.status.success() {
        // The mount succeeds if root has CAP_SYS_RESOURCE, because the daemon can lift the
        // limit then.
        fs::write(place.file("f"), vec![7; 8 << 20]).unwrap();
        assert!(furrow(&["sync", &place.dir()]).status.success());
        assert!(furrow(&["umount", &place.dir()]).status.success());
    } else {
        assert_eq!(out.status.code(), Some(32));
        assert!(said(&out).contains("may write files only up to"), "{}", said(&out));
        assert!(!is_mounted(&place.dir()));
    }
    let other = place.0.join("other.zns");
    let made = limited(&["device", "create", other.to_str().unwrap()]);
    assert!(made.status.success() || said(&made).contains("(ulimit -f)"), "{}", said(&made));
    assert!(made.status.code().is_some(), "no signal");
}

#[test]
fn a_drive_has_one_name_for_all_commands() {
    if skip("a_drive_has_one_name_for_all_commands") {
        return;
    }
    let place = Place::empty("names");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_furrow"));
        let out = command.args(arguments).current_dir(&place.0).output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", said(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    let names = [
        ("x,y.zns", "x,y.zns"),
        ("a b:c=d.zns", "a b:c=d.zns"),
        ("./-f.zns", "-f.zns"),
        (r"a\,seed=3\+\\.zns", r"a,seed=3+\.zns"),
    ];
    for (name, file) in names {
        let said = run(&["device", "create", name, "-o", "zones=32,zone-size=4MiB"]);
        assert!(said.starts_with(&format!("{name}: ")), "{said}");
        assert!(place.0.join(file).is_file(), "{name} is {file}");
        run(&["device", "show", name]);
        run(&["mkfs", name]);
        run(&["mount", name, "mnt"]);
        run(&["df", name]);
        run(&["umount", name]);
        run(&["fsck", name]);
        run(&["dump", "superblock", name]);
        run(&["device", "report", name]);
        run(&["kv", "mkfs", "--force", name]);
        run(&["kv", "ls", name]);
    }
    let create = |name: &str| furrow(&["device", "create", name]);
    for (wrong, why) in [
        ("nowhere/x,seed=3", "options of the drive go after -o"),
        ("nowhere/x,y=z", "write `\\,` for a comma"),
        ("nowhere/x+y", "write `\\+`"),
        ("mem:", "not the path of a file"),
    ] {
        let out = create(wrong);
        assert!(!out.status.success() && said(&out).contains(why), "{wrong}: {}", said(&out));
    }
}
