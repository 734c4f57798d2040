//! Writes, stage by stage: from a user's call to blocks that the map names.
//!
//! `router` picks the stream of a block, and the stream's `stripe` builder gathers blocks. A
//! `segment` writer gives each full stripe its place in the `open` segment, one after the other. A
//! `flight` sends the chunks of a stripe, with the parity that `encode` makes. The flight changes
//! the map when every chunk has been written or has failed, and enough were written; the chunks may
//! still be in the drives' volatile caches then. `life` begins and ends segments. `item` has the
//! types that pass from stage to stage; `stream`, `line` and `open` have what the stages keep.
//!
//! Invariant: a stage calls only the stages after it. A flight reports its end by
//! [`flight::FlightObserver`].

mod encode;
pub(crate) mod flight;
pub(crate) mod item;
mod life;
pub(crate) mod line;
pub(crate) mod open;
mod router;
pub(crate) mod segment;
pub(crate) mod stream;
pub(crate) mod stripe;
mod trim;

use crate::format::block;
use crate::map::Map;
use crate::meta::identity::Identity;
use crate::paging::state::Pinner;
use crate::volume::Volume;
use crate::write::item::{Call, Item, Origin, Use};
use furrow_log::record::crc32c;
use furrow_policy::RaidDefect;
use furrow_rt::{Page, Pages};
use furrow_zone::Result;

impl Volume {
    /// Writes blocks. When the call returns, the blocks survive a crash and the failure of as many
    /// drives as the level tolerates. If the drives have a volatile cache, this holds only after a
    /// flush; with `fua`, the call flushes the drives itself.
    ///
    /// # Errors
    /// `Invalid` past the end of the volume; `NoSpace` if the volume is out of space; `Io` if too
    /// many drives are gone. After an `Io`, no write is acknowledged.
    pub async fn write(&self, block: u64, data: Pages, fua: bool) -> Result<()> {
        self.check_alive()?;
        self.check_range(block, data.len() as u64)?;
        let count = data.len() as u64;
        if count == 0 {
            return if fua { self.flush_drives().await } else { Ok(()) };
        }
        let _under_way = self.begin_write();
        let _held = self.0.ranges.hold(block..block + count).await;
        let (mut at, mut data) = (block, data.into_iter());
        while at < block + count {
            let piece = self.piece(at, block + count - at);
            self.write_piece(at, data.by_ref().take(piece as usize), piece).await?;
            at += piece;
        }
        if fua {
            self.flush_drives().await?;
        }
        Ok(())
    }

    async fn write_piece(
        &self,
        block: u64,
        data: impl Iterator<Item = Page>,
        count: u64,
    ) -> Result<()> {
        let pins = self.pin(Pinner::User, (block, count), true).await?;
        self.check_alive()?;
        let call = Call::pinning(pins);
        let lifetime = self.lifetime(block, count);
        let (mut left, mut stream) = (count as u32, None);
        for (lba, page) in (block..).zip(data) {
            let stream =
                stream.get_or_insert_with(|| self.route_apart(self.purpose(left), lifetime));
            self.put(stream, self.item(block::DATA, lba, page), &call);
            left -= 1;
            if stream.filled().is_multiple_of(stream.writer.chunk) && left > 0 {
                // A chunk is full, so the rest of the request may take another stream.
                let next = self.route_apart(self.purpose(left), lifetime);
                *stream = next;
            }
        }
        self.count(|counters| counters.written += count);
        if !self.has(RaidDefect::EarlyAck) {
            call.wait().await?;
        }
        Ok(())
    }

    fn item(&self, kind: u8, lba: u64, page: Page) -> Item {
        let sequence = self.next_sequence();
        let crc = crc32c(page.bytes());
        let identity = Identity { lba, sequence, crc, kind };
        Item { identity, page, from: None, trimmed: 0 }
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.0.segments.take_sequence()
    }

    /// Writes blocks of the volume's own, such as mapping blocks. Returns the address and the block
    /// number of each.
    pub(crate) async fn write_internal(
        &self,
        blocks: Vec<(u8, u64, Page)>,
    ) -> Result<Vec<(u64, u32)>> {
        let call = Call::new(true);
        let stream = self.route(Use::Internal);
        for (kind, lba, page) in blocks {
            self.put(&stream, self.item(kind, lba, page), &call);
        }
        self.close_stripe(&stream);
        call.wait().await?;
        Ok(call.placed())
    }

