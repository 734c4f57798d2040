//! The engine's counters in reports. A new counter of the engine needs one more line
//! in `counters!`.

use furrow_fs::Counters;
use serde::{Deserialize, Serialize};

/// A counter: its name, its meaning, its value.
pub type Counted = (&'static str, &'static str, u64);

macro_rules! counters {
    ($($name:ident: $what:literal,)+) => {
        /// [`Counters`] as JSON, with figures derived from them. Counters that the writer of the
        /// document did not know are 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Traffic {
            $(#[doc = $what] pub $name: u64,)+
            /// Bytes of all kinds written to the drive.
            pub host_bytes: u64,
            /// Bytes written to the drive per byte that users wrote; absent if users wrote nothing.
            pub write_amplification: Option<f64>,
        }

        impl From<Counters> for Traffic {
            fn from(c: Counters) -> Traffic {
                let host_bytes = c.host_bytes();
                let write_amplification =
                    (c.user_bytes > 0).then(|| host_bytes as f64 / c.user_bytes as f64);
                Traffic { $($name: c.$name,)+ host_bytes, write_amplification }
            }
        }

        impl Traffic {
            /// Every counter of the engine.
            pub fn each(&self) -> Vec<Counted> {
                vec![$((stringify!($name), $what, self.$name),)+]
            }
        }
    };
}

counters! {
    user_bytes: "Bytes that users wrote",
    read_bytes: "Bytes that users read, except from the kernel's cache",
    data_bytes: "Bytes of file data written to the drive",
    node_bytes: "Bytes of nodes (inodes and pointer blocks) written to the drive",
    summary_bytes: "Bytes of segment summaries written to the drive",
    checkpoint_bytes: "Bytes of checkpoints and superblocks written to the drive",
    delta_bytes: "Bytes of the delta log written to the drive",
    table_bytes: "Bytes of tables written to the drive",
    sync_bytes: "Bytes of the sync log written to the drive",
    padding_bytes: "Bytes of padding written to the drive",
    zone_resets: "Zones reset",
    merges: "Merges of the delta log into the tables begun",
    merge_bytes: "Bytes of table pages that merges copied",
    merge_moved_bytes: "Bytes of unchanged table pages that merges copied to empty zones of tables",
    table_superzones_taken: "Superzones that tables took from the main area",
    table_superzones_returned: "Superzones that tables gave back",
    merge_throttles: "Checkpoints that found the delta log full before a merge had ended",
    longest_merge_stall_ns: "The longest delay of a checkpoint by writing table pages",
    zone_failures: "Zones that failed while they were written; their blocks were written elsewhere",
    superzones_evacuated: "Superzones emptied after zones of them failed or the drive closed them",
    superzones_closed: "Superzones left before they were full, because their permits were needed",
    superzones_finished: "Parked superzones finished in the background, because it paid",
    write_commands: "Write commands sent to the drive",
    checkpoints: "Checkpoints written",
    fsyncs: "Syncs of files acknowledged",
    cache_hits: "Pages found in the cache",
    cache_misses: "Pages not found in the cache",
    clean_victims: "Superzones cleaned",
    clean_data_blocks: "Blocks of file data that cleaning moved",
    clean_node_blocks: "Nodes that cleaning moved",
    clean_failed_blocks: "Blocks that cleaning could not read, or whose content was not what was \
                          written",
    damaged_reads: "Requests that failed because a block could not be read, or was not what was \
                    written",
    space_waits: "Number of times that an operation had to wait for space",
    longest_stretch_units: "Maximum number of blocks, nodes and names that an operation looked at \
                            before others had a turn",
    longest_stretch_ns: "Longest time that other operations waited for their turn",
}

impl Traffic {
    /// Bytes written to the drive, by kind of block. Their sum is `host_bytes`.
    pub fn kinds(&self) -> [(&'static str, u64); 8] {
        [
            ("data", self.data_bytes),
            ("nodes", self.node_bytes),
            ("summaries", self.summary_bytes),
            ("checkpoints", self.checkpoint_bytes),
            ("delta log", self.delta_bytes),
            ("tables", self.table_bytes),
            ("sync log", self.sync_bytes),
            ("padding", self.padding_bytes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_counter_of_the_engine_is_reported() {
        let shown = format!("{:?}", Counters::default());
        let fields = shown.trim_start_matches("Counters {").trim_end_matches('}').split(',');
        let names: BTreeSet<&str> =
            fields.filter_map(|field| Some(field.split_once(':')?.0.trim())).collect();
        assert!(names.contains("fsyncs"), "{shown}");
        let reported: BTreeSet<&str> =
            Traffic::default().each().into_iter().map(|counter| counter.0).collect();
        assert_eq!(reported, names, "counters! in report/counters.rs lacks or has one too many");
    }

    #[test]
    fn kinds_are_all_that_is_written() {
        let counters = Counters {
            data_bytes: 1,
            node_bytes: 2,
            summary_bytes: 4,
            checkpoint_bytes: 8,
            delta_bytes: 16,
            table_bytes: 32,
            sync_bytes: 64,
            padding_bytes: 128,
            user_bytes: 510,
            ..Counters::default()
        };
        let traffic = Traffic::from(counters);
        assert_eq!(traffic.kinds().iter().map(|kind| kind.1).sum::<u64>(), traffic.host_bytes);
        assert_eq!(traffic.write_amplification, Some(0.5));
    }
}
