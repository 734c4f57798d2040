//! Policies of an engine: what makes one profile differ from another.
//!
//! A policy can be named only if some engine implements it. If an engine implements only one
//! choice, the others are refused, so a result states the policies with which it was measured. A
//! part of `sync` is implemented here: with `ordered` and `serial`, the lab has data written before
//! it asks for an fsync.

use furrow_emu::timing::quantity::{Bytes, Time};
use furrow_fs::{MkfsOptions, MountOptions, Order as WriteOrder};
use furrow_policy::{
    Commands, FsVariant, Metadata as Tables, Pieces, Rule, StreamHeads, SuperzoneTurn, SyncRecord,
};
use furrow_rt::PAGE_SIZE;
use serde::{Deserialize, Serialize};

/// Maximum number of superzones to which a stream can write at the same time.
const SUPERZONES_MAX: u32 = 8;

/// The number of superzones that a stream writes to at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// In proportion to the stream's share of all writes, recomputed every second.
    #[default]
    Quota,
    /// The same number for each stream.
    Fixed(u32),
    /// A separate number for each of hot, warm and cold data, and hot, warm and cold nodes.
    Split([u8; 6]),
}

/// A quota rule of the engine that goes beyond the published rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaRule {
    /// A busy stream gets more superzones before its window ends.
    Early,
    /// Superzones are opened where the fewest writes are expected.
    ByLoad,
    /// A stream continues in the superzone whose dies have the fewest writes.
    Weighed,
    /// A stream that lacks permits takes parked superzones of other streams.
    Lent,
}

/// The number of writes in flight to a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// One write, as with a kernel's zone write lock.
    Blocking,
    /// Many writes.
    #[default]
    Queued,
    /// Many writes. Data is written with Zone Append, so the drive chooses the place.
    Append,
}

/// The writes of an fsync, and their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// Data, and at the same time a record of the changes in the nodes.
    #[default]
    Changes,
    /// Data, nodes and record at the same time; recovery finds out which of them are
    /// complete (HZFS).
    CoUpdate,
    /// Data first; once the data are on the drive, nodes and record. This is F2FS's order.
    Ordered,
    /// Data, nodes and record, each after the one before is on the drive: the order that HZFS finds
    /// in existing file systems (its section IV-D).
    Serial,
}

/// The place where changed table entries are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metadata {
    /// A log of changes; the tables themselves are written from time to time.
    #[default]
    DeltaLog,
    /// Tables in a pair of zones: every checkpoint writes each changed block of the tables.
    NaivePair,
}

/// The policies of a file system. The engine chooses the values of fields that are not set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Number of superzones to which a stream writes at once.
    pub placement: Placement,
    /// Quota rules that are switched off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota_without: Vec<QuotaRule>,
    /// Whether a stream's next superzone is used without waiting for writes to the previous one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overlap: bool,
    /// Number of zones in a superzone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// Consecutive bytes that go to one zone of a superzone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripe: Option<Bytes>,
    /// Largest write command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Bytes>,
    /// Number of writes in flight to a zone.
    pub order: Order,
    /// Number of commands into which the queued writes of a zone are merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pieces: Option<u32>,
    /// Time that the engine's own stack takes for each write command, one after the other. It
    /// replaces the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<Time>,
    /// The writes of an fsync, and their order.
    pub sync: Sync,
    /// The place where changed table entries are written.
    pub metadata: Metadata,
    /// Bytes of a table that are written together when any entry in them changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Bytes>,
    /// With [`Metadata::NaivePair`]: whether each checkpoint also copies zones of summaries.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub summary_pairs: bool,
    /// Number of zones over which the log of fsync records is striped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_zones: Option<u32>,
    /// For `spread`: number of open zones over which files are spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_zones: Option<u32>,
    /// For `spread`: device spec of the conventional drive with the journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<String>,
}

/// Options for opening a file store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorePolicy {
    /// Name of the policy by which files share zones.
    pub policy: String,
    /// Zone cleaning begins when less than this share of the zones is free, in percent.
    #[serde(default = "a_fifth")]
    pub clean_below: u32,
}

