//! Hostile clients: other clients are still served, and memory stays bounded.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::common::bytes::{self, request};
use crate::common::{Answer, Client, Fixture, SIZE};
use furrow_nbd::Limits;
use furrow_rt::Nanos;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Limits that are so small that a test reaches them.
fn small() -> Limits {
    Limits {
        connections: 16,
        stall: 500 * Nanos::MILLI,
        reserve: 1 << 20,
        connection: 32 << 20,
        shared: 33 << 20,
        ..Limits::default()
    }
}

/// Checks that a well-behaved client gets a MiB read and written promptly.
fn serves_others(client: &mut Client) {
    let start = Instant::now();
    assert_eq!(client.write(SIZE - (1 << 20), &[3; 1 << 20]), 0);
    assert!(client.read(SIZE - (1 << 20), 1 << 20) == [3; 1 << 20]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Sends as many of `bytes` as the server takes within `time`.
fn push(client: &mut Client, bytes: &[u8], time: Duration) -> usize {
    client.stream.set_nonblocking(true).unwrap();
    let (start, mut sent) = (Instant::now(), 0);
    while sent < bytes.len() && start.elapsed() < time {
        match client.stream.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    client.stream.set_nonblocking(false).unwrap();
    sent
}

#[test]
fn who_takes_no_replies_is_not_read_from_then_cut() {
    let mut fixture = Fixture::limited(small());
    let mut good = fixture.disk(true);
    let reads: Vec<u8> = (0..20_000).flat_map(|i| request(bytes::READ, 0, i, 0, 1 << 20)).collect();
    let mut bad: Vec<Client> = (0..4).map(|_| fixture.disk(true)).collect();
    for client in &mut bad {
        let sent = push(client, &reads, Duration::from_millis(100));
        assert!(sent < reads.len(), "it takes 20 GB of requests without a pause");
    }
    for _ in 0..5 {
        let status = fixture.status();
        let used: Vec<u64> = status.connections.iter().map(|c| c.in_flight_bytes).collect();
        assert!(used.iter().sum::<u64>() <= (5 + 33) << 20, "{used:?}");
        assert!(used.iter().all(|used| *used <= 32 << 20), "{used:?}");
        serves_others(&mut good);
    }
    let status = fixture.until("cut", |status| status.connections.len() == 1);
    assert_eq!(status.connections[0].in_flight_bytes, 0);
    serves_others(&mut good);
    let large = good.read(0, 32 << 20);
    assert_eq!(large.len(), 32 << 20, "what they held is free again");
}

#[test]
fn refusals_that_nobody_reads_are_bounded_too() {
    let mut fixture = Fixture::limited(small());
    let mut bad = fixture.disk(true);
    let nonsense = request(99, 0, 1, 0, 0).repeat(200_000);
    let sent = push(&mut bad, &nonsense, Duration::from_millis(300));
    assert!(sent < nonsense.len());
    let status = fixture.status();
    assert!(status.connections[0].in_flight_bytes <= 32 << 20);
    serves_others(&mut fixture.disk(false));
    fixture.until("cut", |status| status.connections.is_empty());
}

#[test]
fn who_stands_still_in_the_middle_is_cut_and_who_is_silent_between_is_not() {
    let mut fixture = Fixture::limited(small());
    let mut quiet = fixture.disk(true);
    let mut middles: Vec<Client> = (0..3).map(|_| fixture.disk(true)).collect();
    middles[0].send(&request(bytes::WRITE, 0, 1, 0, 32 << 20));
    middles[1].send(&request(bytes::READ, 0, 1, 0, 4096)[..20]);
    middles[2].send(&request(bytes::WRITE, 0, 1, SIZE, u32::MAX));
    middles[2].send(&[0; 100_000]);
    serves_others(&mut fixture.disk(true));
    for client in &mut middles {
        assert!(client.at_end());
    }
    std::thread::sleep(Duration::from_millis(700));
    let status = fixture.until("cut", |status| status.connections.len() == 1);
    assert_eq!(status.dropped, 3);
    assert_eq!(quiet.read(0, 512), [0; 512]);
}

#[test]
fn a_dribble_of_payload_is_not_enough() {
    let mut fixture = Fixture::limited(small());
    let mut client = fixture.disk(true);
    client.send(&request(bytes::WRITE, 0, 1, 0, 32 << 20));
    let start = Instant::now();
    while client.stream.write_all(&[0]).is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        assert!(start.elapsed() < Duration::from_secs(10), "a byte now and then keeps 32 MiB");
    }
    fixture.until("cut", |status| status.dropped == 1 && status.connections.is_empty());
}

#[test]
fn who_never_stops_does_not_keep_others_waiting() {
    let fixture = Fixture::start();
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let (mut client, stop) = (fixture.disk(false), stop.clone());
            std::thread::spawn(move || {
                let batch = request(bytes::READ, 0, 5, 0, 4096).repeat(256);
                while !stop.load(Ordering::Relaxed) {
                    client.send(&batch);
                    (0..256).for_each(|_| assert_eq!(client.data(5, 0, 4096).len(), 4096));
                }
            })
        })
        .collect();
    let mut client = fixture.disk(true);
    let mut worst = Duration::ZERO;
    for i in 0..50 {
        let start = Instant::now();
        assert_eq!(client.write(i * 4096, &[1; 4096]), 0);
        worst = worst.max(start.elapsed());
        fixture.disk(true);
    }
    stop.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(worst < Duration::from_secs(2), "{worst:?} for one write");
}

