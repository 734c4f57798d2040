//! Tests of streams: quotas, parked superzones, interference groups. The emulator refuses a write
//! that would open one zone too many, so each test also checks the drive's limits.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, sound};
use furrow_emu::{Emulator, Fates, Options};
use furrow_fs::ZoneUse;
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, StreamInfo, WriteData};
use furrow_policy::{FsVariant, Rule, StreamHeads};
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::{Result, ZonedDevice};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

/// A drive on which 6 streams of width 2 and 4 logs take 16 active zones; the limit is appended.
const DRIVE: &str = "zones=400,zone-size=4MiB,channels=2,dies=8,max-active=";
/// Bytes of payload in a segment; a superzone has four segments.
const SEGMENT: usize = 511 * 4096;

/// Uses superzones of two zones, and one active zone for each log.
fn format() -> MkfsOptions {
    MkfsOptions { width: Some(2), logs: Some(1), sync_zones: Some(1), ..Default::default() }
}

fn on_drive<F: Future<Output = Result<()>> + 'static>(
    active: u32,
    test: impl FnOnce(Rt, Rc<dyn ZonedDevice>) -> F,
) {
    let (rt, made) = (Rt::new(Config::shuffled(11)), (Options::simulated(), format()));
    let spec = format!("{DRIVE}{active}");
    common::on_drive(rt, &spec, made, |rt, drive| test(rt, Rc::new(drive)));
}