fn a_fifth() -> u32 {
    20
}

impl StorePolicy {
    /// The options in the store's form.
    ///
    /// # Errors
    /// If there is no such policy, or the share is out of range.
    pub fn options(&self) -> anyhow::Result<furrow_kv::Options> {
        let policy = self.policy.parse()?;
        anyhow::ensure!(self.clean_below <= 90, "clean_below of {} %: 0 to 90", self.clean_below);
        Ok(furrow_kv::Options { policy, clean_below: self.clean_below, ..Default::default() })
    }
}

fn blocks(bytes: Bytes) -> u32 {
    (bytes.0 / PAGE_SIZE as u64) as u32
}

impl Policy {
    /// Checks the policy.
    ///
    /// # Errors
    /// If the policy is invalid: the reason, in one clause.
    pub fn check(&self) -> Result<(), String> {
        if self.summary_pairs && self.metadata != Metadata::NaivePair {
            return Err("summary_pairs: with metadata = 'naive-pair' only".to_owned());
        }
        let counts = match self.placement {
            Placement::Quota => Vec::new(),
            Placement::Fixed(count) => vec![count],
            Placement::Split(counts) => counts.map(u32::from).to_vec(),
        };
        if let Some(count) = counts.iter().find(|count| !(1..=SUPERZONES_MAX).contains(*count)) {
            return Err(format!(
                "placement: {count} superzones, 1 to {SUPERZONES_MAX} are possible"
            ));
        }
        if self.pieces == Some(0) {
            return Err("pieces: 0 commands".to_owned());
        }
        if self.data_zones.is_some_and(|zones| zones == 0) {
            return Err("data_zones: 0".to_owned());
        }
        let sizes = [("stripe", self.stripe), ("request", self.request), ("unit", self.unit)];
        for (name, bytes) in sizes {
            let fits = |bytes: Bytes| {
                bytes.0.is_multiple_of(PAGE_SIZE as u64) && (1..=1 << 30).contains(&bytes.0)
            };
            if let Some(bytes) = bytes.filter(|bytes| !fits(*bytes)) {
                return Err(format!("{name} of {bytes} is not a multiple of 4KiB up to 1GiB"));
            }
        }
        Ok(())
    }

    /// Options for making the file system, which erases the drive's old content.
    pub fn mkfs(&self) -> MkfsOptions {
        MkfsOptions {
            force: true,
            width: self.width,
            subsegment_blocks: self.stripe.map(blocks),
            sync_zones: self.sync_zones,
            unit_blocks: match (self.unit, self.metadata) {
                (None, Metadata::NaivePair) => Some(1),
                (unit, _) => unit.map(blocks),
            },
            ..MkfsOptions::default()
        }
    }

    /// Options for mounting.
    pub fn mount(&self) -> MountOptions {
        MountOptions {
            order: match self.order {
                Order::Blocking => WriteOrder::Blocking,
                Order::Queued => WriteOrder::Queued,
                Order::Append => WriteOrder::Append,
            },
            variant: self.variant(),
            ..MountOptions::default()
        }
    }

