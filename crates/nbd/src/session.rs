//! A connection in transmission: requests arrive, replies leave.
//!
//! Each request is a task of its own. Requests run in the order of arrival until one has to wait.
//! Requests with edges within a block are carried out as read, modify, write. They must not lose
//! another write to the same block, so overlapping writes take turns. Trims and zeroes take long,
//! so they are carried out part by part, and writes get their turns between two parts.

mod partial_blocks;

use crate::budget::Charge;
use crate::connection::{End, Input, Link};
use crate::export::Served;
use crate::reply::{Body, Reply};
use crate::request::{Command, Header, Refusal, Terms};
use crate::status::{Counters, count};
use crate::volume::{BLOCK, Extent, Volume};
use crate::wire::{Code, REQUEST_HEADER, command};
use furrow_rt::{PAGE_SIZE, Pages};
use furrow_zone::{Error, ErrorKind, Result};
use partial_blocks::edges;
use std::ops::Range;
use std::rc::Rc;

/// Maximum number of extents in an answer to BLOCK_STATUS.
const EXTENTS_MAX: usize = 2048;
/// Maximum number of blocks that one part of a trim frees: 256 MiB.
const FREED: u64 = 1 << 16;
/// Maximum number of blocks that one part of a request zeroes, if zeroes have to be written: 8 MiB.
const ZEROED: u64 = 1 << 11;
/// Bytes charged for a request without payload; an error reply is not larger.
const REQUEST_COST: u64 = 4096;

/// A connection in transmission; see the module's documentation.
pub(crate) struct Session<V> {
    link: Rc<Link>,
    export: Rc<Served<V>>,
    terms: Terms,
}

impl<V: Volume> Session<V> {
    pub(crate) fn new(
        link: Rc<Link>,
        export: Rc<Served<V>>,
        structured: bool,
        allocation: bool,
    ) -> Session<V> {
        let (size, read_only) = (export.size(), export.is_read_only());
        Session { link, export, terms: Terms { size, read_only, structured, allocation } }
    }

    /// Takes requests until the client sends no more or the connection ends.
    pub(crate) async fn run(self: Rc<Self>, input: &mut Input) -> End {
        loop {
            if input.held().len() < REQUEST_HEADER {
                match input.more().await {
                    Ok(()) => continue,
                    Err(end) => return end,
                }
            }
            let Some(header) = Header::parse(input.take(REQUEST_HEADER)) else {
                return End::Broken;
            };
            if header.kind == command::DISCONNECT {
                return End::Orderly;
            }
            if let Err(end) = self.begin(header, input).await {
                return end;
            }
        }
    }

    /// Starts or refuses a request, when there is memory for it.
    async fn begin(self: &Rc<Self>, header: Header, input: &mut Input) -> Result<(), End> {
        let command = match self.link.is_draining() {
            true => Err(Refusal(Code::Shutdown, "the server is shutting down")),
            false => header.command(&self.terms),
        };
        let command = match command {
            Ok(command) => command,
            Err(Refusal(code, why)) => {
                input.discard(u64::from(header.payload())).await?;
                let charge = self.charge(REQUEST_COST).await;
                self.tally(|counters| count(&counters.errors, 1));
                let structured = self.terms.structured;
                let reply = Reply::error(header.cookie, code, why, structured, Some(charge));
                self.link.answer(reply);
                return Ok(());
            }
        };
        let charge = self.charge(cost(&header, command)).await;
        let pages = if let Command::Write { .. } = command {
            input.payload((header.offset % BLOCK) as usize, header.length as usize).await?
        } else {
            input.expect_small();
            Pages::new()
        };
        self.link.begin();
        let session = self.clone();
        self.link.rt.run_now(async move {
            let begun = session.link.rt.now_coarse();
            let reply = session.perform(&header, command, pages, charge).await;
            let took = session.link.rt.now_coarse().0.saturating_sub(begun.0);
            session.tally(|counters| clock(counters, command, took));
            session.link.answer(reply);
            session.link.end();
        });
        Ok(())
    }

    async fn charge(&self, bytes: u64) -> Charge {
        if let Some(charge) = self.link.budget.try_take(bytes) {
            return charge;
        }
        self.link.flush();
        let charge = self.link.budget.take(bytes).await;
        self.link.batch();
        charge
    }

    fn tally(&self, add: impl Fn(&Counters)) {
        add(&self.export.counters);
        add(&self.link.counters);
    }

