//! Device specs: how a device is named, everywhere in the same way. Pure parsing, no I/O.
//!
//! ```text
//! specs   = spec { "+" spec } ;                  several, where an engine takes several
//! spec    = node | memory | image ;
//! node    = "/dev/" path { "," option } ;        a drive of the system
//! memory  = "mem:" [ preset | option ] { "," option } ;        an emulated drive in memory
//! image   = path { "," option } ;                an emulated drive's image, any other path
//! option  = key "=" value ;                      the keys: Key, the presets: presets::NAMES
//! value   = size | count | "none" | "on" | "off" | word ;      which, says the key
//! size    = digit { digit } [ "KiB" | "MiB" | "GiB" | "TiB" | "KB" | "MB" | "GB" | "TB" | "B" ] ;
//! count   = digit { digit } ;
//! path    = char { char } ;                      not starting with "mem:" (write "./mem:…")
//! char    = "\" any | any but "+" "," "\" ;      a backslash takes the next character as it is
//! ```
//!
//! An image's path may contain a comma without a backslash if the text after the comma is not an
//! option, as in `a,b.zns`: options come last, and each has a `=`.
//!
//! `model.PARAMETER=value` sets a parameter of the timing model; the emulator checks its name
//! and value.
//!
//! An image knows its geometry, so it takes only the options of a run (`seed`, `timing`, …,
//! `sync`). A drive of the system takes `order`. An option may be given once.
//! `docs/use/device-spec.md` explains each key, with examples.
//!
//! Errors point at the offending part: [`SpecError`] is one line with the column, and
//! [`SpecError::caret`] marks the part beneath the text. Showing a spec gives text that reads as
//! the same spec.
//!
//! Not here: whether the device exists, opening it, paths that are not UTF-8.

mod options;

pub use options::{Key, Medium, Run, Timing};

use crate::{Error, ErrorKind, Geometry, presets, words};
use options::{Options, PARAMETER, Scope, Value};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::str::FromStr;

/// The drive that a device spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// A drive of the system: a path under `/dev/`, but not under `/dev/shm/`.
    Node(Node),
    /// An emulated drive in an image file.
    Image(Image),
    /// An emulated drive in memory. Boxed, because it is far larger than the other variants.
    Memory(Box<Memory>),
}

impl DeviceSpec {
    /// The file or node that holds the drive; `None` for a drive in memory.
    pub fn path(&self) -> Option<&str> {
        match self {
            DeviceSpec::Node(node) => Some(&node.path),
            DeviceSpec::Image(image) => Some(&image.path),
            DeviceSpec::Memory(_) => None,
        }
    }
}

/// A drive of the system, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Path of its device node.
    pub path: String,
    /// Whether several writes to a zone may be in flight: the user states that the drive keeps
    /// their order.
    pub queued: bool,
}

impl Node {
    /// Describes the drive at `path`, without options.
    pub fn new(path: impl Into<String>) -> Node {
        Node { path: path.into(), queued: false }
    }
}

/// An image file, and how to run its drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Path of the file.
    pub path: String,
    /// How the drive is run.
    pub run: Run,
    /// Whether a flush of the drive also syncs the file, so that flushed data survives a power cut
    /// of the host.
    pub sync: bool,
}

/// A drive to be made in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Geometry of the drive, already validated.
    pub geometry: Geometry,
    /// Whether the drive keeps payload.
    pub medium: Medium,
    /// How the drive is run.
    pub run: Run,
    preset: Option<&'static str>,
    given: BTreeMap<Key, Value>,
}

impl Memory {
    /// The preset from which the geometry starts, if one was named.
    pub fn preset(&self) -> Option<&'static str> {
        self.preset
    }
}

/// The reason why a device spec cannot be read, and which part of it is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The kind of text: `device spec` or `drive geometry`.
    kind: &'static str,
    /// The text, with control characters replaced.
    text: String,
    /// The offending part, as positions in characters.
    at: Range<usize>,
    what: String,
    hint: String,
}

impl SpecError {
    /// Position of the first character of the offending part, counted from 1.
    pub fn column(&self) -> usize {
        self.at.start + 1
    }

    /// Formats three lines: the message, the text, and carets beneath the offending part.
    pub fn caret(&self) -> String {
        let mut out = format!("{}: {}", self.kind, self.what);
        if !self.hint.is_empty() {
            let _ = write!(out, "; {}", self.hint);
        }
        let carets = "^".repeat(self.at.len().max(1));
        let _ = write!(out, "\n  {}\n  {}{carets}", self.text, " ".repeat(self.at.start));
        out
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpecError { kind, text, what, hint, .. } = self;
        write!(f, "{kind}: {what} at column {} of `{text}`", self.column())?;
        if hint.is_empty() { Ok(()) } else { write!(f, "; {hint}") }
    }
}

