//! The `key=value` options of device specs, and the geometry that they make.

use super::Complaint;
use crate::{BlockCount, ByteLen, Geometry, presets, size, words};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// A key of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `capacity`: bytes that can be written, rounded down to whole zones. Sets the number
    /// of zones.
    Capacity,
    /// `zones`: number of zones.
    Zones,
    /// `zone-size`: address space of a zone. Without `zone-capacity`, the capacity keeps its share
    /// of the size.
    ZoneSize,
    /// `zone-capacity`: bytes of a zone that can be written.
    ZoneCapacity,
    /// `block`: bytes of a block, 512 or 4096.
    Block,
    /// `oob`: out-of-band bytes of each block.
    Oob,
    /// `conventional`: how many of the zones, counted from the first, are conventional.
    Conventional,
    /// `max-open`: maximum number of open zones, or `none`.
    MaxOpen,
    /// `max-active`: maximum number of active zones, or `none`. Without the option `max-open`, that
    /// limit is lowered as needed.
    MaxActive,
    /// `max-append`: largest append, `none` for the limit of `max-transfer`, or 0 for no appends.
    MaxAppend,
    /// `max-transfer`: largest read or write, or `none`. Without the option `max-append`, that
    /// limit is lowered as needed.
    MaxTransfer,
    /// `read-across`: whether reads may cross into the next zone.
    ReadAcross,
    /// `unwritten-fails`: whether reading blocks never written is an error.
    UnwrittenFails,
    /// `volatile-cache`: whether a power cut loses data that was not flushed.
    VolatileCache,
    /// `channels`: number of channels, or `none` if unknown.
    Channels,
    /// `dies`: number of dies, or `none` if unknown.
    Dies,
    /// `medium`: whether the drive keeps payload.
    Medium,
    /// `seed`: seed of the drive's random choices.
    Seed,
    /// `timing`: how the drive takes time.
    Timing,
    /// `time-scale`: how many times slower the drive is, in real time, than the drive it models.
    TimeScale,
    /// `model`: the timing model, as a preset or a file of parameters.
    Model,
    /// `sync`: whether a flush of the drive also syncs the image's file.
    Sync,
    /// `order`: whether a drive of the system keeps the order of writes to a zone.
    Order,
}

/// The kind of value that a key takes.
#[derive(Clone, Copy)]
enum Kind {
    Size,
    /// A size, or `none`.
    SizeLimit,
    /// A number up to this limit.
    Count(u64),
    /// A number up to this limit, or `none`.
    CountLimit(u64),
    Switch,
    Medium,
    Timing,
    Order,
    Text,
}

/// The place of options in a spec, which decides the keys that are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// In the spec of a drive in memory: all keys.
    Memory,
    /// When an image is created: keys that describe the drive.
    Geometry,
    /// After the path of an image: keys that say how its drive is run.
    Image,
    /// After the path of a drive of the system: keys that say how it is used.
    Node,
}

impl Key {
    /// All keys, in the order in which specs are shown.
    pub const ALL: [Key; 23] = [
        Key::Capacity,
        Key::Zones,
        Key::ZoneSize,
        Key::ZoneCapacity,
        Key::Block,
        Key::Oob,
        Key::Conventional,
        Key::MaxOpen,
        Key::MaxActive,
        Key::MaxAppend,
        Key::MaxTransfer,
        Key::ReadAcross,
        Key::UnwrittenFails,
        Key::VolatileCache,
        Key::Channels,
        Key::Dies,
        Key::Medium,
        Key::Seed,
        Key::Timing,
        Key::TimeScale,
        Key::Model,
        Key::Sync,
        Key::Order,
    ];

