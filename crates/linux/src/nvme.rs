//! NVMe commands through the generic character device (`/dev/ngXnY`): a transport to a zoned
//! namespace that bypasses the kernel's block layer, with appends, out-of-band bytes, and zones of
//! any size.
//!
//! Commands go to the kernel as `struct nvme_uring_cmd` in ring entries of 128 bytes; while the
//! drive is opened, they go by ioctl as `struct nvme_passthru_cmd64`
//! (`include/uapi/linux/nvme_ioctl.h`), which begins with the same 72 bytes, then has the result.
//! The fields of commands are those of the NVM Command Set Specification 1.0 and the Zoned
//! Namespace Command Set Specification 1.1. An append's place comes in the second half of its
//! answer of 32 bytes.

mod identify;
mod node;
mod status;

pub(crate) use node::{is_generic, obstacles, open};
pub(crate) use status::{Meaning, meaning};

use crate::ioctl::{Descriptor, SECTOR};
use crate::ring::{DEVICE, Kind, Piece, Ring};
use crate::transport::{Answer, Cause, Transfer};
use crate::workers::Job;
use furrow_zone::Action;
use io_uring::cqueue::Entry32;
use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use rustix::io::Errno;
use slab::Slab;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::OwnedFd;

/// Bytes in a page of the controller's memory (CAP.MPSMIN), the unit of its limits. This program
/// cannot read the register; every known drive has 4 KiB.
const CONTROLLER_PAGE: u64 = 4096;
/// Bytes of memory for one zone report.
const REPORT_BYTES: usize = 64 << 10;
/// Bytes in a report's head, and in each zone's descriptor.
const DESCRIPTOR: usize = 64;
/// Operation codes of commands.
mod code {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const MANAGEMENT_SEND: u8 = 0x79;
    pub const MANAGEMENT_RECEIVE: u8 = 0x7a;
    pub const APPEND: u8 = 0x7d;
}

/// `NVME_URING_CMD_IO` and `NVME_URING_CMD_IO_VEC`: _IOWR('N', 0x80, struct nvme_uring_cmd).
const URING_IO: u32 = 0xc048_4e80;
const URING_IO_VEC: u32 = 0xc048_4e81;

/// Marks the keys of zone reports, to tell them from those of commands.
const OF_REPORT: u64 = 1 << 62;

/// The properties of a namespace that its commands depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// Number of the namespace on its controller.
    pub id: u32,
    /// Size of a block in bytes.
    pub block: u64,
    /// Number of out-of-band bytes of a block.
    pub oob: u64,
    /// Number of blocks in the address space of a zone.
    pub zone_blocks: u64,
}

/// One command: `struct nvme_uring_cmd`, and the front of `struct nvme_passthru_cmd64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NvmeCommand {
    opcode: u8,
    namespace: u32,
    /// Address of the out-of-band memory, and its size in bytes.
    metadata: (u64, u32),
    /// Address and size in bytes of the payload's memory; or address and number of its pieces.
    data: (u64, u32),
    /// Command dwords 10 to 15.
    dwords: [u32; 6],
}

impl NvmeCommand {
    /// A command whose dwords 10 and 11 hold the block address `lba`.
    fn at(opcode: u8, namespace: u32, lba: u64) -> NvmeCommand {
        let mut command = NvmeCommand { opcode, namespace, ..NvmeCommand::default() };
        command.dwords[0] = lba as u32;
        command.dwords[1] = (lba >> 32) as u32;
        command
    }

    /// The command in the kernel's format; the kernel's own time-out applies.
    fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        put(0, &[self.opcode]);
        put(4, &self.namespace.to_ne_bytes());
        put(16, &self.metadata.0.to_ne_bytes());
        put(24, &self.data.0.to_ne_bytes());
        put(32, &self.metadata.1.to_ne_bytes());
        put(36, &self.data.1.to_ne_bytes());
        for (index, dword) in self.dwords.iter().enumerate() {
            put(40 + 4 * index, &dword.to_ne_bytes());
        }
        bytes
    }
}

/// A transfer of `blocks` blocks from `lba` on; for an append, `lba` is the first block of
/// the zone.
fn transfer(namespace: Namespace, kind: Kind, lba: u64, blocks: u64) -> NvmeCommand {
    let (opcode, fua) = match kind {
        Kind::Flush => return NvmeCommand::at(code::FLUSH, namespace.id, 0),
        Kind::Read => (code::READ, false),
        Kind::Write { fua, .. } => (code::WRITE, fua),
        Kind::Append { fua } => (code::APPEND, fua),
    };
    let mut command = NvmeCommand::at(opcode, namespace.id, lba);
    // The field for the number of blocks has 0 for one block.
    command.dwords[2] = (blocks - 1) as u32 | u32::from(fua) << 30;
    command
}

/// A change of the zone at `lba` or, with `all`, of all zones that the action applies to.
fn management(namespace: Namespace, action: Action, lba: u64, all: bool) -> NvmeCommand {
    let mut command = NvmeCommand::at(code::MANAGEMENT_SEND, namespace.id, lba);
    let action = match action {
        Action::Close => 0x1,
        Action::Finish => 0x2,
        Action::Open => 0x3,
        Action::Reset => 0x4,
        Action::Offline => 0x5,
    };
    command.dwords[3] = action | u32::from(all) << 8;
    command
}

