//! The parameters of the timing model, and the sources of their values.
//!
//! A model is written as TOML: one key for each parameter, with its value as text, alone or
//! together with its source.
//!
//! ```toml
//! base = "pm1731a"                        # optional: keys left out are taken from it
//! buffer = "28MiB"
//! group-rate = { value = "40MB/s", source = "measured", why = "eZNS, table 1" }
//! ```
//!
//! The presets are such files (`presets/`); they contain every key with its source.

use super::quantity::{Bytes, Count, Curve, Quantity, Rate, Share, Switch, Time};
use furrow_zone::{Error, ErrorKind, Result, words};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How commands share the write buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPolicy {
    /// Each die group has its own buffer (of `buffer` bytes).
    Group,
    /// All groups share one buffer in the order of arrival: a command that waits delays all
    /// commands behind it.
    SharedFifo,
    /// All groups share one buffer; queues with waiting commands take turns to get space.
    PerQueue,
    /// All groups share one buffer; each zone has at most `zone-quota` of it, and zones take turns
    /// to get space.
    PerZone,
    /// There is no buffer: a write is answered when its pages are programmed.
    Through,
}

/// The distribution of the time that a command spends in the command stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The time is always the mean.
    Fixed,
    /// The time is exponentially distributed.
    Exponential,
}

/// Moment when a unit's space in the buffer becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// When the program of the unit starts: the die has its own register.
    Start,
    /// When the program of the unit ends.
    End,
}

macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl Quantity for $type {
            fn read(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($type::$variant),)+
                    _ => Err(format!("is none of {}", [$($word),+].join(", "))),
                }
            }

            fn show(&self) -> String {
                match self {
                    $($type::$variant => $word,)+
                }
                .to_owned()
            }
        }
    };
}

words!(BufferPolicy {
    Group = "group",
    SharedFifo = "shared-fifo",
    PerQueue = "per-queue",
    PerZone = "per-zone",
    Through = "through",
});
words!(Spread { Fixed = "fixed", Exponential = "exponential" });
words!(Release { Start = "start", End = "end" });

/// Declares [`Model`]: for each parameter its key, its field and its meaning.
macro_rules! parameters {
    ($($key:literal $field:ident: $type:ty = $about:literal;)+) => {
        /// The parameters of the timing model. [`Model::KEYS`] gives their meanings.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Model {
            $(#[doc = $about] pub $field: $type,)+
        }

        impl Model {
            /// The key and the meaning of every parameter, in the order in which they are shown.
            pub const KEYS: &[(&str, &str)] = &[$(($key, $about),)+];

            /// Changes the parameter `key`.
            ///
            /// # Errors
            /// If there is no such parameter, or `text` is not a valid value; the message
            /// quotes both.
            pub fn set(&mut self, key: &str, text: &str) -> Result<()> {
                let wrong = |what: String| {
                    Error::new(ErrorKind::Invalid, format!("{key}: `{text}` {what}"))
                };
                match key {
                    $($key => self.$field = Quantity::read(text).map_err(wrong)?,)+
                    _ => return Err(unknown(key)),
                }
                Ok(())
            }

            /// The value of the parameter `key` as text; `None` if there is no such parameter.
            pub fn get(&self, key: &str) -> Option<String> {
                match key {
                    $($key => Some(self.$field.show()),)+
                    _ => None,
                }
            }

            /// A model with the values that `text` gives for every parameter.
            fn complete(text: &dyn Fn(&str) -> Result<String>) -> Result<Model> {
                let wrong = |key: &str, text: &str, what: String| {
                    Error::new(ErrorKind::Invalid, format!("{key}: `{text}` {what}"))
                };
                Ok(Model {
                    $($field: {
                        let text = text($key)?;
                        Quantity::read(&text).map_err(|what| wrong($key, &text, what))?
                    },)+
                })
            }
        }
    };
}

