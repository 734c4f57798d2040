//! Parity of a stripe: of its blocks, and of the coded part of their metadata.

use crate::format::CODED;
use crate::meta::identity::Identity;
use crate::volume::Volume;
use crate::write::item::Stripe;
use furrow_array::level::Level;
use furrow_array::parity::{encode, sum_of_crcs};
use furrow_log::record::crc32c;
use furrow_rt::Page;
use smallvec::SmallVec;

/// A parity block, its coded metadata, and its CRC32C.
pub(crate) struct Parity {
    pub(crate) page: Page,
    pub(crate) code: [u8; CODED],
    pub(crate) crc: u32,
}

/// The buffers that parity is computed into.
type Outputs<'a> = SmallVec<[&'a mut [u8]; 2]>;

impl Volume {
    /// The identity of a block of padding, which is all zeros.
    pub(crate) fn empty(&self) -> Identity {
        Identity { crc: self.0.zero_crc, ..Identity::default() }
    }

    /// The parity blocks of a stripe, ordered by chunk.
    pub(crate) fn parity_of(&self, chunk: usize, stripe: &Stripe) -> SmallVec<[Parity; 2]> {
        let placement = &self.0.shape.placement;
        let (k, m) = (placement.k as usize, placement.m as usize);
        let zero = (self.empty(), &self.0.zero);
        let mut parity = SmallVec::new();
        for row in 0..chunk {
            let item = |c: usize| stripe.items.get(c * chunk + row);
            let data = (0..k).map(|c| item(c).map_or(zero, |item| (item.identity, &item.page)));
            for (at, block) in self.parity_of_row(m, data).into_iter().enumerate() {
                // The parity is computed row by row, but the result is ordered by chunk.
                parity.insert(at * (row + 1) + row, block);
            }
        }
        parity
    }

    /// The parity blocks of a row of data blocks, with the parity of the blocks' coded metadata.
    fn parity_of_row<'a>(
        &self,
        count: usize,
        data: impl Iterator<Item = (Identity, &'a Page)> + Clone,
    ) -> SmallVec<[Parity; 2]> {
        let placement = &self.0.shape.placement;
        if placement.level == Level::Raid01 {
            let mirror = |(identity, page): (Identity, &Page)| Parity {
                page: page.clone(),
                code: identity.bytes(),
                crc: identity.crc,
            };
            return data.map(mirror).collect();
        }
        let empty = || Parity { page: self.0.pages.take_dirty(), code: [0; CODED], crc: 0 };
        let mut parity: SmallVec<[Parity; 2]> = (0..count).map(|_| empty()).collect();
        let blocks: SmallVec<[&[u8]; 8]> = data.clone().map(|(_, page)| &page[..]).collect();
        let codes = data.clone().map(|(identity, _)| identity.bytes());
        if let [p] = &mut parity[..] {
            encode(placement, &blocks, &mut [&mut p.page.make_mut()[..]]);
            for code in codes {
                p.code.iter_mut().zip(code).for_each(|(byte, code)| *byte ^= code);
            }
        } else {
            let codes: SmallVec<[[u8; CODED]; 8]> = codes.collect();
            let codes: SmallVec<[&[u8]; 8]> = codes.iter().map(|code| &code[..]).collect();
            let (mut pages, mut beside): (Outputs<'_>, Outputs<'_>) = parity
                .iter_mut()
                .map(|parity| (&mut parity.page.make_mut()[..], &mut parity.code[..]))
                .unzip();
            encode(placement, &blocks, &mut pages);
            encode(placement, &codes, &mut beside);
        }
        for (at, parity) in parity.iter_mut().enumerate() {
            // The CRC of P is computed from the CRCs of the data blocks, so a wrong CRC among these
            // is noticed, too.
            parity.crc = match at {
                0 => sum_of_crcs(data.clone().map(|(identity, _)| identity.crc), self.0.zero_crc),
                _ => crc32c(parity.page.bytes()),
            };
        }
        parity
    }
}
