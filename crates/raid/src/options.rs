//! The options with which a volume is run.

use furrow_log::writer::{Order, WriterOptions};
use furrow_policy::{AppendPieces, Join, RaidVariant, ZoneWrites};

/// Number of commands that waiting appended chunks are merged into; fewer if they would be below 16
/// KiB.
pub const APPEND_PIECES: u32 = 2;

/// How drives are written to.
#[derive(Clone, Copy, Debug)]
pub struct DriveOptions {
    /// Hardware queues of each drive.
    pub queues: u16,
    /// Most commands in flight per zone.
    pub depth: u32,
}

impl Default for DriveOptions {
    fn default() -> Self {
        DriveOptions { queues: 4, depth: 16 }
    }
}

/// How a volume is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How drives are written to.
    pub drive: DriveOptions,
    /// Nanoseconds after its last block until a partly filled stripe is filled up with zeros.
    pub pad_after: u64,
    /// Stripes in flight per open segment.
    pub depth: u32,
    /// Data blocks written between two checkpoints, at most.
    pub checkpoint_blocks: u64,
    /// Bytes of memory for the map, at least 24 KiB; other parts of the map are read on demand. 0:
    /// all of the map may be in memory.
    pub map_memory: u64,
    /// Clean in the background.
    pub clean: bool,
    /// Nanoseconds a rebuild pauses after every 32 rows, in favour of other requests.
    pub rebuild_pause: u64,
    /// Nanoseconds a drive may take to answer before it is given up as failed; 0: no limit.
    pub drive_timeout: u64,
    /// Start even if stripes that may have been acknowledged cannot be read, and it is not known
    /// which blocks they held: these blocks read as their earlier content.
    pub accept_loss: bool,
    /// Other rules than the product's, for experiments and tests of tests.
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
    /// How the writer of each drive is set up.
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