    /// The key as it is written in a spec.
    pub fn name(self) -> &'static str {
        match self {
            Key::Capacity => "capacity",
            Key::Zones => "zones",
            Key::ZoneSize => "zone-size",
            Key::ZoneCapacity => "zone-capacity",
            Key::Block => "block",
            Key::Oob => "oob",
            Key::Conventional => "conventional",
            Key::MaxOpen => "max-open",
            Key::MaxActive => "max-active",
            Key::MaxAppend => "max-append",
            Key::MaxTransfer => "max-transfer",
            Key::ReadAcross => "read-across",
            Key::UnwrittenFails => "unwritten-fails",
            Key::VolatileCache => "volatile-cache",
            Key::Channels => "channels",
            Key::Dies => "dies",
            Key::Medium => "medium",
            Key::Seed => "seed",
            Key::Timing => "timing",
            Key::TimeScale => "time-scale",
            Key::Model => "model",
            Key::Sync => "sync",
            Key::Order => "order",
        }
    }

    /// Finds the key called `name`.
    pub fn named(name: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.name() == name)
    }

    /// Finds the key that sets a field of [`Geometry`].
    fn of_field(field: &str) -> Option<Key> {
        match field {
            "block_size" => Some(Key::Block),
            "conventional_zones" => Some(Key::Conventional),
            field => Key::named(&field.replace('_', "-")),
        }
    }

    fn kind(self) -> Kind {
        match self {
            Key::Capacity | Key::ZoneSize | Key::ZoneCapacity | Key::Block => Kind::Size,
            Key::MaxAppend | Key::MaxTransfer => Kind::SizeLimit,
            Key::Zones | Key::Conventional => Kind::Count(u64::from(u32::MAX)),
            Key::Oob => Kind::Count(u64::from(u16::MAX)),
            Key::Seed => Kind::Count(u64::MAX),
            Key::MaxOpen | Key::MaxActive => Kind::CountLimit(u64::from(u32::MAX)),
            Key::Channels | Key::Dies => Kind::CountLimit(u64::from(u16::MAX)),
            Key::ReadAcross | Key::UnwrittenFails | Key::VolatileCache | Key::Sync => Kind::Switch,
            Key::Medium => Kind::Medium,
            Key::Timing => Kind::Timing,
            Key::TimeScale => Kind::Count(1_000_000),
            Key::Model => Kind::Text,
            Key::Order => Kind::Order,
        }
    }

    fn allowed(self, scope: Scope) -> bool {
        match scope {
            Scope::Memory => !matches!(self, Key::Sync | Key::Order),
            Scope::Geometry => self.is_of_geometry(),
            Scope::Image => self.is_of_run(),
            Scope::Node => self == Key::Order,
        }
    }

    /// Whether the key says how an emulated drive is run, instead of describing the drive.
    fn is_of_run(self) -> bool {
        matches!(self, Key::Seed | Key::Timing | Key::TimeScale | Key::Model | Key::Sync)
    }

    /// Whether the key describes the drive.
    pub fn is_of_geometry(self) -> bool {
        !self.is_of_run() && !matches!(self, Key::Medium | Key::Order)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a drive in memory does with payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// Keeps payload.
    #[default]
    Memory,
    /// Drops payload, and keeps out-of-band bytes and zone states: for measurements of pure speed.
    Discard,
}

/// How an emulated drive takes time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// Commands take no time.
    #[default]
    Off,
    /// Commands take the time of the timing model, on a clock that jumps.
    Virtual,
    /// Commands take the time of the timing model, on the real clock.
    Realtime,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::Memory => "memory",
            Medium::Discard => "discard",
        })
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Timing::Off => "off",
            Timing::Virtual => "virtual",
            Timing::Realtime => "realtime",
        })
    }
}

/// Start of an option that sets a parameter of the timing model, `model.KEY=VALUE`. The emulator
/// knows which parameters there are.
pub(super) const PARAMETER: &str = "model.";

/// How an emulated drive is run: everything in a spec that does not describe the drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Seed of the drive's random choices; `None` if not given.
    pub seed: Option<u64>,
    /// How the drive takes time.
    pub timing: Timing,
    /// Factor by which the drive is slower than the drive it models; 1 if not given.
    pub time_scale: Option<u32>,
    /// The preset or file of the timing model; `None` stands for the model of the drive's preset.
    pub model: Option<String>,
    /// The given parameters of the timing model, in order.
    pub parameters: Vec<(String, String)>,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Size(ByteLen),
    Count(u64),
    None,
    Switch(bool),
    Medium(Medium),
    Timing(Timing),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Size(bytes) => f.write_str(&size::show(*bytes)),
            Value::Count(count) => count.fmt(f),
            Value::None => f.write_str("none"),
            Value::Switch(on) => f.write_str(if *on { "on" } else { "off" }),
            Value::Medium(medium) => medium.fmt(f),
            Value::Timing(timing) => timing.fmt(f),
            Value::Text(text) => f.write_str(&super::escape(text)),
        }
    }
}

