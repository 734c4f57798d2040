//! Transmission: each command, its flags, its errors, and concurrent requests.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::common::bytes::{self, request};
use crate::common::{self, Answer, Fixture, KINDS, SIZE};
use std::sync::atomic::Ordering;

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (seed.wrapping_mul(31) + i.wrapping_mul(7) + i / 251) as u8).collect()
}

#[test]
fn what_is_written_is_read_with_either_kind_of_reply() {
    let fixture = Fixture::start();
    for structured in [false, true] {
        let mut client = fixture.disk(structured);
        for (offset, length) in [(0, 4096), (8192, 65536), (1 << 20, 5 << 20), (32 << 20, 32 << 20)]
        {
            let data = pattern(length, length);
            assert_eq!(client.write(offset, &data), 0);
            assert!(client.read(offset, length as u32) == data, "{length} at {offset}");
        }
        assert_eq!(client.call(bytes::ZEROES, 0, 0, SIZE as u32), 0);
    }
}

/// Reads and writes at every edge within a block are compared with a plain copy in memory.
#[test]
fn any_offset_and_length_works() {
    let mut fixture = Fixture::start();
    let mut client = fixture.disk(true);
    let mut model = vec![0u8; 5 * 4096];
    let edges = [0, 1, 511, 4095, 4096, 4097, 8191, 8192, 12288, 16383, 16385, 20480];
    let mut partial = 0;
    for (i, from) in edges.into_iter().enumerate() {
        for to in edges.into_iter().skip(i + 1) {
            let data = pattern(from * 31 + to, to - from);
            assert_eq!(client.write(from as u64, &data), 0);
            model[from..to].copy_from_slice(&data);
            partial += u64::from(from % 4096 != 0 || to % 4096 != 0);
            assert!(client.read(0, model.len() as u32) == model, "write {from}..{to}");
            assert_eq!(client.read(from as u64, (to - from) as u32), data);
            if (from + to) % 3 == 0 {
                let flags = if to % 2 == 0 { bytes::NO_HOLE } else { 0 };
                assert_eq!(client.call(bytes::ZEROES, flags, from as u64, (to - from) as u32), 0);
                model[from..to].fill(0);
                partial += u64::from(from % 4096 != 0 || to % 4096 != 0);
                assert!(client.read(0, model.len() as u32) == model, "zero {from}..{to}");
            }
        }
    }
    let status = fixture.status();
    assert_eq!(status.exports[0].counts.partial, partial);
}

#[test]
fn trim_frees_whole_blocks_only() {
    let fixture = Fixture::start();
    let mut client = fixture.disk(true);
    assert_eq!(client.write(0, &[9; 5 * 4096]), 0);
    assert_eq!(client.call(bytes::TRIM, bytes::FUA, 1, 4 * 4096), 0);
    let data = client.read(0, 5 * 4096);
    assert_eq!(data[..4096], [9; 4096]);
    assert_eq!(data[4096..4 * 4096], [0; 3 * 4096]);
    assert_eq!(data[4 * 4096..], [9; 4096]);
    assert_eq!(client.call(bytes::TRIM, 0, 10, 20), 0, "nothing to free is no error");
    assert_eq!(client.read(0, 100), [9; 100]);
}

/// The extents in the answer to a BLOCK_STATUS.
fn status(client: &mut common::Client, flags: u16, offset: u64, length: u32) -> Vec<(u32, u32)> {
    client.send(&request(bytes::STATUS, flags, 3, offset, length));
    let Answer::Chunk(3, 1, 5, data) = client.answer() else { panic!("a status") };
    assert_eq!(data[..4], 1u32.to_be_bytes());
    let number = |at: &[u8]| u32::from_be_bytes(at.try_into().unwrap());
    data[4..].chunks_exact(8).map(|run| (number(&run[..4]), number(&run[4..]))).collect()
}

