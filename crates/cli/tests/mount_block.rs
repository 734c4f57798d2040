//! Mounts of block devices, which the kernel holds for them: sync(1) reaches the engine, and
//! umount(8) returns when the device is free.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, furrow, is_mounted, kill, said, skip, wait_until};
use rustix::process::Signal;
use std::fs;
use std::process::Command;

/// A loop device with soft zones and a file system on it.
struct Block {
    place: Place,
    device: String,
}

impl Block {
    /// A new loop device; `None` if this machine offers none, as in a container.
    fn new(name: &str) -> Option<Block> {
        if skip(name) {
            return None;
        }
        let place = Place::empty(name);
        let file = place.0.join("plain");
        fs::File::create(&file).unwrap().set_len(512 << 20).unwrap();
        let out = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let Some(out) = out.ok().filter(|out| out.status.success()) else {
            eprintln!("SKIPPED {name}: no loop device can be had");
            return None;
        };
        let device = String::from_utf8(out.stdout).unwrap().trim().to_owned();
        let block = Block { place, device };
        block.run(&["device", "create", "--soft", &block.device, "--zone-size", "4MiB"]);
        block.run(&["mkfs", &block.device]);
        Some(block)
    }

    fn run(&self, arguments: &[&str]) -> String {
        let out = furrow(arguments);
        assert!(out.status.success(), "{arguments:?}: {}", said(&out));
        said(&out)
    }

    /// Mounts the device; returns the output of the command.
    fn mount(&self) -> String {
        let (dir, log) = (self.place.dir(), self.place.log());
        self.run(&["mount", &self.device, &dir, "--log", &log, "-o", "commit=600"])
    }

    /// Unmounts with umount(8). The mount may be busy for a moment, while a command of another test
    /// that lists all mounts of this machine queries this one.
    fn umount(&self, arguments: &[&str]) {
        wait_until("the mount is not busy", || {
            let umount = Command::new("umount").args(arguments).arg(self.place.dir()).output();
            let out = umount.unwrap();
            let busy = said(&out).contains("target is busy");
            assert!(out.status.success() || busy, "{}", said(&out));
            !busy
        });
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _ = furrow(&["umount", "-l", &self.place.dir()]);
        // The kernel detaches the loop device when its last user is gone.
        let _ = Command::new("losetup").args(["--detach", &self.device]).output();
    }
}

#[test]
fn what_was_copied_before_a_sync_survives_a_kill() {
    let Some(block) = Block::new("what_was_copied_before_a_sync_survives_a_kill") else { return };
    let said = block.mount();
    let content = vec![0xc3; 3 << 20];
    fs::create_dir(block.place.file("dir")).unwrap();
    fs::write(block.place.file("dir/copy"), &content).unwrap();
    let syncs = furrow_fuse::endpoint::syncs();
    assert_eq!(said.contains("furrow sync"), !syncs, "{said}");
    let synced = match syncs {
        true => Command::new("sync").status().unwrap().success(),
        false => furrow(&["sync", &block.place.dir()]).status.success(),
    };
    assert!(synced);
    fs::write(block.place.file("later"), "not synced").unwrap();
    block.place.kill();
    block.mount();
    assert!(fs::read(block.place.file("dir/copy")).unwrap() == content);
    block.umount(&[]);
}

#[test]
fn the_device_is_free_when_umount_returns() {
    let Some(block) = Block::new("the_device_is_free_when_umount_returns") else { return };
    for round in 0..3 {
        block.mount();
        fs::write(block.place.file("file"), format!("{round}").repeat(1 << 20)).unwrap();
        // No other program may write to the device: mkfs programs and other mounts open
        // it exclusively.
        let used = furrow(&["mkfs", "-f", &block.device]);
        assert!(!used.status.success() && said(&used).contains("in use"), "{}", said(&used));
        block.umount(&[]);
        block.run(&["fsck", &block.device]);
        block.mount();
        let content = fs::read_to_string(block.place.file("file")).unwrap();
        assert_eq!(content, format!("{round}").repeat(1 << 20));
        block.umount(&[]);
        block.run(&["mkfs", "-f", &block.device]);
    }
}

