//! Mounts of damaged file systems, and mounts on drives that do not answer: everything intact is
//! available, and the damage is reported.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::place::{Place, furrow, is_mounted, kill, refused, said, skip, wait_until};
use rustix::fs::{XattrFlags, setxattr};
use std::fs;

/// Flips a bit in each block of the image that contains `mark`; returns the number of blocks.
fn damage(place: &Place, mark: &[u8]) -> usize {
    let mut bytes = fs::read(place.image()).unwrap();
    let mut count = 0;
    for block in bytes.chunks_exact_mut(4096) {
        // Few blocks contain the first byte, and a search for one byte is fast.
        if block.contains(&mark[0]) && block.windows(mark.len()).any(|part| part == mark) {
            block[4095] ^= 1;
            count += 1;
        }
    }
    fs::write(place.image(), bytes).unwrap();
    count
}

/// Damages the inode at `path`. The file system is mounted for a moment, so that an attribute can
/// mark the inode's block.
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
    // There were two mounts, and each has reported the damage once.
    let log = fs::read_to_string(place.log()).unwrap();
    assert_eq!(log.matches("expected CRC").count(), 2, "{log}");
}

/// A mount without a root directory would show nothing, so it is refused. A read-only mount shows
/// the remaining files, as a repair would leave them.
#[test]
fn a_file_system_without_a_root_directory_is_not_mounted_in_silence() {
    if skip("a_file_system_without_a_root_directory_is_not_mounted_in_silence") {
        return;
    }
    let place = Place::new("damaged-root");
    place.mount();
    fs::write(place.file("kept"), "content").unwrap();
    assert!(furrow(&["umount", &place.dir()]).status.success());
    damage_inode(&place, &place.dir());
    refused(&["mount", &place.image(), &place.dir()], 32, "the root directory is damaged");
    assert!(!is_mounted(&place.dir()));
    place.mount_with("ro");
    assert_eq!(names(&place), ["lost+found"]);
    let found = fs::read_dir(place.file("lost+found")).unwrap();
    let found: Vec<_> = found.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(fs::read_to_string(&found[0]).unwrap(), "content");
    assert!(furrow(&["umount", &place.dir()]).status.success());
}

/// With errors=remount-ro, unsynced changes are written before writing stops.
#[test]
fn what_was_not_synced_survives_the_damage_of_another_file() {
    if skip("what_was_not_synced_survives_the_damage_of_another_file") {
        return;
    }
    let place = Place::new("remount-ro");
    place.mount();
    let mark = [b'Q'; 8192];
    fs::write(place.file("victim"), mark).unwrap();
    assert!(furrow(&["umount", &place.dir()]).status.success());
    assert!(damage(&place, &mark[..96]) > 0);
    place.mount_with("errors=remount-ro,commit=600");
    let content = vec![7; 3 << 20];
    fs::write(place.file("unsynced"), &content).unwrap();
    let error = fs::read(place.file("victim")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::UCLEAN.raw_os_error()), "{error}");
    let refused = fs::write(place.file("late"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{refused}");
    let log = || fs::read_to_string(place.log()).unwrap();
    wait_until("writing has stopped", || log().contains("writing has stopped: "));
    assert!(log().contains("; everything written before is durable"), "{}", log());
    place.kill();
    place.mount();
    assert!(fs::read(place.file("unsynced")).unwrap() == content);
    assert!(furrow(&["umount", &place.dir()]).status.success());
    // For the same reason, an unmount reports no error either.
    place.mount_with("errors=remount-ro,commit=600");
    fs::write(place.file("more"), &content).unwrap();
    fs::read(place.file("victim")).unwrap_err();
    let out = furrow(&["umount", &place.dir()]);
    assert!(out.status.success(), "{}", said(&out));
    place.mount();
    assert!(fs::read(place.file("more")).unwrap() == content);
    assert!(furrow(&["umount", &place.dir()]).status.success());
}

/// A drive that does not answer is reported, and a mount on it can be removed.
#[test]
fn a_drive_that_does_not_answer_is_told_of() {
    if skip("a_drive_that_does_not_answer_is_told_of") {
        return;
    }
    let place = Place::new("hang");
    let fault = ["device", "fault", "add", &place.image(), "hang", "--nth", "300"];
    assert!(furrow(&fault).status.success());
    place.mount();
    let file = place.file("file");
    let writer = std::thread::spawn(move || {
        let file = fs::File::create(file)?;
        loop {
            std::io::Write::write_all(&mut &file, &[1; 4096])?;
            file.sync_all()?;
        }
        #[allow(unreachable_code, reason = "its type")]
        Ok::<(), std::io::Error>(())
    });
    let stat = |json: &[&str]| {
        let out = furrow(&[&["stat"], json, &[&place.dir()]].concat());
        String::from_utf8(out.stdout).unwrap()
    };
    wait_until("the drive is silent", || stat(&[]).contains("THE DRIVE HAS NOT ANSWERED for"));
    let json: serde_json::Value = serde_json::from_str(&stat(&["--json"])).unwrap();
    assert!(json["silence"]["seconds"].as_u64().unwrap() >= 5, "{json}");
    wait_until("the log says so", || {
        let log = fs::read_to_string(place.log()).unwrap();
        log.lines().any(|line| line.contains("the drive has not answered for 5 s"))
    });
    // While it waits, the unmount prints a message that names the alternative.
    let advice = format!("furrow umount -f {}", place.dir());
    refused(&["umount", &place.dir()], 1, &advice);
    assert!(is_mounted(&place.dir()));
    let pid = place.pid();
    let out = furrow(&["umount", "-f", &place.dir()]);
    let text = said(&out);
    assert!(!is_mounted(&place.dir()), "{text}");
    writer.join().unwrap().unwrap_err();
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("kill -9 {pid}")), "{text}");
    kill(pid, rustix::process::Signal::KILL);
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
