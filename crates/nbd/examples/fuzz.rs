//! Sends random and damaged byte streams to a server, forever if no time limit is given: `cargo run
//! --release -p furrow-nbd --example fuzz -- [--seconds N] [--from SEED] [--corpus]`.
//!
//! The last seed printed is the one that fails; `--from SEED --seconds 0` runs it alone. `--corpus`
//! rewrites the streams in `tests/corpus`.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a program")]

#[path = "../tests/common/bytes.rs"]
mod bytes;
#[path = "../tests/common/certificates.rs"]
mod certificates;
#[path = "../tests/common/fuzzer.rs"]
mod fuzzer;

use furrow_rt::Rng;
use fuzzer::{Sums, Target};
use std::time::{Duration, Instant};

/// Number of cases after which the fuzzer reports and starts a new server.
const ROUND: u64 = 20_000;

fn main() {
    let (mut seconds, mut seed) = (60, 1 << 32);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|n| n.parse().ok()).expect("a number");
        match argument.as_str() {
            "--seconds" => seconds = number(),
            "--from" => seed = number(),
            "--corpus" => return write_corpus(),
            other => panic!("unknown: {other}; --seconds N, --from SEED or --corpus"),
        }
    }
    let corpus: Vec<Vec<u8>> = fuzzer::corpus().into_iter().map(|(_, stream)| stream).collect();
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds));
    let mut sums = Sums::default();
    loop {
        let target = Target::new(seed);
        for _ in 0..ROUND {
            // If the case panics, this value prints the seed.
            let named = Named(seed);
            fuzzer::run(&target, seed, &corpus, &mut sums);
            std::mem::forget(named);
            seed += 1;
            if start.elapsed() >= limit {
                println!("{} s, next seed {seed}: {sums:?}", start.elapsed().as_secs());
                return;
            }
        }
        target.finish();
        println!("{} s, next seed {seed}: {sums:?}", start.elapsed().as_secs());
    }
}

/// Prints its seed when a case panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        eprintln!("failed: seed {}; again: --from {} --seconds 0", self.0, self.0);
    }
}

/// Writes streams with wide coverage to the corpus: one session per seed, as today's code makes it.
fn write_corpus() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    for seed in 0..24 {
        let mut stream = fuzzer::session(&mut Rng::new(seed));
        stream.truncate(6000);
        std::fs::write(folder.join(format!("session-{seed:02}")), stream).expect("it is written");
    }
}
