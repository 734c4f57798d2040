//! Parity of the volume against ISA-L's, in one run: `cargo bench -p furrow-lab --bench parity`.
//!
//! The blocks of 4 KiB stay in the processor's caches, like the blocks of a stripe that was just
//! filled. ISA-L (Debian: libisal-dev) is called through its C interface, and both libraries must
//! compute the same bytes.

#![allow(unsafe_code, reason = "calls a C library")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures real time")]

use furrow_lab::{Contestant, Effort, compare};
use furrow_raid::{Level, Placement, parity};
use furrow_rt::{Page, Rng};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::time::{Duration, Instant};

#[link(name = "isal")]
unsafe extern "C" {
    /// Computes the exclusive or of all vectors except the last into the last; 0 on success.
    fn xor_gen(vectors: c_int, bytes: c_int, array: *mut *mut c_void) -> c_int;
    /// Computes P and Q of all vectors except the last two into those two; 0 on success.
    fn pq_gen(vectors: c_int, bytes: c_int, array: *mut *mut c_void) -> c_int;
}

const BLOCK: usize = 4096;
/// Number of stripes between two looks at the clock.
const BATCH: u32 = 1000;

/// A stripe, and its parity as computed by either library.
struct Case {
    placement: Placement,
    data: Vec<Page>,
    ours: Vec<Page>,
    theirs: Vec<Page>,
}

impl Case {
    fn new(level: Level, drives: u32) -> Case {
        let placement = Placement::new(level, drives).expect("a level that fits");
        let mut rng = Rng::new(9);
        let mut random = || {
            let bytes: Vec<u8> = (0..BLOCK).map(|_| rng.next() as u8).collect();
            Page::from_slice(&bytes)
        };
        let data = (0..placement.k).map(|_| random()).collect();
        let empty = || (0..placement.m).map(|_| Page::zeroed()).collect();
        Case { placement, data, ours: empty(), theirs: empty() }
    }

    fn by_us(&mut self) {
        let data: Vec<&[u8]> = self.data.iter().map(|page| &page.bytes()[..]).collect();
        let mut parity: Vec<&mut [u8]> =
            self.ours.iter_mut().map(|page| &mut page.make_mut()[..]).collect();
        parity::encode(&self.placement, &data, &mut parity);
    }

    fn by_them(&mut self) {
        let data = self.data.iter().map(|page| page.bytes().as_ptr().cast_mut().cast());
        let parity = self.theirs.iter_mut().map(|page| page.make_mut().as_mut_ptr().cast());
        let mut all: Vec<*mut c_void> = data.chain(parity).collect();
        let count = all.len() as c_int;
        // SAFETY: each pointer is to BLOCK bytes, aligned as pages are; the library reads all but
        // the last one or two, and writes those, which nobody else has.
        let status = unsafe {
            match self.placement.m {
                1 => xor_gen(count, BLOCK as c_int, all.as_mut_ptr()),
                _ => pq_gen(count, BLOCK as c_int, all.as_mut_ptr()),
            }
        };
        assert_eq!(status, 0, "ISA-L refused");
    }
}

/// Bytes of data per second.
fn rate(slice: Duration, bytes: usize, mut stripe: impl FnMut()) -> f64 {
    let (start, mut done) = (Instant::now(), 0u64);
    while start.elapsed() < slice {
        (0..BATCH).for_each(|_| stripe());
        done += u64::from(BATCH);
    }
    (done * bytes as u64) as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    println!(
        "{:<24} {:>10} {:>10} {:>10} {:>14}",
        "parity of", "copy", "ISA-L", "furrow", "of ISA-L"
    );
    for (level, drives) in [
        (Level::Raid5, 4),
        (Level::Raid5, 8),
        (Level::Raid5, 32),
        (Level::Raid6, 6),
        (Level::Raid6, 10),
        (Level::Raid6, 32),
    ] {
        let (mut ours, mut theirs) = (Case::new(level, drives), Case::new(level, drives));
        ours.by_us();
        ours.by_them();
        let same = ours.ours.iter().zip(&ours.theirs).all(|(a, b)| a.bytes() == b.bytes());
        assert!(same, "{level:?} on {drives} drives: the two differ");
        let bytes = ours.data.len() * BLOCK;
        let (from, mut to) = (Case::new(level, drives), Page::zeroed());
        let mut contestants = [
            Contestant::new("ISA-L", |slice| Ok(rate(slice, bytes, || theirs.by_them()))),
            Contestant::new("furrow", |slice| Ok(rate(slice, bytes, || ours.by_us()))),
            Contestant::new("copy", |slice| {
                Ok(rate(slice, bytes, || {
                    for page in &from.data {
                        to.make_mut().copy_from_slice(black_box(page.bytes()));
                        black_box(&to);
                    }
                }))
            }),
        ];
        let rows = compare(Effort::default(), &mut contestants).expect("it measures");
        let gigabytes = |row: usize| rows[row].rate / 1e9;
        println!(
            "{:<24} {:>8.1} G {:>8.1} G {:>8.1} G {:>13.2}x",
            format!("{level:?}, {drives} drives"),
            gigabytes(2),
            gigabytes(0),
            gigabytes(1),
            rows[1].ratio.unwrap_or(f64::NAN)
        );
    }
    println!("bytes of data a second; medians of rounds in which each had its turn");
}