/// Parses the value of `key`.
///
/// # Errors
/// The end of a sentence that begins with the value; the part after a colon says what to do.
fn parse_value(key: Key, text: &str) -> Result<Value, String> {
    let count = |limit: u64| match text.parse::<u64>() {
        Ok(count) if count <= limit && text.bytes().all(|b| b.is_ascii_digit()) => {
            Ok(Value::Count(count))
        }
        _ => Err(format!("is not a whole number from 0 to {limit}")),
    };
    match key.kind() {
        Kind::SizeLimit | Kind::CountLimit(_) if text == "none" => Ok(Value::None),
        Kind::Size => size::parse(text).map(Value::Size),
        Kind::SizeLimit => {
            size::parse(text).map(Value::Size).map_err(|what| format!("{what}, or none"))
        }
        Kind::Count(limit) => count(limit),
        Kind::CountLimit(limit) => count(limit).map_err(|what| format!("{what}, or none")),
        Kind::Switch => match text {
            "on" => Ok(Value::Switch(true)),
            "off" => Ok(Value::Switch(false)),
            _ => Err("is neither on nor off".into()),
        },
        Kind::Medium => match text {
            "memory" => Ok(Value::Medium(Medium::Memory)),
            "discard" => Ok(Value::Medium(Medium::Discard)),
            _ => Err("is neither memory nor discard".into()),
        },
        Kind::Timing => match text {
            "off" => Ok(Value::Timing(Timing::Off)),
            "virtual" => Ok(Value::Timing(Timing::Virtual)),
            "realtime" => Ok(Value::Timing(Timing::Realtime)),
            _ => Err("is none of off, virtual, realtime".into()),
        },
        Kind::Order => match text {
            "blocking" => Ok(Value::Switch(false)),
            "queued" => Ok(Value::Switch(true)),
            _ => Err("is neither blocking nor queued".into()),
        },
        Kind::Text if text.is_empty() => Err("names nothing".into()),
        Kind::Text => Ok(Value::Text(text.to_owned())),
    }
}

/// Options as given, each with its place in the text.
#[derive(Default)]
pub(super) struct Options {
    base: Option<Geometry>,
    given: BTreeMap<Key, (Value, Range<usize>)>,
    parameters: Vec<(String, String)>,
}

impl Options {
    /// Applies the options to `geometry` instead of [`presets::plain`].
    pub fn start_from(&mut self, geometry: Geometry) {
        self.base = Some(geometry);
    }

    /// Adds the option at `part` of the text.
    pub fn add(&mut self, text: &str, part: Range<usize>, scope: Scope) -> Result<(), Complaint> {
        let keys = || {
            let names = Key::ALL.into_iter().filter(|key| key.allowed(scope)).map(Key::name);
            format!("known keys: {}", names.collect::<Vec<_>>().join(", "))
        };
        let option = &text[part.clone()];
        let name = option.split('=').next().unwrap_or(option);
        let name_at = part.start..part.start + name.len();
        let Some((_, value)) = option.split_once('=') else {
            let what = match option {
                "" => "an option is missing".to_string(),
                _ => format!("`{option}` is not an option"),
            };
            return Err(Complaint::new(part, what, "expected key=value"));
        };
        if let Some(parameter) = name.strip_prefix(PARAMETER)
            && Key::Model.allowed(scope)
        {
            return self.add_parameter(parameter, value, part);
        }
        let Some(key) = Key::named(name) else {
            let names = Key::ALL.into_iter().filter(|key| key.allowed(scope)).map(Key::name);
            let what = format!("unknown key `{name}`{}", words::hint(name, names));
            return Err(Complaint::new(name_at, what, keys()));
        };
        if !key.allowed(scope) {
            let what = match scope {
                _ if key == Key::Order => {
                    format!("`{name}` applies to drives of the system only")
                }
                Scope::Image => format!("`{name}` cannot be changed: the image fixes it"),
                Scope::Memory => {
                    format!("`{name}` applies to images only: a drive in memory has no file")
                }
                Scope::Node => format!("`{name}` is for emulated drives"),
                Scope::Geometry => format!("`{name}` is not part of a drive's geometry"),
            };
            return Err(Complaint::new(name_at, what, keys()));
        }
        let value_at = name_at.end + 1..part.end;
        let value = match key.kind() {
            Kind::Text => &super::unescape(text, value_at.clone())?,
            _ => value,
        };
        let parsed = parse_value(key, value).map_err(|what| {
            let (what, hint) = what.rsplit_once(": ").unwrap_or((&what, ""));
            let value = match value {
                "" => "an empty value".into(),
                value => format!("`{value}`"),
            };
            Complaint::new(value_at.clone(), format!("{value} {what}"), hint)
        })?;
        if let Some((_, earlier)) = self.given.get(&key) {
            let hint =
                format!("the first is at column {}", text[..earlier.start].chars().count() + 1);
            return Err(Complaint::new(part, format!("`{name}` is given twice"), hint));
        }
        self.given.insert(key, (parsed, part));
        Ok(())
    }

