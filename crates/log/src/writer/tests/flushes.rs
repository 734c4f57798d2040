//! Flushes: which callers share one, and which flushes are sent along with the writes they cover.

use super::*;

/// Concurrent flushes take two commands at most: one that has started, and one for all later
/// callers. A drive without a volatile cache gets no flush. A failed flush is never forgotten.
#[test]
fn flushes_are_shared_and_their_failure_sticks() {
    let rt = Rt::new(Config::shuffled(6));
    let plain = Writer::new(&rt, Toy::on(&rt, geometry(1, 64), 6), Order::Queued, 1);
    let plain2 = plain.clone();
    rt.block_on(async move { plain2.flush().await }).unwrap();
    assert_eq!(plain.counters().flushes, 0);

    let mut shape = geometry(1, 64);
    shape.volatile_cache = true;
    let toy = Toy::on(&rt, shape, 6);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    let flush = |writer: &Writer| {
        let writer = writer.clone();
        rt.spawn(async move { writer.flush().await })
    };
    let flushes: Vec<_> = (0..6).map(|_| flush(&writer)).collect();
    rt.run_ready();
    assert!(flushes.iter().all(|flush| matches!(flush.try_take(), Some(Ok(())))));
    assert!(writer.counters().flushes <= 2, "{}", writer.counters().flushes);

    toy.wish(|wishes| wishes.fail_flush = true);
    let failed = flush(&writer);
    rt.run_ready();
    assert!(matches!(failed.try_take(), Some(Err(_))));
    toy.wish(|wishes| wishes.fail_flush = false);
    let after = flush(&writer);
    rt.run_ready();
    assert!(matches!(after.try_take(), Some(Err(_))), "what a failed flush lost stays lost");
    assert!(writer.failed().is_some());
    rt.clear();
}

/// A flush requested while another is in flight covers writes that the other does not cover.
#[test]
fn a_flush_in_flight_is_not_enough() {
    let mut shape = geometry(1, 64);
    shape.volatile_cache = true;
    let rt = Rt::new(Config::simulated(7));
    // The drive is not a source yet, so it answers nothing.
    let toy = Toy::new(shape, 7);
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    let flush = |writer: &Writer| {
        let writer = writer.clone();
        rt.spawn(async move { writer.flush().await })
    };
    let first = flush(&writer);
    rt.run_ready();
    assert_eq!(writer.counters().flushes, 1);
    let second = flush(&writer);
    let third = flush(&writer);
    rt.add_source(toy);
    rt.run_ready();
    assert_eq!(writer.counters().flushes, 2);
    assert!([first, second, third].iter().all(|flush| matches!(flush.try_take(), Some(Ok(())))));
    rt.clear();
}

/// A flush goes early only if all writes that it must cover are with the drive, if the drive's
/// flushes cover writes in flight, and if no flush is in flight. After a failure, the early flush
/// counts for nothing.
#[test]
fn a_flush_goes_beside_the_writes_that_it_covers() {
    let mut shape = geometry(2, 64);
    shape.volatile_cache = true;
    let asked = |depth, covers| {
        let rt = Rt::new(Config::simulated(7));
        // The drive is not a source yet, so it answers nothing.
        let toy = Toy::new(shape.clone(), 7);
        toy.wish(|wishes| wishes.covers = covers);
        let options = WriterOptions { join: false, ..options(Order::Queued, 1, depth) };
        let writer = Writer::with_options(&rt, toy.clone(), options);
        writer.open_empty(ZoneId(0));
        for _ in 0..2 {
            drop(write(&writer, 0, 1));
        }
        let asking = writer.clone();
        let early = rt.spawn(async move { asking.flush_early().await });
        rt.run_ready();
        writer.audit().unwrap();
        (rt, toy, writer, early.try_take().unwrap())
    };
    let (rt, _, writer, early) = asked(2, false);
    assert!(early.is_none(), "the drive's flushes cover what it has answered");
    assert_eq!(writer.counters().flushes, 0);
    rt.clear();
    let (rt, _, writer, early) = asked(1, true);
    assert!(early.is_none(), "the second write is not with the drive");
    assert_eq!(writer.counters().flushes, 0);
    rt.clear();

    for fails in [false, true] {
        let (rt, toy, writer, early) = asked(2, true);
        assert!(early.is_some());
        assert_eq!((writer.counters().commands, writer.counters().flushes), (2, 1));
        assert_eq!(writer.in_flight(), 2, "the flush is beside the writes");
        let again = writer.clone();
        let second = rt.spawn(async move { again.flush_early().await });
        rt.run_ready();
        assert!(second.try_take().unwrap().is_none(), "a flush is in flight");
        if fails {
            toy.wish(|wishes| wishes.fail = [(Lba(1), Status::WriteFault)].into());
        }
        rt.add_source(toy);
        rt.run_ready();
        assert_eq!(writer.has_failures(), fails);
        let ending = writer.clone();
        let end = rt.spawn(async move { ending.flush_after(early).await });
        rt.run_ready();
        assert!(matches!(end.try_take(), Some(Ok(()))));
        assert_eq!(writer.counters().flushes, if fails { 2 } else { 1 });
        writer.audit().unwrap();
        rt.clear();
    }
}

/// A retried write reaches the drive after the early flush, which then counts for nothing.
#[test]
fn a_write_that_is_sent_again_is_flushed_again() {
    let mut shape = geometry(1, 64);
    shape.volatile_cache = true;
    let mut seen = BTreeSet::new();
    for seed in 0..32 {
        let rt = Rt::new(Config::simulated(seed));
        let toy = Toy::new(shape.clone(), seed);
        toy.wish(|wishes| (wishes.covers, wishes.overtake) = (true, 1));
        let options = WriterOptions { join: false, ..options(Order::Queued, 1, 4) };
        let writer = Writer::with_options(&rt, toy.clone(), options);
        writer.open_empty(ZoneId(0));
        (0..2).for_each(|_| drop(write(&writer, 0, 1)));
        let flushing = writer.clone();
        let done = rt.spawn(async move {
            let early = flushing.flush_early().await;
            assert!(early.is_some());
            flushing.drain().await?;
            flushing.flush_after(early).await
        });
        rt.run_ready();
        rt.add_source(toy);
        rt.run_ready();
        assert!(matches!(done.try_take(), Some(Ok(()))));
        let again = writer.counters().retries > 0;
        assert_eq!(writer.counters().flushes, if again { 2 } else { 1 }, "seed {seed}");
        seen.insert(again);
        rt.clear();
    }
    assert_eq!(seen.len(), 2, "{seen:?}: some writes overtake others, and some do not");
}
