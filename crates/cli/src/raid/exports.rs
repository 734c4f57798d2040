//! A volume as its clients use it: over NBD, and as a block device of the kernel.

use super::host::{Note, STOP_PATIENCE, Service};
use super::status::Requests;
use furrow_nbd::{Counts, Server};
use furrow_raid::Volume;
use furrow_rt::{Boxed, Rt, within};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The volume as a block device of the kernel.
pub type BlockDevice = furrow_ublk::Server<furrow_ublk::Exported>;

/// The exports of a volume.
pub struct Exports {
    rt: Rt,
    server: Server<Volume>,
    block_device: RefCell<Option<BlockDevice>>,
    read_only: bool,
}

impl Exports {
    /// The NBD server of a volume and, if there is one, its block device.
    pub fn new(
        rt: &Rt,
        server: Server<Volume>,
        block_device: Option<BlockDevice>,
        read_only: bool,
    ) -> Exports {
        Exports { rt: rt.clone(), server, block_device: RefCell::new(block_device), read_only }
    }
}

impl Service for Exports {
    fn places(&self) -> Vec<String> {
        let mut places = self.server.status().listening;
        places.extend(self.block_device.borrow().iter().map(|d| d.device().to_string()));
        places
    }

    fn clients(&self) -> usize {
        self.server.status().connections.len()
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn requests(&self) -> BTreeMap<String, Requests> {
        requests(&self.server.status())
    }

    fn metrics(&self, array: &str) -> String {
        self.server.status().prometheus(&[("array", array)])
    }

    fn next_refusal(&self) -> Boxed<'_, (String, u64)> {
        Box::pin(async {
            let (refusal, before) = self.server.next_refusal().await;
            (refusal.text, before)
        })
    }

    fn end<'a>(&'a self, note: Note<'a>) -> Boxed<'a, ()> {
        Box::pin(async move {
            // Both steps have a time limit, because a drive that does not answer may block
            // requests forever.
            let block_device = self.block_device.take();
            if let Some(device) = block_device {
                let stopped = within(&self.rt, STOP_PATIENCE, device.stop()).await;
                if let Some(Err(error)) = stopped {
                    note("block-device-left", error.to_string());
                }
            }
            let _ = within(&self.rt, STOP_PATIENCE, self.server.shutdown()).await;
        })
    }
}

/// The number and total duration of the requests to all exports, by kind of request.
fn requests(server: &furrow_nbd::Status) -> BTreeMap<String, Requests> {
    let sum = |of: fn(&Counts) -> (u64, u64)| {
        let each = server.exports.iter().map(|export| of(&export.counts));
        let (count, total_ns) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Requests { count, total_ns }
    };
    BTreeMap::from([
        ("read".to_owned(), sum(|counts| (counts.reads, counts.read_ns))),
        ("write".to_owned(), sum(|counts| (counts.writes, counts.write_ns))),
        ("flush".to_owned(), sum(|counts| (counts.flushes, counts.flush_ns))),
    ])
}
