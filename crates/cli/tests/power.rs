//! Power cuts under load, over NBD: acknowledged writes survive; on drives with a volatile cache,
//! flushed writes do.
//!
//! All drives lose power at once, with commands in flight; the daemon is killed; the array is
//! assembled from what the drives kept. A client with many requests in flight remembers the
//! answers.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test of a face")]
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::array::{self, Nbd, Place, block, version};
use crate::place::wait_until;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Number of blocks that are overwritten again and again.
const BLOCKS: u64 = 600;
/// Number of requests in flight.
const DEPTH: usize = 32;

/// The versions of a block that a client knows.
#[derive(Clone, Default)]
struct Known {
    /// The last version that was sent.
    sent: u64,
    /// The last version that was acknowledged.
    acknowledged: u64,
    /// The last version that was acknowledged before an acknowledged flush was sent.
    flushed: u64,
}

enum Sent {
    Write(u64, u64),
    Flush(Vec<u64>),
}

/// Writes from a thread until the array fails; returns the client's knowledge. Counts in `done` the
/// writes that are acknowledged.
fn load(
    mut nbd: Nbd,
    mut known: Vec<Known>,
    seed: u64,
    done: Arc<AtomicU64>,
) -> JoinHandle<Vec<Known>> {
    std::thread::spawn(move || {
        // The load ends with an error when the array fails.
        let _ = write_on(&mut nbd, &mut known, seed, &done);
        known
    })
}

fn write_on(nbd: &mut Nbd, known: &mut [Known], seed: u64, done: &AtomicU64) -> io::Result<()> {
    let mut under_way: BTreeMap<u64, Sent> = BTreeMap::new();
    let (mut state, mut count) = (seed | 1, 0u64);
    loop {
        while under_way.len() < DEPTH {
            count += 1;
            if count.is_multiple_of(200) {
                let so_far = known.iter().map(|known| known.acknowledged).collect();
                under_way.insert(nbd.send_flush()?, Sent::Flush(so_far));
                continue;
            }
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let number = state % BLOCKS;
            let busy = |sent: &Sent| matches!(sent, Sent::Write(other, _) if *other == number);
            if under_way.values().any(busy) {
                continue;
            }
            let next = known[number as usize].sent + 1;
            known[number as usize].sent = next;
            let cookie = nbd.send_write(number * 4096, &block(number, next))?;
            under_way.insert(cookie, Sent::Write(number, next));
        }
        let (error, cookie) = nbd.reply()?;
        let sent = under_way.remove(&cookie).expect("a reply to what was sent");
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error as i32));
        }
        match sent {
            Sent::Write(number, version) => {
                known[number as usize].acknowledged = version;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Sent::Flush(so_far) => {
                for (known, version) in known.iter_mut().zip(so_far) {
                    known.flushed = known.flushed.max(version);
                }
            }
        }
    }
}

/// Checks every block, and expects the versions found from now on.
fn check(place: &Place, known: &mut [Known], cache: bool, round: u64) {
    let mut nbd = place.nbd();
    for (number, known) in (0..).zip(known) {
        let found = version(number, &nbd.read(number * 4096, 4096).unwrap());
        let least = if cache { known.flushed } else { known.acknowledged };
        assert!(
            (least..=known.sent).contains(&found),
            "round {round}: block {number} holds {found}; sent {}, acknowledged {}, flushed {}",
            known.sent,
            known.acknowledged,
            known.flushed
        );
        // The version that was found must stay: a block must not change after it was read.
        *known = Known { sent: known.sent, acknowledged: found, flushed: found };
    }
}

fn cut_again_and_again(level: &str, drives: &[usize], cache: bool, lose: Option<usize>) {
    let switch = if cache { "on" } else { "off" };
    let name = format!("power-{level}-{switch}");
    let place = Place::empty(&name);
    let options = format!("{},volatile-cache={switch}", array::DRIVE);
    for number in drives {
        place.drive(&format!("d{number}.zns"), &options);
    }
    place.create(level, drives);
    let mut known = vec![Known::default(); BLOCKS as usize];
    let mut there = drives.to_vec();
    place.assemble(&there, &[]);
    for round in 0..6 {
        let done = Arc::new(AtomicU64::new(0));
        let writer = load(place.nbd(), known.clone(), round * 7919 + 1, done.clone());
        let reach = |count| wait_until("writes", || done.load(Ordering::Relaxed) >= count);
        reach(BLOCKS / 2 + 200 * round);
        if let Some(lost) = lose.filter(|_| round == 2) {
            place.ok(&["raid", "fail", "a", &lost.to_string()]);
            there.retain(|number| *number != lost);
            reach(BLOCKS / 2 + 200 * round + 100);
        }
        place.ok(&["raid", "fault", "a", "all", "add", "power-cut"]);
        known = writer.join().unwrap();
        let told = known.iter().filter(|known| known.acknowledged > 0).count();
        assert!(told as u64 > BLOCKS / 4, "round {round}: only {told} blocks were written");
        assert_eq!(place.status()["state"], "failed");
        place.kill();
        // Drives are named in a different order each time.
        there.rotate_left(1);
        place.assemble(&there, &[]);
        check(&place, &mut known, cache, round);
    }
    let scrubbed = place.furrow(&["raid", "scrub", "a", "--wait"]);
    let said = String::from_utf8(scrubbed.stdout).unwrap();
    assert!(said.contains("nothing damaged"), "{said}");
    assert_eq!(scrubbed.status.code(), Some(i32::from(lose.is_some())), "{said}");
    let unchecked = lose.map(|lost| format!("member {lost} not checked"));
    assert!(unchecked.is_none_or(|unchecked| said.contains(&unchecked)), "{said}");
    place.ok(&["raid", "stop", "a", "--force"]);
}

#[test]
fn without_a_cache_what_was_acknowledged_survives_power_cuts() {
    cut_again_and_again("5", &[0, 1, 2, 3], false, None);
}

#[test]
fn with_a_cache_what_was_flushed_survives_power_cuts() {
    cut_again_and_again("5", &[0, 1, 2, 3], true, None);
}

#[test]
fn a_degraded_array_survives_power_cuts() {
    cut_again_and_again("6", &[0, 1, 2, 3, 4], false, Some(3));
}