    async fn perform(
        &self,
        header: &Header,
        command: Command,
        pages: Pages,
        charge: Charge,
    ) -> Reply {
        let (cookie, structured) = (header.cookie, self.terms.structured);
        self.tally(|counters| tally(counters, header, command));
        let done = match command {
            Command::Read => match self.read(header).await {
                Ok(body) => {
                    return Reply::data(cookie, header.offset, body, structured, Some(charge));
                }
                Err(error) => Err(error),
            },
            Command::BlockStatus { one } => match self.extents(header, one).await {
                Ok(runs) => return Reply::extents(cookie, &runs, Some(charge)),
                Err(error) => Err(error),
            },
            Command::Write { fua } => self.write(header, pages, fua).await,
            Command::WriteZeroes { may_free, fast, fua } => {
                self.zero(header, may_free, fast, fua).await
            }
            Command::Trim { fua } => self.trim(header, fua).await,
            Command::Flush => self.export.volume().flush().await,
            Command::Cache => {
                let blocks = header.blocks();
                let count = blocks.end - blocks.start;
                self.export.volume().cache(blocks.start, count).await
            }
        };
        match done {
            Ok(()) => Reply::done(cookie, Some(charge)),
            Err(error) => {
                self.tally(|counters| count(&counters.errors, 1));
                let code = error.kind().into();
                Reply::error(cookie, code, &error.to_string(), structured, Some(charge))
            }
        }
    }

    async fn read(&self, header: &Header) -> Result<Body> {
        let pages = self.load(header.blocks()).await?;
        let from = (header.offset % BLOCK) as usize;
        Ok(Body { pages, from, length: header.length as usize })
    }

    /// Reads all of `blocks` from the volume.
    async fn load(&self, blocks: Range<u64>) -> Result<Pages> {
        let asked = blocks.end - blocks.start;
        let pages = self.export.volume().read(blocks.start, asked as u32).await?;
        if pages.len() as u64 != asked {
            let (name, found) = (self.export.name(), pages.len());
            return Err(Error::new(
                ErrorKind::Io,
                format!("export '{name}': {asked} blocks from {} on, got {found}", blocks.start),
            ));
        }
        Ok(pages)
    }

