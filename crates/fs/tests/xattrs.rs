//! Tests of extended attributes and access lists, through the library: which are kept, which are
//! refused, and which survive a crash.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{checked, mount, on_small};
use furrow_fs::{Fs, Ino, Kind, NewNode, SetAttr, WriteData, XattrMode};
use furrow_zone::{ErrorKind, Result};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

async fn file(fs: &Fs, parent: Ino, name: &[u8]) -> Result<Ino> {
    Ok(fs.create(parent, name, &NewNode::file()).await?.ino)
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.map(|_| ()).unwrap_err().kind()
}

fn value(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect()
}

#[test]
fn attributes_of_every_size_are_kept_replaced_and_removed() {
    on_small(|rt, drive| async move {
        let mut fs = mount(&rt, &drive).await?;
        let ino = file(&fs, Ino::ROOT, b"file").await?;
        let inodes = fs.statfs().inodes_free;
        let sizes = [0, 1, 300, 372, 373, 4000, 4064, 4065, 9000, 65_536];
        for (turn, size) in sizes.into_iter().chain(sizes.into_iter().rev()).enumerate() {
            let bytes = value(size, turn as u8);
            fs.setxattr(ino, b"user.a", &bytes, XattrMode::Set).await?;
            fs.setxattr(ino, b"trusted.b", b"short", XattrMode::Set).await?;
            if turn % 3 == 0 {
                fs = checked(fs, &rt, &drive).await?;
            }
            assert_eq!(fs.getxattr(ino, b"user.a").await?, bytes, "{size}");
            assert_eq!(fs.getxattr(ino, b"trusted.b").await?, b"short");
            assert_eq!(fs.listxattr(ino).await?, [b"trusted.b".to_vec(), b"user.a".to_vec()]);
        }
        fs.removexattr(ino, b"user.a").await?;
        assert_eq!(kind(fs.getxattr(ino, b"user.a").await), ErrorKind::NoAttribute);
        assert_eq!(kind(fs.removexattr(ino, b"user.a").await), ErrorKind::NoAttribute);
        fs.removexattr(ino, b"trusted.b").await?;
        assert!(fs.listxattr(ino).await?.is_empty());
        let fs = checked(fs, &rt, &drive).await?;
        assert_eq!(fs.statfs().inodes_free, inodes, "no node is lost");
        // Freeing an inode frees the nodes of its attributes.
        fs.setxattr(ino, b"user.a", &value(60_000, 1), XattrMode::Set).await?;
        fs.sync().await?;
        fs.unlink(Ino::ROOT, b"file").await?;
        let fs = checked(fs, &rt, &drive).await?;
        assert_eq!(fs.statfs().inodes_free, inodes + 1);
        fs.unmount().await
    });
}

#[test]
fn what_is_wrong_is_refused_and_changes_nothing() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let ino = file(&fs, Ino::ROOT, b"file").await?;
        let set = async |name: &[u8], value: &[u8], mode| fs.setxattr(ino, name, value, mode).await;
        assert_eq!(kind(set(b"user.a", b"", XattrMode::Replace).await), ErrorKind::NoAttribute);
        set(b"user.a", b"1", XattrMode::Create).await?;
        assert_eq!(kind(set(b"user.a", b"2", XattrMode::Create).await), ErrorKind::Exists);
        set(b"user.a", b"3", XattrMode::Replace).await?;
        for name in [&b"user."[..], b"a", b"system.x", b"btrfs.y", b"user.\0", b""] {
            assert_eq!(kind(set(name, b"", XattrMode::Set).await), ErrorKind::Unsupported);
        }
        let long = [b"user.".as_slice(), &[b'n'; 251]].concat();
        assert_eq!(kind(set(&long, b"", XattrMode::Set).await), ErrorKind::NameTooLong);
        set(&long[..255], b"long", XattrMode::Set).await?;
        let large = value(65_537, 0);
        assert_eq!(kind(set(b"user.b", &large, XattrMode::Set).await), ErrorKind::NoSpace);
        set(b"user.b", &large[1..], XattrMode::Set).await?;
        assert_eq!(kind(set(b"user.c", &large[1..], XattrMode::Set).await), ErrorKind::NoSpace);
        set(b"user.c", &large[..60_000], XattrMode::Set).await?;
        assert_eq!(fs.getxattr(ino, b"user.b").await?, large[1..]);
        assert_eq!(fs.listxattr(ino).await?.len(), 4);
        assert_eq!(kind(fs.getxattr(Ino(77), b"user.a").await), ErrorKind::NotFound);
        // Set more names than a list of names can hold.
        let many = file(&fs, Ino::ROOT, b"many").await?;
        let mut refused = None;
        for at in 0..300 {
            let name = format!("user.{at:0250}");
            if let Err(error) = fs.setxattr(many, name.as_bytes(), b"", XattrMode::Set).await {
                refused = Some((at, error.kind()));
                break;
            }
        }
        assert_eq!(refused, Some((256, ErrorKind::NoSpace)));
        checked(fs, &rt, &drive).await?.unmount().await
    });
}