    fn add_parameter(
        &mut self,
        name: &str,
        value: &str,
        part: Range<usize>,
    ) -> Result<(), Complaint> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(plain) || value.is_empty() {
            let hint = "expected model.PARAMETER=VALUE, as in model.buffer=28MiB";
            return Err(Complaint::new(part, "not a parameter of a model", hint));
        }
        if self.parameters.iter().any(|(known, _)| known == name) {
            let what = format!("`{PARAMETER}{name}` is given twice");
            return Err(Complaint::new(part, what, "once is enough"));
        }
        self.parameters.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// Returns the options without their places.
    pub fn into_values(self) -> BTreeMap<Key, Value> {
        self.given.into_iter().map(|(key, (value, _))| (key, value)).collect()
    }

    /// Whether several writes to a zone may be queued.
    pub fn queued(&self) -> bool {
        matches!(self.value(Key::Order), Some(Value::Switch(true)))
    }

    /// Returns how the drive is run.
    pub fn run(&self) -> Run {
        Run {
            seed: self.count(Key::Seed),
            timing: match self.value(Key::Timing) {
                Some(Value::Timing(timing)) => timing,
                _ => Timing::default(),
            },
            time_scale: self.count(Key::TimeScale).map(|scale| scale as u32),
            model: match self.value(Key::Model) {
                Some(Value::Text(name)) => Some(name),
                _ => None,
            },
            parameters: self.parameters.clone(),
        }
    }

    pub fn sync(&self) -> bool {
        matches!(self.value(Key::Sync), Some(Value::Switch(true)))
    }

    pub fn medium(&self) -> Medium {
        match self.value(Key::Medium) {
            Some(Value::Medium(medium)) => medium,
            _ => Medium::default(),
        }
    }

    fn value(&self, key: Key) -> Option<Value> {
        self.given.get(&key).map(|(value, _)| value.clone())
    }

    fn count(&self, key: Key) -> Option<u64> {
        match self.value(key) {
            Some(Value::Count(count)) => Some(count),
            _ => None,
        }
    }

    fn size(&self, key: Key) -> Option<u64> {
        match self.value(key) {
            Some(Value::Size(bytes)) => Some(bytes.0),
            _ => None,
        }
    }

    fn switch(&self, key: Key, otherwise: bool) -> bool {
        match self.value(key) {
            Some(Value::Switch(on)) => on,
            _ => otherwise,
        }
    }

    /// A limit: the given number, no limit for `none`, or `otherwise` if the key is absent. The
    /// parser has ensured that the number fits the field.
    fn limit<T: TryFrom<u64>>(&self, key: Key, otherwise: Option<T>) -> Option<T> {
        match self.value(key) {
            Some(Value::Count(count)) => T::try_from(count).ok(),
            Some(Value::None) => None,
            _ => otherwise,
        }
    }

    /// Builds the drive's geometry from the options. An error points at `whole` if no single option
    /// is to blame.
    pub fn geometry(&self, whole: &Range<usize>) -> Result<Geometry, Complaint> {
        let base = self.base.clone().unwrap_or_else(presets::plain);
        let block = self.size(Key::Block).unwrap_or(base.block_size.0);
        if !matches!(block, 512 | 4096) {
            let what = format!("a block of {block} bytes");
            return Err(Complaint::new(self.place(Key::Block, whole), what, "use 512 or 4096"));
        }
        let (zone_size, zone_capacity) = self.zone(&base, block, whole)?;
        let zones = self.zones(&base, block * zone_capacity, whole)?;
        let all_conventional = base.conventional_zones == base.zones;
        let conventional = if all_conventional { zones } else { base.conventional_zones };
        let mut geometry = Geometry {
            zones,
            zone_size: BlockCount(zone_size),
            zone_capacity: BlockCount(zone_capacity),
            block_size: ByteLen(block),
            oob_bytes: self.limit(Key::Oob, Some(base.oob_bytes)).unwrap_or(base.oob_bytes),
            conventional_zones: self
                .limit(Key::Conventional, Some(conventional))
                .unwrap_or(conventional),
            max_open: self.limit(Key::MaxOpen, base.max_open),
            max_active: self.limit(Key::MaxActive, base.max_active),
            max_append: self.transfer(Key::MaxAppend, base.max_append, &base, block, whole)?,
            max_transfer: self.transfer(
                Key::MaxTransfer,
                base.max_transfer,
                &base,
                block,
                whole,
            )?,
            read_across_zones: self.switch(Key::ReadAcross, base.read_across_zones),
            unwritten_reads_fail: self.switch(Key::UnwrittenFails, base.unwritten_reads_fail),
            volatile_cache: self.switch(Key::VolatileCache, base.volatile_cache),
            channels: self.limit(Key::Channels, base.channels),
            dies: self.limit(Key::Dies, base.dies),
        };
        self.follow(&mut geometry);
        geometry.fault().map_err(|fault| {
            let key = Key::of_field(fault.field);
            let at = key.map_or_else(|| whole.clone(), |key| self.place(key, whole));
            let name = key.map_or(fault.field, Key::name);
            Complaint::new(at, format!("{name} {}", fault.what.replace('_', "-")), "")
        })?;
        Ok(geometry)
    }

