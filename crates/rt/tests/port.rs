//! The port from outside: order, waits, stops, panics, rings of threads that have ended.

#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "callers on threads")]

use furrow_rt::{Config, Nanos, Port, Rt, Stopped};
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

#[derive(Default)]
struct Counter {
    count: Cell<u64>,
    log: RefCell<Vec<(u64, u64)>>,
}

type Engine = Rc<Counter>;

fn start() -> Port<Engine> {
    Port::start(Config::real(), |_| Ok::<_, ()>(Engine::default())).unwrap()
}

#[test]
fn calls_from_many_threads_are_served_and_stop_joins() {
    let port = start();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let port = port.clone();
            std::thread::spawn(move || {
                for _ in 0..2_000 {
                    port.call(|_, engine| {
                        engine.count.set(engine.count.get() + 1);
                        async {}
                    });
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let late = port.call(|rt, engine| {
        let (rt, engine) = (rt.clone(), engine.clone());
        async move {
            rt.sleep(Nanos::MILLI).await;
            engine.count.get()
        }
    });
    assert_eq!(late, 8_000);
    let other = port.clone();
    assert_eq!(port.stop(|_, engine| std::future::ready(engine.count.get())), 8_000);
    let stopped = other.try_call(|_, _| async {}).unwrap_err();
    assert_eq!(stopped.reason(), None);
    other.submit(|_, _| unreachable!("dropped"));
}

#[test]
fn every_request_runs_once_and_those_of_one_thread_in_order() {
    let port = start();
    let threads: Vec<_> = (0..3u64)
        .map(|thread| {
            let port = port.clone();
            std::thread::spawn(move || {
                for i in 0..3_000 {
                    port.submit(move |_, engine| engine.log.borrow_mut().push((thread, i)));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let log = port.stop(|_, engine| std::future::ready(engine.log.take()));
    for thread in 0..3 {
        let of_one: Vec<u64> = log.iter().filter(|(t, _)| *t == thread).map(|(_, i)| *i).collect();
        assert_eq!(of_one, (0..3_000).collect::<Vec<_>>());
    }
}

/// One request holds the engine while two threads submit requests one after the other. The holder
/// must serve them in that order although they are in different rings.
#[test]
fn order_holds_across_threads() {
    for _ in 0..50 {
        let port = start();
        let (held, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let holder = {
            let (port, held, go) = (port.clone(), held.clone(), go.clone());
            std::thread::spawn(move || {
                port.submit(move |_, _| {
                    held.store(true, Ordering::SeqCst);
                    while !go.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                });
            })
        };
        while !held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        for i in 0..6 {
            let port = port.clone();
            let push = move || port.submit(move |_, engine| engine.log.borrow_mut().push((0, i)));
            std::thread::spawn(push).join().unwrap();
        }
        go.store(true, Ordering::SeqCst);
        holder.join().unwrap();
        let log = port.stop(|_, engine| std::future::ready(engine.log.take()));
        assert_eq!(log.iter().map(|(_, i)| *i).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn timers_run_without_any_caller() {
    let port = start();
    let ticks = Arc::new(AtomicU64::new(0));
    let theirs = ticks.clone();
    port.submit(move |rt, _| {
        let rt2 = rt.clone();
        rt.spawn_detached(async move {
            for _ in 0..5 {
                rt2.sleep(Nanos::MILLI).await;
                theirs.fetch_add(1, Ordering::SeqCst);
            }
        });
    });
    let start = Instant::now();
    while ticks.load(Ordering::SeqCst) < 5 && start.elapsed().as_secs() < 10 {
        std::thread::yield_now();
    }
    assert_eq!(ticks.load(Ordering::SeqCst), 5);
    assert!(start.elapsed().as_millis() >= 5);
}

/// The reactor sleeps for a long timer; a caller sets a short timer and must not wait for the
/// long one.
#[test]
fn an_earlier_timer_wakes_the_reactor() {
    let port = start();
    port.submit(|rt, _| {
        let sleep = rt.sleep(3600 * Nanos::SECOND);
        rt.spawn_detached(sleep);
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    for _ in 0..20 {
        let start = Instant::now();
        port.call(|rt, _| rt.sleep(Nanos::MILLI));
        assert!(start.elapsed().as_secs() < 60);
    }
}

#[test]
fn a_wake_from_another_thread_reaches_a_sleeping_engine() {
    let port = start();
    for _ in 0..200 {
        let slot: Arc<std::sync::Mutex<(bool, Option<std::task::Waker>)>> = Arc::default();
        let theirs = slot.clone();
        let other = std::thread::spawn(move || {
            std::thread::yield_now();
            let mut slot = slot.lock().unwrap();
            slot.0 = true;
            slot.1.take().inspect(|waker| waker.wake_by_ref());
        });
        port.call(move |_, _| {
            std::future::poll_fn(move |context| {
                let mut slot = theirs.lock().unwrap();
                if slot.0 {
                    return std::task::Poll::Ready(());
                }
                slot.1 = Some(context.waker().clone());
                std::task::Poll::Pending
            })
        });
        other.join().unwrap();
    }
}

#[test]
fn a_descriptor_wakes_who_waits_for_it() {
    let port = start();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = Arc::new(std::os::fd::OwnedFd::from(reader));
    let other = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(5));
        writer.write_all(b"x").unwrap();
        writer
    });
    port.call(move |rt, _| rt.readable(reader));
    drop(other.join().unwrap());

    let rt = Rt::new(Config::real());
    let (_reader, writer) = std::io::pipe().unwrap();
    rt.block_on(rt.writable(Arc::new(writer.into())));
}

/// A panic in a holder that serves others must release all callers, now and later.
#[test]
fn a_panic_ends_the_engine_and_frees_every_caller() {
    let port = start();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let port = port.clone();
            std::thread::spawn(move || {
                port.try_call(|_, _| std::future::pending::<()>()).unwrap_err()
            })
        })
        .collect();
    let dropped = Arc::new(AtomicBool::new(false));
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let flag = Flag(dropped.clone());
    port.submit(move |rt, _| {
        rt.spawn_detached(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        })
    });
    while port.call(|rt, _| std::future::ready(rt.task_count())) < 4 {
        std::thread::yield_now();
    }
    let error = port
        .try_call(|_, _| {
            assert_eq!(1 + 1, 3, "an engine's bug");
            async {}
        })
        .unwrap_err();
    assert!(error.reason().unwrap().contains("an engine's bug"), "{error}");
    for thread in waiting {
        let error = thread.join().unwrap();
        assert!(error.to_string().contains("an engine's bug"), "{error}");
    }
    assert!(dropped.load(Ordering::SeqCst), "tasks are dropped with the engine");
    let error: Stopped = port.try_call(|_, _| async {}).unwrap_err();
    assert!(error.reason().is_some());
    assert!(port.stopped().is_some());
}

#[test]
fn a_failed_build_is_an_error_and_the_last_port_ends_the_engine() {
    let failed = Port::<Engine>::start(Config::real(), |_| Err("no such device"));
    assert_eq!(failed.unwrap_err(), "no such device");

    let dropped = Arc::new(AtomicBool::new(false));
    struct State(Arc<AtomicBool>);
    impl Drop for State {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let state = State(dropped.clone());
    let port = Port::start(Config::real(), move |_| Ok::<_, ()>(Rc::new(state))).unwrap();
    drop(port.clone());
    assert!(!dropped.load(Ordering::SeqCst));
    drop(port);
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn submits_from_inside_run_after_the_request_that_made_them() {
    let port = start();
    let inner = port.clone();
    port.submit(move |_, engine| {
        for i in 0..200 {
            inner.submit(move |_, engine| engine.log.borrow_mut().push((1, i)));
        }
        engine.log.borrow_mut().push((0, 0));
        drop(inner);
    });
    let log = port.stop(|_, engine| std::future::ready(engine.log.take()));
    assert_eq!(log.len(), 201);
    assert_eq!(log[0], (0, 0));
    assert!(log[1..].iter().enumerate().all(|(i, entry)| *entry == (1, i as u64)));
}

#[test]
fn a_call_from_inside_is_refused() {
    let port = start();
    let inner = port.clone();
    let error = port
        .try_call(move |_, _| {
            inner.call(|_, _| async {});
            async {}
        })
        .unwrap_err();
    assert!(error.to_string().contains("use submit"), "{error}");
}

#[test]
fn a_virtual_clock_moves_while_a_call_waits() {
    let port = Port::start(Config::simulated(1), |_| Ok::<_, ()>(())).unwrap();
    let start = Instant::now();
    let now = port.call(|rt, ()| {
        let rt = rt.clone();
        async move {
            rt.sleep(3600 * Nanos::SECOND).await;
            rt.now()
        }
    });
    assert_eq!(now, Nanos(3600 * Nanos::SECOND));
    assert!(start.elapsed().as_secs() < 600);
}

/// An engine waits while it opens, before it has a reactor.
#[test]
fn an_engine_may_wait_while_it_is_built() {
    let port = Port::start(Config::real(), |rt| {
        let start = rt.now();
        rt.block_on(rt.sleep(2 * Nanos::MILLI));
        Ok::<_, ()>(rt.now().since(start))
    })
    .unwrap();
    assert!(port.call(|_, waited| std::future::ready(*waited)) >= 2 * Nanos::MILLI);
}

/// A caller that serves others also runs their tasks. Tasks that never rest must not keep the
/// caller: the reactor takes over.
#[test]
fn a_caller_is_not_trapped_by_a_busy_engine() {
    let port = start();
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    port.submit(move |rt, engine| {
        for _ in 0..10 {
            let (rt2, engine, ends) = (rt.clone(), engine.clone(), ends.clone());
            rt.spawn_detached(async move {
                while !ends.load(Ordering::Relaxed) {
                    engine.count.set(engine.count.get() + 1);
                    rt2.yield_now().await;
                }
            });
        }
    });
    for _ in 0..100 {
        port.call(|_, _| async {});
    }
    let before = port.call(|_, engine| std::future::ready(engine.count.get()));
    while port.call(|_, engine| std::future::ready(engine.count.get())) < before + 1_000 {
        std::thread::yield_now();
    }
    over.store(true, Ordering::Relaxed);
    while port.call(|rt, _| std::future::ready(rt.task_count())) > 0 {
        std::thread::yield_now();
    }
}

/// Requests of threads that have ended are served.
#[test]
fn requests_of_threads_that_have_ended_are_served() {
    let port = start();
    for round in 0..200 {
        let theirs = port.clone();
        let submit = move || theirs.submit(move |_, engine| engine.count.set(round + 1));
        let other = std::thread::spawn(submit);
        port.submit(|_, _| {});
        other.join().unwrap();
        assert_eq!(port.call(|_, engine| std::future::ready(engine.count.get())), round + 1);
    }
}

/// A thread that leaves its requests to others never runs one, gets every answer, and learns of the
/// engine's end.
#[test]
fn a_thread_that_leaves_its_calls_to_others_never_holds_the_engine() {
    let port = start();
    let busy = port.clone();
    let over = Arc::new(AtomicBool::new(false));
    let ends = over.clone();
    let other = std::thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            busy.call(|_, engine| {
                engine.count.set(engine.count.get() + 1);
                async {}
            });
        }
    });
    let threads: Vec<_> = (0..3u64)
        .map(|thread| {
            let port = port.clone();
            std::thread::spawn(move || {
                let me = std::thread::current().id();
                for call in 0..1_000 {
                    let ran = port.try_call_by_others(move |rt, engine| {
                        let on = std::thread::current().id();
                        engine.log.borrow_mut().push((thread, call));
                        let rt = rt.clone();
                        async move {
                            if call % 100 == 0 {
                                rt.sleep(1_000).await;
                            }
                            on
                        }
                    });
                    assert_ne!(ran.unwrap(), me, "thread {thread} held the engine");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    over.store(true, Ordering::Relaxed);
    other.join().unwrap();
    // No other thread makes calls, so the reactor executes these.
    for thread in 0..3 {
        let log =
            port.try_call_by_others(|_, engine| std::future::ready(engine.log.borrow().clone()));
        let log = log.unwrap();
        let calls: Vec<u64> =
            log.iter().filter(|(of, _)| *of == thread).map(|(_, call)| *call).collect();
        assert!(calls.iter().copied().eq(0..1_000), "in order, each once");
    }
    for _ in 0..20 {
        let port = start();
        let other = port.clone();
        let calls = std::thread::spawn(move || {
            while other.try_call_by_others(|_, _| async {}).is_ok() {}
            other.try_call_by_others(|_, _| async {}).unwrap_err();
        });
        port.stop(|_, _| async {});
        calls.join().unwrap();
    }
}