impl std::error::Error for SpecError {}

impl From<SpecError> for Error {
    fn from(error: SpecError) -> Error {
        Error::new(ErrorKind::Invalid, error.to_string())
    }
}

/// A problem with a part of the text; its position is in bytes.
struct Complaint {
    at: Range<usize>,
    what: String,
    hint: String,
}

impl Complaint {
    fn new(at: Range<usize>, what: impl Into<String>, hint: impl Into<String>) -> Complaint {
        Complaint { at, what: what.into(), hint: hint.into() }
    }

    fn into_error(self, kind: &'static str, text: &str) -> SpecError {
        let column = |byte: usize| text[..byte].chars().count();
        SpecError {
            kind,
            at: column(self.at.start)..column(self.at.end),
            text: one_line(text),
            what: one_line(&self.what),
            hint: self.hint,
        }
    }
}

/// Replaces control characters, so that a text fits on one line.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Reads the specs joined by `+` in `text`; at least one.
///
/// # Errors
/// Describes the first part that is wrong.
pub fn parse_list(text: &str) -> Result<Vec<DeviceSpec>, SpecError> {
    let whole = 0..text.len();
    split(text, whole, '+')
        .into_iter()
        .map(|part| parse_one(text, part))
        .collect::<Result<_, _>>()
        .map_err(|complaint| complaint.into_error("device spec", text))
}

/// Reads the description of an image to be created: `PRESET` or options or both, separated by
/// commas. Accepts only the keys that describe the drive itself.
///
/// # Errors
/// Describes the first part that is wrong.
pub fn parse_geometry(text: &str) -> Result<Geometry, SpecError> {
    let parse = || {
        let (_, options) = parse_options(text, 0..text.len(), Scope::Geometry)?;
        let whole = 0..text.len();
        options.geometry(&whole)
    };
    parse().map_err(|complaint| complaint.into_error("drive geometry", text))
}

/// Shows specs so that [`parse_list`] reads them again.
pub fn show_list(specs: &[DeviceSpec]) -> String {
    specs.iter().map(DeviceSpec::to_string).collect::<Vec<_>>().join("+")
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    /// Reads one spec.
    fn from_str(text: &str) -> Result<DeviceSpec, SpecError> {
        let parts = split(text, 0..text.len(), '+');
        match parts.as_slice() {
            [part] => parse_one(text, part.clone()),
            parts => {
                let plus = parts[1].start - 1;
                let hint = "name one device, or write `\\+` if the path has a plus sign";
                Err(Complaint::new(plus..plus + 1, "more than one device", hint))
            }
        }
        .map_err(|complaint| complaint.into_error("device spec", text))
    }
}

/// Splits `text[range]` at every `separator` that does not follow a backslash. Returns at least
/// one part.
fn split(text: &str, range: Range<usize>, separator: char) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = range.start;
    let mut escaped = false;
    for (at, c) in text[range.clone()].char_indices() {
        let at = range.start + at;
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == separator {
            parts.push(start..at);
            start = at + c.len_utf8();
        }
    }
    parts.push(start..range.end);
    parts
}

fn parse_one(text: &str, part: Range<usize>) -> Result<DeviceSpec, Complaint> {
    if part.is_empty() {
        let hint = "expected a path, or mem: and a preset or options, as in mem:zn540-1t";
        return Err(Complaint::new(part, "no device is named", hint));
    }
    if text[part.clone()].starts_with("mem:") {
        return parse_memory(text, part);
    }
    let parts = split(text, part.clone(), ',');
    let path = unescape(text, parts[0].clone())?;
    // Paths below /dev/shm are files, not devices.
    if path.starts_with("/dev/") && !path.starts_with("/dev/shm/") {
        let mut options = Options::default();
        for option in &parts[1..] {
            options.add(text, option.clone(), Scope::Node)?;
        }
        return Ok(DeviceSpec::Node(Node { path, queued: options.queued() }));
    }
    if path.is_empty() {
        return Err(Complaint::new(parts[0].clone(), "no path", "expected the path of an image"));
    }
    let is_of_path = |part: &Range<usize>| {
        let part = &text[part.clone()];
        !part.is_empty() && !part.contains('=') && Key::named(part).is_none()
    };
    let first = parts[1..].iter().rposition(is_of_path).map_or(1, |at| at + 2);
    let path = unescape(text, part.start..parts[first - 1].end)?;
    let mut options = Options::default();
    for option in &parts[first..] {
        options.add(text, option.clone(), Scope::Image).map_err(|mut complaint| {
            if presets::preset(&path).is_some() {
                complaint.hint = format!("for a drive in memory write `mem:{path},…`");
            } else {
                complaint.hint.push_str("; write `\\,` for a comma of the path");
            }
            complaint
        })?;
    }
    Ok(DeviceSpec::Image(Image { path, run: options.run(), sync: options.sync() }))
}