/// udev's rule opens a device for a moment after a writer has closed it; so does this test.
#[test]
fn a_device_that_another_program_looks_at_for_a_moment_can_be_used() {
    use std::os::unix::fs::OpenOptionsExt;
    let name = "a_device_that_another_program_looks_at_for_a_moment_can_be_used";
    let Some(block) = Block::new(name) else { return };
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let open = || fs::OpenOptions::new().read(true).custom_flags(exclusive).open(&block.device);
    // A scan for arrays of another test may look at the device at the same moment.
    let look = || {
        let mut opened = None;
        wait_until("nobody looks at the device", || {
            opened = open().ok();
            opened.is_some()
        });
        opened.unwrap()
    };
    for arguments in [["fsck", &block.device].as_slice(), &["mkfs", "-f", &block.device]] {
        let looks = look();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(150));
                drop(looks);
            });
            block.run(arguments);
        });
    }
    block.mount();
    assert!(open().is_err());
    block.umount(&[]);
    // The error names a program that keeps the device open.
    let _stays = look();
    let refused = furrow(&["fsck", &block.device]);
    assert!(!refused.status.success() && said(&refused).contains("in use"), "{}", said(&refused));
}

#[test]
fn a_signal_and_a_forced_unmount_leave_a_sound_device() {
    let Some(block) = Block::new("a_signal_and_a_forced_unmount_leave_a_sound_device") else {
        return;
    };
    let dir = block.place.dir();
    block.mount();
    fs::write(block.place.file("file"), "before the signal").unwrap();
    kill(block.place.pid(), Signal::TERM);
    wait_until("the daemon unmounts", || !is_mounted(&dir));
    block.mount();
    let content = fs::read_to_string(block.place.file("file")).unwrap();
    assert_eq!(content, "before the signal");
    // The kernel releases the device before the daemon has written its last checkpoint, so for a
    // moment this fsck may be refused; it must not fail in any other way.
    block.umount(&["--force"]);
    wait_until("the device is free", || furrow(&["fsck", &block.device]).status.success());
    block.mount();
    assert_eq!(fs::read_to_string(block.place.file("file")).unwrap(), content);
    block.umount(&["--lazy"]);
}

/// mount(8) also finds Furrow's helper for a mount of this type.
#[test]
fn mount_8_remounts_a_block_device_with_our_options() {
    let name = "mount_8_remounts_a_block_device_with_our_options";
    let Some(block) = Block::new(name) else { return };
    block.mount();
    // In its own mount namespace, Furrow's helper is where mount(8) looks.
    let script = r#"set -e
        furrow=$1 dir=$2 real=$3
        sbin=$(readlink -f /sbin)
        mkdir -p "$real"
        mount --bind "$sbin" "$real"
        mount -t tmpfs none "$sbin"
        ln -s "$real"/* "$sbin"/
        rm -f "$sbin"/mount.f*
        ln -s "$furrow" "$sbin/mount.fuseblk.furrow"
        mount -o "remount,$4" "$dir""#;
    let remount = |options: &str| {
        let out = Command::new("unshare")
            .args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_furrow")])
            .arg(block.place.dir())
            .arg(block.place.0.join("sbin"))
            .arg(options)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
            .unwrap();
        (out.status.success(), said(&out))
    };
    let shown = || {
        let json = furrow(&["stat", "--json", &block.place.dir()]).stdout;
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        json["read_only"].as_bool().unwrap()
    };
    let options = || {
        let mut value = vec![0; 255];
        let got = rustix::fs::getxattr(block.place.dir(), "furrow.options", value.as_mut_slice());
        value.truncate(got.unwrap());
        String::from_utf8(value).unwrap()
    };
    assert_eq!(remount("commit=20"), (true, String::new()));
    assert!(options().ends_with("commit=20"), "{}", options());
    let (done, why) = remount("cache=1GiB");
    assert!(!done && why.contains("cache=1GiB cannot change while"), "{why}");
    assert!(!shown());
    assert_eq!(remount("ro"), (true, String::new()));
    assert!(shown());
    assert!(fs::write(block.place.file("refused"), "x").is_err());
    assert_eq!(remount("rw"), (true, String::new()));
    assert!(!shown());
    fs::write(block.place.file("accepted"), "x").unwrap();
    block.umount(&[]);
}
