//! The volume's payload of a state record: its sizes, its segments, and the map's root.

use crate::checkpoint::state::Image;
use crate::format::{MAPPED, NONE, SegmentEntry, VolumeBody};
use crate::meta::place::MetaPlace;
use crate::shape::{Config, KEPT, Shape, held};
use furrow_array::examine::Told;
use furrow_array::record::Record;
use furrow_array::service::Identity;
use furrow_zone::{Error, ErrorKind, Result};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The payload of a state record that was read.
pub(crate) struct Payload {
    body: VolumeBody,
    /// The segments and the map's root.
    pub(crate) image: Image,
}

/// Reads what the payload of a state record says, for reports about a drive.
///
/// # Errors
/// A description of what is wrong with the payload.
pub(crate) fn told(record: &Record) -> std::result::Result<Told, &'static str> {
    let Payload { body, image } = Payload::read(record)?;
    Ok(Told {
        blocks: body.blocks.get(),
        written_blocks: image.sequence.saturating_sub(1),
        segments: image.next_segment.saturating_sub(1),
    })
}

impl Payload {
    /// Reads the payload of a state record.
    ///
    /// # Errors
    /// A description of what is wrong with the payload.
    pub(crate) fn read(record: &Record) -> std::result::Result<Payload, &'static str> {
        let (body, rest) =
            VolumeBody::read_from_prefix(&record.payload).map_err(|_| "too short")?;
        let (entries, mappings) = (body.entries.get() as usize, body.mappings.get() as usize);
        let length = entries * SegmentEntry::SIZE;
        let fits = entries <= body.segments.get() as usize && length + mappings * 4 == rest.len();
        if !fits {
            return Err("its parts do not fit its length");
        }
        let (entries, root) = rest.split_at(length);
        let image = Image {
            entries: all(entries),
            root: all::<U32>(root).iter().map(|number| number.get()).collect(),
            sequence: body.next_sequence.get(),
            next_segment: body.next_segment.get(),
        };
        let mut known = image.entries.iter();
        match known.all(|e| e.slot.get() < body.segments.get() && e.chunk.get() != 0) {
            true => Ok(Payload { body, image }),
            false => Err("unknown values"),
        }
    }

    /// The payload of the state records that a volume writes.
    pub(crate) fn bytes(shape: &Shape, config: &Config, image: &Image) -> Vec<u8> {
        let mut body = VolumeBody::new_zeroed();
        body.blocks = shape.blocks.into();
        body.next_sequence = image.sequence.into();
        body.next_segment = image.next_segment.into();
        body.zones = shape.zones.into();
        body.zone_capacity = shape.capacity.into();
        body.rows = shape.rows.into();
        body.segments = shape.slots.into();
        body.mappings = shape.mappings.into();
        body.small = config.small.into();
        body.large = config.large.into();
        body.chunk_small = config.chunk_small.into();
        body.chunk_large = config.chunk_large.into();
        body.group = config.group.into();
        body.reserve = config.reserve.into();
        body.entries = (image.entries.len() as u32).into();
        let mut bytes = body.as_bytes().to_vec();
        image.entries.iter().for_each(|entry| bytes.extend(entry.as_bytes()));
        image.root.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes
    }

    /// The configuration that the volume was made with.
    pub(crate) fn config(&self, identity: &Identity) -> Config {
        let body = &self.body;
        Config {
            level: identity.level,
            label: identity.label.clone(),
            small: body.small.get(),
            large: body.large.get(),
            chunk_small: body.chunk_small.get(),
            chunk_large: body.chunk_large.get(),
            group: body.group.get(),
            reserve: body.reserve.get(),
        }
    }

    /// The shape of the volume; its segments' zones begin with `first_zone`.
    ///
    /// # Errors
    /// `Corrupt` if its sizes contradict each other, `Invalid` if an array cannot have this number
    /// of drives.
    pub(crate) fn shape(&self, record: &Record, first_zone: u32) -> Result<Shape> {
        let (body, config) = (&self.body, self.config(&record.identity));
        let placement = record.identity.placement()?;
        let (rows, meta) = (body.rows.get(), MetaPlace::from_incompat(record.incompat));
        if config.chunk_small == 0 || config.chunk_large == 0 {
            return Err(Error::new(ErrorKind::Corrupt, "state record: chunks of no blocks"));
        }
        let shape = Shape {
            placement,
            first_zone,
            zones: body.zones.get(),
            capacity: body.zone_capacity.get(),
            rows,
            slots: body.segments.get(),
            blocks: body.blocks.get(),
            mappings: body.mappings.get(),
            kept: KEPT,
            held: held(&config, &placement, rows, meta),
            meta,
        };
        let numbers = u64::from(shape.slots) * u64::from(shape.rows) * u64::from(placement.k);
        let whole = shape.rows > 0
            && shape.blocks > 0
            && shape.blocks.div_ceil(u64::from(MAPPED)) == u64::from(shape.mappings)
            && shape.blocks <= numbers
            && numbers < u64::from(NONE)
            && config.small > 0
            && shape.rows.is_multiple_of(config.chunk_small)
            && shape.rows.is_multiple_of(config.chunk_large)
            && (config.group <= 1 || shape.meta.takes_groups())
            && u64::from(shape.rows) + 1 + u64::from(shape.footer_blocks())
                <= u64::from(shape.capacity);
        if whole {
            return Ok(shape);
        }
        Err(Error::new(ErrorKind::Corrupt, "state record: sizes that do not fit each other"))
    }
}

/// The structures in `bytes`, which follow each other without gaps.
fn all<T: FromBytes>(bytes: &[u8]) -> Vec<T> {
    let size = std::mem::size_of::<T>();
    bytes.chunks_exact(size).filter_map(|bytes| T::read_from_bytes(bytes).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_array::level::Level;
    use furrow_log::Uuid;

    /// A state record of a volume with `blocks` blocks, of an array with 64 segments of 8 rows.
    fn record(blocks: u64) -> Record {
        let mut body = VolumeBody::new_zeroed();
        body.blocks = blocks.into();
        body.mappings = (blocks.div_ceil(u64::from(MAPPED)) as u32).into();
        (body.zones, body.segments) = (66.into(), 64.into());
        (body.zone_capacity, body.rows) = (16.into(), 8.into());
        (body.small, body.chunk_small, body.chunk_large, body.group) =
            (1.into(), 1.into(), 1.into(), 1.into());
        let (uuid, label) = (Uuid([7; 16]), "a".to_owned());
        let identity = Identity { uuid, label, created: 0, level: Level::Raid5, drives: 3 };
        Record {
            identity,
            incompat: MetaPlace::OutOfBand.incompat(),
            member: 0,
            events: 1,
            clean: true,
            recorded: 0,
            members: Vec::new(),
            payload: body.as_bytes().into(),
        }
    }

    #[test]
    fn a_volume_larger_than_its_segments_is_refused_whatever_its_low_32_bits_say() {
        let shape = |blocks| {
            let record = record(blocks);
            let body = VolumeBody::read_from_bytes(&record.payload).unwrap();
            let image =
                Image { entries: Vec::new(), root: Vec::new(), sequence: 1, next_segment: 1 };
            Payload { body, image }.shape(&record, 2)
        };
        // Two of three drives have data.
        let most = 64 * 8 * 2;
        assert_eq!(shape(most).unwrap().blocks, most);
        for blocks in [0, most + 1, 1 << 32, (1 << 32) + 1] {
            assert_eq!(shape(blocks).unwrap_err().kind(), ErrorKind::Corrupt, "{blocks}");
        }
    }
}