    /// Lowers limits that were not given, so that they do not exceed limits that were.
    fn follow(&self, geometry: &mut Geometry) {
        if !self.given.contains_key(&Key::MaxOpen)
            && let Some(active) = geometry.max_active
        {
            geometry.max_open = Some(geometry.max_open.map_or(active, |open| open.min(active)));
        }
        if !self.given.contains_key(&Key::MaxAppend)
            && let (Some(append), Some(transfer)) = (geometry.max_append, geometry.max_transfer)
        {
            geometry.max_append = Some(append.min(transfer));
        }
    }

    /// Size and capacity of a zone in blocks.
    fn zone(
        &self,
        base: &Geometry,
        block: u64,
        whole: &Range<usize>,
    ) -> Result<(u64, u64), Complaint> {
        let base_size = base.bytes(base.zone_size).0;
        let size = self.size(Key::ZoneSize).unwrap_or(base_size);
        let share = u128::from(size) * u128::from(base.zone_capacity.0);
        // The result is at most `size`, because the capacity is at most the size.
        let share = (share / u128::from(base.zone_size.0)) as u64;
        let capacity = match self.size(Key::ZoneCapacity) {
            Some(capacity) => capacity,
            None => (share / block).max(1) * block,
        };
        let size = self.blocks(Key::ZoneSize, size, block, whole)?;
        Ok((size, self.blocks(Key::ZoneCapacity, capacity, block, whole)?))
    }

    /// Number of zones of `zone_bytes` each.
    fn zones(
        &self,
        base: &Geometry,
        zone_bytes: u64,
        whole: &Range<usize>,
    ) -> Result<u32, Complaint> {
        let zones = self.limit(Key::Zones, None);
        let Some(capacity) = self.size(Key::Capacity) else {
            return Ok(zones.unwrap_or(base.zones));
        };
        let at = self.place(Key::Capacity, whole);
        if zones.is_some() {
            let hint = "give one of them";
            return Err(Complaint::new(at, "capacity beside zones", hint));
        }
        let shown = size::show(ByteLen(zone_bytes));
        match capacity.checked_div(zone_bytes) {
            Some(0) => {
                let what = format!("a capacity below one zone's of {shown}");
                Err(Complaint::new(at, what, "give more, or a smaller zone-size"))
            }
            // The geometry's own check reports a zone without bytes.
            None => Ok(1),
            Some(zones) => u32::try_from(zones).map_err(|_| {
                let what = format!("a capacity of {zones} zones of {shown}, more than 2^32 − 1");
                Complaint::new(at, what, "give less, or a larger zone-size")
            }),
        }
    }

    /// Converts a limit given in bytes to blocks.
    fn transfer(
        &self,
        key: Key,
        otherwise: Option<BlockCount>,
        base: &Geometry,
        block: u64,
        whole: &Range<usize>,
    ) -> Result<Option<BlockCount>, Complaint> {
        let bytes = match self.value(key) {
            Some(Value::Size(bytes)) => Some(bytes),
            Some(Value::None) => None,
            _ => otherwise.map(|blocks| base.bytes(blocks)),
        };
        bytes.map(|bytes| self.blocks(key, bytes.0, block, whole).map(BlockCount)).transpose()
    }

    /// Converts `bytes`, the value of `key`, to whole blocks.
    fn blocks(
        &self,
        key: Key,
        bytes: u64,
        block: u64,
        whole: &Range<usize>,
    ) -> Result<u64, Complaint> {
        if bytes.is_multiple_of(block) {
            return Ok(bytes / block);
        }
        let what = format!("{key} of {bytes} bytes is not a multiple of the block");
        Err(Complaint::new(self.place(key, whole), what, format!("a block is {block} bytes")))
    }

    /// The place of `key` in the text, or `whole` if it was not given.
    fn place(&self, key: Key, whole: &Range<usize>) -> Range<usize> {
        self.given.get(&key).map_or_else(|| whole.clone(), |(_, at)| at.clone())
    }
}
