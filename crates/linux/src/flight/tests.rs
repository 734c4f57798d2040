//! Tests with scripted answers: what happens to commands whose errors a drive explains late or not
//! at all.

use crate::drive::{Drive, Opened, Use};
use crate::ioctl::Descriptor;
use crate::sysfs::Model;
use crate::transport::{Answer, Cause, Script, Transport};
use furrow_rt::{Config, Nanos, Page, Rt};
use furrow_zone::{
    Access, BlockCount, Command, Geometry, Lba, Outcome, QueueId, Request, Status, ZoneId,
    ZonedDevice,
};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

type Steps = Vec<(&'static str, Option<Answer>)>;

/// Runs `work` on a drive with four zones of 16 blocks that answers by the script `steps`.
fn on<T: 'static>(steps: Steps, work: impl AsyncFnOnce(Rt, Drive) -> T + 'static) -> T {
    let rt = Rt::new(Config::real());
    let file = Arc::new(File::open("/dev/null").expect("a system with /dev/null"));
    let opened = Opened {
        name: "scripted".to_owned(),
        folder: PathBuf::from("/"),
        geometry: Geometry::unlimited(4, 16, 16),
        access: Access::ReadWrite,
        file,
        claims: Vec::new(),
        warnings: Vec::new(),
    };
    let usage = Use { model: Model::HostManaged, queued: false, streams: 0 };
    let script = Script { steps: steps.into(), ready: Vec::new() };
    let transport = |_: &_, _: &_| Ok(Transport::Scripted(RefCell::new(script)));
    let drive = Drive::start(&rt, opened, usage, transport).expect("an event");
    let engine = rt.clone();
    let done = rt.block_on(async move { work(engine, drive).await });
    rt.clear();
    done
}

fn written(blocks: u64) -> Option<Answer> {
    Some(Answer::Done { bytes: Some(blocks * 4096), at: 0 })
}

fn failed(errno: Errno) -> Option<Answer> {
    Some(Answer::Failed(Cause::Errno(errno)))
}

/// A report of the second zone: open, with `blocks` blocks written.
fn zone(blocks: u64) -> Descriptor {
    let (start, length) = (16 * 8, 16 * 8);
    let write_pointer = start + blocks * 8;
    Descriptor { start, length, write_pointer, kind: 2, condition: 2, ..Descriptor::default() }
}

fn reported(blocks: u64) -> Option<Answer> {
    Some(Answer::Reported(Ok(zone(blocks))))
}

fn unreported() -> Option<Answer> {
    Some(Answer::Reported(Err(Errno::IO)))
}

async fn sent(drive: &Drive, command: Command, blocks: u64) -> Outcome {
    let data = (0..blocks).map(|_| Page::zeroed()).collect();
    drive.submit(QueueId(0), Request::with_data(command, data)).await
}

/// Writes two blocks to the start of the second zone, and returns the status.
fn write(steps: Steps) -> Status {
    on(steps, async |_, drive| {
        let command = Command::Write { lba: Lba(16), blocks: BlockCount(2) };
        sent(&drive, command, 2).await.status
    })
}

#[test]
fn a_write_is_not_sent_again_before_its_zone_is_reported() {
    let arrived = vec![
        ("write 16+2", failed(Errno::NOLINK)),
        ("report 16", unreported()),
        ("report 16", unreported()),
        ("report 16", reported(2)),
    ];
    assert_eq!(write(arrived), Status::Success);
    let half = vec![
        ("write 16+2", failed(Errno::NOLINK)),
        ("report 16", unreported()),
        ("report 16", reported(1)),
        ("write 17+1 again", written(1)),
    ];
    assert_eq!(write(half), Status::Success);
}

#[test]
fn an_error_of_the_drive_is_still_one_after_a_report_that_came_late() {
    let steps = vec![
        ("write 16+2", failed(Errno::IO)),
        ("report 16", unreported()),
        ("report 16", reported(0)),
        ("write 16+2 again", failed(Errno::IO)),
        ("report 16", reported(0)),
        ("write 16+2 again", failed(Errno::IO)),
        ("report 16", reported(0)),
    ];
    assert_eq!(write(steps), Status::WriteFault, "the zone fails, and not the drive");
}

/// The kernel's write pointer is wrong. Only a refused write that can wait, such as a retry, makes
/// the kernel notice, so that a report corrects the pointer.
#[test]
fn a_write_that_the_kernel_refuses_twice_costs_no_zone() {
    let steps = vec![
        ("write 16+2", failed(Errno::IO)),
        ("report 16", reported(0)),
        ("write 16+2 again", failed(Errno::IO)),
        ("report 16", reported(0)),
        ("write 16+2 again", written(2)),
    ];
    assert_eq!(write(steps), Status::Success);
}