fn options(heads: StreamHeads) -> MountOptions {
    let variant = FsVariant { heads, ..FsVariant::default() };
    MountOptions { commit_interval: 100_000 * Nanos::SECOND, variant, ..Default::default() }
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

/// Writes `bytes` bytes of `tag` and makes them durable.
async fn fill(fs: &Fs, ino: Ino, bytes: usize, tag: u8) -> Result<()> {
    for at in (0..bytes).step_by(SEGMENT) {
        fs.write(ino, WriteData::copy(fs.pool(), at as u64, &vec![tag; SEGMENT])).await?;
    }
    fs.sync().await
}

async fn holds(fs: &Fs, ino: Ino, bytes: usize, tag: u8) -> Result<bool> {
    let mut same = true;
    for at in (0..bytes).step_by(SEGMENT) {
        same &= fs.read(ino, at as u64, SEGMENT).await?.to_vec().iter().all(|byte| *byte == tag);
    }
    Ok(same)
}

fn stream(fs: &Fs, name: &str) -> StreamInfo {
    fs.streams().into_iter().find(|stream| stream.name == name).unwrap()
}

/// Like `fill`, but segment by segment; returns the largest number of superzones that `name`
/// had open.
async fn most_open(fs: &Fs, ino: Ino, segments: usize, tag: u8, name: &str) -> Result<u32> {
    let mut most = 0;
    for segment in 0..segments {
        let at = (segment * SEGMENT) as u64;
        fs.write(ino, WriteData::copy(fs.pool(), at, &vec![tag; SEGMENT])).await?;
        fs.sync().await?;
        most = most.max(stream(fs, name).open);
    }
    Ok(most)
}

/// Ends the present window, which needs a second and the beginning of another segment.
async fn next_window(rt: &Rt, fs: &Fs, ino: Ino, tag: u8) -> Result<()> {
    rt.sleep(Nanos::SECOND).await;
    fill(fs, ino, SEGMENT, tag).await
}

#[test]
fn quotas_follow_what_streams_write_and_parked_superzones_are_taken_back() {
    // There are permits for 8 superzones in addition to the first 6: 14 in all, so 7 for data. 4
    // groups saturate the drive.
    on_drive(32, |rt, device| async move {
        let fs = Fs::mount(&rt, device.clone(), options(StreamHeads::Quota)).await?;
        assert_eq!(fs.permits().0, 32);
        let (warm, cold) = (file(&fs, "warm").await?, file(&fs, "cold.mp4").await?);
        assert!(fs.streams().iter().all(|stream| stream.quota == 1 && stream.parked == 0));
        fill(&fs, warm, 12 * SEGMENT, 1).await?;
        next_window(&rt, &fs, warm, 1).await?;
        let (busy, idle) = (stream(&fs, "warm data"), stream(&fs, "cold data"));
        assert_eq!((busy.quota, idle.quota), (4, 1));
        assert_eq!(most_open(&fs, warm, 12, 2, "warm data").await?, 4);
        // The cold stream writes three times as much as the warm one.
        next_window(&rt, &fs, warm, 2).await?;
        fill(&fs, warm, 4 * SEGMENT, 2).await?;
        fill(&fs, cold, 12 * SEGMENT, 3).await?;
        next_window(&rt, &fs, cold, 3).await?;
        assert_eq!(most_open(&fs, cold, 12, 3, "cold data").await?, 3);
        let (less, more) = (stream(&fs, "warm data"), stream(&fs, "cold data"));
        assert_eq!((less.quota, more.quota), (1, 3));
        assert!(less.parked > 0, "{less:?}");
        let parked = less.parked;
        // The warm stream writes again: its parked superzones are reopened.
        fill(&fs, warm, 12 * SEGMENT, 4).await?;
        next_window(&rt, &fs, warm, 4).await?;
        let back = stream(&fs, "warm data");
        assert!(back.quota > 1 && back.parked < parked, "{back:?}");
        assert_eq!(fs.counters().superzones_closed, 0, "there were permits enough");
        fs.unmount().await?;
        let fs = Fs::mount(&rt, device, options(StreamHeads::Quota)).await?;
        assert!(holds(&fs, warm, 12 * SEGMENT, 4).await?);
        assert!(holds(&fs, cold, 12 * SEGMENT, 3).await?);
        fs.unmount().await
    });
}

#[test]
fn who_writes_much_gets_more_before_the_window_is_over() {
    // 4 groups saturate the drive, so 16 segments of a class make a sample.
    on_drive(32, |rt, device| async move {
        let fs = Fs::mount(&rt, device.clone(), options(StreamHeads::Quota)).await?;
        let (warm, cold) = (file(&fs, "warm").await?, file(&fs, "cold.mp4").await?);
        let began = rt.now();
        assert_eq!(most_open(&fs, warm, 12, 1, "warm data").await?, 1);
        assert_eq!(most_open(&fs, warm, 12, 2, "warm data").await?, 4);
        // A second stream gets as many superzones, and takes none from the first before the
        // window ends.
        assert_eq!(most_open(&fs, cold, 32, 3, "cold data").await?, 4);
        assert!(rt.now().since(began) < Nanos::SECOND);
        let (first, second) = (stream(&fs, "warm data"), stream(&fs, "cold data"));
        assert_eq!((first.quota, second.quota), (4, 4));
        assert_eq!((first.parked, second.parked), (0, 0));
        next_window(&rt, &fs, cold, 4).await?;
        let (first, second) = (stream(&fs, "warm data"), stream(&fs, "cold data"));
        assert_eq!((first.quota, second.quota), (2, 2), "{first:?} {second:?}");
        drop(fs);
        sound(device.clone()).await?;
        let fs = Fs::mount(&rt, device, options(StreamHeads::Quota)).await?;
        assert!(holds(&fs, warm, 12 * SEGMENT, 2).await?);
        fs.unmount().await
    });
}

#[test]
fn without_that_rule_who_writes_much_waits_for_the_window() {
    on_drive(32, |rt, device| async move {
        let mut options = options(StreamHeads::Quota);
        options.variant.early_quota = Rule::LeftOut;
        let fs = Fs::mount(&rt, device.clone(), options).await?;
        let warm = file(&fs, "warm").await?;
        assert_eq!(most_open(&fs, warm, 32, 1, "warm data").await?, 1);
        next_window(&rt, &fs, warm, 4).await?;
        assert_eq!(stream(&fs, "warm data").quota, 4);
        fs.unmount().await
    });
}

#[test]
fn before_the_window_is_over_nobody_gets_what_others_hold() {
    // There are permits for 2 superzones in addition to the first 6.
    on_drive(20, |rt, device| async move {
        let fs = Fs::mount(&rt, device, options(StreamHeads::Quota)).await?;
        let (warm, cold) = (file(&fs, "warm").await?, file(&fs, "cold.mp4").await?);
        assert_eq!(most_open(&fs, warm, 30, 1, "warm data").await?, 3);
        assert_eq!(most_open(&fs, cold, 30, 2, "cold data").await?, 1);
        assert_eq!((stream(&fs, "warm data").quota, stream(&fs, "cold data").quota), (3, 1));
        assert_eq!(fs.counters().superzones_closed, 0);
        fs.unmount().await
    });
}

/// Makes the cold stream lack permits that parked superzones of the warm stream hold. `check` gets
/// the resulting state of the cold stream, and the number of superzones closed.
fn lacks_permits(lent_superzones: Rule, check: impl Fn(StreamInfo, u64) + 'static) {
    // There are permits for 2 superzones in addition to the first 6, so 4 superzones are for data.
    on_drive(20, move |rt, device| async move {
        let mut lends = options(StreamHeads::Quota);
        lends.variant.lent_superzones = lent_superzones;
        let fs = Fs::mount(&rt, device.clone(), lends).await?;
        let (warm, cold) = (file(&fs, "warm").await?, file(&fs, "cold.mp4").await?);
        fill(&fs, warm, 12 * SEGMENT, 1).await?;
        next_window(&rt, &fs, warm, 1).await?;
        // There are permits for two more superzones, but not for three.
        assert_eq!(most_open(&fs, warm, 12, 1, "warm data").await?, 3);
        assert_eq!(stream(&fs, "warm data").quota, 4);
        assert_eq!(fs.permits(), (20, 20));
        rt.sleep(Nanos::SECOND).await;
        fill(&fs, cold, 12 * SEGMENT, 2).await?;
        next_window(&rt, &fs, cold, 2).await?;
        assert!(most_open(&fs, cold, 3, 2, "cold data").await? > 1, "{:?}", fs.streams());
        check(stream(&fs, "cold data"), fs.counters().superzones_closed);
        // Lent superzones become full over time, and their permits return.
        assert!(most_open(&fs, cold, 12, 2, "cold data").await? > 1, "{:?}", fs.streams());
        // Crash while there are lent or closed, parked and open superzones.
        drop(fs);
        sound(device.clone()).await?;
        let fs = Fs::mount(&rt, device.clone(), options(StreamHeads::Quota)).await?;
        assert!(holds(&fs, warm, 12 * SEGMENT, 1).await?);
        assert!(holds(&fs, cold, 12 * SEGMENT, 2).await?);
        fs.unmount().await?;
        sound(device).await
    });
}

#[test]
fn a_stream_that_lacks_permits_is_lent_parked_superzones() {
    lacks_permits(Rule::Kept, |cold, closed| {
        assert!(cold.lent > 0 && cold.open > cold.lent, "{cold:?}");
        assert_eq!(closed, 0);
    });
}

#[test]
fn without_that_rule_parked_superzones_are_closed_for_their_permits() {
    lacks_permits(Rule::LeftOut, |cold, closed| {
        assert_eq!(cold.lent, 0);
        assert!(closed > 0, "{cold:?}");
    });
}

/// Parks superzones, on a drive with superzones of sixteen segments and permits for `active` zones.
/// The warm stream writes to three superzones, `segments` segments to each except the first. After
/// that it writes hardly anything, so the parked superzones remain. `check` gets the number of
/// superzones finished during the writes, and the number finished at rest.
fn park(active: u32, segments: usize, check: impl Fn(u64, u64) + 'static) {
    let (rt, made) = (Rt::new(Config::shuffled(11)), (Options::simulated(), format()));
    let spec = format!("zones=300,zone-size=16MiB,channels=2,dies=8,max-active={active}");
    common::on_drive(rt, &spec, made, move |rt, drive| async move {
        let device: Rc<dyn ZonedDevice> = Rc::new(drive);
        let often = MountOptions { commit_interval: 2 * Nanos::SECOND, ..Default::default() };
        let fs = Fs::mount(&rt, device.clone(), often).await?;
        let warm = file(&fs, "warm").await?;
        fill(&fs, warm, 12 * SEGMENT, 1).await?;
        next_window(&rt, &fs, warm, 1).await?;
        for _ in 0..segments {
            fill(&fs, warm, 3 * SEGMENT, 2).await?;
        }
        let held = fs.permits();
        assert_eq!(held.0, active);
        for _ in 0..5 {
            next_window(&rt, &fs, warm, 2).await?;
        }
        let writing = fs.counters().superzones_finished;
        let parked = stream(&fs, "warm data").parked;
        assert!(parked > 0 || writing > 0, "{:?}", fs.streams());
        rt.sleep(20 * Nanos::SECOND).await;
        check(writing, fs.counters().superzones_finished - writing);
        assert_eq!(fs.counters().superzones_closed, 0, "nobody lacked permits");
        drop(fs);
        sound(device.clone()).await?;
        let fs = Fs::mount(&rt, device.clone(), options(StreamHeads::Quota)).await?;
        assert!(holds(&fs, warm, 3 * SEGMENT, 2).await?);
        fs.unmount().await?;
        sound(device).await
    });
}

#[test]
fn a_parked_superzone_with_little_left_is_finished_where_permits_are_scarce() {
    park(20, 14, |writing, _| assert!(writing > 0));
}

#[test]
fn one_with_more_left_is_finished_only_when_nothing_is_written() {
    park(20, 10, |writing, resting| {
        assert_eq!(writing, 0);
        assert!(resting > 0);
    });
}

#[test]
fn nearly_empty_ones_are_not_finished_without_need() {
    park(20, 3, |writing, resting| assert_eq!((writing, resting), (0, 0)));
}

#[test]
fn where_permits_are_left_nothing_is_finished() {
    park(34, 14, |writing, resting| assert_eq!((writing, resting), (0, 0)));
}

#[test]
fn superzones_of_a_class_are_on_dies_of_their_own_as_long_as_there_are_any() {
    on_drive(32, |rt, device| async move {
        let fs = Fs::mount(&rt, device, options(StreamHeads::Fixed(3))).await?;
        let warm = file(&fs, "warm").await?;
        let mut most = 0;
        for round in 0..40 {
            fill(&fs, warm, 2 * SEGMENT, round).await?;
            let mut groups: BTreeMap<usize, u32> = BTreeMap::new();
            for (zone, info) in fs.zone_map().await?.iter().enumerate() {
                if info.open && matches!(info.usage, ZoneUse::Data(_)) {
                    *groups.entry(zone % 8).or_default() += 1;
                }
            }
            assert!(groups.values().all(|open| *open == 1), "round {round}: {groups:?}");
            most = most.max(groups.len());
        }
        // The warm stream has three superzones, and the stream of directories the first zone
        // of one.
        assert_eq!(most, 7, "four superzones of two zones");
        fs.unmount().await
    });
}

#[test]
fn a_split_gives_each_stream_its_own_number_and_keeps_it() {
    on_drive(32, |rt, device| async move {
        let split = StreamHeads::Split([1, 3, 2, 1, 1, 1]);
        let fs = Fs::mount(&rt, device, options(split)).await?;
        let (warm, cold) = (file(&fs, "warm").await?, file(&fs, "cold.mp4").await?);
        let mut most = (0, 0);
        for round in 0..6 {
            fill(&fs, warm, 3 * SEGMENT, round).await?;
            fill(&fs, cold, 3 * SEGMENT, round).await?;
            rt.sleep(2 * Nanos::SECOND).await;
            let streams = (stream(&fs, "warm data"), stream(&fs, "cold data"));
            assert_eq!((streams.0.quota, streams.1.quota), (3, 2));
            assert_eq!((streams.0.parked, streams.1.parked), (0, 0));
            most = (most.0.max(streams.0.open), most.1.max(streams.1.open));
        }
        assert_eq!(most, (3, 2));
        fs.unmount().await
    });
}

/// Number of blocks written in each zone of the two halves of the sync log, with four zones each.
async fn sync_log(fs: &Fs) -> [Vec<u32>; 2] {
    let zones = fs.zone_map().await.unwrap().into_iter();
    let log = zones.filter(|zone| zone.usage == ZoneUse::SyncLog);
    let written: Vec<u32> = log.map(|zone| zone.written).collect();
    [written[..4].to_vec(), written[4..].to_vec()]
}

/// Records of fsyncs go to the zones of the sync log alternately. A crash that leaves the zones
/// uneven loses no acknowledged record, and the log continues behind the records.
#[test]
fn records_are_spread_over_the_zones_of_the_sync_log() {
    let format = MkfsOptions { width: Some(2), sync_zones: Some(4), ..Default::default() };
    let rt = Rt::new(Config::shuffled(3));
    let made = (Options::simulated(), format);
    common::on_drive(rt, &format!("{DRIVE}22"), made, async |rt, drive| {
        let (mut files, mut most, mut left) = (Vec::new(), 0, drive.snapshot());
        for life in 0..6_u8 {
            let left_by_cut = left.power_cut(&Fates::seeded(u64::from(life)));
            let drive = Emulator::from_snapshot(&rt, &left_by_cut, Options::simulated());
            let fs = Fs::mount(&rt, Rc::new(drive.clone()), options(StreamHeads::Quota)).await?;
            for (ino, tag) in &files {
                assert!(holds(&fs, *ino, SEGMENT, *tag).await?, "{ino} in life {life}");
            }
            for number in 0..9 {
                let (ino, tag) = (file(&fs, &format!("{life}-{number}")).await?, number + 1);
                fs.write(ino, WriteData::copy(fs.pool(), 0, &vec![tag; SEGMENT])).await?;
                fs.fsync(ino, false).await?;
                files.push((ino, tag));
            }
            for half in sync_log(&fs).await {
                let (least, fullest) = (half.iter().min(), half.iter().max());
                assert!(fullest <= least.map(|least| least + 1).as_ref(), "{half:?}");
                most = most.max(fullest.copied().unwrap_or(0));
            }
            // Start more fsyncs, which are in progress at the power cut.
            for number in 0..6 {
                let ino = file(&fs, &format!("{life}-under-way-{number}")).await?;
                let fs = fs.clone();
                rt.spawn_detached(async move { drop(fs.fsync(ino, false).await) });
            }
            for _ in 0..3 {
                rt.yield_now().await;
            }
            left = drive.snapshot();
        }
        assert!(most > 2, "{most}");
        Ok(())
    });
}