    /// Writes blocks at another place, with the same identity. The copy of a block counts only if
    /// the map still names the place from which the block was read.
    pub(crate) async fn move_blocks(&self, blocks: Vec<(Identity, Page, Origin)>) -> Result<()> {
        let leaf =
            |identity: &Identity| (identity.kind == block::DATA).then(|| Map::leaf(identity.lba));
        let mut blocks = blocks;
        blocks.sort_by_key(|(identity, ..)| leaf(identity));
        let mut left = blocks.into_iter().peekable();
        while left.peek().is_some() {
            let (mut calls, stream) = (Vec::new(), self.route(Use::Internal));
            while let Some(next) = left.peek().map(|(identity, ..)| *identity) {
                let call = match leaf(&next) {
                    // Only data blocks need a mapping block in memory: the root names
                    // mapping blocks.
                    None => Call::new(false),
                    Some(_) if calls.is_empty() || !self.is_bounded() => {
                        let range = (next.lba, 1);
                        Call::pinning(self.pin(Pinner::Internal, range, false).await?)
                    }
                    Some(_) => match self.pin_more(next.lba).await? {
                        Some(pins) => Call::pinning(Some(pins)),
                        // No memory for more pins, so the calls under way have to end first.
                        None => break,
                    },
                };
                while let Some((mut identity, page, from)) =
                    left.next_if(|(identity, ..)| leaf(identity) == leaf(&next))
                {
                    if self.has(RaidDefect::FreshSequence) {
                        identity.sequence = self.next_sequence();
                    }
                    self.put(&stream, Item { identity, page, from: Some(from), trimmed: 0 }, &call);
                }
                calls.push(call);
            }
            self.close_stripe(&stream);
            for call in calls {
                call.wait().await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    /// The stages in their order, each with its source text.
    const STAGES: [(&str, &str); 10] = [
        ("router", include_str!("write/router.rs")),
        ("stripe", include_str!("write/stripe.rs")),
        ("stream", include_str!("write/stream.rs")),
        ("segment", include_str!("write/segment.rs")),
        ("line", include_str!("write/line.rs")),
        ("flight", include_str!("write/flight.rs")),
        ("life", include_str!("write/life.rs")),
        ("open", include_str!("write/open.rs")),
        ("encode", include_str!("write/encode.rs")),
        ("item", include_str!("write/item.rs")),
    ];

    /// The names of functions that a source defines outside its tests.
    fn functions(source: &str) -> Vec<&str> {
        let source = source.split("#[cfg(test)]").next().unwrap();
        let after = source.split("fn ").skip(1);
        after.filter_map(|rest| rest.split(['(', '<']).next()).collect()
    }

    /// Names and calls by which a stage refers to a stage before it.
    fn upward(stages: &[(&str, &str)]) -> Vec<String> {
        let mut found = Vec::new();
        for (at, (stage, source)) in stages.iter().enumerate() {
            let source = source.split("#[cfg(test)]").next().unwrap();
            let below: Vec<&str> = stages[at..].iter().flat_map(|(_, s)| functions(s)).collect();
            for (earlier, text) in &stages[..at] {
                if source.contains(&format!("write::{earlier}")) {
                    found.push(format!("{stage} names {earlier}"));
                }
                for name in functions(text).into_iter().filter(|name| !below.contains(name)) {
                    let calls = [format!(".{name}("), format!(" {name}(")];
                    if calls.iter().any(|call| source.contains(call)) {
                        found.push(format!("{stage} calls {name} of {earlier}"));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn stages_call_only_those_after_them() {
        assert_eq!(upward(&STAGES), Vec::<String>::new());
    }

    #[test]
    fn a_call_of_an_earlier_stage_is_noticed() {
        let first = ("first", "pub(crate) fn begin(&self) {}");
        let named = upward(&[first, ("second", "use crate::write::first::A;")]);
        assert_eq!(named, ["second names first"]);
        let called = upward(&[first, ("second", "fn end(&self) { self.begin(); }")]);
        assert_eq!(called, ["second calls begin of first"]);
    }
}