parameters! {
    "write-service" write_service: Curve = "mean time a write holds the command stage, by size";
    "append-service" append_service: Curve = "mean time an append holds the command stage";
    "service-spread" service_spread: Spread = "fixed or exponential: spread of write-service and \
                                               append-service";
    "write-latency" write_latency: Curve = "a lone write into an empty buffer, by size";
    "append-latency" append_latency: Curve = "a lone append into an empty buffer, by size";
    "open-write" open_write: Time = "added to the write that opens an empty zone";
    "open-append" open_append: Time = "added to the append that opens an empty zone";
    "reopen" reopen: Time = "added to the write that opens a closed zone";
    "random-cost" random_cost: Share =
        "drain cost of writes to conventional zones that continue none of 64 streams";
    "buffer-policy" buffer_policy: BufferPolicy =
        "group, shared-fifo, per-queue, per-zone or through: who shares the write buffer";
    "buffer" buffer: Bytes = "the write buffer; of each group if they have their own";
    "zone-quota" zone_quota: Bytes = "maximum part of the buffer for one zone, if per-zone";
    "buffer-release" buffer_release: Release =
        "start or end: the moment of a program that frees its unit in the buffer";
    "groups" groups: Count = "die groups; zone i belongs to group i mod groups";
    "group-dies" group_dies: Count = "units a group programs at once";
    "unit" unit: Bytes = "bytes of one program";
    "group-rate" group_rate: Rate = "program rate of a group with all its dies";
    "transfer" transfer: Time = "transfer to a die's register before its program, without a buffer";
    "read-service" read_service: Time = "time a read holds the read command stage";
    "read-latency" read_latency: Time = "command handling of a read, that stage included";
    "page" page: Bytes = "bytes that a die senses at once";
    "sense" sense: Time = "sensing a page, mean";
    "sense-slow" sense_slow: Time = "sensing a page of the slow kind, mean";
    "slow-share" slow_share: Share = "share of pages of the slow kind";
    "sense-spread" sense_spread: Share = "share of the sensing time that is exponential";
    "sense-switch" sense_switch: Time = "added to sensing when the die last sensed for another \
                                         zone";
    "suspend" suspend: Time = "added to sensing if all dies of the group program; else in \
                               proportion";
    "reads-wait" reads_wait: Switch = "on: a read waits for a program on its die to end";
    "read-dies" read_dies: Count = "dies of a group that sense independently";
    "channels" channels: Count = "channels; die i is on channel i mod channels";
    "channel-fixed" channel_fixed: Time = "time that each page holds its channel and die";
    "channel-switch" channel_switch: Time = "added to channel-fixed when the channel last served \
                                             another die";
    "channel-rate" channel_rate: Rate = "added to channel-fixed: the page's bytes at this rate";
    "link-rate" link_rate: Rate = "drive to host, all reads";
    "open" open: Time = "explicit open of a zone";
    "close" close: Time = "close of a zone";
    "flush" flush: Time = "flush, besides what a volatile cache has to program";
    "refusal" refusal: Time = "answering a command with an error";
    "reset-empty" reset_empty: Time = "reset of an empty zone";
    "reset-fixed" reset_fixed: Time = "reset of any other zone";
    "reset-rate" reset_rate: Rate = "added to reset-fixed: the bytes the zone held, at this rate";
    "reset-active" reset_active: Time =
        "added to reset-fixed if the zone was active and held more than reset-active-above";
    "reset-active-above" reset_active_above: Bytes = "see reset-active";
    "reset-stretch" reset_stretch: Share = "resets take longer by this share of the group's load";
    "reset-share" reset_share: Share = "share of a group's program rate taken by resets under way";
    "finish-empty" finish_empty: Time = "finish of an empty zone";
    "finish-fixed" finish_fixed: Time = "finish of any other zone";
    "finish-rate" finish_rate: Rate = "added to finish-fixed: the bytes still to fill, at this \
                                       rate";
    "finish-share" finish_share: Share =
        "minimum share of a group's program rate that finishes get, taken from writes";
}

fn unknown(key: &str) -> Error {
    let names = || Model::KEYS.iter().map(|(name, _)| *name);
    let mut hint = words::hint(key, names());
    let shares_part = |name: &&str| name.split('-').any(|part| key.contains(part));
    let related: Vec<&str> = names().filter(shares_part).collect();
    if hint.is_empty() && !related.is_empty() {
        hint = format!(" (did you mean {}?)", related.join(" or "));
    }
    let what = format!(
        "unknown model parameter `{key}`{hint}: 'furrow device presets plain' lists all of them"
    );
    Error::new(ErrorKind::Invalid, what)
}

impl Model {
    /// True if writes are answered only when they are programmed.
    pub(super) fn is_through(&self) -> bool {
        self.buffer_policy == BufferPolicy::Through
    }

    /// Nanoseconds of one program: with this time, all dies of a group together reach the
    /// group's rate.
    pub fn program_time(&self) -> u64 {
        self.group_rate.time(self.unit.0 * u64::from(self.group_dies.0))
    }

    /// Number of units that the buffer (of a group, or of all groups) holds.
    pub fn slots(&self) -> u64 {
        self.buffer.0 / self.unit.0
    }

