//! Tests a single executor on the real clock: timers, descriptors, wakes from other threads.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the outside")]

use furrow_rt::{Config, Nanos, Rt};
use std::cell::Cell;
use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Instant;

#[test]
fn sleeps_take_at_least_their_time() {
    let rt = Rt::new(Config::real());
    for nanoseconds in [0, 1, 50_000, 3 * Nanos::MILLI] {
        let start = Instant::now();
        rt.block_on(rt.sleep(nanoseconds));
        assert!(start.elapsed().as_nanos() >= u128::from(nanoseconds));
    }
    assert!(rt.wall().0 > 1_577_836_800, "the time of day is after the year 2020");
}

/// The coarse clock is read once for many tasks, but again after a wait or an event from outside.
#[test]
fn now_coarse_is_not_long_ago() {
    let rt = Rt::new(Config::real());
    let engine = rt.clone();
    rt.block_on(async move {
        for _ in 0..5 {
            let before = engine.now();
            engine.sleep(2 * Nanos::MILLI).await;
            let now_coarse = engine.now_coarse();
            assert!(now_coarse.since(before) >= Nanos::MILLI && now_coarse <= engine.now());
            assert_eq!(engine.now_coarse(), now_coarse, "within a task it stands still");
        }
    });
    let (before, engine) = (rt.now(), rt.clone());
    rt.run_now(async move { assert!(engine.now_coarse() >= before) });
}

/// The waiting executor has no timer and no descriptor: only the other thread can end the wait,
/// before, during or after the executor goes to sleep.
#[test]
fn a_wake_from_another_thread_ends_the_wait() {
    let rt = Rt::new(Config::real());
    for round in 0..300 {
        let shared: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
        let theirs = shared.clone();
        let other = std::thread::spawn(move || {
            (0..round % 50).for_each(|_| std::thread::yield_now());
            let mut shared = theirs.lock().unwrap();
            shared.0 = true;
            shared.1.take().into_iter().for_each(Waker::wake);
        });
        rt.block_on(std::future::poll_fn(move |context| {
            let mut shared = shared.lock().unwrap();
            if shared.0 {
                return Poll::Ready(());
            }
            shared.1 = Some(context.waker().clone());
            Poll::Pending
        }));
        other.join().unwrap();
    }
}

#[test]
fn a_descriptor_wakes_all_who_wait_for_it_and_none_who_stopped() {
    let rt = Rt::new(Config::real());
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let descriptor = Arc::new(OwnedFd::from(reader.try_clone().unwrap()));
    let woken = Rc::new(Cell::new(0));
    for _ in 0..2 {
        let (readable, woken) = (rt.readable(descriptor.clone()), woken.clone());
        rt.spawn_detached(async move {
            readable.await;
            woken.set(woken.get() + 1);
        });
    }
    let mut stopped = Box::pin(rt.readable(descriptor.clone()));
    assert!(stopped.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending());
    drop(stopped);
    rt.run_ready();
    assert_eq!(woken.get(), 0);
    writer.write_all(b"x").unwrap();
    assert!(rt.advance(), "something to wait for");
    rt.run_ready();
    assert_eq!(woken.get(), 2);
    assert!(!rt.advance(), "nothing is left to wait for");
    assert_eq!(Arc::strong_count(&descriptor), 1, "the driver keeps no descriptor");
    reader.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_timer_ends_the_wait_for_a_silent_descriptor() {
    let rt = Rt::new(Config::real());
    let (reader, _writer) = std::io::pipe().unwrap();
    let (readable, limit) = (rt.readable(Arc::new(reader.into())), rt.sleep(2 * Nanos::MILLI));
    let first = rt.block_on(async move {
        let (mut readable, mut limit) = (pin!(readable), pin!(limit));
        std::future::poll_fn(|context| {
            if readable.as_mut().poll(context).is_ready() {
                return Poll::Ready("readable");
            }
            limit.as_mut().poll(context).map(|()| "limit")
        })
        .await
    });
    assert_eq!(first, "limit");
}

/// A pipe whose writer is closed counts as readable, because the reader must run to see the end.
#[test]
fn a_hang_up_counts_as_readable() {
    let rt = Rt::new(Config::real());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(writer);
    rt.block_on(rt.readable(Arc::new(reader.into())));
}

/// A task that never runs out of work does not starve others.
#[test]
fn a_descriptor_is_looked_at_while_tasks_are_always_ready() {
    let rt = Rt::new(Config::real());
    let (reader, mut writer) = std::io::pipe().unwrap();
    let heard = Rc::new(Cell::new(false));
    let (readable, told) = (rt.readable(Arc::new(OwnedFd::from(reader))), heard.clone());
    rt.spawn_detached(async move {
        readable.await;
        told.set(true);
    });
    let busy = rt.clone();
    rt.block_on(async move {
        busy.yield_now().await;
        writer.write_all(b"x").unwrap();
        let until = busy.now().after(10 * Nanos::SECOND);
        while !heard.get() {
            assert!(busy.now() < until, "not heard in ten seconds");
            busy.yield_now().await;
        }
    });
}

/// A task that never runs out of work does not delay the results of others.
#[test]
fn a_result_is_returned_while_tasks_are_always_ready() {
    let rt = Rt::new(Config::real());
    let (busy, turns) = (rt.clone(), Rc::new(Cell::new(0u64)));
    let count = turns.clone();
    rt.spawn_detached(async move {
        loop {
            // Without this limit, nothing would end the test if it failed.
            assert!(count.get() < 20_000_000, "nobody else came to run");
            count.set(count.get() + 1);
            busy.yield_now().await;
        }
    });
    let worker = rt.clone();
    rt.block_on(async move { worker.yield_now().await });
    assert!(turns.get() > 0);
    rt.clear();
}
