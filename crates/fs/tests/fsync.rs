//! Tests of the cost of an fsync: waits for the drive, flushes, records.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::sound;
use furrow_emu::Emulator;
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, Order, WriteData};
use furrow_rt::{Config, Nanos, PAGE_SIZE, Rt};
use furrow_zone::{Access, DeviceSpec, Result};
use std::rc::Rc;

/// A drive that answers each write, append and flush after 100 µs, no matter how many are
/// in flight.
const DRIVE: &str = "mem:zones=64,zone-size=16MiB,max-active=14,timing=virtual,model=plain,\
                     model.write-latency=4KiB:100us/128KiB:100us,\
                     model.append-latency=4KiB:100us/128KiB:100us,model.flush=100us,\
                     model.group-rate=100GB/s,model.link-rate=100GB/s,\
                     model.service-spread=fixed,model.open-write=0,model.open-append=0";
const ANSWER: u64 = 100 * Nanos::MICRO;

struct Cost {
    /// Duration of the longest fsync, in nanoseconds.
    took: u64,
    flushes: u64,
    records: u64,
}

/// Measures `clients` clients, each of which writes a block to a file of its own and fsyncs the
/// file, all at the same time.
fn cost(more: &str, order: Order, clients: usize) -> Cost {
    let rt = Rt::new(Config::simulated(1));
    let spec: DeviceSpec = format!("{DRIVE}{more}").parse().unwrap();
    let drive: Rc<Emulator> = furrow_emu::open(&rt, &spec, Access::ReadWrite).unwrap();
    let host = rt.clone();
    let cost = rt.block_on(async move {
        Fs::format(&host, drive.clone(), &MkfsOptions::default()).await?;
        let commit_interval = 100_000 * Nanos::SECOND;
        let options = MountOptions { order, commit_interval, ..MountOptions::default() };
        let fs = Fs::mount(&host, drive.clone(), options).await?;
        let mut files = Vec::new();
        for n in 0..clients {
            let name = format!("f{n}");
            let ino = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino;
            put(&fs, ino, 1).await?;
            fs.fsync(ino, false).await?;
            put(&fs, ino, 2).await?;
            files.push(ino);
        }
        let before = (drive.counters(), fs.counters());
        let tasks: Vec<_> = files
            .iter()
            .map(|ino| {
                let (fs, host, ino) = (fs.clone(), host.clone(), *ino);
                host.clone().spawn(async move {
                    let began = host.now();
                    fs.fsync(ino, false).await?;
                    Ok::<u64, furrow_zone::Error>(host.now().since(began))
                })
            })
            .collect();
        let mut took = 0;
        for task in tasks {
            took = took.max(task.await?);
        }
        let after = (drive.counters(), fs.counters());
        fs.unmount().await?;
        sound(drive).await?;
        let records = (after.1.sync_bytes - before.1.sync_bytes) / PAGE_SIZE as u64;
        Ok::<Cost, furrow_zone::Error>(Cost {
            took,
            flushes: after.0.flushes - before.0.flushes,
            records,
        })
    });
    rt.clear();
    cost.unwrap()
}

async fn put(fs: &Fs, ino: Ino, tag: u8) -> Result<()> {
    fs.write(ino, WriteData::copy(fs.pool(), 0, &[tag; PAGE_SIZE])).await.map(drop)
}

/// Data, node and record are in flight at the same time; the caller waits for the last of them.
#[test]
fn an_fsync_waits_once() {
    let alone = cost(",volatile-cache=off", Order::Queued, 1);
    assert!((ANSWER..ANSWER * 3 / 2).contains(&alone.took), "{} ns", alone.took);
    assert_eq!((alone.records, alone.flushes), (1, 0));
}

/// If the drive places data, metadata can refer to the data only after the answer: this costs one
/// more wait.
#[test]
fn an_append_costs_one_wait_more() {
    let alone = cost(",volatile-cache=off", Order::Append, 1);
    assert!((2 * ANSWER..ANSWER * 5 / 2).contains(&alone.took), "{} ns", alone.took);
}

/// A volatile cache is flushed once for each fsync, after its writes; other drives are never
/// flushed.
#[test]
fn a_volatile_cache_is_flushed_once() {
    let alone = cost(",volatile-cache=on", Order::Queued, 1);
    assert_eq!((alone.records, alone.flushes), (1, 1));
    assert!((2 * ANSWER..ANSWER * 5 / 2).contains(&alone.took), "{} ns", alone.took);
    // Many fsyncs share flushes, as they share records.
    let many = cost(",volatile-cache=on", Order::Queued, 32);
    assert!(many.flushes <= 6, "{} flushes for 32", many.flushes);
}

/// At most four records are in flight; later fsyncs share the next records, and wait for at most
/// one more round.
#[test]
fn many_fsyncs_share_records() {
    let many = cost(",volatile-cache=off", Order::Queued, 32);
    assert!(many.records <= 8, "{} records for 32", many.records);
    assert!(many.took < 3 * ANSWER, "{} ns", many.took);
}

/// Each of 16 clients repeatedly fsyncs its own file, on a drive whose large commands take long.
/// The fsyncs share the four records equally, so no record of many fsyncs delays all clients.
#[test]
fn fsyncs_share_records_equally() {
    const ROUNDS: u64 = 20;
    let rt = Rt::new(Config::simulated(1));
    let slow = DRIVE.replace("latency=4KiB:100us/128KiB:100us", "latency=4KiB:100us/64KiB:1600us");
    let spec: DeviceSpec = slow.parse().unwrap();
    let drive: Rc<Emulator> = furrow_emu::open(&rt, &spec, Access::ReadWrite).unwrap();
    let host = rt.clone();
    let took = rt.block_on(async move {
        Fs::format(&host, drive.clone(), &MkfsOptions::default()).await?;
        let fs = Fs::mount(&host, drive.clone(), MountOptions::default()).await?;
        let mut files = Vec::new();
        for n in 0..16 {
            let name = format!("f{n}");
            files.push(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino);
        }
        fs.sync().await?;
        let began = host.now();
        let client = |ino: Ino| {
            let fs = fs.clone();
            host.spawn(async move {
                for round in 0..ROUNDS {
                    put(&fs, ino, round as u8).await?;
                    fs.fsync(ino, false).await?;
                }
                Ok::<(), furrow_zone::Error>(())
            })
        };
        let clients: Vec<_> = files.into_iter().map(client).collect();
        for client in clients {
            client.await?;
        }
        let took = host.now().since(began);
        fs.unmount().await?;
        Ok::<u64, furrow_zone::Error>(took)
    });
    rt.clear();
    let took = took.unwrap() / ROUNDS;
    assert!(took < 14 * ANSWER, "{took} ns for an fsync of each client");
}
