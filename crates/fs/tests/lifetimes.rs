//! Tests of the expected lifetime of data, and of the stream that follows from it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, SMALL, quiet, sound};
use furrow_emu::Options;
use furrow_fs::{
    Extensions, Fs, Ino, LIFETIME_ATTRIBUTE, Lifetime, MkfsOptions, MountOptions, NewNode,
    WriteData, XattrMode,
};
use furrow_rt::{Config, Rt};
use furrow_zone::{ErrorKind, Result, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

fn on_drive<F: Future<Output = Result<()>> + 'static>(
    test: impl FnOnce(Rt, Rc<dyn ZonedDevice>) -> F,
) {
    let (rt, made) = (Rt::new(Config::shuffled(9)), (Options::simulated(), MkfsOptions::default()));
    common::on_drive(rt, SMALL, made, |rt, drive| test(rt, Rc::new(drive)));
}

async fn file(fs: &Fs, parent: Ino, name: &str) -> Result<Ino> {
    Ok(fs.create(parent, name.as_bytes(), &NewNode::file()).await?.ino)
}

/// Writes blocks of a file to the drive; returns the stream that they went to. At most two other
/// streams may be written too, for example those of directories.
async fn stream_of(fs: &Fs, ino: Ino, blocks: std::ops::Range<u64>) -> Result<&'static str> {
    fs.sync().await?;
    let before = fs.streams();
    let count = blocks.end - blocks.start;
    for block in blocks {
        fs.write(ino, WriteData::copy(fs.pool(), block * 4096, &[7; 4096])).await?;
    }
    fs.sync().await?;
    let after = fs.streams();
    let grew = |at: &usize| after[*at].blocks - before[*at].blocks >= count;
    let streams: Vec<usize> = (0..after.len()).filter(grew).collect();
    assert_eq!(streams.len(), 1, "{before:?} {after:?}");
    Ok(after[streams[0]].name)
}

#[test]
fn the_stream_follows_what_is_said_of_a_file() {
    on_drive(|rt, device| async move {
        let fs = Fs::mount(&rt, device.clone(), quiet()).await?;
        let one = file(&fs, Ino::ROOT, "one").await?;
        assert_eq!(fs.lifetime(one).await?, None);
        assert_eq!(stream_of(&fs, one, 0..20).await?, "warm data");
        for (lifetime, stream) in [
            (Lifetime::Short, "hot data"),
            (Lifetime::Extreme, "cold data"),
            (Lifetime::Medium, "warm data"),
            (Lifetime::Short, "hot data"),
            (Lifetime::Long, "warm data"),
            (Lifetime::Extreme, "cold data"),
        ] {
            fs.set_lifetime(one, Some(lifetime)).await?;
            assert_eq!(fs.lifetime(one).await?, Some(lifetime));
            assert_eq!(stream_of(&fs, one, 0..20).await?, stream, "{lifetime:?}");
        }
        // In a file with leaves, a leaf takes over the file's class when its blocks are written.
        assert_eq!(stream_of(&fs, one, 600..640).await?, "cold data");
        fs.set_lifetime(one, Some(Lifetime::Short)).await?;
        assert_eq!(stream_of(&fs, one, 600..640).await?, "hot data");
        // A crash keeps the synced state, and fsck accepts that classes differ.
        fs.fsync(one, false).await?;
        drop(fs);
        sound(device.clone()).await?;
        let fs = Fs::mount(&rt, device.clone(), quiet()).await?;
        assert_eq!(fs.lifetime(one).await?, Some(Lifetime::Short));
        assert_eq!(stream_of(&fs, one, 0..20).await?, "hot data");
        fs.set_lifetime(one, None).await?;
        fs.set_lifetime(one, None).await?;
        assert_eq!(stream_of(&fs, one, 600..640).await?, "warm data");
        let wrong = fs.setxattr(one, LIFETIME_ATTRIBUTE, b"forever", XattrMode::Set).await;
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Invalid);
        fs.unmount().await?;
        sound(device).await
    });
}

#[test]
fn what_is_made_in_a_directory_gets_what_is_said_of_it() {
    on_drive(|rt, device| async move {
        let fs = Fs::mount(&rt, device.clone(), quiet()).await?;
        let cold = fs.create(Ino::ROOT, b"archive", &NewNode::directory()).await?.ino;
        fs.setxattr(cold, LIFETIME_ATTRIBUTE, b"extreme", XattrMode::Set).await?;
        let below = fs.create(cold, b"below", &NewNode::directory()).await?.ino;
        let (inside, synced) = (file(&fs, below, "x.db").await?, file(&fs, cold, "synced").await?);
        // The inherited attribute outweighs the name.
        assert_eq!(stream_of(&fs, inside, 0..20).await?, "cold data");
        fs.fsync(synced, false).await?;
        let after = file(&fs, below, "after").await?;
        fs.fsync(after, false).await?;
        drop(fs);
        sound(device.clone()).await?;
        let fs = Fs::mount(&rt, device.clone(), quiet()).await?;
        assert_eq!(stream_of(&fs, synced, 0..20).await?, "cold data");
        assert_eq!(stream_of(&fs, after, 0..20).await?, "cold data");
        assert_eq!(fs.lifetime(below).await?, Some(Lifetime::Extreme));
        let outside = file(&fs, Ino::ROOT, "outside").await?;
        assert_eq!(stream_of(&fs, outside, 0..20).await?, "warm data");
        fs.unmount().await?;
        sound(device).await
    });
}

#[test]
fn names_say_it_too_and_a_mount_can_say_which() {
    on_drive(|rt, device| async move {
        let fs = Fs::mount(&rt, device.clone(), quiet()).await?;
        for (name, stream) in
            [("film.mp4", "cold data"), ("mail.db", "hot data"), ("notes.txt", "warm data")]
        {
            let ino = file(&fs, Ino::ROOT, name).await?;
            assert_eq!(stream_of(&fs, ino, 0..20).await?, stream, "{name}");
        }
        fs.unmount().await?;
        let extensions = Extensions { hot: vec!["txt".into()], cold: vec!["db".into()] };
        let options = MountOptions { extensions, ..quiet() };
        let fs = Fs::mount(&rt, device.clone(), options).await?;
        // Existing files keep their class.
        let old = fs.lookup(Ino::ROOT, b"mail.db").await?.ino;
        assert_eq!(stream_of(&fs, old, 0..20).await?, "hot data");
        for (name, stream) in
            [("new.mp4", "warm data"), ("new.db", "cold data"), ("new.txt", "hot data")]
        {
            let ino = file(&fs, Ino::ROOT, name).await?;
            assert_eq!(stream_of(&fs, ino, 0..20).await?, stream, "{name}");
        }
        fs.unmount().await?;
        sound(device).await
    });
}
