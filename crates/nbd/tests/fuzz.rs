//! Random and damaged byte streams at a connection: see `common/fuzzer.rs`. The long form is
//! `cargo run --release -p furrow-nbd --example fuzz -- --seconds 3600`.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::fuzzer::{self, Sums, Target};
use furrow_rt::Rng;

const CASES: u64 = 3000;

#[test]
fn no_bytes_crash_it_stall_it_or_keep_its_memory() {
    let corpus = fuzzer::corpus();
    assert!(corpus.len() >= 10, "{} streams in the corpus", corpus.len());
    let (target, mut sums) = (Target::new(1), Sums::default());
    for (name, stream) in &corpus {
        println!("corpus: {name}");
        target.case(stream, &mut Rng::new(1), &mut sums);
    }
    let streams: Vec<Vec<u8>> = corpus.into_iter().map(|(_, stream)| stream).collect();
    for seed in 0..CASES {
        println!("seed {seed}");
        fuzzer::run(&target, seed, &streams, &mut sums);
    }
    target.finish();
    assert!(sums.transmitting > CASES / 10, "{sums:?}");
    assert!(sums.replies > CASES, "{sums:?}");
}
