//! Router: picks the stream for a block, and moves stripes in line between segment writers.

use crate::lifetime::{Lifetime, UnderWay};
use crate::volume::Volume;
use crate::write::item::{Item, Stripe, Use};
use crate::write::line::SegmentWriter;
use crate::write::stream::Stream;
use furrow_policy::Lifetimes as Placed;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;

impl Volume {
    /// Notes a user's write. Returns how long its blocks are likely to stay, if lifetimes are to be
    /// separated now: the volume has cleaned segments, lifetimes differ, and enough writes are
    /// under way to fill the stripes of every stream.
    pub(crate) fn lifetime(&self, block: u64, count: u64) -> Option<Lifetime> {
        let options = &self.0.options;
        match options.variant.lifetimes {
            _ if !options.clean => return None,
            Placed::Mixed => return None,
            Placed::Always => return Some(Lifetime::ALL[(block % 3) as usize]),
            Placed::Apart => {}
        }
        let lifetime = self.0.lifetimes.note(block, count);
        let cleans = self.0.counters.borrow().cleaned > 0;
        (cleans && self.0.lifetimes.differ() && self.is_busy()).then_some(lifetime)
    }

    /// Counts a user's write as under way until the returned value is dropped.
    pub(crate) fn begin_write(&self) -> UnderWay<'_> {
        self.0.lifetimes.begin_write()
    }

    /// Whether users have at least four writes under way for each stream, so that stripes of every
    /// stream fill up soon.
    fn is_busy(&self) -> bool {
        let streams = self.0.streams.len() as u32;
        self.0.lifetimes.under_way() >= 4 * streams
    }

    /// The purpose of the stream for a request with `left` more blocks.
    pub(crate) fn purpose(&self, left: u32) -> Use {
        let config = &self.0.config;
        if config.large > 0 && left >= config.chunk_large { Use::Large } else { Use::Small }
    }

    /// The stream for a purpose (ZapRAID, section 3.4). In order of preference: a stream with a
    /// partly filled stripe; an idle stream; one that uses Zone Write; the one that wrote least.
    pub(crate) fn route(&self, purpose: Use) -> Rc<Stream> {
        self.route_apart(purpose, None)
    }

    /// Like [`Volume::route`]; with `lifetime`, takes a stream for this lifetime, or for the next
    /// longer one, if there is such a stream.
    pub(crate) fn route_apart(&self, purpose: Use, lifetime: Option<Lifetime>) -> Rc<Stream> {
        let spare = lifetime.is_some() && self.may_open_spare();
        let of = |stream: &&Rc<Stream>| stream.purpose() == purpose && (spare || !stream.spare);
        let begun = |stream: &Rc<Stream>| stream.filled() > 0;
        let best = self.0.streams.iter().filter(of).min_by_key(|stream| {
            let writer = &stream.writer;
            let other = lifetime.map_or(0, |lifetime| match stream.lifetime.cmp(&lifetime) {
                Ordering::Equal => 0,
                Ordering::Greater => 1,
                Ordering::Less => 2,
            });
            (other, !begun(stream), !writer.is_idle(), writer.group > 1, stream.written())
        });
        best.expect("invariant: there is a stream for everything").clone()
    }

    /// Whether every drive allows an active zone for the spare stream as well: a drive added later
    /// may allow fewer active zones.
    fn may_open_spare(&self) -> bool {
        let needed = self.0.config.permits() + 1;
        let mut drives = self.0.array.members().iter().filter_map(|member| member.drive());
        drives.all(|drive| drive.budget().total() >= needed)
    }

    /// Gives the `internal` writer the internal stripes that are in line at a writer of
    /// users' data.
    pub(crate) fn take_back(&self, from: &SegmentWriter, internal: &Rc<SegmentWriter>) {
        let (back, stay): (VecDeque<Stripe>, VecDeque<Stripe>) =
            from.take_line().into_iter().partition(Stripe::is_internal);
        self.rewrite_for(internal, back);
        stay.into_iter().for_each(|stripe| from.line_up(stripe));
        self.dispatch_ready(internal);
    }

    /// Moves the stripes in line at one writer to another.
    pub(crate) fn hand_over(&self, from: &SegmentWriter, to: &Rc<SegmentWriter>) {
        // The line is taken first, because `to` may be `from`: the writer that takes the stripes
        // over may have lost its segment in the meantime.
        self.rewrite_for(to, from.take_line());
        self.dispatch_ready(to);
    }

    /// Puts stripes in line at a writer, cut to the size of the writer's own stripes.
    fn rewrite_for(&self, to: &SegmentWriter, stripes: VecDeque<Stripe>) {
        let size = (to.chunk * self.0.shape.placement.k) as usize;
        for Stripe { items, calls, came } in stripes {
            let (count, mut items) = (items.len(), items.into_iter());
            for call in &calls {
                call.joins(count.div_ceil(size) as u32 - 1);
            }
            while items.len() > 0 {
                let items: Vec<Item> = items.by_ref().take(size).collect();
                let came = came * items.len() as u128 / count as u128;
                to.line_up(Stripe { items, calls: calls.clone(), came });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::block;
    use crate::meta::identity::Identity;
    use crate::write::item::Call;
    use crate::{Config, Level, Options, create};
    use furrow_emu::{Emulator, Medium, Options as DriveOptions};
    use furrow_log::record::crc32c;
    use furrow_rt::{Config as RtConfig, Page, Rt};
    use furrow_zone::{Geometry, ZonedDevice};

    /// To make space, stripes in line at writers without a segment are handed over. The writer that
    /// takes them may lose its own segment meanwhile, and then hands them over to itself.
    /// (Simulation, seed 3029.)
    #[test]
    fn a_stream_may_be_handed_its_own_line() {
        let rt = Rt::new(RtConfig::simulated(1));
        let geometry = Geometry { oob_bytes: 64, ..Geometry::unlimited(32, 256, 256) };
        let drives = (0..3).map(|_| {
            let medium = Medium::memory(&geometry);
            let drive = Emulator::new(&rt, geometry.clone(), medium, DriveOptions::simulated());
            Rc::new(drive.unwrap()) as Rc<dyn ZonedDevice>
        });
        let (drives, engine) = (drives.collect(), rt.clone());
        let config = Config::new(Level::Raid5, &geometry);
        rt.block_on(async move {
            let volume =
                create(&engine, drives, &config, &Options::default(), false).await.unwrap();
            let (stream, call) = (volume.route(Use::Small), Call::new(false));
            volume.0.segments.quiesce();
            for lba in 0..6 {
                let page = Page::from_slice(&[lba as u8 + 1; 9]);
                let (crc, sequence) = (crc32c(page.bytes()), volume.next_sequence());
                let identity = Identity { lba, sequence, crc, kind: block::DATA };
                volume.put(&stream, Item { identity, page, from: None, trimmed: 0 }, &call);
            }
            let lined = stream.writer.line();
            assert!(lined > 1);
            volume.hand_over(&stream.writer, &stream.writer);
            assert_eq!(stream.writer.line(), lined);
            volume.0.segments.resume(&volume.0.broken);
            assert!(volume.0.broken.first().is_none());
            volume.dispatch_ready(&stream.writer);
            volume.close_stripe(&stream);
            call.wait().await.unwrap();
            let read = volume.read(0, 6).await.unwrap();
            assert!(read.iter().map(|page| page[8]).eq(1..=6));
            volume.stop().await.unwrap();
        });
        rt.clear();
    }

    /// For each lifetime: the lifetime of the stream that takes its blocks, and whether that stream
    /// is spare. The drives have `zones` zones, of which `active` may be active.
    fn streams(zones: u32, active: u32, large: u32) -> Vec<(Lifetime, bool)> {
        let rt = Rt::new(RtConfig::simulated(1));
        let geometry = Geometry {
            oob_bytes: 64,
            max_open: Some(active),
            max_active: Some(active),
            ..Geometry::unlimited(zones, 256, 256)
        };
        let drives = (0..3).map(|_| {
            let medium = Medium::memory(&geometry);
            let drive = Emulator::new(&rt, geometry.clone(), medium, DriveOptions::simulated());
            Rc::new(drive.unwrap()) as Rc<dyn ZonedDevice>
        });
        let (drives, engine) = (drives.collect(), rt.clone());
        let config = Config { large, ..Config::new(Level::Raid5, &geometry) };
        let found = rt.block_on(async move {
            let volume =
                create(&engine, drives, &config, &Options::default(), false).await.unwrap();
            let purpose = volume.purpose(64);
            let route = |lifetime| volume.route_apart(purpose, lifetime);
            for lifetime in [None, Some(Lifetime::Short), Some(Lifetime::Long)] {
                assert!(lifetime.is_some() || !route(lifetime).spare);
            }
            let all = [Lifetime::Short, Lifetime::Middle, Lifetime::Long];
            let of = |lifetime| route(Some(lifetime));
            all.map(|lifetime| (of(lifetime).lifetime, of(lifetime).spare)).to_vec()
        });
        rt.clear();
        found
    }

    /// Each lifetime has a stream of its own while there are enough streams, if the drives allow
    /// one active zone more than the array needs.
    #[test]
    fn each_lifetime_has_a_stream_if_the_drives_allow_it() {
        use Lifetime::{Long, Middle, Short};
        let apart = [(Short, false), (Middle, false), (Long, false)];
        assert_eq!(streams(48, 14, 3), apart);
        assert_eq!(streams(48, 14, 2), [apart[0], apart[1], (Long, true)]);
        assert_eq!(streams(48, 14, 1), [apart[0], (Long, true), (Long, true)]);
        // Too few active zones in one case, too few slots in the next.
        assert_eq!(streams(48, 6, 2), [apart[0], (Long, false), (Long, false)]);
        assert_eq!(streams(14, 14, 1), [apart[0]; 3]);
    }
}
