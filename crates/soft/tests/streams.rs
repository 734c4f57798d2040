//! Soft zones on a plain drive with write streams: the tests check the stream of each write.

#![allow(clippy::unwrap_used, reason = "tests")]

use furrow_emu::{Emulator, Medium, Options, Plain};
use furrow_log::Uuid;
use furrow_policy::SoftVariant;
use furrow_rt::{Completion, Config, Page, Pages, Rt};
use furrow_soft::{Layout, MakeOptions, SoftDrive, make};
use furrow_zone::{
    Access, Action, BlockCount, ByteLen, Command, Lba, Outcome, PlainDevice, QueueId, Request,
    Target, ZonedDevice,
};
use std::cell::RefCell;
use std::rc::Rc;

const BYTES: u64 = 6 << 20;
const ZONE: u64 = 128 << 10;
const BLOCKS: u64 = ZONE / 4096;

/// A plain drive with write streams that records the stream of each write.
struct Streamed {
    plain: Plain,
    streams: u8,
    /// First block and stream of each write.
    writes: RefCell<Vec<(u64, u8)>>,
}

impl PlainDevice for Streamed {
    fn size(&self) -> ByteLen {
        self.plain.size()
    }

    fn max_transfer(&self) -> ByteLen {
        self.plain.max_transfer()
    }

    fn read(&self, offset: u64, data: Pages) -> Completion<Outcome> {
        self.plain.read(offset, data)
    }

    fn streams(&self) -> u8 {
        self.streams
    }

    fn write(&self, offset: u64, data: Pages, stream: u8) -> Completion<Outcome> {
        self.writes.borrow_mut().push((offset / 4096, stream));
        self.plain.write(offset, data, stream)
    }

    fn flush(&self) -> Completion<Outcome> {
        self.plain.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Completion<Outcome> {
        self.plain.discard(offset, length)
    }

    fn name(&self) -> String {
        "streams".to_owned()
    }
}

impl Streamed {
    /// Returns the streams of the writes since the last call: those to the journal and the
    /// superblock, and those to each zone in the order of the writes. Consecutive equal entries
    /// become one.
    fn taken(&self, layout: &Layout) -> (Vec<u8>, Vec<(u64, u8)>) {
        let (mut journal, mut zones) = (Vec::new(), Vec::new());
        for (block, stream) in self.writes.take() {
            let zone = block.checked_sub(layout.first).map(|block| block / BLOCKS);
            match zone.filter(|zone| *zone < u64::from(layout.zones)) {
                Some(zone) => zones.push((zone, stream)),
                None => journal.push(stream),
            }
        }
        journal.dedup();
        zones.dedup();
        (journal, zones)
    }
}

/// Runs `work` with soft zones on a new plain drive with `streams` streams.
fn on(streams: u8, work: impl AsyncFnOnce(Rc<Streamed>, SoftDrive) + 'static) {
    let rt = Rt::new(Config::simulated(1));
    let geometry = Plain::geometry(BYTES, true);
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
    let engine = rt.clone();
    rt.block_on(async move {
        let plain = Plain::new(&engine, Rc::new(drive));
        let plain = Rc::new(Streamed { plain, streams, writes: RefCell::default() });
        let options = MakeOptions { zone: ByteLen(ZONE), records: Some(64), uuid: Uuid([7; 16]) };
        make(&*plain, &options).await.unwrap();
        let soft = opened(&engine, &plain).await;
        assert_eq!(soft.streams(), streams);
        work(plain, soft).await;
    });
    rt.clear();
}

async fn opened(rt: &Rt, plain: &Rc<Streamed>) -> SoftDrive {
    let (plain, variant) = (plain.clone(), SoftVariant::default());
    SoftDrive::open(rt, plain, Access::ReadWrite, variant).await.unwrap()
}

async fn write(drive: &SoftDrive, zone: u64, from: u64, blocks: u64) {
    let data: Pages = (0..blocks).map(|_| Page::from_slice(&[zone as u8; 4096])).collect();
    let command = Command::Write { lba: Lba(zone * BLOCKS + from), blocks: BlockCount(blocks) };
    assert!(drive.submit(QueueId(0), Request::with_data(command, data)).await.status.is_ok());
}

async fn manage(drive: &SoftDrive, zone: u64, action: Action) {
    let command = Command::Manage { target: Target::Zone(Lba(zone * BLOCKS)), action };
    assert!(drive.submit(QueueId(0), Request::bare(command)).await.status.is_ok());
}

#[test]
fn open_zones_and_the_journal_have_streams_of_their_own() {
    on(4, async |plain, soft| {
        let layout = soft.superblock().layout;
        assert_eq!(plain.taken(&layout), (vec![1], vec![]), "made and opened");
        for zone in [9, 4, 6] {
            write(&soft, zone, 0, 2).await;
        }
        write(&soft, 4, 2, 1).await;
        assert!(soft.submit(QueueId(0), Request::bare(Command::Flush)).await.status.is_ok());
        assert_eq!(plain.taken(&layout), (vec![1], vec![(9, 2), (4, 3), (6, 4), (4, 3)]));
        // When the writing of a zone ends, its stream goes to the next zone.
        write(&soft, 4, 3, 16).await;
        write(&soft, 4, 19, BLOCKS - 19).await;
        write(&soft, 10, 0, 1).await;
        manage(&soft, 9, Action::Finish).await;
        write(&soft, 11, 0, 1).await;
        manage(&soft, 6, Action::Reset).await;
        write(&soft, 12, 0, 1).await;
        manage(&soft, 10, Action::Close).await;
        write(&soft, 13, 0, 1).await;
        write(&soft, 6, 0, 1).await;
        let expected = vec![(4, 3), (10, 3), (11, 2), (12, 4), (13, 3), (6, 2)];
        assert_eq!(plain.taken(&layout), (vec![1], expected));
    });
}

#[test]
fn one_stream_is_for_zones_and_without_any_no_write_names_one() {
    on(1, async |plain, soft| {
        write(&soft, 1, 0, 1).await;
        write(&soft, 2, 0, 1).await;
        let taken = plain.taken(&soft.superblock().layout);
        assert_eq!(taken, (vec![0], vec![(1, 1), (2, 1)]));
    });
    on(0, async |plain, soft| {
        write(&soft, 1, 0, 1).await;
        manage(&soft, 1, Action::Finish).await;
        let taken = plain.taken(&soft.superblock().layout);
        assert_eq!(taken, (vec![0], vec![(1, 0)]));
    });
}

/// Recovery writes the blocks in doubt again, each zone in its own stream.
#[test]
fn recovery_writes_zones_in_streams_of_their_own() {
    on(4, async |plain, soft| {
        let layout = soft.superblock().layout;
        for zone in [3, 1] {
            write(&soft, zone, 0, 2).await;
        }
        assert!(soft.submit(QueueId(0), Request::bare(Command::Flush)).await.status.is_ok());
        plain.taken(&layout);
        let rt = Rt::new(Config::simulated(2));
        opened(&rt, &plain).await;
        assert_eq!(plain.taken(&layout), (vec![1], vec![(1, 2), (3, 3)]));
    });
}
