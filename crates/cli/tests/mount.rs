//! The command on mounts: daemon, signals, crash, errors and their statuses.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::place::{Place, furrow, is_mounted, kill, refused, said, skip, wait_until};
#[test]
fn a_mount_works_when_the_command_returns_and_is_whole_when_unmounted() {
    if skip("a_mount_works_when_the_command_returns_and_is_whole_when_unmounted") {
        return;
    }
    let place = Place::new("round");
    for round in 0..5 {
        place.mount();
        for earlier in 0..round {
            let text = fs::read_to_string(place.file(&format!("f{earlier}"))).unwrap();
            assert_eq!(text, format!("round {earlier}"));
        }
        fs::write(place.file(&format!("f{round}")), format!("round {round}")).unwrap();
        // `umount` accepts the directory and the device.
        let target = if round % 2 == 0 { place.dir() } else { place.image() };
        let out = furrow(&["umount", &target]);
        assert!(out.status.success(), "{}", said(&out));
        assert!(!is_mounted(&place.dir()));
    }
    // umount(8) does not wait for the daemon; the next mount does.
    place.mount();
    // The daemon does not keep the command's directory busy.
    let cwd = fs::read_link(format!("/proc/{}/cwd", place.pid())).unwrap();
    assert_eq!(cwd.to_str(), Some("/"));
    assert!(Command::new("umount").arg(place.dir()).status().unwrap().success());
    place.mount();
    assert_eq!(fs::read_dir(place.dir()).unwrap().count(), 5);
    refused(&["mount", &place.image(), "/mnt"], 32, "already mounted on");
    refused(&["mount", "mem:", &place.dir()], 32, "busy");
    let log = fs::read_to_string(place.log()).unwrap();
    assert!(log.contains("mounted on") && log.contains("unmounted"), "{log}");
}