    /// The rules in which the engine differs from the product's.
    fn variant(&self) -> FsVariant {
        let rule = |rule| Rule::unless(self.quota_without.contains(&rule));
        FsVariant {
            heads: match self.placement {
                Placement::Quota => StreamHeads::Quota,
                Placement::Fixed(count) => StreamHeads::Fixed(count),
                Placement::Split(counts) => StreamHeads::Split(counts),
            },
            early_quota: rule(QuotaRule::Early),
            open_by_load: rule(QuotaRule::ByLoad),
            weighed_turns: rule(QuotaRule::Weighed),
            lent_superzones: rule(QuotaRule::Lent),
            superzones: match self.overlap {
                true => SuperzoneTurn::Overlapping,
                false => SuperzoneTurn::After,
            },
            pieces: self.pieces.map_or(Pieces::ByZone, Pieces::Fixed),
            record: match self.sync {
                Sync::Changes => SyncRecord::Changes,
                Sync::CoUpdate | Sync::Ordered => SyncRecord::AtOnce,
                Sync::Serial => SyncRecord::AfterNodes,
            },
            commands: self.request.map(blocks).map_or(Commands::Largest, Commands::AtMost),
            metadata: match self.metadata {
                Metadata::DeltaLog => Tables::Log,
                Metadata::NaivePair => Tables::Pair,
            },
            ..FsVariant::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Result<Policy, String> {
        let policy: Policy = toml::from_str(text).map_err(|error| error.to_string())?;
        policy.check().map(|()| policy)
    }

    #[test]
    fn what_is_said_reaches_the_engine() {
        let text = "placement = { fixed = 4 }\nwidth = 16\nstripe = '4KiB'\nrequest = '8KiB'\n\
                    order = 'blocking'\nsync = 'co-update'\nmetadata = 'delta-log'";
        let policy = policy(text).unwrap();
        let (mkfs, mount) = (policy.mkfs(), policy.mount());
        assert_eq!((mkfs.width, mkfs.subsegment_blocks), (Some(16), Some(1)));
        assert_eq!(mount.variant.heads, StreamHeads::Fixed(4));
        assert_eq!((mount.order, mount.variant.commands.blocks()), (WriteOrder::Blocking, Some(2)));
        let split = super::Placement::Split([6, 1, 1, 1, 1, 1]);
        let split = Policy { placement: split, sync: Sync::Ordered, ..Policy::default() };
        split.check().unwrap();
        assert_eq!(split.mount().variant.heads, StreamHeads::Split([6, 1, 1, 1, 1, 1]));
        let pair = Policy { metadata: Metadata::NaivePair, ..Policy::default() };
        assert_eq!(
            (pair.mkfs().unit_blocks, pair.mount().variant.metadata),
            (Some(1), Tables::Pair)
        );
        let coarse = Policy { unit: Some(Bytes(4 << 20)), ..pair };
        assert_eq!(coarse.mkfs().unit_blocks, Some(1024));
        let striped = Policy { sync_zones: Some(2), ..Policy::default() };
        assert_eq!(striped.mkfs().sync_zones, Some(2));
        let rules = "quota_without = ['early', 'weighed']\noverlap = true";
        let rules: Policy = toml::from_str(rules).unwrap();
        let variant = rules.mount().variant;
        let left = [variant.early_quota, variant.open_by_load, variant.weighed_turns];
        assert_eq!(left, [Rule::LeftOut, Rule::Kept, Rule::LeftOut]);
        let not_lent: Policy = toml::from_str("quota_without = ['lent']").unwrap();
        let not_lent = not_lent.mount().variant;
        assert_eq!((not_lent.lent_superzones, not_lent.early_quota), (Rule::LeftOut, Rule::Kept));
        assert_eq!(variant.superzones, SuperzoneTurn::Overlapping);
        let serial: Policy = toml::from_str("sync = 'serial'\npieces = 1").unwrap();
        let variant = serial.mount().variant;
        assert_eq!((variant.record, variant.pieces), (SyncRecord::AfterNodes, Pieces::Fixed(1)));
        let own = Policy::default().mount();
        assert_eq!((own.variant, own.order), (FsVariant::default(), WriteOrder::Queued));
    }

    #[test]
    fn what_the_engine_lacks_is_refused() {
        for (text, word) in [
            ("placement = { fixed = 9 }", "9 superzones"),
            ("placement = { fixed = 0 }", "0 superzones"),
            ("placement = { split = [1, 1, 9, 1, 1, 1] }", "9 superzones"),
            ("placement = { split = [1, 1] }", "split"),
            ("placement = 'speculative'", "speculative"),
            ("stripe = '5KiB'", "stripe"),
            ("request = '0'", "request"),
            ("unit = '1000'", "unit"),
            ("order = 'random'", "random"),
            ("sync = 'none'", "none"),
            ("pieces = 0", "pieces"),
            ("summary_pairs = true", "naive-pair"),
            ("metadata = 'in-place'", "in-place"),
            ("speed = 'high'", "speed"),
        ] {
            let error = policy(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
