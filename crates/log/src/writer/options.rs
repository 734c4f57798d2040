//! The options of a writer.

use furrow_policy::LogDefect;

/// Rule for how many writes of one zone may be in flight, and whether the writer or the drive
/// chooses their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// One command in flight per zone.
    Blocking,
    /// Many commands in flight per zone, in order on the zone's hardware queue.
    Queued,
    /// Like `Queued`, but writes with [`Placement::Append`] use Zone Append: the drive reports the
    /// place of each at completion.
    Append,
}

/// The options of a writer.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// How many writes of one zone may be in flight, and who chooses their places.
    pub order: Order,
    /// Number of hardware queues of the drive. A zone is written through the queue with the fewest
    /// zones; a zone opened after another uses the other's queue.
    pub queues: u16,
    /// Maximum number of write commands in flight per zone under [`Order::Queued`]
    /// and [`Order::Append`].
    pub depth: u32,
    /// Maximum number of blocks in a write command, if lower than the drive's limit.
    pub command_blocks: Option<u32>,
    /// Number of commands of a zone to keep in flight, if possible. Waiting writes are divided into
    /// as many commands as are missing from this number; each command has at least 16 KiB. So the
    /// dies of a zone that spans several dies work in parallel. 1: waiting writes go in one
    /// command.
    pub pieces: u32,
    /// Whether the writer learns the faster way to write blocks that wait for a zone without
    /// commands in flight: one command or `pieces`. Under [`Order::Queued`] only.
    pub learns_pieces: bool,
    /// Whether adjacent writes that wait for a zone are joined into one command.
    pub join: bool,
    /// Like `pieces`, for appends; 0: each append is sent as a command of its own.
    pub append_pieces: u32,
    /// The built-in defect, if any.
    pub defect: Option<LogDefect>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions {
            order: Order::Queued,
            queues: 1,
            // 32 commands of up to 1 MiB keep any drive's zone busy; more only add latency.
            depth: 32,
            command_blocks: None,
            pieces: 1,
            learns_pieces: false,
            join: true,
            append_pieces: 0,
            defect: None,
        }
    }
}
