//! A plain drive, emulated: a drive of one conventional zone, written in sectors of 512 bytes.
//!
//! The zone's volatile cache may lose any sectors that were not flushed. Commands go to several
//! queues, so they start in any order. A discarded sector is marked in its out-of-band byte: until
//! it is written again, each read of it returns the old content, zeros or rubbish, by chance.

use furrow_rt::{Completion, CompletionTable, PAGE_SIZE, Page, Pages, Rng, Rt};
use furrow_zone::{
    BlockCount, ByteLen, Command, Geometry, Lba, Outcome, PlainDevice, QueueId, Request,
    ZonedDevice,
};
use std::cell::Cell;
use std::rc::Rc;

/// Size of a sector in bytes.
const SECTOR: u64 = 512;
const PER_PAGE: u64 = PAGE_SIZE as u64 / SECTOR;
/// Number of queues over which commands are spread.
const QUEUES: u16 = 5;
/// The out-of-band byte of a discarded sector.
const DISCARDED: u8 = 1;

/// A plain drive on an emulated drive of [`Plain::geometry`]. Cloning shares the drive.
#[derive(Clone)]
pub struct Plain(Rc<Inner>);

struct Inner {
    rt: Rt,
    drive: Rc<dyn ZonedDevice>,
    answers: CompletionTable<Outcome>,
    turn: Cell<u16>,
}

impl Plain {
    /// The geometry that an emulated drive needs to act as a plain drive of `bytes` bytes. If
    /// `volatile`, completed writes may be lost until a flush.
    pub fn geometry(bytes: u64, volatile: bool) -> Geometry {
        let sectors = bytes / SECTOR;
        Geometry {
            block_size: ByteLen(SECTOR),
            oob_bytes: 1,
            conventional_zones: 1,
            volatile_cache: volatile,
            ..Geometry::unlimited(1, sectors, sectors)
        }
    }

    /// A plain drive on `drive`, which has the geometry of [`Plain::geometry`].
    pub fn new(rt: &Rt, drive: Rc<dyn ZonedDevice>) -> Plain {
        let (rt, answers) = (rt.clone(), CompletionTable::new());
        Plain(Rc::new(Inner { rt, drive, answers, turn: Cell::new(0) }))
    }

    fn submit(&self, request: Request) -> Completion<Outcome> {
        let queue = self.0.turn.get();
        self.0.turn.set((queue + 1) % QUEUES);
        self.0.drive.submit(QueueId(queue), request)
    }

    fn sectors(&self, offset: u64, length: u64) -> (Lba, BlockCount) {
        (Lba(offset / SECTOR), BlockCount(length / SECTOR))
    }

    /// Runs `work`, and completes a command with its result.
    fn answer(&self, work: impl Future<Output = Outcome> + 'static) -> Completion<Outcome> {
        let (ticket, completion) = self.0.answers.open();
        let answers = self.0.answers.clone();
        self.0.rt.spawn_detached(async move { answers.complete(ticket, work.await) });
        completion
    }
}

/// Replaces the content of a discarded sector with what a read may return: the old content, zeros
/// or rubbish, by chance.
fn undefined(sector: &mut [u8], rng: &mut Rng) {
    match rng.below(3) {
        0 => {}
        1 => sector.fill(0),
        _ => sector.fill(rng.next() as u8),
    }
}

impl PlainDevice for Plain {
    fn size(&self) -> ByteLen {
        self.0.drive.geometry().capacity()
    }

    fn max_transfer(&self) -> ByteLen {
        ByteLen(16 * PAGE_SIZE as u64)
    }

    fn read(&self, offset: u64, data: Pages) -> Completion<Outcome> {
        let (lba, blocks) = self.sectors(offset, (data.len() * PAGE_SIZE) as u64);
        let read = self.submit(Request::with_data(Command::Read { lba, blocks }, data));
        let rt = self.0.rt.clone();
        self.answer(async move {
            let mut outcome = read.await;
            let marks = std::mem::take(&mut outcome.oob);
            let discarded = marks.iter().enumerate().filter(|(_, mark)| **mark == DISCARDED);
            for (number, _) in discarded {
                let page = outcome.data.get_mut(number / PER_PAGE as usize).map(Page::make_mut);
                let at = number % PER_PAGE as usize * SECTOR as usize;
                if let Some(page) = page {
                    undefined(&mut page[at..at + SECTOR as usize], &mut Rng::new(rt.random()));
                }
            }
            outcome
        })
    }

    fn write(&self, offset: u64, data: Pages, _: u8) -> Completion<Outcome> {
        let (lba, blocks) = self.sectors(offset, (data.len() * PAGE_SIZE) as u64);
        self.submit(Request::with_data(Command::Write { lba, blocks }, data))
    }

    fn flush(&self) -> Completion<Outcome> {
        self.submit(Request::bare(Command::Flush))
    }

    fn discard(&self, offset: u64, length: u64) -> Completion<Outcome> {
        let (lba, blocks) = self.sectors(offset, length);
        let data: Pages = (0..blocks.0 / PER_PAGE).map(|_| Page::zeroed()).collect();
        let this = self.clone();
        self.answer(async move {
            let read = Request::with_data(Command::Read { lba, blocks }, data);
            let outcome = this.submit(read).await;
            if !outcome.status.is_ok() {
                return outcome;
            }
            let write = Request::with_data(Command::Write { lba, blocks }, outcome.data);
            let oob = vec![DISCARDED; blocks.0 as usize];
            this.submit(Request { oob, ..write }).await
        })
    }

    fn misses(&self) -> u64 {
        self.0.drive.misses()
    }

    fn oldest(&self) -> Option<u64> {
        self.0.drive.oldest()
    }

    fn give_up(&self) {
        self.0.drive.give_up();
    }

    fn name(&self) -> String {
        self.0.drive.name()
    }
}

impl std::fmt::Debug for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plain({})", self.0.drive.name())
    }
}