fn parse_memory(text: &str, part: Range<usize>) -> Result<DeviceSpec, Complaint> {
    let options_at = part.start + "mem:".len()..part.end;
    let (preset, options) = parse_options(text, options_at, Scope::Memory)?;
    Ok(DeviceSpec::Memory(Box::new(Memory {
        geometry: options.geometry(&part)?,
        medium: options.medium(),
        run: options.run(),
        preset,
        given: options.into_values(),
    })))
}

/// Reads `[PRESET][,key=value…]`; empty text has no options.
fn parse_options(
    text: &str,
    range: Range<usize>,
    scope: Scope,
) -> Result<(Option<&'static str>, Options), Complaint> {
    let mut options = Options::default();
    if range.is_empty() {
        return Ok((None, options));
    }
    let parts = split(text, range, ',');
    let (first, mut rest) = (&text[parts[0].clone()], &parts[..]);
    let mut preset = None;
    if !first.contains('=') && !first.is_empty() && Key::named(first).is_none() {
        preset = presets::NAMES.iter().find(|name| **name == first).copied();
        let Some(geometry) = preset.and_then(presets::preset) else {
            let names = presets::NAMES.iter().copied();
            return Err(Complaint::new(
                parts[0].clone(),
                format!("unknown preset `{first}`{}", words::hint(first, names)),
                format!("known presets: {}", presets::NAMES.join(", ")),
            ));
        };
        options.start_from(geometry);
        rest = &parts[1..];
    }
    for option in rest {
        options.add(text, option.clone(), scope)?;
    }
    Ok((preset, options))
}

/// Removes the backslashes from a path.
fn unescape(text: &str, part: Range<usize>) -> Result<String, Complaint> {
    let mut path = String::new();
    let mut chars = text[part.clone()].chars();
    while let Some(c) = chars.next() {
        path.push(match c {
            '\\' => chars.next().ok_or_else(|| {
                let hint = "write `\\\\` for a backslash";
                Complaint::new(part.end - 1..part.end, "nothing follows the backslash", hint)
            })?,
            c => c,
        });
    }
    Ok(path)
}

fn escape(path: &str) -> String {
    let mut out = String::new();
    for c in path.chars() {
        if matches!(c, '\\' | '+' | ',') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Node(Node { path, queued }) => {
                f.write_str(&escape(path))?;
                if *queued { write!(f, ",{}=queued", Key::Order) } else { Ok(()) }
            }
            DeviceSpec::Image(image) => image.fmt(f),
            DeviceSpec::Memory(memory) => memory.fmt(f),
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The backslash marks the text as a path although it looks like another kind of spec.
        let guard = if self.path.starts_with("mem:") { "\\" } else { "" };
        write!(f, "{guard}{}", escape(&self.path))?;
        let Run { seed, timing, time_scale, model, parameters } = &self.run;
        if let Some(seed) = seed {
            write!(f, ",{}={seed}", Key::Seed)?;
        }
        match timing {
            Timing::Off => {}
            timing => write!(f, ",{}={timing}", Key::Timing)?,
        }
        if let Some(scale) = time_scale {
            write!(f, ",{}={scale}", Key::TimeScale)?;
        }
        if let Some(model) = model {
            write!(f, ",{}={}", Key::Model, escape(model))?;
        }
        for (name, value) in parameters {
            write!(f, ",{PARAMETER}{name}={value}")?;
        }
        if self.sync { write!(f, ",{}=on", Key::Sync) } else { Ok(()) }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mem:")?;
        let mut between = "";
        if let Some(preset) = self.preset {
            f.write_str(preset)?;
            between = ",";
        }
        for (key, value) in &self.given {
            write!(f, "{between}{key}={value}")?;
            between = ",";
        }
        for (name, value) in &self.run.parameters {
            write!(f, "{between}{PARAMETER}{name}={value}")?;
            between = ",";
        }
        Ok(())
    }
}
