//! A stage of the host that write commands pass one after the other, before the drive gets them.
//!
//! A kernel's scheduler takes a lock for each request, and a stack of its own (eZNS) does some work
//! for each request. Both limit how many commands reach a drive per second, no matter how many the
//! drive could take. Reads and management commands do not pass the stage.
//!
//! Invariant: writes reach the drive in the order in which they were submitted.

use furrow_rt::{Completion, CompletionTable, Nanos, Rt};
use furrow_zone::{
    Command, FaultInjection, Geometry, Outcome, QueueId, Reports, Request, ZoneId, ZonedDevice,
};
use std::cell::Cell;
use std::rc::Rc;

/// A drive behind a stage that write commands pass one after the other.
pub struct Staged {
    rt: Rt,
    drive: Rc<dyn ZonedDevice>,
    /// Nanoseconds for which a write command occupies the stage.
    each: u64,
    /// Time at which the last write leaves the stage.
    free_at: Cell<Nanos>,
    answers: CompletionTable<Outcome>,
}

impl Staged {
    /// Puts `drive` behind a stage of `each` nanoseconds; returns `drive` itself if `each` is 0.
    pub fn before(rt: &Rt, drive: Rc<dyn ZonedDevice>, each: u64) -> Rc<dyn ZonedDevice> {
        if each == 0 {
            return drive;
        }
        let (rt, free_at, answers) = (rt.clone(), Cell::new(rt.now()), CompletionTable::new());
        Rc::new(Staged { rt, drive, each, free_at, answers })
    }
}

impl ZonedDevice for Staged {
    fn geometry(&self) -> &Geometry {
        self.drive.geometry()
    }

    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        if !matches!(request.command, Command::Write { .. } | Command::Append { .. }) {
            return self.drive.submit(queue, request);
        }
        let passed = self.free_at.get().max(self.rt.now()).after(self.each);
        self.free_at.set(passed);
        let (ticket, answer) = self.answers.open();
        let (rt, drive, answers) = (self.rt.clone(), self.drive.clone(), self.answers.clone());
        self.rt.spawn_detached(async move {
            rt.sleep_until(passed).await;
            let outcome = drive.submit(queue, request).await;
            answers.complete(ticket, outcome);
        });
        answer
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        self.drive.report(first, count)
    }

    fn answers(&self) -> bool {
        self.drive.answers()
    }

    fn misses(&self) -> u64 {
        self.drive.misses()
    }

    fn give_up(&self) {
        self.drive.give_up();
    }

    fn fault_injection(&self) -> Option<&dyn FaultInjection> {
        self.drive.fault_injection()
    }

    fn warnings(&self) -> &[String] {
        self.drive.warnings()
    }

    fn name(&self) -> String {
        self.drive.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Page, Pages};
    use furrow_zone::{Access, BlockCount, DeviceSpec, Lba};

    /// Eight writes go to eight zones: the drive takes them all at once, the stage one by one.
    #[test]
    fn writes_pass_one_after_the_other_and_reads_beside_them() {
        let took = |each: u64| {
            let rt = Rt::new(Config::simulated(1));
            let spec: DeviceSpec = "mem:pm1731a,zones=64,timing=virtual".parse().unwrap();
            let drive = furrow_emu::open(&rt, &spec, Access::ReadWrite).unwrap();
            let drive = Staged::before(&rt, drive, each);
            let clock = rt.clone();
            let took = rt.block_on(async move {
                let page = || Pages::from_iter([Page::zeroed()]);
                let at = |zone: u32| drive.geometry().start(ZoneId(zone));
                let blocks = BlockCount(1);
                let writes: Vec<_> = (0..8)
                    .map(|zone| {
                        let command = Command::Write { lba: at(zone), blocks };
                        drive.submit(QueueId(0), Request::with_data(command, page()))
                    })
                    .collect();
                for write in writes {
                    assert!(write.await.status.is_ok());
                }
                let written = clock.now().0;
                let read = Command::Read { lba: Lba(at(0).0), blocks };
                let read = drive.submit(QueueId(0), Request::with_data(read, page()));
                assert!(read.await.status.is_ok());
                (written, clock.now().0 - written)
            });
            rt.clear();
            took
        };
        let (plain, staged) = (took(0), took(100_000));
        assert!(plain.0 < 200_000 && staged.0 >= 800_000, "{plain:?} {staged:?}");
        assert!(staged.1 < plain.1 + 50_000, "{plain:?} {staged:?}");
    }
}
