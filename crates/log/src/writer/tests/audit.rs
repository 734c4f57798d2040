//! Broken accounts that the writer's audit finds.

use super::*;

/// The audit finds blocks that count as done while a command still writes them.
#[test]
fn the_audit_finds_blocks_that_are_called_done_too_early() {
    let rt = Rt::new(Config::simulated(1));
    // The drive is not a source, so it never answers.
    let toy = Toy::new(geometry(2, 64), 1);
    let writer = Writer::with_options(&rt, toy, options(Order::Queued, 1, 4));
    writer.open_empty(ZoneId(1));
    let written = write(&writer, 1, 6);
    rt.run_ready();
    writer.audit().unwrap();
    assert_eq!(writer.written(ZoneId(1)), 6);
    writer.zone_queue(ZoneId(1)).unwrap().corrupt_done();
    let found = writer.audit().unwrap_err().to_string();
    assert!(found.contains("zone 1: a command in flight ends at block 6, found done 6"), "{found}");
    drop(written);
    rt.clear();
}

/// The audit finds a write whose number is missing in `InFlight`.
#[test]
fn the_audit_compares_numbers_in_flight_with_the_writes() {
    let rt = Rt::new(Config::simulated(1));
    let toy = Toy::new(geometry(2, 64), 1);
    let writer = Writer::with_options(&rt, toy, options(Order::Queued, 1, 4));
    writer.open_empty(ZoneId(0));
    let written = [write(&writer, 0, 3), write(&writer, 0, 2)];
    writer.audit().unwrap();
    writer.0.shared.in_flight.borrow_mut().complete(0, 3);
    let found = writer.audit().unwrap_err().to_string();
    assert!(found.contains("their numbers: expected [0, 1], found [1]"), "{found}");
    drop(written);
    rt.clear();
}
