//! Extended attributes and access lists on a mount, through the kernel.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a server")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::place::Place;
use rustix::fs::{XattrFlags, getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NOBODY: u32 = u32::MAX;

fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; 70_000];
    let length = getxattr(path, name, out.as_mut_slice())?;
    out.truncate(length);
    Ok(out)
}

fn listed(path: &Path) -> Vec<String> {
    let mut out = vec![0; 70_000];
    let length = listxattr(path, out.as_mut_slice()).unwrap();
    let names = out[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect()
}

#[test]
pub fn attributes_of_all_prefixes_are_kept() {
    let Some(mut place) = Place::new("xattrs") else { return };
    let (path, link) = (place.at("file"), place.at("link"));
    fs::write(&path, "x").unwrap();
    symlink("file", &link).unwrap();
    assert_eq!(value(&path, "user.x"), Err(Errno::NODATA));
    let large = vec![7; 65_536];
    setxattr(&path, "user.large", &large, XattrFlags::CREATE).unwrap();
    let again = setxattr(&path, "user.large", b"", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    let none = setxattr(&path, "user.none", b"", XattrFlags::REPLACE);
    assert_eq!(none, Err(Errno::NODATA));
    setxattr(&path, "user.empty", b"", XattrFlags::empty()).unwrap();
    setxattr(&path, "trusted.t", b"trust", XattrFlags::empty()).unwrap();
    setxattr(&path, "security.s", b"secure", XattrFlags::empty()).unwrap();
    lsetxattr(&link, "trusted.link", b"of the link", XattrFlags::empty()).unwrap();
    assert_eq!(setxattr(&path, "other.x", b"", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(setxattr(&path, "furrow.status", b"", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    let mut small = [0u8; 4];
    assert_eq!(getxattr(&path, "trusted.t", &mut small), Err(Errno::RANGE));
    assert_eq!(listxattr(&path, &mut small), Err(Errno::RANGE));
    place.remount();
    assert_eq!(value(&path, "user.large").unwrap(), large);
    assert_eq!(value(&path, "user.empty").unwrap(), b"");
    assert_eq!(listed(&path), ["security.s", "trusted.t", "user.empty", "user.large"]);
    let mut of_link = [0u8; 20];
    assert_eq!(lgetxattr(&link, "trusted.link", &mut of_link), Ok(11));
    removexattr(&path, "user.large").unwrap();
    assert_eq!(removexattr(&path, "user.large"), Err(Errno::NODATA));
    assert_eq!(listed(&path).len(), 3);
    // For another user `trusted.` is hidden, and `user.` follows permissions.
    let as_user = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(place.at("")).uid(12_345).gid(12_345);
        command.output().unwrap()
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_user("cat", &["file"]).status.success());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let names = "import os; print(*sorted(os.listxattr('file')))";
    let seen = |out: std::process::Output| {
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
    };
    let hidden = "security.s user.empty";
    let get = "import os; os.getxattr('file', 'trusted.t')";
    match Command::new("python3").arg("-V").output() {
        Ok(_) => {
            assert_eq!(seen(as_user("python3", &["-c", names])), hidden);
            let got = as_user("python3", &["-c", get]);
            assert!(String::from_utf8_lossy(&got.stderr).contains("Errno 61"), "no such attribute");
            // Root lacks the right, or has it only in its own user namespace.
            for lesser in [&["setpriv", "--bounding-set=-sys_admin"][..], &["unshare", "-Ur"]] {
                let mut command = Command::new(lesser[0]);
                command.args(&lesser[1..]).args(["python3", "-c", names]);
                let out = command.current_dir(place.at("")).output().unwrap();
                assert_eq!(seen(out), hidden, "{lesser:?}");
            }
        }
        Err(error) => eprintln!("SKIPPED hidden names: python3: {error}"),
    }
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// An access list that gives user `id` the `permissions`, under a mask.
fn for_user(id: u32, permissions: u16, mask: u16) -> Vec<u8> {
    let rest = [(4, 0, NOBODY), (16, mask, NOBODY), (32, 0, NOBODY)];
    list(&[&[(1, 6, NOBODY), (2, permissions, id)][..], &rest].concat())
}

#[test]
pub fn the_kernel_decides_by_access_lists() {
    let Some(mut place) = Place::new("acls") else { return };
    let path = place.at("file");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let reads = |place: &Place, name: &str, id: u32| {
        let mut command = Command::new("cat");
        command.arg(place.at(name)).uid(id).gid(id);
        command.output().unwrap().stdout == b"secret"
    };
    assert!(!reads(&place, "file", 4000));
    setxattr(&path, ACCESS, &for_user(4000, 4, 4), XattrFlags::empty()).unwrap();
    assert!(reads(&place, "file", 4000) && !reads(&place, "file", 4001));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640, "the mask shows as the group");
    // chmod(2) changes the mask: the entry stays, but has no effect now.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!reads(&place, "file", 4000));
    assert_eq!(value(&path, ACCESS).unwrap(), for_user(4000, 4, 0));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
    place.remount();
    assert!(reads(&place, "file", 4000) && !reads(&place, "file", 4001));
    assert_eq!(value(&path, ACCESS).unwrap(), for_user(4000, 4, 6));
    assert!(setxattr(&path, ACCESS, b"nonsense", XattrFlags::empty()).is_err());
    let no = setxattr(&path, DEFAULT, &for_user(4000, 4, 4), XattrFlags::empty());
    assert_eq!(no, Err(Errno::ACCESS));
    removexattr(&path, ACCESS).unwrap();
    assert!(!reads(&place, "file", 4000));

    // A default list is inherited, and replaces the umask.
    let directory = place.at("d");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    setxattr(&directory, DEFAULT, &for_user(4000, 4, 6), XattrFlags::empty()).unwrap();
    fs::write(directory.join("file"), "secret").unwrap();
    fs::create_dir(directory.join("sub")).unwrap();
    place.remount();
    assert!(reads(&place, "d/file", 4000) && !reads(&place, "d/file", 4001));
    assert_eq!(fs::metadata(directory.join("file")).unwrap().mode() & 0o777, 0o660);
    assert_eq!(value(&directory.join("sub"), DEFAULT).unwrap(), for_user(4000, 4, 6));
    assert_eq!(value(&directory.join("file"), DEFAULT), Err(Errno::NODATA));
}

#[test]
pub fn without_a_list_the_umask_counts() {
    let Some(place) = Place::new("umask") else { return };
    let script = "umask 027; touch file; mkdir dir; mkfifo fifo; ln -s x link";
    let made = Command::new("sh").args(["-c", script]).current_dir(place.at("")).status();
    assert!(made.unwrap().success());
    let mode = |name: &str| fs::symlink_metadata(place.at(name)).unwrap().mode() & 0o777;
    assert_eq!(["file", "dir", "fifo", "link"].map(mode), [0o640, 0o750, 0o640, 0o777]);
}

#[test]
pub fn set_group_id_goes_when_somebody_of_another_group_changes_a_file() {
    let Some(mut place) = Place::new("setgid") else { return };
    // The callers are a member by its own group, a member by its list of groups, a non-member,
    // and root.
    let callers = [("own", "500", "--clear-groups", true), ("listed", "7", "--groups=7,500", true)];
    let others = [("foreign", "7", "--groups=7,501", false)];
    let ways = [
        ("write", "printf x >>"),
        ("direct", "dd bs=4096 count=1 if=/dev/zero oflag=direct conv=notrunc status=none of="),
        ("shrink", "truncate -s 1 "),
        ("extend", "truncate -s 99999 "),
        ("fallocate", "fallocate -l 8192 "),
        ("trunc", ": >"),
    ];
    fs::set_permissions(place.at(""), fs::Permissions::from_mode(0o777)).unwrap();
    let mut expected = Vec::new();
    for (who, group, groups, stays) in callers.into_iter().chain(others) {
        for (way, command) in ways {
            for mode in [0o2666, 0o6666, 0o2676] {
                let name = format!("{who}-{way}-{mode:o}");
                let path = place.at(&name);
                fs::write(&path, [1; 5000]).unwrap();
                std::os::unix::fs::chown(&path, Some(0), Some(500)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                let status = Command::new("setpriv")
                    .args(["--reuid=12345", &format!("--regid={group}"), groups, "sh", "-c"])
                    .arg(format!("{command}{}", path.display()))
                    .status();
                assert!(status.unwrap().success(), "{name}");
                let stays = stays && mode & 0o010 == 0;
                expected.push((name, mode & 0o777 | if stays { 0o2000 } else { 0 }));
            }
        }
    }
    let kept = place.at("root");
    fs::write(&kept, "x").unwrap();
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o6666)).unwrap();
    fs::write(&kept, "y").unwrap();
    expected.push(("root".to_owned(), 0o6666));
    place.remount();
    for (name, mode) in expected {
        let found = fs::metadata(place.at(&name)).unwrap().mode() & 0o7777;
        assert_eq!(found, mode, "{name}: {found:o}, expected {mode:o}");
    }
}