/// A report of the zones from `lba` on, into `bytes` bytes of memory at `address`.
fn reporting(namespace: Namespace, lba: u64, (address, bytes): (u64, usize)) -> NvmeCommand {
    let mut command = NvmeCommand::at(code::MANAGEMENT_RECEIVE, namespace.id, lba);
    command.data = (address, bytes as u32);
    command.dwords[2] = (bytes / 4 - 1) as u32;
    // Makes the report partial: the number in its head then counts only zones for which the memory
    // has space.
    command.dwords[3] = 1 << 16;
    command
}

/// Converts the zones in a report to descriptors of the block layer: lengths in sectors; types and
/// conditions have the same numbers as in NVMe.
fn descriptors(namespace: Namespace, report: &[u8]) -> Vec<Descriptor> {
    let number = |bytes: &[u8], at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let Some((head, zones)) = report.split_at_checked(DESCRIPTOR) else { return Vec::new() };
    let sectors = |blocks: u64| blocks.saturating_mul(namespace.block / SECTOR);
    let found = usize::try_from(number(head, 0)).unwrap_or(usize::MAX);
    let zone = |from: &[u8]| Descriptor {
        start: sectors(number(from, 16)),
        length: sectors(namespace.zone_blocks),
        write_pointer: sectors(number(from, 24)),
        kind: from[0] & 0xf,
        condition: from[1] >> 4,
        capacity: sectors(number(from, 8)),
        ..Descriptor::default()
    };
    zones.chunks_exact(DESCRIPTOR).take(found).map(zone).collect()
}

/// A zone report in flight.
struct Reporting {
    /// The key of the flight, or of the engine's request, that waits for this report.
    key: usize,
    /// Whether one zone was requested: the answer is then the state of this zone, otherwise of all.
    single: bool,
    memory: Vec<u8>,
}

/// The ring for commands to a namespace.
pub(crate) struct Commands {
    namespace: Namespace,
    ring: RefCell<Ring<Entry128, Entry32>>,
    reports: RefCell<Slab<Reporting>>,
}

impl Commands {
    /// Creates a ring for the generic device `device`; `event` becomes readable when answers
    /// have come.
    ///
    /// # Errors
    /// If the kernel has no io_uring with entries of 128 bytes, or forbids it.
    pub(crate) fn new(
        device: &File,
        event: &OwnedFd,
        namespace: Namespace,
    ) -> std::io::Result<Commands> {
        let ring = RefCell::new(Ring::new(device, event)?);
        Ok(Commands { namespace, ring, reports: RefCell::default() })
    }

    fn push(&self, key: u64, operation: u32, command: NvmeCommand) {
        let entry = UringCmd80::new(DEVICE, operation).cmd(command.bytes()).build();
        self.ring.borrow_mut().push(entry.user_data(key));
    }

    fn blocks(&self, bytes: u64) -> u64 {
        bytes / self.namespace.block
    }

    /// Adds the transfer `what` with the memory `pieces`, and with out-of-band bytes at `oob`.
    pub(crate) fn transfer(&self, key: usize, what: Transfer, pieces: &[Piece], oob: &[u8]) {
        let blocks = self.blocks(what.length);
        let mut command = transfer(self.namespace, what.kind, self.blocks(what.offset), blocks);
        if what.kind != Kind::Flush {
            command.data = (pieces.as_ptr() as u64, pieces.len() as u32);
        }
        if !oob.is_empty() {
            command.metadata = (oob.as_ptr() as u64, oob.len() as u32);
        }
        self.push(key as u64, URING_IO_VEC, command);
    }

    /// Adds a change of zones, or a zone report.
    pub(crate) fn ask(&self, key: usize, job: Job) {
        let block = |sector: u64| sector * SECTOR / self.namespace.block;
        match job {
            Job::Manage { action, sector, .. } => {
                let command = management(self.namespace, action, block(sector), false);
                self.push(key as u64, URING_IO, command);
            }
            Job::ManageAll { action, .. } => {
                let command = management(self.namespace, action, 0, true);
                self.push(key as u64, URING_IO, command);
            }
            Job::Report { sector } => self.report(key, block(sector), 1, true),
            Job::ReportAll { sector, count } => self.report(key, block(sector), count, false),
            // Discards are sent only to drives without zones.
            Job::Discard { .. } => {}
        }
    }

    fn report(&self, key: usize, lba: u64, count: u32, single: bool) {
        let bytes = (count as usize + 1).saturating_mul(DESCRIPTOR).min(REPORT_BYTES);
        let mut reports = self.reports.borrow_mut();
        let entry = reports.vacant_entry();
        let index = entry.key() as u64;
        let reporting_of = entry.insert(Reporting { key, single, memory: vec![0; bytes] });
        let memory = (reporting_of.memory.as_mut_ptr() as u64, bytes);
        self.push(OF_REPORT | index, URING_IO, reporting(self.namespace, lba, memory));
    }