#[test]
fn block_status_tells_holes_from_data() {
    let fixture = Fixture::start();
    let mut client = fixture.disk(true);
    assert_eq!(client.write(8192, &[1; 4096]), 0);
    assert_eq!(client.call(bytes::ZEROES, bytes::NO_HOLE, 12288, 4096), 0);
    let rest = SIZE as u32 - 16384;
    assert_eq!(status(&mut client, 0, 0, SIZE as u32), [(8192, 3), (8192, 0), (rest, 3)]);
    assert_eq!(status(&mut client, bytes::ONE, 0, SIZE as u32), [(8192, 3)]);
    assert_eq!(status(&mut client, 0, 8000, 200), [(192, 3), (8, 0)]);
    assert_eq!(client.call(bytes::ZEROES, 0, 8192, 8192), 0);
    assert_eq!(status(&mut client, 0, 0, SIZE as u32), [(SIZE as u32, 3)]);
    // There are more extents than one answer holds: the client asks again for the rest.
    let writes: Vec<u8> =
        (0..3000).flat_map(|i| bytes::write(0, 5, i * 8192, &[1; 4096])).collect();
    client.send(&writes);
    (0..3000).for_each(|_| assert_eq!(client.error(5), 0));
    let runs = status(&mut client, 0, 0, SIZE as u32);
    assert_eq!(runs.len(), 2048);
    assert_eq!(runs[..3], [(4096, 0), (4096, 3), (4096, 0)]);
}

#[test]
fn zeroes_are_fast_only_where_they_free() {
    let fixture = Fixture::start();
    let mut client = fixture.disk(true);
    assert_eq!(client.call(bytes::ZEROES, bytes::FAST, 0, SIZE as u32), 0);
    let both = bytes::FAST | bytes::NO_HOLE;
    assert_eq!(client.call(bytes::ZEROES, both, 0, 4096), bytes::ENOTSUP);
}

#[test]
fn fua_and_flush_reach_the_volume() {
    let mut fixture = Fixture::start();
    let mut client = fixture.disk(true);
    client.send(&bytes::write(bytes::FUA, 1, 0, &[1; 4096]));
    assert_eq!(client.error(1), 0);
    assert_eq!(client.call(bytes::TRIM, bytes::FUA, 0, 4096), 0);
    assert_eq!(client.call(bytes::ZEROES, bytes::FUA, 0, 4096), 0);
    assert_eq!(client.call(bytes::FLUSH, bytes::FUA, 0, 0), 0);
    assert_eq!(client.call(bytes::CACHE, 0, 0, SIZE as u32), 0);
    assert_eq!(client.read(0, 4096).len(), 4096);
    let counts = fixture.status().exports[0].counts;
    let each = (counts.reads, counts.writes, counts.trims, counts.zeroes, counts.flushes);
    assert_eq!(each, (1, 1, 1, 1, 1));
    assert_eq!((counts.caches, counts.fua, counts.bytes_written), (1, 3, 4096));
}

