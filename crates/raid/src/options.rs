//! The options with which a volume is run.

use furrow_log::writer::{Order, WriterOptions};
use furrow_policy::{AppendPieces, Join, RaidVariant, ZoneWrites};

/// Number of commands into which waiting appended chunks are merged; fewer if commands would be
/// smaller than 16 KiB.
pub const APPEND_PIECES: u32 = 2;

/// Options for a volume's writes to its drives.
#[derive(Clone, Copy, Debug)]
pub struct DriveOptions {
    /// Number of hardware queues of each drive.
    pub queues: u16,
    /// Maximum number of commands in flight per zone.
    pub depth: u32,
}

impl Default for DriveOptions {
    fn default() -> Self {
        DriveOptions { queues: 4, depth: 16 }
    }
}

/// The options with which a volume is run; none of them is stored on the drives.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options for the writes to the drives.
    pub drive: DriveOptions,
    /// Nanoseconds without a further block after which zeros fill the rest of a partly
    /// filled stripe.
    pub pad_after: u64,
    /// Maximum number of stripes in flight per open segment.
    pub depth: u32,
    /// Number of blocks written by users after which the next checkpoint is due.
    pub checkpoint_blocks: u64,
    /// Maximum number of bytes of memory for the map, at least 24 KiB; parts of the map that are
    /// not in memory are read when needed. 0: no limit.
    pub map_memory: u64,
    /// Whether segments are cleaned in the background.
    pub clean: bool,
    /// Pause of a rebuild after every 32 rows, in nanoseconds, in favour of other requests.
    pub rebuild_pause: u64,
    /// Longest time that a drive may take to answer before it counts as failed, in nanoseconds; 0:
    /// no limit.
    pub drive_timeout: u64,
    /// Whether to start even if stripes that may have been acknowledged cannot be read, and it is
    /// unknown which blocks they held: these blocks then have their earlier content.
    pub accept_loss: bool,
    /// Rules other than the product's, for experiments and for tests of the tests.
    pub variant: RaidVariant,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            drive: DriveOptions::default(),
            pad_after: 100_000,
            depth: 16,
            checkpoint_blocks: 1 << 18,
            map_memory: 0,
            clean: true,
            rebuild_pause: 0,
            drive_timeout: 0,
            accept_loss: false,
            variant: RaidVariant::default(),
        }
    }
}

impl Options {
    /// The options of the writer of each drive.
    pub(crate) fn writer(&self) -> WriterOptions {
        let variant = &self.variant;
        WriterOptions {
            order: match variant.writes {
                ZoneWrites::Append => Order::Append,
                ZoneWrites::Blocking => Order::Blocking,
            },
            queues: self.drive.queues,
            depth: self.drive.depth,
            join: variant.join == Join::Adjacent,
            append_pieces: match variant.append_pieces {
                AppendPieces::Chosen => APPEND_PIECES,
                AppendPieces::Each => 0,
                AppendPieces::Fixed(pieces) => pieces,
            },
            ..WriterOptions::default()
        }
    }
}
