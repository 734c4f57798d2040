//! File handles, as NFS servers and backup programs use them: they outlive the kernel's cache.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a server")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::place::Place;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// A program for name_to_handle_at(2) and open_by_handle_at(2), in a language with syscall(2). It
/// opens each handle that it is given, and prints the path and content of the file, or the errno.
const HANDLES: &str = r#"
use Fcntl;
my ($name, $open) = (`uname -m` =~ /x86_64/) ? (303, 304) : (264, 265);
my ($what, $at, @handles) = @ARGV;
if ($what eq "get") {
    my ($handle, $mount) = (pack("Ii", 128, 0) . "\0" x 128, pack("i", 0));
    syscall($name, -100, $at, $handle, $mount, 0) == 0 or die "name_to_handle_at: $!";
    print unpack("H*", substr($handle, 0, 8 + unpack("I", $handle)));
    exit;
}
sysopen(my $mount, $at, O_RDONLY) or die "$at: $!";
for my $hex (@handles) {
    my $handle = pack("H*", $hex);
    my $fd = syscall($open, fileno($mount), $handle, 0);
    if ($fd < 0) { print $! + 0, "\n"; next; }
    open(my $file, "<&=", $fd) or die "fd: $!";
    my $content = -d $file ? "" : readline($file);
    print readlink("/proc/self/fd/$fd"), " ", $content // "", "\n";
}
"#;

fn perl(arguments: &[&str]) -> String {
    let out = Command::new("perl").args(["-e", HANDLES]).args(arguments).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn get(path: &Path) -> String {
    perl(&["get", path.to_str().unwrap()])
}

fn open(place: &Place, handles: &[String]) -> Vec<String> {
    let root = place.at("");
    let mut arguments = vec!["open", root.to_str().unwrap()];
    arguments.extend(handles.iter().map(String::as_str));
    perl(&arguments).lines().map(str::to_owned).collect()
}

/// Inode numbers as stored in a handle: the high half first.
fn hex(ino: u64) -> String {
    ino.rotate_left(32).to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
pub fn they_lead_to_their_files_after_a_remount_and_to_no_others() {
    let Some(mut place) = Place::new("handles") else { return };
    let root = place.at("");
    fs::create_dir_all(place.at("a/b")).unwrap();
    let file = place.at("a/b/file");
    fs::write(&file, "content").unwrap();
    let handles = [get(&file), get(&place.at("a/b")), get(&root)];
    // The kernel of a new mount knows none of these inodes; it finds the directory last, through
    // its parents.
    place.remount();
    let found = open(&place, &handles);
    assert!(found[0].ends_with(" content"), "{found:?}");
    assert!(found[1].ends_with("/a/b "), "{found:?}");
    assert_eq!(found.len(), 3, "{found:?}");
    fs::rename(&file, place.at("moved")).unwrap();
    let pointers = vec![3; 40 << 20];
    fs::write(place.at("large"), pointers).unwrap();
    place.remount();
    let of_file = &handles[..1];
    assert!(open(&place, of_file)[0].ends_with(" content"));

    // If an inode number is used again, it belongs to another file, so the old handle is stale.
    let ino = fs::metadata(place.at("moved")).unwrap().ino();
    assert!(handles[0].contains(&hex(ino)), "{} has {ino}", handles[0]);
    fs::remove_file(place.at("moved")).unwrap();
    place.remount();
    assert_eq!(open(&place, of_file), ["116"], "ESTALE");
    for n in 0..20 {
        fs::write(place.at(&format!("new{n}")), "new").unwrap();
    }
    let again = (0..20).any(|n| fs::metadata(place.at(&format!("new{n}"))).unwrap().ino() == ino);
    assert!(again, "{ino} is used again");
    place.remount();
    assert_eq!(open(&place, of_file), ["116"], "ESTALE");

    // These handles are invented: of no inode, of a file's pointers, of impossible numbers.
    let numbers = (2..200).chain([0, u64::from(u32::MAX), 1 << 32, u64::MAX]);
    let made_up: Vec<String> = numbers.map(|n| handles[0].replace(&hex(ino), &hex(n))).collect();
    for (handle, found) in made_up.iter().zip(open(&place, &made_up)) {
        // An invented handle may be valid by chance, for a file of the same generation.
        assert!(found == "116" || found.contains("/mnt/"), "{handle}: {found}");
    }
}
