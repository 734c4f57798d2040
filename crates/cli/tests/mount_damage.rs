//! A mount of a file system with a damaged inode: everything else is there, and the damage is told
//! once.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, furrow, is_mounted, skip};
use rustix::fs::{XattrFlags, setxattr};
use std::fs;

/// Flips a bit in each block of the image that contains `mark`; returns how many there are.
fn damage(place: &Place, mark: &[u8]) -> usize {
    let mut bytes = fs::read(place.image()).unwrap();
    let mut count = 0;
    for block in bytes.chunks_exact_mut(4096) {
        // Few blocks have the first byte, and looking for a byte is fast.
        if block.contains(&mark[0]) && block.windows(mark.len()).any(|part| part == mark) {
            block[4095] ^= 1;
            count += 1;
        }
    }
    fs::write(place.image(), bytes).unwrap();
    count
}

/// Damages the inode at `path`, which is mounted for that: an attribute marks its block.
fn damage_inode(place: &Place, path: &str) {
    let mark = [b'Q'; 96];
    place.mount();
    setxattr(path, "user.mark", &mark, XattrFlags::empty()).unwrap();
    assert!(furrow(&["umount", &place.dir()]).status.success());
    assert!(damage(place, &mark) > 0);
}

/// The names in the mount, as `ls` sees them.
fn names(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.dir()).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn one_damaged_inode_hides_no_other_name() {
    if skip("one_damaged_inode_hides_no_other_name") {
        return;
    }
    let place = Place::new("damaged-inode");
    place.mount();
    for name in ["a", "b", "c"] {
        fs::write(place.file(name), name.repeat(5000)).unwrap();
    }
    assert!(furrow(&["umount", &place.dir()]).status.success());
    damage_inode(&place, &place.file("b").display().to_string());
    for options in ["rw", "ro"] {
        place.mount_with(options);
        assert_eq!(names(&place), ["a", "b", "c"], "{options}");
        for _ in 0..3 {
            let error = fs::metadata(place.file("b")).unwrap_err();
            let damaged = Some(rustix::io::Errno::UCLEAN.raw_os_error());
            assert_eq!(error.raw_os_error(), damaged, "{options}: {error}");
        }
        for name in ["a", "c"] {
            let content = fs::read_to_string(place.file(name)).unwrap();
            assert_eq!(content, name.repeat(5000), "{options}: {name}");
        }
        let stat = furrow(&["stat", &place.dir()]);
        let stat = String::from_utf8(stat.stdout).unwrap();
        assert!(stat.contains("damaged blocks") && stat.contains(": node "), "{options}: {stat}");
        let page = furrow(&["stat", "--prometheus", &place.dir()]);
        let page = String::from_utf8(page.stdout).unwrap();
        let counted = page.lines().find(|line| line.starts_with("furrow_damaged_reads_total{"));
        let counted: f64 = counted.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(counted >= 3.0, "{options}: {page}");
        assert!(furrow(&["umount", &place.dir()]).status.success());
    }
    // Two mounts, each of which has told it once.
    let log = fs::read_to_string(place.log()).unwrap();
    assert_eq!(log.matches("expected CRC").count(), 2, "{log}");
}

#[test]
fn a_damaged_root_directory_is_named_by_what_asks_the_daemon() {
    if skip("a_damaged_root_directory_is_named_by_what_asks_the_daemon") {
        return;
    }
    let place = Place::new("damaged-root");
    damage_inode(&place, &place.dir());
    place.mount();
    for command in ["scrub", "stat"] {
        let output = furrow(&[command, &place.dir()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("root directory"), "{command}: {error}");
        assert!(error.contains(&format!("umount -l {}", place.dir())), "{command}: {error}");
    }
    // Its status says that nothing could be synced; unmounted it is.
    assert!(!furrow(&["umount", "-l", &place.dir()]).status.success());
    assert!(!is_mounted(&place.dir()));
}

#[test]
fn a_mount_for_reading_that_does_not_show_everything_says_so() {
    if skip("a_mount_for_reading_that_does_not_show_everything_says_so") {
        return;
    }
    let place = Place::new("partial");
    place.mount();
    for n in 0..20 {
        fs::write(place.file(&format!("f{n}")), "content").unwrap();
    }
    assert!(furrow(&["umount", &place.dir()]).status.success());
    let mut bytes = fs::read(place.image()).unwrap();
    let delta = |block: &&mut [u8]| block.starts_with(b"FRW1") && block[4..6] == [0x12, 0];
    bytes.chunks_exact_mut(4096).filter(delta).for_each(|block| block[2000] ^= 4);
    fs::write(place.image(), bytes).unwrap();
    let mounted = furrow(&["mount", "-o", "ro", &place.image(), &place.dir()]);
    let said = String::from_utf8(mounted.stderr).unwrap();
    assert!(mounted.status.success(), "{said}");
    let warning = "DAMAGED: what is shown may be older or incomplete";
    assert!(said.contains(warning) && said.lines().count() == 1, "{said}");
    assert_eq!(names(&place).len(), 20);
    let stat = String::from_utf8(furrow(&["stat", &place.dir()]).stdout).unwrap();
    assert!(stat.contains(warning), "{stat}");
    let json = furrow(&["stat", "--json", &place.dir()]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert!(json["not_shown"][0].as_str().unwrap().contains("delta"), "{json}");
    assert!(furrow(&["umount", &place.dir()]).status.success());
}

#[test]
fn a_lost_directory_is_one_loss_and_its_files_are_kept() {
    if skip("a_lost_directory_is_one_loss_and_its_files_are_kept") {
        return;
    }
    let place = Place::new("lost-directory");
    place.mount();
    fs::create_dir(place.file("sub")).unwrap();
    for name in ["a", "b"] {
        fs::write(place.file("sub").join(name), "content").unwrap();
    }
    assert!(furrow(&["umount", &place.dir()]).status.success());
    damage_inode(&place, &place.file("sub").display().to_string());
    let image = place.image();
    let plan = furrow(&["fsck", "--repair", "-n", "-v", &image]);
    let text = String::from_utf8(plan.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let plain = words.join(" ");
    assert!(plain.contains("1 LOSS as listed"), "{text}");
    assert!(!plain.contains("with all that is in it"), "{text}");
    let made = furrow(&["fsck", "-y", &image]);
    let text = String::from_utf8(made.stdout).unwrap();
    assert!(text.contains("WHAT IS DONE") && !text.contains("WOULD BE DONE"), "{text}");
    place.mount();
    assert_eq!(fs::read_dir(place.file("lost+found")).unwrap().count(), 2);
    assert!(furrow(&["umount", &place.dir()]).status.success());
}
