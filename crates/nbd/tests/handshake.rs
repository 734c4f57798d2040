//! The handshake: each option, well-formed and not.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::common::bytes::{self, contexts, info, option};
use crate::common::{Client, Fixture, SIZE};
use furrow_nbd::Limits;
use furrow_rt::Nanos;

const ACK: u32 = 1;
const UNSUP: u32 = (1 << 31) + 1;
const POLICY: u32 = (1 << 31) + 2;
const INVALID: u32 = (1 << 31) + 3;
const UNKNOWN: u32 = (1 << 31) + 6;
const TOO_BIG: u32 = (1 << 31) + 9;

fn greeted(fixture: &Fixture) -> Client {
    let mut client = fixture.connect();
    client.greet(bytes::FIXED | bytes::NO_ZEROES);
    client
}

/// The only reply to an option that is refused.
fn refused(client: &mut Client, which: u32, data: &[u8]) -> u32 {
    let replies = client.ask(which, data);
    let [(kind, message)] = &replies[..] else { panic!("one reply: {replies:?}") };
    assert!(!message.is_empty() && std::str::from_utf8(message).is_ok());
    *kind
}

#[test]
fn client_flags_that_nobody_knows_end_it() {
    let fixture = Fixture::start();
    let mut client = fixture.connect();
    client.greet(1 << 7);
    assert!(client.at_end());
}

#[test]
fn export_name_goes_straight_to_transmission() {
    let fixture = Fixture::start();
    for (flags, zeroes) in [(bytes::FIXED, 124), (bytes::FIXED | bytes::NO_ZEROES, 0)] {
        let mut client = fixture.connect();
        client.greet(flags);
        client.send(&option(bytes::EXPORT_NAME, b"fixed"));
        assert_eq!(client.take(8), SIZE.to_be_bytes());
        let told = u16::from_be_bytes(client.take(2).try_into().unwrap());
        assert_eq!(told & 0b11, 0b11, "has flags, read-only");
        assert_eq!(told & (1 << 7), 0, "DF without structured replies");
        assert_eq!(client.take(zeroes), vec![0; zeroes]);
        assert_eq!(client.read(0, 512), [0; 512]);
    }
    let mut client = greeted(&fixture);
    client.send(&option(bytes::EXPORT_NAME, b"nobody"));
    assert!(client.at_end());
}

#[test]
fn abort_is_acknowledged() {
    let fixture = Fixture::start();
    let mut client = greeted(&fixture);
    assert_eq!(client.ask(bytes::ABORT, &[]), [(ACK, vec![])]);
    assert!(client.at_end());
}

#[test]
fn list_names_all_exports_with_their_descriptions() {
    let fixture = Fixture::start();
    let mut client = greeted(&fixture);
    let replies = client.ask(bytes::LIST, &[]);
    let told: Vec<String> = replies[..3]
        .iter()
        .map(|(kind, data)| {
            assert_eq!(*kind, 2);
            String::from_utf8_lossy(&data[4..]).into_owned()
        })
        .collect();
    assert_eq!(told, ["diska disk", "fixed", "other"]);
    assert_eq!(replies[0].1[..4], 4u32.to_be_bytes());
    assert_eq!(replies[3], (ACK, vec![]));
    assert_eq!(refused(&mut client, bytes::LIST, b"x"), INVALID);
}

#[test]
fn info_tells_and_go_begins() {
    let fixture = Fixture::start();
    let mut client = greeted(&fixture);
    let replies = client.ask(bytes::INFO, &info("disk", &[1, 2, 3, 99]));
    let mut size = SIZE.to_be_bytes().to_vec();
    let flags: u16 = 0b1101_0110_1101;
    size.extend(flags.to_be_bytes());
    let with = |kind: u16, data: &[u8]| (3, [&kind.to_be_bytes()[..], data].concat());
    let sizes = [1u32, 16 * 4096, 32 << 20].map(u32::to_be_bytes).concat();
    let expected =
        [with(0, &size), with(1, b"disk"), with(2, b"a disk"), with(3, &sizes), (ACK, vec![])];
    assert_eq!(replies, expected);
    // A client that gives no name gets the first export.
    assert_eq!(client.ask(bytes::INFO, &info("", &[1]))[1], with(1, b"disk"));
    assert_eq!(refused(&mut client, bytes::INFO, &info("nobody", &[])), UNKNOWN);
    assert_eq!(refused(&mut client, bytes::GO, &info("nobody", &[])), UNKNOWN);
    assert_eq!(client.ask(bytes::STRUCTURED, &[]), [(ACK, vec![])]);
    let replies = client.ask(bytes::INFO, &info("fixed", &[]));
    let flags = u16::from_be_bytes(replies[0].1[10..].try_into().unwrap());
    assert_eq!(flags, 0b101_1000_1111, "read-only, DF");
    client.go("disk", false);
    assert_eq!(client.call(bytes::FLUSH, 0, 0, 0), 0);
}

#[test]
fn lengths_that_do_not_add_up_are_invalid() {
    let fixture = Fixture::start();
    let mut client = greeted(&fixture);
    assert_eq!(client.ask(bytes::STRUCTURED, &[]), [(ACK, vec![])]);
    let good = [
        (bytes::INFO, info("disk", &[1, 2])),
        (bytes::GO, info("disk", &[1, 2])),
        (bytes::LIST_META, contexts("disk", &["base:allocation", "x"])),
        (bytes::SET_META, contexts("disk", &["base:allocation", "x"])),
    ];
    for (which, data) in good {
        for cut in 0..data.len() {
            assert_eq!(refused(&mut client, which, &data[..cut]), INVALID, "{which} {cut}");
        }
        let long = [&data[..], b"!"].concat();
        assert_eq!(refused(&mut client, which, &long), INVALID, "{which} and a byte more");
        let mut lie = data.clone();
        lie[0] = 0xff;
        assert_eq!(refused(&mut client, which, &lie), INVALID, "{which}");
    }
    assert_eq!(refused(&mut client, bytes::STRUCTURED, b"x"), INVALID);
    let name = "n".repeat(4097);
    assert_eq!(refused(&mut client, bytes::INFO, &info(&name, &[])), INVALID);
    client.go("disk", true);
}