#[test]
fn what_makes_no_sense_is_refused_and_the_connection_goes_on() {
    let fixture = Fixture::start();
    for structured in [true, false] {
        let mut client = fixture.disk(structured);
        for (kind, flags, offset, length, error) in [
            (bytes::READ, 0, SIZE, 1, bytes::EINVAL),
            (bytes::READ, 0, u64::MAX, u32::MAX, bytes::EINVAL),
            (bytes::READ, 0, 0, 0, bytes::EINVAL),
            (bytes::READ, bytes::NO_HOLE, 0, 1, bytes::EINVAL),
            (bytes::READ, 0, 0, (32 << 20) + 1, bytes::EINVAL),
            (bytes::FLUSH, 0, 1, 1, bytes::EINVAL),
            (bytes::TRIM, 0, 0, SIZE as u32 + 1, bytes::EINVAL),
            (bytes::ZEROES, 0, SIZE - 1, 2, bytes::ENOSPC),
            (bytes::ZEROES, bytes::DF, 0, 1, bytes::EINVAL),
            (8, 0, 0, 1, bytes::EINVAL),
            (u16::MAX, u16::MAX, 0, 1, bytes::EINVAL),
        ] {
            assert_eq!(client.call(kind, flags, offset, length), error, "{kind} {offset} {length}");
        }
        // The payload of a refused write must be skipped, not parsed as requests.
        let junk = request(bytes::DISC, 0, 0, 0, 0).repeat(4000);
        for (offset, error) in [(SIZE, bytes::ENOSPC), (u64::MAX - 5, bytes::ENOSPC)] {
            assert_eq!(client.write(offset, &junk), error);
        }
        let large = vec![0x25; (32 << 20) + 1];
        assert_eq!(client.write(0, &large), bytes::EINVAL);
        assert_eq!(client.read(0, 5), [0; 5]);
    }
    let mut client = fixture.disk(true);
    assert_eq!(client.call(bytes::READ, bytes::DF, 0, 0), bytes::EINVAL);
    client.send(&request(bytes::READ, bytes::DF, 9, 0, 100_000));
    assert_eq!(client.data(9, 0, 100_000).len(), 100_000);
    let mut plain = fixture.disk(false);
    assert_eq!(plain.call(bytes::READ, bytes::DF, 0, 512), bytes::EINVAL, "not agreed on");
    assert_eq!(plain.call(bytes::STATUS, 0, 0, 512), bytes::EINVAL, "not agreed on");
}

#[test]
fn a_read_only_export_is() {
    let fixture = Fixture::start();
    let mut disk = fixture.disk(true);
    assert_eq!(disk.write(0, b"shared"), 0);
    let mut client = fixture.connect();
    client.greet(bytes::FIXED);
    client.go("fixed", true);
    assert_eq!(client.write(0, &[1; 70_000]), bytes::EPERM);
    assert_eq!(client.call(bytes::TRIM, 0, 0, 4096), bytes::EPERM);
    assert_eq!(client.call(bytes::ZEROES, 0, 0, 4096), bytes::EPERM);
    assert_eq!(client.read(0, 6), b"shared", "one volume, two exports");
    assert_eq!(client.call(bytes::FLUSH, 0, 0, 0), 0);
}

#[test]
fn errors_of_the_volume_have_their_codes() {
    let mut fixture = Fixture::start();
    let mut client = fixture.disk(true);
    let codes = [bytes::EIO, bytes::ENOSPC, bytes::EPERM, bytes::ENOTSUP, bytes::EIO];
    for (i, code) in codes.into_iter().enumerate() {
        fixture.mood.fails.store(i as u32 + 1, Ordering::Relaxed);
        let kind = KINDS[i];
        for command in [bytes::READ, bytes::TRIM, bytes::ZEROES, bytes::STATUS] {
            assert_eq!(client.call(command, 0, 0, 4096), code, "{kind:?} {command}");
        }
        assert_eq!(client.call(bytes::FLUSH, 0, 0, 0), code, "{kind:?}");
        assert_eq!(client.write(0, &[1; 4096]), code, "{kind:?}");
        assert_eq!(client.write(1, &[1; 4096]), code, "{kind:?}");
    }
    client.send(&request(bytes::READ, 0, 1, 0, 1));
    let Answer::Chunk(1, 1, 0x8001, data) = client.answer() else { panic!("an error") };
    assert!(String::from_utf8_lossy(&data[6..]).contains("drive 3 is on fire"));
    fixture.mood.fails.store(0, Ordering::Relaxed);
    assert_eq!(client.read(0, 1), [0]);
    assert_eq!(fixture.status().exports[0].counts.errors, 7 * 5 + 1);
}