    async fn zero(&self, header: &Header, may_free: bool, fast: bool, fua: bool) -> Result<()> {
        let volume = self.export.volume();
        if fast && !(may_free && volume.zeroes_fast()) {
            let message = "this range would be zeroed no faster than by writing zeroes";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (blocks, whole) = (header.blocks(), header.is_whole());
        let _turn = self.link.turn(blocks.end - blocks.start).await;
        let mut inner = blocks.clone();
        if !whole {
            self.tally(|counters| count(&counters.partial, 1));
            let (head, tail) = edges(header);
            let single = blocks.end - blocks.start == 1;
            if head > 0 || (single && tail < PAGE_SIZE) {
                let end = if single { tail } else { PAGE_SIZE };
                self.zero_part(blocks.start, head..end, fua).await?;
                inner.start += 1;
            }
            if !single && tail < PAGE_SIZE {
                self.zero_part(blocks.end - 1, 0..tail, fua).await?;
                inner.end -= 1;
            }
        }
        for piece in pieces(inner, if may_free { FREED } else { ZEROED }) {
            let _held = self.export.turns.hold(piece.clone()).await;
            volume.write_zeroes(piece.start, piece.end - piece.start, may_free, fua).await?;
        }
        Ok(())
    }

    /// Frees the blocks that lie entirely within the range. A trim need not change the
    /// other blocks.
    async fn trim(&self, header: &Header, fua: bool) -> Result<()> {
        let end = (header.offset + u64::from(header.length)) / BLOCK;
        let blocks = header.offset.div_ceil(BLOCK)..end;
        if blocks.is_empty() {
            return Ok(());
        }
        let _turn = self.link.turn(blocks.end - blocks.start).await;
        for piece in pieces(blocks, FREED) {
            let _held = self.export.turns.hold(piece.clone()).await;
            self.export.volume().trim(piece.start, piece.end - piece.start, fua).await?;
        }
        Ok(())
    }

    async fn extents(&self, header: &Header, one: bool) -> Result<Vec<(u32, bool)>> {
        let blocks = header.blocks();
        let limit = if one { 1 } else { EXTENTS_MAX };
        let volume = self.export.volume();
        let found = volume.extents(blocks.start, blocks.end - blocks.start, limit).await?;
        let runs = clip(&found, limit, header);
        if runs.is_empty() {
            let (name, at) = (self.export.name(), blocks.start);
            let message = format!("export '{name}': no extent is known at block {at}");
            return Err(Error::new(ErrorKind::Io, message));
        }
        Ok(runs)
    }
}

/// Bytes that are charged for a request until its reply has been sent.
fn cost(header: &Header, command: Command) -> u64 {
    let blocks = header.blocks();
    match command {
        Command::Read | Command::Write { .. } => (blocks.end - blocks.start) * BLOCK,
        Command::BlockStatus { one: false } => REQUEST_COST + 24 * EXTENTS_MAX as u64,
        _ => REQUEST_COST,
    }
}

/// Splits `blocks` into parts of `size` blocks.
fn pieces(blocks: Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> {
    let end = blocks.end;
    blocks.step_by(size as usize).map(move |start| start..end.min(start + size))
}

/// Extents in bytes, cut to the request; adjacent extents of the same kind are joined.
fn clip(found: &[Extent], limit: usize, header: &Header) -> Vec<(u32, bool)> {
    let mut runs: Vec<(u32, bool)> = Vec::with_capacity(found.len().min(limit));
    let mut left = u64::from(header.length);
    let mut skip = header.offset % BLOCK;
    for extent in found.iter().filter(|extent| extent.blocks > 0) {
        // `bytes` is at most the request's length, which fits in 32 bits.
        let bytes = extent.blocks.saturating_mul(BLOCK).saturating_sub(skip).min(left);
        skip = 0;
        left -= bytes;
        let told = runs.len();
        match runs.last_mut() {
            Some(last) if last.1 == extent.hole => last.0 += bytes as u32,
            _ if told == limit => break,
            _ => runs.push((bytes as u32, extent.hole)),
        }
        if left == 0 {
            break;
        }
    }
    runs
}

fn tally(counters: &Counters, header: &Header, command: Command) {
    let length = u64::from(header.length);
    let (counter, fua) = match command {
        Command::Read => {
            count(&counters.bytes_read, length);
            (&counters.reads, false)
        }
        Command::Write { fua } => {
            count(&counters.bytes_written, length);
            (&counters.writes, fua)
        }
        Command::Trim { fua } => (&counters.trims, fua),
        Command::WriteZeroes { fua, .. } => (&counters.zeroes, fua),
        Command::Flush => (&counters.flushes, false),
        Command::Cache => (&counters.caches, false),
        Command::BlockStatus { .. } => (&counters.statuses, false),
    };
    count(counter, 1);
    count(&counters.fua, u64::from(fua));
}

/// Adds the time that a request took, in nanoseconds, to the counter of its kind.
fn clock(counters: &Counters, command: Command, took: u64) {
    match command {
        Command::Read => count(&counters.read_ns, took),
        Command::Write { .. } => count(&counters.write_ns, took),
        Command::Flush => count(&counters.flush_ns, took),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(offset: u64, length: u32) -> Header {
        Header { flags: 0, kind: command::BLOCK_STATUS, cookie: 0, offset, length }
    }

    #[test]
    fn extents_are_clipped_to_the_request() {
        let hole = |blocks, hole| Extent { blocks, hole };
        let found = [hole(2, true), hole(1, true), hole(1, false), hole(1 << 50, true)];
        let all = clip(&found, 9, &header(4096, u32::MAX));
        assert_eq!(all, [(3 * 4096, true), (4096, false), (u32::MAX - 4 * 4096, true)]);
        assert_eq!(clip(&found, 1, &header(4096, u32::MAX)), [(3 * 4096, true)]);
        assert_eq!(clip(&found, 9, &header(5000, 4096)), [(4096, true)]);
        assert_eq!(clip(&found, 9, &header(4097, 3 * 4096)), [(3 * 4096 - 1, true), (1, false)]);
        assert_eq!(clip(&[hole(0, true)], 9, &header(0, 1)), []);
    }

    #[test]
    fn long_requests_go_in_pieces() {
        let found: Vec<_> = pieces(3..12, 4).collect();
        assert_eq!(found, [3..7, 7..11, 11..12]);
        assert_eq!(pieces(3..3, 4).count(), 0);
    }

    #[test]
    fn edges_are_those_of_the_first_and_last_block() {
        assert_eq!(edges(&header(0, 4096)), (0, 4096));
        assert_eq!(edges(&header(1, 4095)), (1, 4096));
        assert_eq!(edges(&header(4095, 2)), (4095, 1));
    }
}