#[test]
fn an_fsync_makes_attributes_of_files_and_directories_durable() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let ino = file(&fs, Ino::ROOT, b"file").await?;
        let link = fs.create(Ino::ROOT, b"link", &NewNode::symlink(b"x")).await?.ino;
        let dir = fs.create(Ino::ROOT, b"dir", &NewNode::directory()).await?.ino;
        let large = value(30_000, 3);
        for at in [ino, link, dir] {
            fs.setxattr(at, b"trusted.old", &value(5000, 9), XattrMode::Set).await?;
            fs.setxattr(at, b"trusted.gone", b"", XattrMode::Set).await?;
        }
        fs.sync().await?;
        for at in [ino, link, dir] {
            fs.setxattr(at, b"trusted.new", &large, XattrMode::Set).await?;
            fs.removexattr(at, b"trusted.gone").await?;
            fs.fsync(at, false).await?;
        }
        fs.setxattr(ino, b"user.unsynced", b"", XattrMode::Set).await?;
        drop(fs);
        let mut fs = mount(&rt, &drive).await?;
        for round in 0..2 {
            for at in [ino, link, dir] {
                assert_eq!(fs.getxattr(at, b"trusted.new").await?, large, "{at}, {round}");
                assert_eq!(fs.getxattr(at, b"trusted.old").await?, value(5000, 9));
                let gone = fs.getxattr(at, b"trusted.gone").await;
                assert_eq!(kind(gone), ErrorKind::NoAttribute);
            }
            fs = checked(fs, &rt, &drive).await?;
        }
        for at in [ino, dir] {
            fs.removexattr(at, b"trusted.new").await?;
            fs.removexattr(at, b"trusted.old").await?;
            fs.fsync(at, false).await?;
        }
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        assert!(fs.listxattr(ino).await?.is_empty() && fs.listxattr(dir).await?.is_empty());
        checked(fs, &rt, &drive).await?.unmount().await
    });
}

const NOBODY: u32 = u32::MAX;

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// A list with owner rwx, user 1000 rw, group r-x, mask rwx, others r-x.
fn named(user: u16, mask: u16, other: u16) -> Vec<u8> {
    let entries = [(2, 6, 1000), (4, 5, NOBODY), (16, mask, NOBODY), (32, other, NOBODY)];
    list(&[&[(1, user, NOBODY)][..], &entries].concat())
}

#[test]
fn access_lists_and_permission_bits_follow_each_other() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let ino = file(&fs, Ino::ROOT, b"file").await?;
        let mode = async || fs.getattr(ino).await.map(|attr| attr.mode);
        fs.setxattr(ino, ACCESS, &named(7, 7, 5), XattrMode::Set).await?;
        assert_eq!(mode().await?, 0o775);
        let chmod = SetAttr { mode: Some(0o4610), ..SetAttr::default() };
        fs.setattr(ino, chmod).await?;
        assert_eq!(fs.getxattr(ino, ACCESS).await?, named(6, 1, 0));
        // This list expresses the same as the permission bits.
        let plain = list(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)]);
        fs.setxattr(ino, ACCESS, &plain, XattrMode::Set).await?;
        assert_eq!(mode().await?, 0o4640);
        assert_eq!(kind(fs.getxattr(ino, ACCESS).await), ErrorKind::NoAttribute);
        let bad = fs.setxattr(ino, ACCESS, &plain[..20], XattrMode::Set).await;
        assert_eq!(kind(bad), ErrorKind::Invalid);
        let no = fs.setxattr(ino, DEFAULT, &named(7, 7, 7), XattrMode::Set).await;
        assert_eq!(kind(no), ErrorKind::Denied);
        fs.unmount().await
    });
}