#[test]
fn an_append_whose_report_comes_late_costs_its_zone_only() {
    let steps = vec![
        ("append 16+1", Some(Answer::Failed(Cause::Nvme(0x371)))),
        ("report 16", unreported()),
        ("report 16", reported(0)),
    ];
    let status = on(steps, async |_, drive| {
        let command = Command::Append { zone_start: Lba(16), blocks: BlockCount(1) };
        sent(&drive, command, 1).await.status
    });
    assert_eq!(status, Status::WriteFault);
}

#[test]
fn a_drive_that_was_given_up_gets_nothing_more() {
    let steps = vec![("write 16+2", failed(Errno::NOLINK)), ("report 16", reported(0))];
    let status = on(steps, async |rt, drive| {
        let command = Command::Write { lba: Lba(16), blocks: BlockCount(2) };
        let data = (0..2).map(|_| Page::zeroed()).collect();
        let answer = drive.submit(QueueId(0), Request::with_data(command, data));
        rt.sleep(20 * Nanos::MILLI).await;
        drive.give_up();
        rt.sleep(200 * Nanos::MILLI).await;
        answer.await.status
    });
    assert_eq!(status, Status::InternalError);
}

#[test]
fn a_report_for_the_engine_outlives_a_lost_link() {
    let lost = || Some(Answer::ReportedAll(Err(Errno::IO)));
    let steps = vec![
        ("report 16+1", lost()),
        ("report 16+1", lost()),
        ("report 16+1", Some(Answer::ReportedAll(Ok(vec![zone(3)])))),
    ];
    let zones = on(steps, async |_, drive| drive.report(ZoneId(1), 1).await);
    assert_eq!(zones.map(|zones| zones[0].write_pointer), Ok(BlockCount(3)));
    let gone = vec![("report 16+1", Some(Answer::ReportedAll(Err(Errno::NODEV))))];
    let zones = on(gone, async |_, drive| drive.report(ZoneId(1), 1).await);
    assert_eq!(zones.err(), Some(Status::InternalError), "at once");
}

#[test]
fn a_report_that_never_comes_is_a_command_that_is_owed() {
    on(vec![("report 16+1", None)], async |rt, drive| {
        assert_eq!(drive.oldest(), None);
        let asked = drive.clone();
        let report = rt.spawn(async move { asked.report(ZoneId(1), 1).await });
        rt.yield_now().await;
        assert!(drive.oldest().is_some());
        drive.give_up();
        assert_eq!(report.await.err(), Some(Status::InternalError));
        assert_eq!(drive.oldest(), None);
    });
}

/// Number of commands in the script that have not been sent.
fn left(drive: &Drive) -> usize {
    match &drive.0.transport {
        Transport::Scripted(script) => script.borrow().steps.len(),
        _ => 0,
    }
}

#[test]
fn a_drive_that_was_given_up_gets_neither_a_report_nor_a_write() {
    // The drive is given up before the error is known, before the report, or during the
    // retried write.
    for answers in 0..3 {
        let steps = vec![
            ("write 16+2", failed(Errno::IO)),
            ("report 16", reported(0)),
            ("write 16+2 again", None),
        ];
        on(steps, async move |rt, drive| {
            let command = Command::Write { lba: Lba(16), blocks: BlockCount(2) };
            let data = (0..2).map(|_| Page::zeroed()).collect();
            let answer = drive.submit(QueueId(0), Request::with_data(command, data));
            (0..answers).for_each(|_| assert!(drive.0.take_answers()));
            assert_eq!(left(&drive), 2 - answers);
            drive.give_up();
            rt.sleep(50 * Nanos::MILLI).await;
            assert_eq!(answer.await.status, Status::InternalError);
            assert_eq!(left(&drive), 2 - answers, "sent after it was given up");
        });
    }
}

#[test]
fn a_report_that_never_comes_is_owed_beside_later_commands() {
    on(vec![("report 16+1", None), ("write 16+2", None)], async |rt, drive| {
        let asked = drive.clone();
        let _report = rt.spawn(async move { asked.report(ZoneId(1), 1).await });
        rt.yield_now().await;
        let report = drive.oldest();
        let command = Command::Write { lba: Lba(16), blocks: BlockCount(2) };
        let data = (0..2).map(|_| Page::zeroed()).collect();
        let _answer = drive.submit(QueueId(0), Request::with_data(command, data));
        rt.yield_now().await;
        assert!(report.is_some());
        assert_eq!(drive.oldest(), report, "the report is older");
        drive.give_up();
    });
}