#[test]
fn requests_run_side_by_side() {
    let fixture = Fixture::start();
    let mut client = fixture.disk(true);
    fixture.mood.slow.store(50, Ordering::Relaxed);
    let all: Vec<u8> =
        (0..64).flat_map(|i| bytes::write(0, i, i * 4096, &[i as u8 + 1; 4096])).collect();
    let start = std::time::Instant::now();
    client.send(&all);
    let mut answered = [false; 64];
    for _ in 0..64 {
        let Answer::Simple(cookie, 0) = client.answer() else { panic!("written") };
        assert!(!std::mem::replace(&mut answered[cookie as usize], true), "{cookie} twice");
    }
    // One after the other, the requests would take 3.2 seconds.
    assert!(start.elapsed().as_millis() < 1600, "{:?}", start.elapsed());
    assert!(fixture.mood.peak.load(Ordering::Relaxed) >= 32);
}

/// Two connections write parts of one block at the same time: each part must survive.
#[test]
fn parts_of_a_block_do_not_undo_each_other() {
    let fixture = Fixture::start();
    let mut clients = [fixture.disk(true), fixture.disk(false)];
    fixture.mood.slow.store(2, Ordering::Relaxed);
    for round in 1..5u8 {
        for (side, client) in clients.iter_mut().enumerate() {
            let part = |i: u64| (i * 2 + side as u64) * 512;
            let all: Vec<u8> = (0..8)
                .flat_map(|i| bytes::write(0, i, part(i), &[round * 16 + side as u8; 512]))
                .collect();
            client.send(&all);
        }
        for client in &mut clients {
            (0..8).for_each(|_| assert!(matches!(client.answer(), Answer::Simple(_, 0))));
        }
        let data = clients[0].read(0, 8192);
        for (i, part) in data.chunks(512).enumerate() {
            assert_eq!(part, [round * 16 + i as u8 % 2; 512], "part {i} of round {round}");
        }
    }
    // A whole block is written after a part of it, and a part after the whole block.
    let mut both = bytes::write(0, 1, 100, &[0xaa; 100]);
    both.extend(bytes::write(0, 2, 0, &[0xbb; 4096]));
    both.extend(bytes::write(0, 3, 200, &[0xcc; 100]));
    clients[0].send(&both);
    (0..3).for_each(|_| assert!(matches!(clients[0].answer(), Answer::Simple(_, 0))));
    let data = clients[0].read(0, 400);
    assert_eq!((data[150], data[250], data[350]), (0xbb, 0xcc, 0xbb));
}

#[test]
fn what_one_connection_wrote_all_see() {
    let fixture = Fixture::start();
    let mut clients: Vec<_> = (0..8).map(|i| fixture.disk(i % 2 == 0)).collect();
    for round in 0..40usize {
        let data = pattern(round, 4096);
        assert_eq!(clients[round % 8].write(round as u64 * 4096, &data), 0);
        for client in &mut clients {
            assert_eq!(client.read(round as u64 * 4096, 4096), data);
        }
    }
}

#[test]
fn tcp_is_no_different() {
    let mut fixture = Fixture::start();
    let stream = std::net::TcpStream::connect(&fixture.tcp).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let mut client = common::Client { stream, structured: false };
    client.greet(bytes::FIXED | bytes::NO_ZEROES);
    client.go("disk", true);
    let data = pattern(1, 3 << 20);
    assert_eq!(client.write(12345, &data), 0);
    assert!(client.read(12345, 3 << 20) == data);
    let peer = &fixture.status().connections[0].peer;
    assert!(peer.starts_with("127.0.0.1:"), "{peer}");
}

#[test]
fn a_request_in_single_bytes_is_a_request() {
    let fixture = Fixture::start();
    let mut client = fixture.disk(true);
    let message = bytes::write(0, 1, 4000, &pattern(5, 300));
    for byte in message {
        client.send(&[byte]);
    }
    assert_eq!(client.error(1), 0);
    assert_eq!(client.read(4000, 300), pattern(5, 300));
}