    /// Refuses a model with impossible parameters; the error names the first.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], with what to change.
    pub fn validate(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::new(ErrorKind::Invalid, format!("model: {what}")));
        if self.unit.0 == 0 || self.page.0 == 0 {
            return wrong("unit and page must be above 0".to_owned());
        }
        if self.unit.0 > 1 << 30 || self.buffer.0 > 1 << 40 || self.page.0 > 1 << 30 {
            return wrong("unit and page are at most 1GiB, buffer at most 1TiB".to_owned());
        }
        let through = self.buffer_policy == BufferPolicy::Through;
        if !through && self.slots() == 0 {
            let (buffer, unit) = (self.buffer.show(), self.unit.show());
            return wrong(format!("buffer of {buffer} is below one unit of {unit}"));
        }
        if self.buffer_policy == BufferPolicy::PerZone && self.zone_quota.0 < self.unit.0 {
            let (quota, unit) = (self.zone_quota.show(), self.unit.show());
            return wrong(format!("zone-quota of {quota} is below one unit of {unit}"));
        }
        if through && self.group_dies != self.read_dies {
            return wrong("without a buffer, group-dies and read-dies must be equal".to_owned());
        }
        for (name, share) in
            [("reset-share", self.reset_share), ("finish-share", self.finish_share)]
        {
            if share.0 > 900 {
                return wrong(format!(
                    "{name} is above 90%: other commands would make no progress"
                ));
            }
        }
        if self.sense_spread.0 > 1_000 || self.slow_share.0 > 1_000 {
            return wrong("sense-spread and slow-share are at most 100%".to_owned());
        }
        Ok(())
    }
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Measured on a drive of this kind, or published for it.
    Measured,
    /// Inferred from the behaviour of a drive of this kind.
    Inferred,
    /// Assumed, without a source.
    Assumed,
    /// Given by the user.
    Given,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Source::Measured => "measured",
            Source::Inferred => "inferred",
            Source::Assumed => "assumed",
            Source::Given => "given",
        })
    }
}

/// The source of a parameter's value, and the reason for the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// The kind of source from which the value comes.
    pub source: Source,
    /// The reason for the value, in one sentence.
    pub why: String,
}

/// A model with the provenance of its parameters.
#[derive(Clone, Debug)]
pub struct Preset {
    /// The parameters of the model.
    pub model: Model,
    /// A description in one line; empty if the file has none.
    pub about: String,
    /// The provenance of each parameter, by its key.
    pub provenance: BTreeMap<String, Provenance>,
}

/// The models of the presets, by the names of their geometries; `plain` is used for drives without
/// a preset.
const FILES: &[(&str, &str)] = &[
    ("pm1731a", include_str!("../../presets/pm1731a.toml")),
    ("zn540-1t", include_str!("../../presets/zn540-1t.toml")),
    ("zn540-4t", include_str!("../../presets/zn540-4t.toml")),
    ("j5100", include_str!("../../presets/j5100.toml")),
    ("confzns", include_str!("../../presets/confzns.toml")),
    ("femu-zapraid", include_str!("../../presets/femu-zapraid.toml")),
    ("cns", include_str!("../../presets/cns.toml")),
    ("plain", include_str!("../../presets/plain.toml")),
];

/// Maximum number of levels in a chain of presets that derive from each other.
const DEPTH_MAX: u32 = 4;