#[test]
fn reports_of_a_mount_and_of_the_device_agree() {
    if skip("reports_of_a_mount_and_of_the_device_agree") {
        return;
    }
    let place = Place::new("reports");
    let json = |arguments: &[&str]| -> serde_json::Value {
        let out = furrow(arguments);
        assert!(out.status.success(), "{arguments:?}: {}", said(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    place.mount();
    fs::write(place.file("file"), vec![7; 3 << 20]).unwrap();
    assert!(furrow(&["sync", &place.dir()]).status.success());
    let mounted = json(&["df", "--json", &place.dir()]);
    assert_eq!(mounted, json(&["df", "--json", &place.image()]), "by its device");
    let label = furrow(&["label", &place.image(), "x"]);
    let why = String::from_utf8(label.stderr).unwrap();
    assert!(!label.status.success() && why.contains("unmount it first"), "{why}");
    assert!(furrow(&["label", &place.dir()]).status.success());
    assert_eq!(mounted["device"], place.image().as_str());
    let tag = format!("UUID={}", mounted["uuid"].as_str().unwrap());
    assert_eq!(mounted, json(&["df", "--json", &tag]), "by its UUID");
    refused(&["fsck", &tag], 8, "mounted on");
    assert!(mounted["counters"]["user_bytes"].as_u64().unwrap() >= 3 << 20);
    let map = json(&["map", "--json", &place.dir()]);
    assert_eq!(map["zones"].as_array().unwrap().len(), 64);
    let picture = furrow(&["map", &place.dir()]);
    let text = String::from_utf8(picture.stdout).unwrap();
    assert!(text.contains("checkpoint") && text.contains("free") && !text.contains('\x1b'));
    let table = String::from_utf8(furrow(&["df", &place.dir()]).stdout).unwrap();
    assert!(table.contains("write amplification") && table.contains(&place.dir()), "{table}");

    assert!(furrow(&["umount", &place.dir()]).status.success());
    refused(&["fsck", &tag], 8, "no block device");
    let unmounted = json(&["df", "--json", &place.image()]);
    assert_eq!(unmounted["space"]["inodes_free"], mounted["space"]["inodes_free"]);
    assert_eq!(unmounted["read_only"], true);
    assert_eq!(json(&["map", "--json", &place.image()])["total"], 64);
    let table = String::from_utf8(furrow(&["df", &place.image()]).stdout).unwrap();
    assert!(table.contains("(not mounted)"), "{table}");
}

/// The value of the first sample in `metrics` whose line begins with `name`.
fn sample(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_mount_says_what_it_does() {
    if skip("a_mount_says_what_it_does") {
        return;
    }
    let place = Place::new("stat");
    let metrics = place.0.join("furrow.prom");
    let option = format!("metrics={}", metrics.display());
    // A failed mount leaves nothing behind.
    let none = place.0.join("none.zns");
    let none = none.to_str().unwrap();
    refused(&["mount", "-o", &option, none, &place.dir()], 32, "no such file");
    assert!(!metrics.exists());
    let nowhere = format!("metrics={}/nowhere/x", place.dir());
    refused(&["mount", "-o", &nowhere, &place.image(), &place.dir()], 32, "nowhere");
    let mounted = furrow(&["mount", "-o", &option, &place.image(), &place.dir()]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    let mut file = File::create(place.file("a")).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let out = furrow(&["stat", "--json", &place.dir()]);
    assert!(out.status.success(), "{}", said(&out));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["version"], 2);
    assert_eq!(json["counters"]["fsyncs"], 1);
    assert!(json["counters"]["user_bytes"].as_u64().unwrap() >= 100_000, "{json}");
    let streams = json["streams"].as_array().unwrap();
    let written: u64 = streams.iter().map(|stream| stream["bytes"].as_u64().unwrap()).sum();
    assert!(written >= 100_000 && json["permits"]["held"].as_u64().unwrap() > 0, "{json}");
    let operations = json["operations"].as_array().unwrap();
    let of = |name: &str| operations.iter().find(|operation| operation["name"] == name).unwrap();
    assert_eq!((&of("create")["count"], &of("fsync")["count"]), (&1.into(), &1.into()));
    assert!(of("write")["p99_ns"].as_u64().unwrap() > 0, "{json}");
    // The daemon has made the file at the mount, and has written it again since.
    wait_until("the file of metrics is written", || {
        fs::read_to_string(&metrics).is_ok_and(|text| text.contains("furrow_up_seconds"))
    });
    let page = furrow(&["stat", "--prometheus", &place.dir()]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert_eq!(sample(&page, "furrow_fsyncs_total{"), 1.0);
    let text = furrow(&["stat", &place.dir()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("active zones: ") && text.contains("99.9 %"), "{text}");
    // Half of the written data is garbage: cleaning moves the rest and frees space.
    for round in 0..4 {
        for name in 0..40 {
            if round == 0 || name % 2 == 0 {
                fs::write(place.file(&format!("f{name}")), vec![round; 1 << 20]).unwrap();
            }
        }
        assert!(furrow(&["sync", &place.dir()]).status.success());
    }
    let cleaned = furrow(&["gc", "--json", &place.dir()]);
    assert!(cleaned.status.success(), "{}", said(&cleaned));
    let cleaned: serde_json::Value = serde_json::from_slice(&cleaned.stdout).unwrap();
    assert!(cleaned["superzones"].as_u64().unwrap() > 0, "{cleaned}");
    let again = furrow(&["stat", "--json", &place.dir()]);
    let again: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert!(again["counters"]["clean_victims"].as_u64() >= cleaned["superzones"].as_u64());
    assert!(furrow(&["umount", &place.dir()]).status.success());
    assert!(!metrics.exists(), "it says what is no more");
    refused(&["stat", &place.image()], 1, "not mounted");
    refused(&["gc", &place.image()], 1, "not mounted");
}

#[test]
fn metrics_are_served_over_http() {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    if skip("metrics_are_served_over_http") {
        return;
    }
    let place = Place::new("metrics");
    // The listener takes a free port, so the mount at this port must fail.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let option = format!("metrics={address}");
    let mount = ["mount", "-o", &option, &place.image(), &place.dir()];
    let out = furrow(&mount);
    assert_eq!(out.status.code(), Some(32), "{}", said(&out));
    assert!(said(&out).contains(&option), "{}", said(&out));
    drop(taken);
    let out = furrow(&mount);
    assert!(out.status.success(), "{}", said(&out));
    fs::write(place.file("a"), b"x").unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(sample(&text, "furrow_up_seconds{") > 0.0);
    let source = format!("device=\"{}\"", place.image());
    assert!(text.contains(&source), "{text}");
    assert!(furrow(&["umount", &place.dir()]).status.success());
}

/// Mount options that differ in whether the engine or the kernel keeps unsynced writes.
const CACHES: [&str; 2] = ["commit=1", "writeback_cache,commit=1"];

#[test]
fn a_killed_daemon_is_said_and_nothing_fsynced_is_lost() {
    if skip("a_killed_daemon_is_said_and_nothing_fsynced_is_lost") {
        return;
    }
    for options in CACHES {
        nothing_fsynced_is_lost(options);
    }
}

fn nothing_fsynced_is_lost(options: &str) {
    let place = Place::new("kill");
    for round in 0..3u32 {
        place.mount_with(options);
        for earlier in 0..round {
            let path = place.file(&format!("f{earlier}"));
            assert_eq!(fs::read(path).unwrap(), vec![earlier as u8; 100_000 + earlier as usize]);
        }
        let mut file = File::create(place.file(&format!("f{round}"))).unwrap();
        file.write_all(&vec![round as u8; 100_000 + round as usize]).unwrap();
        file.sync_all().unwrap();
        fs::write(place.file("unsynced"), "may go").unwrap();
        die(&place);
        let dead = "is a dead mount";
        refused(&["df", &place.dir()], 1, dead);
        refused(&["sync", &place.dir()], 1, dead);
        refused(&["mount", &place.image(), &place.dir()], 32, dead);
        refused(&["mount", "mem:", &place.dir()], 32, "furrow umount");
        let out = furrow(&["umount", &place.dir()]);
        assert!(out.status.success(), "{}", said(&out));
        assert!(!is_mounted(&place.dir()));
        // A read-only mount shows what the next mount will recover, and writes nothing.
        let before = fs::read(place.image()).unwrap();
        let out = furrow(&["mount", "-o", "ro", &place.image(), &place.dir()]);
        assert!(out.status.success(), "{}", said(&out));
        let expected = vec![round as u8; 100_000 + round as usize];
        assert!(fs::read(place.file(&format!("f{round}"))).unwrap() == expected);
        assert!(furrow(&["umount", &place.dir()]).status.success());
        assert!(fs::read(place.image()).unwrap() == before, "the image has changed");
    }
    place.mount_with(options);
    assert!(place.file("f2").exists());
}

/// The kernel writes its cache back as often as the engine commits.
#[test]
fn what_nobody_syncs_survives_a_kill_after_two_commits() {
    if skip("what_nobody_syncs_survives_a_kill_after_two_commits") {
        return;
    }
    for options in CACHES {
        let place = Place::new("unsynced");
        place.mount_with(options);
        fs::write(place.file("old"), vec![7; 300_000]).unwrap();
        std::thread::sleep(Duration::from_secs(4));
        fs::write(place.file("new"), "may go").unwrap();
        place.kill();
        place.mount_with(options);
        assert!(fs::read(place.file("old")).unwrap() == vec![7; 300_000], "{options}");
    }
}

/// Kills the daemon, which leaves a dead mount.
fn die(place: &Place) {
    kill(place.pid(), rustix::process::Signal::KILL);
    let probe = || said(&furrow(&["df", &place.dir()])).contains("is a dead mount");
    wait_until("the mount dies", probe);
}

/// With `O_SYNC` or `O_DSYNC`, with and without `O_DIRECT`, every write that returned survives a
/// kill of the daemon without any fsync.
#[test]
fn what_is_written_synchronously_survives_a_killed_daemon() {
    if skip("what_is_written_synchronously_survives_a_killed_daemon") {
        return;
    }
    for options in CACHES {
        what_is_written_synchronously_survives(options);
    }
}

fn what_is_written_synchronously_survives(options: &str) {
    use rustix::fs::OFlags;
    const WRITES: u64 = 40;
    const SIZE: usize = 8192;
    let place = Place::new("osync");
    place.mount_with(options);
    let ways = [
        OFlags::SYNC,
        OFlags::DSYNC,
        OFlags::SYNC | OFlags::APPEND,
        OFlags::SYNC | OFlags::DIRECT,
        OFlags::DSYNC | OFlags::DIRECT,
    ];
    let content = |way: usize, at: u64| (way as u64 * 100 + at + 1) as u8;
    for (way, flags) in ways.into_iter().enumerate() {
        let mut file = File::options()
            .create_new(true)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(place.file(&format!("f{way}")))
            .unwrap();
        // O_DIRECT needs buffers that are aligned in memory.
        let mut memory = vec![0; 2 * SIZE];
        let start = memory.as_ptr().align_offset(SIZE);
        for at in 0..WRITES {
            memory[start..start + SIZE].fill(content(way, at));
            file.write_all(&memory[start..start + SIZE]).unwrap();
        }
        // The name of a new file belongs to the directory; O_SYNC does not cover it.
        File::open(place.dir()).unwrap().sync_all().unwrap();
    }
    // An overwrite in place survives, too.
    let path = place.file("f0");
    let flags = OFlags::DSYNC.bits() as i32;
    let again = File::options().write(true).custom_flags(flags).open(path).unwrap();
    again.write_all_at(&[0xee; SIZE], 5 * SIZE as u64).unwrap();
    die(&place);
    assert!(furrow(&["umount", &place.dir()]).status.success());
    place.mount_with(options);
    for way in 0..ways.len() {
        let found = fs::read(place.file(&format!("f{way}"))).unwrap();
        assert_eq!(found.len(), WRITES as usize * SIZE, "file {way}");
        for (at, part) in found.chunks(SIZE).enumerate() {
            let expected = if (way, at) == (0, 5) { 0xee } else { content(way, at as u64) };
            assert!(part.iter().all(|byte| *byte == expected), "file {way}, write {at}");
        }
    }
}

fn foreground(place: &Place) -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_furrow"))
        .args(["mount", "-f", &place.image(), &place.dir()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the mount appears", || is_mounted(&place.dir()));
    child
}

#[test]
fn a_signal_unmounts_cleanly_also_when_in_use() {
    if skip("a_signal_unmounts_cleanly_also_when_in_use") {
        return;
    }
    let place = Place::new("signal");
    use rustix::process::Signal;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let child = foreground(&place);
        fs::write(place.file("file"), "content").unwrap();
        kill(child.id(), signal);
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", said(&out));
        assert!(!is_mounted(&place.dir()));
    }
    let child = foreground(&place);
    assert_eq!(fs::read_to_string(place.file("file")).unwrap(), "content");
    let mut held = File::create(place.file("held")).unwrap();
    held.write_all(b"written").unwrap();
    refused(&["umount", &place.dir()], 1, "in use");
    kill(child.id(), rustix::process::Signal::TERM);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    assert!(said(&out).contains("cutting off its users"), "{}", said(&out));
    assert!(held.write_all(b"more").is_err());
    drop(held);
    let child = foreground(&place);
    assert_eq!(fs::read_to_string(place.file("held")).unwrap(), "written");
    assert!(Command::new("umount").arg(place.dir()).status().unwrap().success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    // A daemon has no terminal that could hang up, so it ignores SIGHUP; SIGTERM ends it.
    place.mount();
    let daemon = place.pid();
    kill(daemon, Signal::HUP);
    kill(daemon, Signal::TERM);
    wait_until("it has ended", || !is_mounted(&place.dir()));
    let log = fs::read_to_string(place.log()).unwrap();
    assert!(log.contains("SIGTERM: unmounting") && !log.contains("SIGHUP"), "{log}");
}

/// In a PID namespace whose session began outside, as in a container, getsid(2) returns 0.
#[test]
fn a_mount_works_in_a_container() {
    if skip("a_mount_works_in_a_container") {
        return;
    }
    let place = Place::new("container");
    let mut child = Command::new("unshare")
        .args(["--pid", "--fork", env!("CARGO_BIN_EXE_furrow")])
        .args(["mount", "-f", &place.image(), &place.dir()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the mount appears", || is_mounted(&place.dir()));
    fs::write(place.file("file"), "content").unwrap();
    assert!(Command::new("umount").arg(place.dir()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let out = furrow(&["fsck", &place.image()]);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
}

#[test]
fn read_only_mounts_change_nothing() {
    if skip("read_only_mounts_change_nothing") {
        return;
    }
    let place = Place::new("ro");
    place.mount();
    fs::write(place.file("file"), "x").unwrap();
    assert!(furrow(&["umount", &place.dir()]).status.success());
    let before = fs::read(place.image()).unwrap();
    let out = furrow(&["mount", &place.image(), &place.dir(), "-o", "ro,noatime"]);
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(fs::read(place.file("file")).unwrap(), b"x");
    let error = fs::write(place.file("other"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30), "{error}");
    assert!(furrow(&["umount", &place.dir()]).status.success());
    assert!(before == fs::read(place.image()).unwrap(), "the image has changed");
}

#[test]
fn a_remount_changes_what_the_kernel_allows() {
    if skip("a_remount_changes_what_the_kernel_allows") {
        return;
    }
    let place = Place::new("remount");
    refused(
        &["mount", "-o", "remount,ro", &place.image(), &place.dir()],
        32,
        "no Furrow file system",
    );
    place.mount();
    let remount = |options: &str| {
        let out = furrow(&["mount", "-o", options, &place.image(), &place.dir()]);
        assert!(out.status.success(), "{}", said(&out));
    };
    fs::write(place.file("a"), b"before").unwrap();
    // A process that another test is starting may have the file open for writing until it executes
    // its program; until then the kernel refuses the remount.
    wait_until("the mount becomes read-only", || {
        let options = "remount,ro";
        furrow(&["mount", "-o", options, &place.image(), &place.dir()]).status.success()
    });
    let error = fs::write(place.file("b"), b"refused").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let is_read_only = || {
        let json = furrow(&["stat", "--json", &place.dir()]).stdout;
        serde_json::from_slice::<serde_json::Value>(&json).unwrap()["read_only"] == true
    };
    assert!(is_read_only());
    assert_eq!(fs::read(place.file("a")).unwrap(), b"before");
    remount("remount,rw");
    assert!(!is_read_only());
    fs::write(place.file("b"), b"after").unwrap();
    // The remount changes options that the daemon can change; if it contains any other, it
    // changes nothing.
    let options = || {
        let mut value = vec![0; 255];
        let length = rustix::fs::getxattr(place.dir(), "furrow.options", value.as_mut_slice());
        value.truncate(length.unwrap());
        String::from_utf8(value).unwrap()
    };
    remount("remount,commit=0.2,errors=remount-ro");
    assert_eq!(options(), "rw,commit=0.2,errors=remount-ro");
    let late = ["mount", "-o", "remount,commit=9,cache=1GiB", &place.image(), &place.dir()];
    refused(&late, 32, "cache=1GiB cannot change while");
    assert_eq!(options(), "rw,commit=0.2,errors=remount-ro");
    // Options that mount(8) repeats from fstab do not count as a change.
    remount("remount,rw,noatime,commit=0.2,user_id=0");
    assert_eq!(options(), "rw,commit=0.2,errors=remount-ro");
    // The new interval is in force: unsynced changes become durable soon.
    let written = || {
        let df = furrow(&["df", "--json", &place.dir()]);
        let json: serde_json::Value = serde_json::from_slice(&df.stdout).unwrap();
        json["counters"]["checkpoints"].as_u64().unwrap()
    };
    let before = written();
    fs::write(place.file("c"), b"unsynced").unwrap();
    wait_until("a commit", || written() > before);
    assert!(furrow(&["umount", &place.dir()]).status.success());
    // A daemon that began without writing cannot begin to write.
    assert!(furrow(&["mount", "-o", "ro", &place.image(), &place.dir()]).status.success());
    for options in ["remount,rw", "remount,commit=9"] {
        refused(&["mount", "-o", options, &place.image(), &place.dir()], 32, "mounted with ro");
    }
    remount("remount,ro,commit=9");
    assert!(is_read_only());
    assert!(furrow(&["umount", &place.dir()]).status.success());
}

#[test]
fn wrong_input_is_one_line_with_the_status_of_mount() {
    if skip("wrong_input_is_one_line_with_the_status_of_mount") {
        return;
    }
    let place = Place::new("wrong");
    let (image, dir) = (place.image(), place.dir());
    refused(&["mount", &image], 1, "DIR");
    refused(&["mount", &image, &dir, "-o", "comit=1"], 1, "unknown mount option 'comit'");
    refused(&["mount", "mem:nosuch", &dir], 1, "unknown preset");
    refused(&["mount", &image, &format!("{dir}/none")], 32, "no such directory");
    refused(&["mount", &image, &image], 32, "not a directory");
    refused(&["mount", "/dev/nvme9n9", &dir], 32, "/dev/nvme9n9");
    refused(&["mount", &format!("{image}.none"), &dir], 32, "no such file");
    refused(&["mount", "mem:", &dir], 32, "mem:");
    let rubbish = place.0.join("rubbish");
    fs::write(&rubbish, vec![0x55; 1 << 20]).unwrap();
    let rubbish = rubbish.to_str().unwrap();
    for command in ["mount", "mkfs", "df", "map"] {
        let status = if command == "mount" { 32 } else { 1 };
        let arguments: Vec<&str> =
            if command == "mount" { vec![command, rubbish, &dir] } else { vec![command, rubbish] };
        refused(&arguments, status, "not an emulated drive's image");
    }
    assert_eq!(fs::read(rubbish).unwrap(), vec![0x55; 1 << 20], "nothing is written to it");
    refused(&["mkfs", &image], 1, "-f");
    refused(&["mkfs", &image, "-L", &"x".repeat(64), "-f"], 2, "label");
    refused(&["umount", &dir], 1, "no Furrow file system is mounted there");
    refused(&["df", &dir], 1, "not the root of a mounted Furrow file system");
    place.mount();
    refused(&["mkfs", "-f", &image], 1, "in use");
}

#[test]
fn a_missing_fuse_device_is_said() {
    if skip("a_missing_fuse_device_is_said") {
        return;
    }
    let place = Place::new("nodev");
    // In its own mount namespace, /dev contains everything that the command needs except for the
    // FUSE device.
    let script = "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9 \
                  && exec \"$@\"";
    let out = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_furrow"), "mount"])
        .args([place.image(), place.dir()])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(32), "{}", said(&out));
    assert!(said(&out).contains("/dev/fuse is missing"), "{}", said(&out));
    assert!(said(&out).contains("modprobe fuse"), "{}", said(&out));
}

#[test]
fn fsck_tells_clean_from_crashed_from_damaged() {
    if skip("fsck_tells_clean_from_crashed_from_damaged") {
        return;
    }
    let place = Place::new("fsck");
    place.mount();
    for n in 0..40 {
        fs::write(place.file(&format!("f{n}")), vec![n as u8 ^ 0xa5; 30_000]).unwrap();
    }
    refused(&["fsck", &place.image()], 8, "unmount it first");
    kill(place.pid(), rustix::process::Signal::KILL);
    wait_until("the mount dies", || said(&furrow(&["df", &place.dir()])).contains("dead"));
    assert!(furrow(&["umount", &place.dir()]).status.success());
    let check = |arguments: &[&str]| {
        let out = furrow(&[&["fsck", &place.image()], arguments].concat());
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (status, text) = check(&[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("not unmounted"), "{text}");
    place.mount();
    fs::write(place.file("last"), vec![0xa5; 30_000]).unwrap();
    assert!(furrow(&["umount", &place.dir()]).status.success());
    let (status, text) = check(&["-v"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains(": clean: ") && text.contains("label 'test'"), "{text}");

    // Flips one bit in a block of content.
    let mut image = fs::read(place.image()).unwrap();
    let at = image.windows(4096).step_by(4096).position(|block| block == [0xa5; 4096]).unwrap();
    image[at * 4096 + 17] ^= 4;
    fs::write(place.image(), &image).unwrap();
    let (status, text) = check(&[]);
    assert_eq!(status, Some(4), "{text}");
    assert!(text.contains("1 ERROR,"), "{text}");
    let (status, text) = check(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, json["version"].as_u64()), (Some(4), Some(2)));
    assert_eq!(json["findings"].as_array().unwrap().len(), 1);
    assert_eq!(check(&["--metadata-only"]).0, Some(0));
    assert!(fs::read(place.image()).unwrap() == image, "nothing was changed");
    refused(&["fsck"], 16, "DEVICE");
    refused(&["fsck", "/dev/nvme9n9"], 8, "/dev/nvme9n9");
    refused(&["fsck", "mem:"], 8, "mem:");
}

/// The kernel does not pass sync(1) on to the mount of an image, and the mount warns of that.
#[test]
fn a_mount_of_an_image_says_what_makes_it_durable() {
    if skip("a_mount_of_an_image_says_what_makes_it_durable") {
        return;
    }
    let place = Place::new("sync-hint");
    let hint = format!(
        "not of a block device; to make everything durable, run 'furrow sync {}'",
        place.dir()
    );
    for (options, expected) in [("nowriteback_cache", true), ("ro", false)] {
        let out = furrow(&["mount", &place.image(), &place.dir(), "-o", options]);
        assert!(out.status.success());
        let text = said(&out);
        assert_eq!(text.lines().count(), usize::from(expected), "{text}");
        assert_eq!(text.contains(&hint), expected, "{text}");
        assert!(furrow(&["umount", &place.dir()]).status.success());
    }
}

/// mkfs and df show the same space for files.
#[test]
fn mkfs_and_df_agree_on_the_space_for_files() {
    let place = Place::new("promise");
    let json = |arguments: &[&str]| {
        let out = furrow(arguments);
        assert!(out.status.success(), "{}", said(&out));
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()
    };
    let made = json(&["mkfs", "--json", "-f", &place.image()]);
    let space = &json(&["df", "--json", &place.image()])["space"];
    let available = space["blocks_available"].as_u64().unwrap() * 4096;
    assert_eq!(made["available_bytes"].as_u64(), Some(available));
    assert!(available < made["main_bytes"].as_u64().unwrap());
}

#[test]
fn it_serves_mount_8() {
    if skip("it_serves_mount_8") {
        return;
    }
    let place = Place::new("helper");
    let helper = place.0.join("mount.fuse.furrow");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_furrow"), &helper).unwrap();
    // Calls the helper as mount(8) does for `mount -t fuse.furrow`.
    let out = Command::new(&helper)
        .args([place.image(), place.dir()])
        .args(["-o", "rw,nosuid,x-systemd.automount,_netdev", "-t", "fuse.furrow"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(&place.dir())).expect("mounted");
    assert!(line.contains("nosuid") && line.contains(" fuse.furrow.fs "), "{line}");
    assert!(Command::new("umount").arg(place.dir()).status().unwrap().success());
    let out = Command::new(&helper).args([&place.image(), &place.dir(), "-f"]).output().unwrap();
    assert!(out.status.success(), "fake: {}", said(&out));
    assert!(!is_mounted(&place.dir()));
}

/// mount(8) with the `mount.fuse` of Debian's fuse packages and without one, where Furrow's helpers
/// are not installed and `furrow` is not in PATH.
#[test]
fn mount_8_remounts_with_and_without_the_fuse_package() {
    if skip("mount_8_remounts_with_and_without_the_fuse_package") {
        return;
    }
    // In its own mount namespace, /usr/sbin first has no mount helpers, and then one that works
    // like Debian's: it runs the command that follows `fuse.` in the type.
    let script = r#"set -e
        image=$2 dir=$3 log=$4 real=$5
        furrow() { "$furrow" "$@"; }
        furrow=$1
        mkdir "$real"
        sbin=$(readlink -f /sbin)
        mount --bind "$sbin" "$real"
        mount -t tmpfs none "$sbin"
        ln -s "$real"/* "$sbin"/
        rm -f "$sbin"/mount.f*
        for round in without with; do
            if [ $round = with ]; then
                printf '#!/bin/sh\necho "$*" >&2\nexec sh -c furrow "$@"\n' >"$sbin/mount.fuse"
                chmod 755 "$sbin/mount.fuse"
            fi
            furrow mount "$image" "$dir" --log "$log"
            touch "$dir/$round"
            mount -o remount,ro "$dir"
            ! touch "$dir/refused" 2>/dev/null
            mount -o remount,rw "$dir"
            touch "$dir/$round-again"
            furrow umount "$dir"
        done
        # With our helper in place it is ours that mount(8) runs, with all options of the mount.
        ln -s "$furrow" "$sbin/mount.fuse.furrow"
        furrow mount "$image" "$dir" --log "$log"
        mount -o remount,ro "$dir"
        ! touch "$dir/refused" 2>/dev/null
        mount -o remount,rw "$dir"
        touch "$dir/last"
        furrow umount "$dir""#;
    let place = Place::new("remount8");
    let out = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_furrow")])
        .args([place.image(), place.dir(), place.log()])
        .arg(place.0.join("sbin"))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
}