#[test]
fn connections_beyond_the_limit_are_closed_and_the_rest_go_on() {
    let mut fixture = Fixture::limited(Limits { connections: 3, ..small() });
    let mut clients: Vec<Client> = (0..3).map(|_| fixture.disk(true)).collect();
    for _ in 0..5 {
        assert!(fixture.connect().at_end());
    }
    clients.iter_mut().for_each(serves_others);
    clients.pop();
    fixture.until("gone", |status| status.connections.len() == 2);
    serves_others(&mut fixture.disk(true));
    assert_eq!(fixture.status().refused, 5);
}

#[test]
fn who_vanishes_leaves_nothing_behind() {
    let mut fixture = Fixture::limited(small());
    fixture.mood.slow.store(20, Ordering::Relaxed);
    for i in 0..40 {
        let mut client = fixture.disk(i % 2 == 0);
        let mut all = Vec::new();
        for cookie in 0..20 {
            all.extend(bytes::write(0, cookie, cookie * 4096, &[i as u8; 4096]));
            all.extend(request(bytes::READ, 0, cookie, 0, 300_000));
        }
        all.truncate(all.len() - i * 100);
        push(&mut client, &all, Duration::from_millis(50));
        fixture.until("room", |status| status.connections.len() < 8);
    }
    fixture.mood.slow.store(0, Ordering::Relaxed);
    fixture.until("all gone", |status| status.connections.is_empty());
    serves_others(&mut fixture.disk(true));
}

#[test]
fn a_wrong_magic_ends_it_after_what_was_right() {
    let mut fixture = Fixture::start();
    let mut client = fixture.disk(true);
    fixture.mood.slow.store(20, Ordering::Relaxed);
    let mut all = bytes::write(0, 1, 0, &[1; 4096]);
    all.extend([0xff; 28]);
    all.extend(request(bytes::READ, 0, 2, 0, 512));
    client.send(&all);
    assert_eq!(client.answer(), Answer::Simple(1, 0));
    assert!(client.at_end());
    fixture.until("cut", |status| status.dropped == 1);
}

/// Sends `count` requests, which `one` makes from their numbers, and waits until all have arrived;
/// none is done by then. From then on each request takes 3 ms.
fn pile(fixture: &mut Fixture, hog: &mut Client, count: u64, one: impl Fn(u64) -> Vec<u8>) {
    fixture.mood.slow.store(3000, Ordering::Relaxed);
    let all: Vec<u8> = (0..count).flat_map(one).collect();
    hog.send(&all);
    fixture.until("all have come", |status| status.connections[0].in_flight == count);
    fixture.mood.slow.store(3, Ordering::Relaxed);
}

/// The number of requests in flight on the oldest connection.
fn waiting(fixture: &mut Fixture) -> u64 {
    fixture.status().connections[0].in_flight
}