impl Preset {
    /// Names of all presets.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(name, _)| *name)
    }

    /// The preset called `name`.
    ///
    /// # Errors
    /// If there is no such preset; the message lists all names.
    pub fn named(name: &str) -> Result<Preset> {
        Preset::named_below(name, DEPTH_MAX)
    }

    fn named_below(name: &str, depth: u32) -> Result<Preset> {
        match FILES.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => {
                Preset::parse_below(text, depth).map_err(|error| error.at(format!("preset {name}")))
            }
            None => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "unknown model `{name}`{}: expected a file that ends in .toml or one of {}",
                    words::hint(name, Preset::names()),
                    Preset::names().collect::<Vec<_>>().join(", ")
                ),
            )),
        }
    }

    /// Reads a model file.
    ///
    /// # Errors
    /// If `text` is not TOML, a key is unknown or missing, or a value is not valid.
    pub fn parse(text: &str) -> Result<Preset> {
        Preset::parse_below(text, DEPTH_MAX)
    }

    fn parse_below(text: &str, depth: u32) -> Result<Preset> {
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            invalid(format!("line {line}: {}", error.message()))
        })?;
        let text_of = |key: &str, value: &toml::Value| match value {
            toml::Value::String(text) => Ok(text.clone()),
            _ => Err(invalid(format!("{key}: expected text in quotes, as in {key} = \"…\""))),
        };
        let (mut base, mut about) = (None, String::new());
        let mut values = BTreeMap::new();
        let mut provenance = BTreeMap::new();
        for (key, value) in &table {
            match (key.as_str(), value) {
                ("base", value) if depth > 0 => {
                    base = Some(Preset::named_below(&text_of("base", value)?, depth - 1)?);
                }
                ("base", _) => return Err(invalid("base: too many models in a row".to_owned())),
                ("about", value) => about = text_of("about", value)?,
                (key, _) if !Model::KEYS.iter().any(|(name, _)| *name == key) => {
                    return Err(unknown(key));
                }
                (key, toml::Value::Table(entry)) => {
                    let field = |name: &str| entry.get(name).map(|value| text_of(key, value));
                    let value = field("value").ok_or_else(|| {
                        invalid(format!("{key}: expected {{ value = \"…\", source = \"…\" }}"))
                    })??;
                    let source = match field("source").transpose()?.as_deref() {
                        Some("measured") => Source::Measured,
                        Some("inferred") => Source::Inferred,
                        Some("assumed") => Source::Assumed,
                        None | Some("given") => Source::Given,
                        Some(other) => {
                            return Err(invalid(format!(
                                "{key}: source `{other}` is none of measured, inferred, assumed, \
                                 given"
                            )));
                        }
                    };
                    let why = field("why").transpose()?.unwrap_or_default();
                    values.insert(key.to_owned(), value);
                    provenance.insert(key.to_owned(), Provenance { source, why });
                }
                (key, value) => {
                    values.insert(key.to_owned(), text_of(key, value)?);
                    let why = String::new();
                    provenance.insert(key.to_owned(), Provenance { source: Source::Given, why });
                }
            }
        }
        let model = match &base {
            Some(base) => {
                let mut model = base.model.clone();
                for (key, value) in &values {
                    model.set(key, value)?;
                }
                model
            }
            None => Model::complete(&|key| {
                values.get(key).cloned().ok_or_else(|| {
                    invalid(format!("{key} is missing: give it, or a base = \"PRESET\""))
                })
            })?,
        };
        model.validate()?;
        let mut all = base.map(|base| base.provenance).unwrap_or_default();
        all.extend(provenance);
        Ok(Preset { model, about, provenance: all })
    }

    /// The model with the parameters `given` changed.
    ///
    /// # Errors
    /// The errors of [`Model::set`] and [`Model::validate`].
    pub fn with(self, given: &[(String, String)]) -> Result<Rc<Model>> {
        let mut model = self.model;
        for (key, value) in given {
            model.set(key, value)?;
        }
        model.validate()?;
        Ok(Rc::new(model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_whole_and_says_where_each_value_comes_from() {
        for name in Preset::names() {
            let preset = Preset::named(name).unwrap();
            assert!(!preset.about.is_empty(), "{name}");
            for (key, _) in Model::KEYS {
                let provenance = preset.provenance.get(*key);
                let provenance = provenance.unwrap_or_else(|| panic!("{name}: {key}"));
                assert_ne!(provenance.source, Source::Given, "{name}: {key}");
                assert!(!provenance.why.is_empty(), "{name}: {key} has no reason");
                let shown = preset.model.get(key).unwrap();
                let mut again = preset.model.clone();
                again.set(key, &shown).unwrap();
                assert_eq!(again, preset.model, "{name}: {key} = {shown}");
            }
        }
    }

    #[test]
    fn every_geometry_preset_has_a_model() {
        for name in furrow_zone::presets::NAMES {
            assert!(Preset::names().any(|known| known == *name), "{name}");
        }
    }

    #[test]
    fn a_file_changes_a_base_or_says_all() {
        let preset = Preset::parse("base = \"pm1731a\"\nbuffer = \"28MiB\"\n").unwrap();
        assert_eq!(preset.model.buffer, Bytes(28 << 20));
        assert_eq!(preset.provenance["buffer"].source, Source::Given);
        let error = |text: &str| Preset::parse(text).unwrap_err().to_string();
        assert!(error("buffer = \"28MiB\"").contains("is missing"));
        assert!(error("base = \"pm1731a\"\nbufer = \"1MiB\"").contains("unknown model parameter"));
        assert!(error("base = \"pm1731a\"\nbuffer = 28").contains("text in quotes"));
        assert!(error("base = \"pm1731a\"\nbuffer = \"28XB\"").contains("28XB"));
        assert!(error("base = \"pm1731b\"").contains("unknown model `pm1731b`"));
        assert!(error("base = \"pm1731a\"\nbuffer = \"1KiB\"").contains("below one unit"));
        assert!(error("buffer = ").contains("line 1"));
    }

    #[test]
    fn unknown_keys_are_answered_with_near_ones() {
        let mut model = Preset::named("plain").unwrap().model;
        let error = model.set("group-speed", "1GB/s").unwrap_err().to_string();
        assert!(error.contains("group-rate"), "{error}");
        assert!(model.set("zzz", "1").unwrap_err().to_string().contains("furrow device presets"));
    }
}
