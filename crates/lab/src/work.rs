//! Commands of one block, which the benchmarks of the emulated drive submit.

use furrow_rt::Rt;
use furrow_zone::{BlockCount, Command, Geometry, Lba, ZoneId};
use std::ops::Deref;

/// A kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Write,
    Append,
    Read,
}

impl Work {
    pub const ALL: [Work; 3] = [Work::Write, Work::Append, Work::Read];

    pub fn name(self) -> &'static str {
        match self {
            Work::Write => "write",
            Work::Append => "append",
            Work::Read => "read",
        }
    }

    /// A command of this kind for block `offset` of `zone`. For an append, the drive chooses
    /// the block.
    #[inline]
    pub fn command(self, geometry: &Geometry, zone: ZoneId, offset: u64) -> Command {
        let (zone_start, blocks) = (geometry.start(zone), BlockCount(1));
        let lba = Lba(zone_start.0 + offset);
        match self {
            Work::Write => Command::Write { lba, blocks },
            Work::Append => Command::Append { zone_start, blocks },
            Work::Read => Command::Read { lba, blocks },
        }
    }
}

/// An executor that, when dropped, drops its tasks and the drive that they hold.
pub(crate) struct Own(pub Rt);

impl Deref for Own {
    type Target = Rt;

    fn deref(&self) -> &Rt {
        &self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.clear();
    }
}