    /// Sends the waiting commands. True if any was sent.
    pub(crate) fn submit(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        ring.has_unsent() && ring.submit()
    }

    /// Appends the answers that have come to `into`.
    pub(crate) fn answers(&self, into: &mut Vec<(usize, Answer)>) {
        self.ring.borrow_mut().answers(|entry| {
            let (key, result) = (entry.user_data(), entry.result());
            let cause = match result {
                0 => None,
                errno if errno < 0 => Some(Cause::Errno(Errno::from_raw_os_error(-errno))),
                status => Some(Cause::Nvme(status as u16)),
            };
            into.push(match (key & OF_REPORT, cause) {
                (0, None) => (key as usize, Answer::Done { bytes: None, at: entry.big_cqe()[0] }),
                (0, Some(cause)) => (key as usize, Answer::Failed(cause)),
                (_, cause) => self.reported((key & !OF_REPORT) as usize, cause),
            });
        });
    }

    fn reported(&self, index: usize, cause: Option<Cause>) -> (usize, Answer) {
        let Reporting { key, single, memory } = self.reports.borrow_mut().remove(index);
        let zones = match cause {
            None => Ok(descriptors(self.namespace, &memory)),
            Some(Cause::Errno(errno)) => Err(errno),
            Some(Cause::Nvme(_)) => Err(Errno::IO),
        };
        let answer = match single {
            true => {
                Answer::Reported(zones.and_then(|zones| zones.first().copied().ok_or(Errno::NXIO)))
            }
            false => Answer::ReportedAll(zones),
        };
        (key, answer)
    }

    /// Waits until the kernel has answered all commands that were sent.
    pub(crate) fn wait_for_all(&mut self) {
        self.ring.get_mut().wait_for_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: Namespace = Namespace { id: 3, block: 4096, oob: 0, zone_blocks: 100 };

    #[test]
    fn commands_are_the_kernels_and_the_specifications() {
        let mut write = transfer(NAMESPACE, Kind::Write { fua: true, stream: 0 }, 0x1_2345_6789, 8);
        write.data = (0x1122_3344_5566_7788, 2);
        write.metadata = (0xaabb, 128);
        let bytes = write.bytes();
        assert_eq!((bytes[0], bytes[4]), (0x01, 3));
        assert_eq!(bytes[16..24], 0xaabbu64.to_ne_bytes());
        assert_eq!(bytes[24..32], 0x1122_3344_5566_7788u64.to_ne_bytes());
        assert_eq!((bytes[32], bytes[36]), (128, 2));
        assert_eq!(bytes[40..44], 0x2345_6789u32.to_ne_bytes());
        assert_eq!(bytes[44..48], 1u32.to_ne_bytes());
        assert_eq!(bytes[48..52], (7 | 1u32 << 30).to_ne_bytes(), "blocks from 0, FUA");
        assert_eq!(bytes[64..], [0; 16], "the time-out is the kernel's");
        let opcode = |kind| transfer(NAMESPACE, kind, 0, 1).opcode;
        assert_eq!(
            [opcode(Kind::Read), opcode(Kind::Append { fua: false }), opcode(Kind::Flush)],
            [0x02, 0x7d, 0x00]
        );
        let reset = management(NAMESPACE, Action::Reset, 100, false);
        assert_eq!((reset.opcode, reset.dwords[0], reset.dwords[3]), (0x79, 100, 4));
        assert_eq!(management(NAMESPACE, Action::Finish, 0, true).dwords[3], 0x102);
        let report = reporting(NAMESPACE, 200, (64, 4096));
        assert_eq!((report.opcode, report.dwords[2], report.dwords[3]), (0x7a, 1023, 0x1_0000));
    }

    #[test]
    fn a_report_is_read_as_far_as_it_goes() {
        let mut report = vec![0; 64 * 4];
        report[..8].copy_from_slice(&2u64.to_le_bytes());
        for (index, state) in [(1, 0x2u8), (2, 0xe), (3, 0x1)] {
            let zone = &mut report[64 * index..64 * (index + 1)];
            (zone[0], zone[1]) = (2, state << 4);
            zone[8..16].copy_from_slice(&96u64.to_le_bytes());
            zone[16..24].copy_from_slice(&(100 * (index as u64 - 1)).to_le_bytes());
            zone[24..32].copy_from_slice(&(100 * (index as u64 - 1) + 5).to_le_bytes());
        }
        let zones = descriptors(NAMESPACE, &report);
        assert_eq!(zones.len(), 2, "the head says two");
        assert_eq!((zones[1].start, zones[1].length, zones[1].capacity), (800, 800, 768));
        assert_eq!((zones[0].write_pointer, zones[0].condition, zones[0].kind), (40, 2, 2));
        assert_eq!(zones[1].condition, 0xe);
        assert!(descriptors(NAMESPACE, &report[..10]).is_empty(), "cut short");
        report[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(descriptors(NAMESPACE, &report).len(), 3, "a number that cannot be");
    }
}
