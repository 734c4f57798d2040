//! `furrow fsck --repair` for a user: its output, its changes, its exit status.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a command")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::furrow;
use furrow_fs::{Fs, Ino, MountOptions, NewNode, WriteData};
use furrow_rt::{Config, Rt};
use furrow_zone::Access;
use std::path::{Path, PathBuf};

/// Exit status and standard output.
fn fsck(image: &Path, args: &[&str]) -> (i32, String) {
    let out = furrow(&[&["fsck", image.to_str().unwrap()], args].concat());
    let text = [out.stdout, out.stderr].concat();
    (out.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// An image with some files, one of which is full of `0xa5`.
fn filled(name: &str) -> PathBuf {
    let path = common::image(name);
    let at = path.to_str().unwrap();
    let rt = Rt::new(Config::real());
    let drive = furrow_emu::open(&rt, &at.parse().unwrap(), Access::ReadWrite).unwrap();
    let on = rt.clone();
    let made: furrow_zone::Result<()> = rt.block_on(async move {
        let fs = Fs::mount(&on, drive, MountOptions::default()).await?;
        let dir = fs.create(Ino::ROOT, b"dir", &NewNode::directory()).await?.ino;
        for n in 0..20u8 {
            let file = fs.create(dir, &[b'f', b'a' + n], &NewNode::file()).await?.ino;
            let byte = if n == 7 { 0xa5 } else { n };
            fs.write(file, WriteData::copy(fs.pool(), 0, &[byte; 9000])).await?;
        }
        fs.unmount().await
    });
    made.unwrap();
    rt.clear();
    path
}

/// Flips a bit in every block of the image's file that `wanted` accepts; returns their number.
fn rot(image: &Path, wanted: impl Fn(&[u8]) -> bool) -> usize {
    let mut bytes = std::fs::read(image).unwrap();
    let mut count = 0;
    for block in bytes.chunks_exact_mut(4096).filter(|block| wanted(block)) {
        block[2000] ^= 4;
        count += 1;
    }
    std::fs::write(image, &bytes).unwrap();
    count
}

/// True for blocks of the delta log.
fn is_delta(block: &[u8]) -> bool {
    block.starts_with(b"FRW1") && block[4..6] == [0x12, 0]
}

#[test]
fn damaged_tables_are_shown_mended_and_sound() {
    let path = filled("fsck-tables.zns");
    assert_eq!(fsck(&path, &["--repair"]).0, 0, "nothing is wrong yet");
    assert!(rot(&path, is_delta) > 0);
    let damaged = std::fs::read(&path).unwrap();
    // With -n, the command only shows the repair.
    let (status, text) = fsck(&path, &["--repair", "-n"]);
    assert_eq!(status, 4, "{text}");
    assert!(text.contains("WOULD BE DONE") && text.contains("delta log"), "{text}");
    assert!(text.contains("nothing was changed, as -n says"), "{text}");
    let (status, text) = fsck(&path, &["--repair", "-n", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &json["repair"]["version"]), (4, &2.into()));
    assert_eq!(json["repair"]["verdict"], "sound");
    assert_eq!((&json["repair"]["applied"], &json["clean"]), (&false.into(), &false.into()));
    assert_eq!(json["findings"][0]["fate"], "mended");
    assert!(json["findings"][0]["action"].is_string());
    assert!(std::fs::read(&path).unwrap() == damaged, "-n has written");
    // The repair loses nothing, so the options for boot time (-p, -a) make it too.
    let (status, text) = fsck(&path, &["-p"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("MENDED: no errors left"), "{text}");
    // The message counts what was written, not what is left to write.
    assert!(text.contains(" written)") && !text.contains("(0 commands"), "{text}");
    let (status, text) = fsck(&path, &["-v"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("20 files, 2 directories"), "{text}");
}

#[test]
fn damaged_content_stays_unless_it_is_to_be_a_hole() {
    let path = filled("fsck-content.zns");
    assert_eq!(rot(&path, |block| block == [0xa5; 4096]), 2);
    let damaged = std::fs::read(&path).unwrap();
    let (status, text) = fsck(&path, &[]);
    assert_eq!(status, 4, "{text}");
    assert!(text.contains("fsck-content.zns: /dir/fh: data: inode "), "{text}");
    let json: serde_json::Value = serde_json::from_str(&fsck(&path, &["--json"]).1).unwrap();
    assert_eq!(json["findings"][1]["path"], "/dir/fh");
    let holes = "--zero-bad-data";
    // There is no terminal to ask, and no user has agreed to a loss.
    let changing_nothing =
        [&["--repair"][..], &["-y"], &["-p"], &["-a"], &["-p", holes], &["--repair", holes]];
    for args in changing_nothing {
        let (status, text) = fsck(&path, args);
        assert_eq!(status, 4, "{args:?}: {text}");
        assert!(std::fs::read(&path).unwrap() == damaged, "{args:?}: {text}");
    }
    let (status, text) = fsck(&path, &["-y", holes]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("MENDED: no errors left, 2 LOSSES as listed"), "{text}");
    assert!(text.contains("GIVEN UP") && text.contains("/dir/fh"), "{text}");
    assert!(text.contains("a hole") && !text.contains("put right"), "{text}");
    assert_eq!(fsck(&path, &[]).0, 0);
}

#[test]
fn a_file_with_much_damage_hides_no_other() {
    let path = common::image("fsck-two.zns");
    let rt = Rt::new(Config::real());
    let spec = path.to_str().unwrap().parse().unwrap();
    let drive = furrow_emu::open(&rt, &spec, Access::ReadWrite).unwrap();
    let on = rt.clone();
    let made: furrow_zone::Result<()> = rt.block_on(async move {
        let fs = Fs::mount(&on, drive, MountOptions::default()).await?;
        for (name, blocks) in [(b"big", 1_100), (b"one", 1)] {
            let file = fs.create(Ino::ROOT, name, &NewNode::file()).await?.ino;
            for block in 0..blocks {
                fs.write(file, WriteData::copy(fs.pool(), block * 4096, &[0xa5; 4096])).await?;
            }
        }
        fs.unmount().await
    });
    made.unwrap();
    rt.clear();
    assert_eq!(rot(&path, |block| block == [0xa5; 4096]), 1_101);
    let holes = "--zero-bad-data";
    let (status, text) = fsck(&path, &[]);
    assert!(status == 4 && text.contains("1101 ERRORS"), "{text}");
    assert!(text.contains("/big: data") && text.contains("/one: data"), "{text}");
    assert!(text.contains("and 1099 more damaged blocks of the same file"), "{text}");
    let (_, text) = fsck(&path, &["-v"]);
    assert_eq!(text.matches("/big: data").count(), 100, "{text}");
    assert!(text.contains("and 1000 more damaged blocks of the same file, only counted"), "{text}");
    assert!(text.contains("/one: data"), "{text}");
    // The plan names each file with blocks that become holes.
    for args in [&["--repair", "-n", holes][..], &["--repair", "-n", "-v", holes]] {
        let (status, text) = fsck(&path, args);
        assert!(status == 4 && text.contains("1101 LOSSES as listed"), "{text}");
        let plan = &text[text.find("GIVEN UP").unwrap()..];
        assert!(plan.contains("/big (") && plan.contains("/one ("), "{text}");
    }
    let (_, text) = fsck(&path, &["--repair", "-n", "--json", holes]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    for list in [&json["findings"], &json["repair"]["actions"]] {
        let of = |path: &str| {
            let about = |f: &&serde_json::Value| f["path"] == path && f["loss"] != false;
            list.as_array().unwrap().iter().filter(about).count()
        };
        assert_eq!((of("/big"), of("/one")), (100, 1), "{text}");
    }
    assert_eq!(json["not_listed"][0]["count"], 1_000, "{text}");
    assert_eq!(json["not_listed"][0]["path"], "/big", "{text}");
    assert_eq!(json["repair"]["not_listed"][0]["count"], 1_000, "{text}");
    assert_eq!(json["repair"]["verdict"], "sound", "{text}");
    // Later checks list the blocks that were only counted before; they do not count as new damage.
    let (status, text) = fsck(&path, &["-y", "--metadata-only", holes]);
    assert_eq!(status, 0, "{text}");
    let (status, text) = fsck(&path, &["-y", holes]);
    assert!(status == 1 && text.contains("MENDED: no errors left, 1101 LOSSES"), "{text}");
    assert_eq!(fsck(&path, &[]).0, 0);
}

#[test]
fn what_contradicts_itself_is_refused() {
    let path = filled("fsck-usage.zns");
    for args in [&["-n", "-y"][..], &["-p", "-y"], &["-n", "-a"], &["--mend"]] {
        assert_eq!(fsck(&path, args).0, 16, "{args:?}");
    }
    // Without --repair, or with -n, these options would change nothing.
    for args in [&["--zero-bad-data"][..], &["-n", "--zero-bad-data"], &["--older-checkpoint"]] {
        let (status, text) = fsck(&path, args);
        assert!(status == 16 && text.contains("add --repair"), "{args:?}: {text}");
    }
}

/// fsck says the same as the mount: with this zone offline, the content of the drive cannot
/// be known.
#[test]
fn an_offline_zone_is_named_where_a_superblock_may_have_been() {
    let path = filled("fsck-offline.zns");
    let fault = ["device", "fault", "add", path.to_str().unwrap(), "zone-offline", "--zone", "0"];
    assert!(furrow(&fault).status.success());
    let (status, text) = fsck(&path, &[]);
    assert_eq!(status, 8, "{text}");
    assert!(text.contains("zone 0 is offline, and a superblock"), "{text}");
    // The same is true for a drive that answers no read.
    let path = filled("fsck-unread.zns");
    let fault = ["device", "fault", "add", path.to_str().unwrap(), "read-error", "--every", "1"];
    assert!(furrow(&fault).status.success());
    let (status, text) = fsck(&path, &[]);
    assert_eq!(status, 8, "{text}");
    assert!(text.contains("read of ") && !text.contains("no Furrow file system"), "{text}");
}
