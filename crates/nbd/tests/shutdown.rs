//! How connections and servers end and restart.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use crate::common::bytes::{self, request};
use crate::common::{self, Answer, Fixture};
use furrow_nbd::Limits;
use furrow_rt::Nanos;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[test]
fn a_disconnect_waits_for_what_is_under_way() {
    let mut fixture = Fixture::start();
    let mut client = fixture.disk(true);
    fixture.mood.slow.store(50, Ordering::Relaxed);
    let mut all = bytes::write(0, 1, 0, &[1; 4096]);
    all.extend(request(bytes::DISC, 0, 2, 0, 0));
    all.extend(bytes::write(0, 3, 4096, &[1; 4096]));
    client.send(&all);
    assert_eq!(client.answer(), Answer::Simple(1, 0));
    assert!(client.at_end());
    let status = fixture.until("gone", |status| status.connections.is_empty());
    assert_eq!((status.exports[0].counts.writes, status.dropped), (1, 0));
}

/// Completed replies are sent even while a slower request is still in flight.
#[test]
fn after_a_disconnect_no_answer_waits_for_another() {
    let fixture = Fixture::start();
    let mut client = fixture.disk(true);
    fixture.mood.slow.store(1500, Ordering::Relaxed);
    client.send(&bytes::write(0, 1, 0, &[1; 4096]));
    while fixture.mood.peak.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    fixture.mood.slow.store(20, Ordering::Relaxed);
    let start = Instant::now();
    let mut both = bytes::write(0, 2, 4096, &[1; 4096]);
    both.extend(request(bytes::DISC, 0, 3, 0, 0));
    client.send(&both);
    assert_eq!(client.answer(), Answer::Simple(2, 0));
    assert!(start.elapsed() < Duration::from_millis(1000), "{:?}", start.elapsed());
    assert_eq!(client.answer(), Answer::Simple(1, 0));
    assert!(client.at_end());
}

#[test]
fn a_client_that_has_said_all_still_gets_its_answers() {
    let fixture = Fixture::start();
    let mut client = fixture.disk(true);
    fixture.mood.slow.store(50, Ordering::Relaxed);
    client.send(&request(bytes::READ, 0, 1, 0, 1 << 20));
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.data(1, 0, 1 << 20).len(), 1 << 20);
    assert!(client.at_end());
}

#[test]
fn a_shutdown_finishes_what_is_under_way_and_refuses_the_rest() {
    let mut fixture = Fixture::start();
    let mut client = fixture.disk(true);
    let mut idle = fixture.disk(true);
    let mut shaking = fixture.connect();
    shaking.greet(bytes::FIXED);
    fixture.mood.slow.store(300, Ordering::Relaxed);
    client.send(&bytes::write(0, 1, 0, &[1; 4096]));
    fixture.until("begun", |status| status.exports[0].counts.writes == 1);
    fixture.stop();
    assert!(idle.at_end(), "nobody waits for the idle");
    assert!(shaking.at_end());
    client.send(&bytes::write(0, 2, 4096, &[2; 4096]));
    client.send(&request(bytes::READ, 0, 3, 0, 4096));
    assert_eq!(client.error(2), bytes::ESHUTDOWN);
    assert_eq!(client.error(3), bytes::ESHUTDOWN);
    assert!(UnixStream::connect(fixture.socket()).is_err(), "nobody new is let in");
    assert_eq!(client.answer(), Answer::Simple(1, 0));
    assert!(client.at_end());
    fixture.stopped();
    assert!(!fixture.socket().exists(), "the socket goes with its server");
}

#[test]
fn a_shutdown_does_not_wait_for_ever_for_those_who_do_not_listen() {
    let limits = Limits { grace: 300 * Nanos::MILLI, ..Limits::default() };
    let mut fixture = Fixture::limited(limits);
    let mut client = fixture.disk(true);
    client.send(&request(bytes::READ, 0, 1, 0, 32 << 20));
    fixture.until("begun", |status| status.exports[0].counts.reads == 1);
    let start = Instant::now();
    fixture.stop();
    fixture.stopped();
    let taken = start.elapsed();
    assert!(taken >= Duration::from_millis(250), "{taken:?}: it has a chance");
    assert!(taken < Duration::from_secs(10), "{taken:?}");
}

#[test]
fn clients_come_back_to_a_server_that_was_started_again() {
    let mut first = Fixture::start();
    let mut client = first.disk(true);
    assert_eq!(client.write(0, &[1; 512]), 0);
    first.stop();
    first.stopped();
    assert!(client.at_end());
    // Leaves the socket's file behind, as a killed server does.
    drop(std::os::unix::net::UnixListener::bind(first.socket()).unwrap());
    let second = furrow_nbd_at(&first);
    let mut client = common::Client::new(UnixStream::connect(first.socket()).unwrap());
    client.greet(bytes::FIXED);
    client.go("again", true);
    assert_eq!(client.read(0, 512), [0; 512]);
    drop(client);
    second.join().unwrap();
}

#[test]
fn clients_are_served_only_after_the_beginning() {
    use furrow_nbd::{Export, Listen, Listener, Memory, Options, Server};
    use furrow_rt::{Config, Rt};
    let path = std::env::temp_dir().join(format!("furrow-nbd-begin-{}", std::process::id()));
    let rt = Rt::new(Config::real());
    let exports = vec![Export::new("disk", std::rc::Rc::new(Memory::new(1024)))];
    let listeners = vec![Listener::bind(&Listen::Unix(path.clone())).unwrap()];
    let server = Server::new(&rt, listeners, exports, Options::default()).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let pause = |time| {
        let engine = rt.clone();
        rt.block_on(async move { engine.sleep(time).await });
    };
    pause(50 * Nanos::MILLI);
    assert_eq!(server.status().accepted, 0);
    server.begin();
    while server.status().accepted == 0 {
        pause(Nanos::MILLI);
    }
    drop(client);
    rt.block_on(async move { server.shutdown().await });
    rt.clear();
    assert!(!path.exists());
}

/// Starts a second server at the address of the first; it ends when its first client has left.
fn furrow_nbd_at(first: &Fixture) -> std::thread::JoinHandle<()> {
    use furrow_nbd::{Export, Listen, Memory, Options, Server};
    use furrow_rt::{Config, Rt};
    let place = Listen::Unix(first.socket());
    let (ready, started) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let rt = Rt::new(Config::real());
        let exports = vec![Export::new("again", std::rc::Rc::new(Memory::new(1024)))];
        let server = Server::bind(&rt, &[place], exports, Options::default()).unwrap();
        ready.send(()).unwrap();
        let (wait, watched) = (rt.clone(), server.clone());
        rt.block_on(async move {
            while watched.status().accepted == 0 || !watched.status().connections.is_empty() {
                wait.sleep(Nanos::MILLI).await;
            }
            watched.shutdown().await;
        });
    });
    started.recv().unwrap();
    thread
}
