//! Observers: they are called with the results of their writes, so that no task has to wait.

use super::*;
use crate::writer::WriteObserver;
use std::cell::RefCell;

/// Notes the results, and writes one more block after each, up to `more` times.
struct Told {
    writer: Writer,
    more: Cell<u32>,
    heard: RefCell<Vec<(u32, Result<u32>)>>,
}

impl Told {
    fn new(writer: &Writer, more: u32) -> Rc<Told> {
        Rc::new(Told { writer: writer.clone(), more: Cell::new(more), heard: RefCell::default() })
    }

    fn send(self: &Rc<Told>, zone: u32, part: u32, append: bool) {
        let page = std::iter::once(stamp(ZoneId(zone), part));
        let observer = (self.clone() as Rc<dyn WriteObserver>, part);
        drop(self.writer.submit(ZoneWrite {
            placement: if append { Placement::Append } else { Placement::Position },
            observer: Some(observer),
            ..ZoneWrite::pages(ZoneId(zone), Kind::Data, page)
        }));
    }
}

impl WriteObserver for Told {
    fn on_complete(self: Rc<Self>, part: u32, at: Result<u32>) {
        self.heard.borrow_mut().push((part, at));
        if self.more.get() > 0 {
            self.more.set(self.more.get() - 1);
            self.send(0, 1000 + self.more.get(), true);
        }
    }
}

/// In whatever order the drive answers, an observer learns of each write once, with the place of
/// its block.
#[test]
fn an_observer_is_told_of_each_write_where_it_is() {
    for (seed, append_pieces) in (0..40).flat_map(|seed| [(seed, 0), (seed, 1), (seed, 3)]) {
        let rt = Rt::new(Config::shuffled(seed));
        let toy = Toy::on(&rt, geometry(1, 64), seed);
        toy.wish(|wishes| wishes.overtake = 4);
        let options = WriterOptions { append_pieces, ..options(Order::Append, 2, 3) };
        let writer = Writer::with_options(&rt, toy.clone(), options);
        writer.open_empty(ZoneId(0));
        let told = Told::new(&writer, 9);
        for part in 0..20 {
            told.send(0, part, part < 12);
        }
        rt.run_ready();
        let mut heard = told.heard.take();
        heard.sort_by_key(|(part, _)| *part);
        let parts: Vec<u32> = heard.iter().map(|(part, _)| *part).collect();
        assert_eq!(parts, (0..20).chain(1000..1009).collect::<Vec<_>>());
        for (part, at) in heard {
            assert!(lies(&toy, &stamp(ZoneId(0), part), at.unwrap(), 1), "{part}");
        }
        rt.clear();
    }
}

#[test]
fn appends_that_wait_go_in_one_command() {
    let rt = Rt::new(Config::simulated(1));
    let toy = Toy::on(&rt, geometry(1, 64), 1);
    let options = WriterOptions { append_pieces: 1, ..options(Order::Append, 1, 8) };
    let writer = Writer::with_options(&rt, toy.clone(), options);
    writer.open_empty(ZoneId(0));
    let told = Told::new(&writer, 0);
    (0..20).for_each(|part| told.send(0, part, true));
    let limit = writer.append_limit();
    // No two of these three appends fit in one command, and an append is not split.
    let most = Pages::from_iter(numbered(&mut 0, limit - 1));
    let wide: Vec<_> = (0..3).map(|_| append(&writer, ZoneId(0), most.clone())).collect();
    rt.run_ready();
    assert_eq!(told.heard.borrow().len(), 20);
    assert_eq!(toy.log().len() as u32, 20u32.div_ceil(limit) + 3);
    drop(wide);
    rt.clear();
}

/// Writes before a failure succeed. Observers of the failed write and of all later writes get
/// the error.
#[test]
fn an_observer_is_told_of_a_failure_once() {
    for order in [Order::Blocking, Order::Queued, Order::Append] {
        let rt = Rt::new(Config::shuffled(4));
        let toy = Toy::on(&rt, geometry(2, 512), 4);
        toy.wish(|wishes| wishes.fail.extend([(Lba(20), Status::WriteFault)]));
        let options = WriterOptions { join: false, ..options(order, 2, 3) };
        let writer = Writer::with_options(&rt, toy.clone(), options);
        (0..2).for_each(|zone| writer.open_empty(ZoneId(zone)));
        let told = Told::new(&writer, 0);
        (0..40).for_each(|part| told.send(0, part, false));
        told.send(1, 40, order == Order::Append);
        rt.run_ready();
        told.send(0, 41, false);
        assert_eq!(told.heard.borrow().len(), 41, "not on the way of who asks");
        rt.run_ready();
        let mut heard = told.heard.take();
        heard.sort_by_key(|(part, _)| *part);
        assert!(heard.iter().map(|(part, _)| *part).eq(0..42), "{order:?}");
        for (part, at) in heard {
            assert_eq!(at.is_ok(), part < 20 || part == 40, "{order:?} {part}");
        }
        assert_eq!(writer.in_flight(), 0);
        rt.clear();
    }
}

/// After a power cut no observer is called, and none stays in memory, although the observer holds
/// the writer.
#[test]
fn a_party_goes_with_the_executor() {
    let rt = Rt::new(Config::simulated(1));
    // The drive is not a source, so it never answers.
    let toy = Toy::new(geometry(1, 64), 1);
    let writer = Writer::with_options(&rt, toy, options(Order::Append, 1, 4));
    writer.open_empty(ZoneId(0));
    let told = Told::new(&writer, 0);
    (0..9).for_each(|part| told.send(0, part, true));
    rt.run_ready();
    let weak = Rc::downgrade(&told);
    assert!(told.heard.borrow().is_empty());
    drop((told, writer));
    rt.clear();
    assert!(weak.upgrade().is_none());
}