#[test]
fn contexts_are_listed_and_set_for_one_export() {
    let fixture = Fixture::start();
    let mut client = greeted(&fixture);
    let list = |queries: &[&str]| contexts("disk", queries);
    assert_eq!(refused(&mut client, bytes::LIST_META, &list(&[])), INVALID, "not structured");
    assert_eq!(client.ask(bytes::STRUCTURED, &[]), [(ACK, vec![])]);
    let told = |id: u32| (4, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    for queries in [&[][..], &["base:"], &["x:y", "base:allocation"]] {
        let replies = client.ask(bytes::LIST_META, &list(queries));
        assert_eq!(replies, [told(0), (ACK, vec![])], "{queries:?}");
    }
    assert_eq!(client.ask(bytes::LIST_META, &list(&["qemu:dirty-bitmap:x"])), [(ACK, vec![])]);
    assert_eq!(refused(&mut client, bytes::SET_META, &contexts("nobody", &[])), UNKNOWN);
    for queries in [&[][..], &["base:"], &["base:allocation2"]] {
        assert_eq!(client.ask(bytes::SET_META, &list(queries)), [(ACK, vec![])], "{queries:?}");
    }
    let set = client.ask(bytes::SET_META, &list(&["base:allocation"]));
    assert_eq!(set, [told(1), (ACK, vec![])]);
    // The context was chosen for `disk`, not for `other`.
    let replies = client.ask(bytes::GO, &info("other", &[]));
    assert_eq!(replies.last(), Some(&(ACK, vec![])));
    client.structured = true;
    assert_eq!(client.call(bytes::STATUS, 0, 0, 4096), bytes::EINVAL);
}

#[test]
fn a_set_that_fails_leaves_none() {
    let fixture = Fixture::start();
    let mut client = greeted(&fixture);
    client.ask(bytes::STRUCTURED, &[]);
    assert_eq!(client.ask(bytes::SET_META, &contexts("disk", &["base:allocation"])).len(), 2);
    assert_eq!(refused(&mut client, bytes::SET_META, b"\0"), INVALID);
    client.ask(bytes::GO, &info("disk", &[]));
    client.structured = true;
    assert_eq!(client.call(bytes::STATUS, 0, 0, 4096), bytes::EINVAL);
}

#[test]
fn what_is_unknown_too_big_or_not_offered_is_refused_and_the_rest_goes_on() {
    let fixture = Fixture::start();
    let mut client = greeted(&fixture);
    for which in [0, 4, 11, 99, u32::MAX] {
        assert_eq!(refused(&mut client, which, b"data"), UNSUP, "{which}");
    }
    assert_eq!(refused(&mut client, bytes::STARTTLS, &[]), POLICY);
    let big = vec![0; 3 << 20];
    assert_eq!(refused(&mut client, bytes::LIST, &big), TOO_BIG);
    assert_eq!(refused(&mut client, bytes::GO, &big), TOO_BIG);
    client.go("disk", true);
}

#[test]
fn many_options_in_one_packet_are_answered_in_order() {
    let fixture = Fixture::start();
    let mut client = fixture.connect();
    let mut all = bytes::FIXED.to_be_bytes().to_vec();
    for _ in 0..50 {
        all.extend(option(bytes::LIST, &[]));
    }
    all.extend(option(bytes::GO, &info("disk", &[])));
    all.extend(bytes::write(0, 1, 4096, &[7; 5000]));
    all.extend(bytes::request(bytes::READ, 0, 2, 4096, 5000));
    client.send(&all);
    assert_eq!(client.take(18)[..8], *b"NBDMAGIC");
    for _ in 0..50 {
        assert_eq!(client.option_replies(bytes::LIST).len(), 4);
    }
    client.option_replies(bytes::GO);
    assert_eq!(client.error(1), 0);
    assert_eq!(client.data(2, 4096, 5000), [7; 5000]);
}

#[test]
fn an_option_without_its_magic_ends_it() {
    let mut fixture = Fixture::start();
    let mut client = greeted(&fixture);
    client.send(&[0; 16]);
    assert!(client.at_end());
    fixture.until("counted", |status| status.failed_handshakes == 1);
}

#[test]
fn a_handshake_has_its_time_and_its_place() {
    let limits = Limits { handshakes: 3, handshake: 300 * Nanos::MILLI, ..Limits::default() };
    let mut fixture = Fixture::limited(limits);
    let mut silent: Vec<Client> = (0..3).map(|_| fixture.connect()).collect();
    silent.iter_mut().for_each(|client| assert_eq!(client.take(18).len(), 18));
    // The oldest connection is closed in favour of a client that completes its handshake.
    let mut client = fixture.disk(true);
    assert!(silent[0].at_end());
    assert_eq!(client.read(0, 4096), [0; 4096]);
    // The other connections run out of time, even those that keep sending.
    for _ in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        use std::io::Write;
        let _ = silent[1].stream.write_all(&[0]);
    }
    assert!(silent[2].at_end());
    fixture.until("all gone", |status| status.connections.len() == 1);
    assert_eq!(client.read(0, 4096), [0; 4096]);
    let status = fixture.status();
    assert_eq!(status.connections[0].export.as_deref(), Some("disk"));
}
