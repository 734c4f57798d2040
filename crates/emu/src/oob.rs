//! The out-of-band bytes that a discarding medium keeps.
//!
//! The bytes are stored block after block in chunks of 64 blocks. A chunk is allocated when its
//! first block is written, and shared with snapshots until the next write. One allocation serves 64
//! blocks, so that allocations do not limit the drive's speed.
//!
//! The store knows no write pointer: a read of blocks that were not written gives zeros, or older
//! bytes.

use crate::transfer::Span;
use std::sync::Arc;

/// Number of blocks per chunk.
const CHUNK: usize = 64;

type Chunk = Arc<[u8]>;

/// The out-of-band bytes of a drive. Cloning is a snapshot.
#[derive(Clone, Debug)]
pub struct OobStore {
    /// The chunks of each zone, up to the last block ever written.
    zones: Vec<Vec<Chunk>>,
    /// Number of out-of-band bytes per block.
    bytes: usize,
}

impl OobStore {
    /// An empty store for a drive with `zones` zones and `bytes` out-of-band bytes per block.
    pub(crate) fn new(zones: u32, bytes: usize) -> OobStore {
        OobStore { zones: vec![Vec::new(); zones as usize], bytes }
    }

    /// Stores the out-of-band bytes of the blocks of `span`. An empty `oob` stands for zeros.
    pub(crate) fn write(&mut self, span: Span, oob: &[u8]) {
        let (bytes, zone) = (self.bytes, &mut self.zones[span.zone.0 as usize]);
        let (mut at, end) = (span.offset as usize, (span.offset + span.blocks) as usize);
        let mut oob = oob;
        while at < end {
            let (number, within) = (at / CHUNK, at % CHUNK);
            let here = (CHUNK - within).min(end - at) * bytes;
            if oob.is_empty() && zone.len() <= number {
                return;
            }
            while zone.len() <= number {
                zone.push(vec![0; CHUNK * bytes].into());
            }
            let chunk = &mut zone[number];
            if Arc::get_mut(chunk).is_none() {
                *chunk = Arc::from(&chunk[..]);
            }
            if let Some(chunk) = Arc::get_mut(chunk) {
                let given;
                (given, oob) = oob.split_at(here.min(oob.len()));
                let into = &mut chunk[within * bytes..][..here];
                into[..given.len()].copy_from_slice(given);
                into[given.len()..].fill(0);
            }
            at += here / bytes;
        }
    }

    /// Drops the chunks that contain only blocks at `offset` or later.
    pub(crate) fn truncate(&mut self, zone: usize, offset: usize) {
        self.zones[zone].truncate(offset.div_ceil(CHUNK));
    }

    /// Fills `oob` with the bytes of the blocks of `span`, from block `into` on.
    pub(crate) fn read(&self, span: Span, into: usize, oob: &mut [u8]) {
        let (bytes, zone) = (self.bytes, &self.zones[span.zone.0 as usize]);
        let wanted = oob.chunks_exact_mut(bytes).skip(into).take(span.blocks as usize);
        for (at, oob) in (span.offset as usize..).zip(wanted) {
            match zone.get(at / CHUNK) {
                Some(chunk) => oob.copy_from_slice(&chunk[at % CHUNK * bytes..][..bytes]),
                None => oob.fill(0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_zone::ZoneId;

    #[test]
    fn what_was_written_is_read_and_a_snapshot_stays_as_it_was() {
        let mut store = OobStore::new(2, 3);
        let span = |offset, blocks| Span { zone: ZoneId(1), offset, blocks };
        let bytes: Vec<u8> = (0..210).map(|i| i as u8 + 1).collect();
        store.write(span(60, 70), &bytes);
        let read = |store: &OobStore, from, blocks| {
            let mut oob = vec![9; 6 + 3 * blocks as usize];
            store.read(span(from, blocks), 2, &mut oob);
            assert_eq!(oob[..6], [9; 6]);
            oob.split_off(6)
        };
        assert_eq!(read(&store, 60, 70), bytes);
        assert_eq!(read(&store, 58, 3), [0, 0, 0, 0, 0, 0, 1, 2, 3]);
        let before = store.clone();
        store.write(span(60, 2), &[]);
        store.write(span(62, 1), &[7, 8, 9]);
        assert_eq!(read(&store, 60, 4), [0, 0, 0, 0, 0, 0, 7, 8, 9, 10, 11, 12]);
        assert_eq!(read(&before, 60, 70), bytes);
        assert_eq!(read(&store, 400, 1), [0, 0, 0]);
        store.truncate(1, 0);
        assert_eq!(read(&store, 60, 2), [0; 6]);
        assert_eq!(read(&before, 60, 70), bytes);
    }
}