/// A list that is so long that it needs a node.
fn long_list() -> Vec<u8> {
    let named_users: Vec<_> = (0..80).map(|user| (2, 4, 2000 + user)).collect();
    let ends = [(4, 5, NOBODY), (16, 7, NOBODY), (32, 1, NOBODY)];
    list(&[&[(1, 7, NOBODY)][..], &named_users, &ends].concat())
}

/// A record frees a node that no record names. Replay, which makes nodes itself, must not give that
/// node's id to one of them.
#[test]
fn replay_does_not_take_the_id_of_a_node_that_a_record_frees() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let deep = fs.create(Ino::ROOT, b"deep", &NewNode::directory()).await?.ino;
        fs.setxattr(deep, DEFAULT, &long_list(), XattrMode::Set).await?;
        fs.sync().await?;
        let other = file(&fs, Ino::ROOT, b"other").await?;
        for size in [1, 2, 3].map(|nodes| nodes * 4000) {
            fs.setxattr(other, b"user.more", &value(size, 1), XattrMode::Set).await?;
        }
        fs.removexattr(other, b"user.more").await?;
        let many = file(&fs, deep, b"many").await?;
        fs.fsync(other, false).await?;
        drop(fs);
        let fs = mount(&rt, &drive).await?;
        assert_eq!(fs.getxattr(many, ACCESS).await?.len(), long_list().len());
        checked(fs, &rt, &drive).await?.unmount().await
    });
}

#[test]
fn what_is_made_in_a_directory_gets_its_default_list_even_through_a_crash() {
    on_small(|rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let dir = fs.create(Ino::ROOT, b"dir", &NewNode::directory()).await?.ino;
        fs.setxattr(dir, DEFAULT, &named(7, 6, 4), XattrMode::Set).await?;
        let long = long_list();
        let deep = fs.create(Ino::ROOT, b"deep", &NewNode::directory()).await?.ino;
        fs.setxattr(deep, DEFAULT, &long, XattrMode::Set).await?;
        fs.sync().await?;
        let masked = NewNode { mode: 0o666, umask: 0o077, ..NewNode::file() };
        let one = fs.create(dir, b"file", &masked).await?;
        assert_eq!(one.mode, 0o664, "the list says, not the umask");
        let sub = fs.create(dir, b"sub", &NewNode { mode: 0o777, ..NewNode::directory() }).await?;
        let link = fs.create(dir, b"link", &NewNode::symlink(b"x")).await?;
        let many = fs.create(deep, b"many", &NewNode { mode: 0o770, ..NewNode::file() }).await?;
        let below = NewNode { kind: Kind::Directory, mode: 0o777, ..masked.clone() };
        let tree = fs.create(deep, b"tree", &below).await?;
        let plain = fs.create(Ino::ROOT, b"plain", &masked).await?;
        assert_eq!(plain.mode, 0o600, "no list, so the umask");
        // Sync only one of the files, with content: replay makes all of them, then takes over the
        // nodes of this one.
        fs.write(many.ino, WriteData::copy(fs.pool(), 0, b"content")).await?;
        fs.setxattr(many.ino, b"user.more", &value(5000, 1), XattrMode::Set).await?;
        fs.fsync(many.ino, false).await?;
        drop(fs);
        let mut fs = mount(&rt, &drive).await?;
        for _ in 0..2 {
            assert_eq!(fs.getxattr(one.ino, ACCESS).await?, named(6, 6, 4));
            assert_eq!(fs.getxattr(sub.ino, DEFAULT).await?, named(7, 6, 4));
            assert_eq!(fs.getattr(sub.ino).await?.mode, 0o764);
            assert!(fs.listxattr(link.ino).await?.is_empty());
            assert_eq!(fs.getattr(many.ino).await?.mode, 0o770);
            assert_eq!(fs.getxattr(many.ino, ACCESS).await?.len(), long.len());
            assert_eq!(fs.getxattr(many.ino, b"user.more").await?, value(5000, 1));
            assert_eq!(fs.getxattr(tree.ino, DEFAULT).await?, long);
            assert_eq!(fs.read(many.ino, 0, 100).await?.to_vec(), b"content");
            fs = checked(fs, &rt, &drive).await?;
        }
        fs.unmount().await
    });
}