#[test]
fn many_writes_of_a_byte_do_not_hold_others_off_their_block() {
    let mut fixture = Fixture::limited(small());
    let mut hog = fixture.disk(false);
    let mut other = fixture.disk(true);
    pile(&mut fixture, &mut hog, 2000, |n| bytes::write(0, n, n, &[n as u8]));
    assert_eq!(other.write(0, &[9; 4096]), 0);
    let left = waiting(&mut fixture);
    assert!(left > 1500, "a write waited for all but {left} that had come before");
    fixture.mood.slow.store(0, Ordering::Relaxed);
    (0..2000).for_each(|_| assert!(matches!(hog.answer(), Answer::Simple(_, 0))));
    let bytes = other.read(0, 4096);
    assert!(bytes[1000..2000].iter().zip(1000u64..).all(|(byte, n)| *byte == n as u8));
}

#[test]
fn long_trims_and_zeroes_let_writes_pass() {
    let mut fixture = Fixture::limited(small());
    for kind in [bytes::TRIM, bytes::ZEROES] {
        let mut hog = fixture.disk(false);
        let mut other = fixture.disk(true);
        pile(&mut fixture, &mut hog, 1000, |n| request(kind, 0, n, 0, SIZE as u32));
        assert_eq!(other.write(4096, &[9; 4096]), 0);
        let left = waiting(&mut fixture);
        assert!(left > 900, "a write waited for all but {left} that had come before");
        drop(hog);
        fixture.mood.slow.store(0, Ordering::Relaxed);
        drop(other);
        fixture.until("all gone", |status| status.connections.is_empty());
    }
}

#[test]
fn one_client_does_not_take_all_connections() {
    let limits = Limits { connections: 8, per_client: 4, ..small() };
    let mut fixture = Fixture::limited(limits);
    // All of these connections come from one process.
    let mut idle: Vec<Client> = (0..4).map(|_| fixture.disk(true)).collect();
    for _ in 0..6 {
        assert!(fixture.connect().at_end());
    }
    let mut stranger = over_tcp(&fixture);
    stranger.greet(bytes::FIXED | bytes::NO_ZEROES);
    stranger.go("disk", false);
    assert_eq!(stranger.write(0, &[1; 512]), 0);
    assert_eq!(fixture.status().refused, 6);
    serves_others(&mut idle[3]);
    idle.truncate(3);
    fixture.until("room", |status| status.connections.len() == 4);
    serves_others(&mut fixture.disk(true));
}

fn over_tcp(fixture: &Fixture) -> Client<TcpStream> {
    let stream = TcpStream::connect(&fixture.tcp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    Client { stream, structured: false }
}

#[test]
fn a_storm_of_connections_does_not_cut_those_who_speak() {
    let limits = Limits { connections: 12, per_client: 10, handshakes: 6, ..small() };
    let mut fixture = Fixture::limited(limits);
    let mut stranger = over_tcp(&fixture);
    let mut own = fixture.connect();
    // These two connections are in the middle of their handshakes.
    stranger.greet(bytes::FIXED | bytes::NO_ZEROES);
    own.greet(bytes::FIXED | bytes::NO_ZEROES);
    assert_eq!(own.ask(bytes::STRUCTURED, &[]), [(1, vec![])]);
    assert_eq!(stranger.ask(bytes::STRUCTURED, &[]), [(1, vec![])]);
    let mut storm: Vec<Client> = (0..50).map(|_| fixture.connect()).collect();
    fixture.until("the storm has come", |status| status.accepted == 52);
    assert!(storm[0].at_end_after(18), "the oldest that said nothing makes room");
    let mut later = fixture.disk(false);
    assert_eq!(later.read(0, 512), [0; 512]);
    stranger.go("disk", false);
    own.go("disk", false);
    assert_eq!(stranger.write(0, &[1; 512]), 0);
    assert_eq!(own.write(0, &[1; 512]), 0);
    assert!(fixture.status().evicted >= 46);
}

#[test]
fn who_is_silent_for_too_long_is_let_go() {
    let limits = Limits { idle: 300 * Nanos::MILLI, ..small() };
    let mut fixture = Fixture::limited(limits);
    let mut silent = fixture.disk(true);
    // A client that waits for an answer does not count as idle.
    let mut waits = fixture.disk(false);
    fixture.mood.slow.store(1500, Ordering::Relaxed);
    waits.send(&request(bytes::READ, 0, 1, 0, 512));
    assert!(silent.at_end());
    assert_eq!(fixture.status().idle, 1);
    assert_eq!(waits.data(1, 0, 512), [0; 512]);
    assert!(waits.at_end());
    fixture.until("both", |status| status.idle == 2 && status.dropped == 0);
}
