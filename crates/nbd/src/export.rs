//! Exports: volumes under names, and their properties for clients.

use crate::status::{Counters, ExportStatus};
use crate::volume::{BLOCK, Volume};
use crate::wire::{PAYLOAD_MAX, STRING_MAX, transmission};
use furrow_rt::Ranges;
use furrow_zone::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::rc::Rc;

/// A volume that is to be served under a name.
pub struct Export<V> {
    name: String,
    description: String,
    volume: Rc<V>,
    read_only: bool,
}

impl<V: Volume> Export<V> {
    /// Exports `volume` under `name`. The first export of a server also serves clients that give
    /// no name.
    pub fn new(name: impl Into<String>, volume: Rc<V>) -> Export<V> {
        Export { name: name.into(), description: String::new(), volume, read_only: false }
    }

    /// Sets a description, which clients show next to the name.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> Export<V> {
        self.description = description.into();
        self
    }

    /// With `true`, makes the export read-only even if the volume is not.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Export<V> {
        self.read_only = read_only;
        self
    }
}

/// An export that is being served.
pub(crate) struct Served<V> {
    export: Export<V>,
    /// Locks on the blocks that are being written: overlapping writes take turns, even through
    /// different exports of the volume.
    pub(crate) turns: Rc<Ranges>,
    pub(crate) counters: Counters,
    pub(crate) connections: Cell<u64>,
}

impl<V: Volume> Served<V> {
    fn new(export: Export<V>, others: &[Rc<Served<V>>]) -> Served<V> {
        let same = |other: &&Rc<Served<V>>| Rc::ptr_eq(&other.export.volume, &export.volume);
        let turns = others.iter().find(same).map(|other| other.turns.clone());
        let turns = turns.unwrap_or_default();
        Served { export, turns, counters: Counters::default(), connections: Cell::new(0) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.export.name
    }

    pub(crate) fn description(&self) -> &str {
        &self.export.description
    }

    pub(crate) fn volume(&self) -> &V {
        &self.export.volume
    }

    /// Size of the export in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.export.volume.blocks() * BLOCK
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.export.read_only || self.export.volume.read_only()
    }

    /// Minimum, preferred and maximum size of a request, in bytes.
    pub(crate) fn sizes(&self) -> [u32; 3] {
        let preferred = self.export.volume.preferred_blocks().clamp(1, PAYLOAD_MAX / BLOCK as u32);
        [1, preferred.next_power_of_two() * BLOCK as u32, PAYLOAD_MAX]
    }

    /// The transmission flags. Several connections are safe: one engine on one thread serves all,
    /// so a request that was answered on one connection is visible to, and flushed by, all others.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        use transmission::{
            CACHE, DF, FAST_ZERO, FLUSH, FUA, HAS_FLAGS, MULTI_CONN, READ_ONLY, TRIM, WRITE_ZEROES,
        };
        let always = HAS_FLAGS | FLUSH | FUA | MULTI_CONN | CACHE;
        let writing = match self.is_read_only() {
            true => READ_ONLY,
            false => TRIM | WRITE_ZEROES | FAST_ZERO,
        };
        always | writing | if structured { DF } else { 0 }
    }

    pub(crate) fn status(&self) -> ExportStatus {
        ExportStatus {
            name: self.export.name.clone(),
            size: self.size(),
            read_only: self.is_read_only(),
            connections: self.connections.get(),
            counts: self.counters.get(),
        }
    }
}

/// The exports of a server, in the order in which they were given.
pub(crate) struct Exports<V>(Vec<Rc<Served<V>>>);

impl<V: Volume> Exports<V> {
    pub(crate) fn new(exports: Vec<Export<V>>) -> Result<Exports<V>> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if exports.is_empty() {
            return invalid("no export to serve; name at least one".to_owned());
        }
        for (i, export) in exports.iter().enumerate() {
            let name = &export.name;
            if name.len() > STRING_MAX || export.description.len() > STRING_MAX {
                return invalid(format!(
                    "name or description of export '{name:.32}' is longer than {STRING_MAX} bytes"
                ));
            }
            if exports[..i].iter().any(|other| other.name == *name) {
                return invalid(format!("two exports are named '{name}'; choose other names"));
            }
            if export.volume.blocks() > i64::MAX as u64 / BLOCK {
                let blocks = export.volume.blocks();
                return invalid(format!(
                    "export '{name}' has {blocks} blocks; NBD clients count bytes in 63 bits"
                ));
            }
        }
        let mut served = Vec::with_capacity(exports.len());
        for export in exports {
            served.push(Rc::new(Served::new(export, &served)));
        }
        Ok(Exports(served))
    }

    /// The export with this name; for an empty name the first.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&Rc<Served<V>>> {
        let named = self.0.iter().find(|export| export.name().as_bytes() == name);
        named.or_else(|| if name.is_empty() { self.0.first() } else { None })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rc<Served<V>>> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn export(name: &str) -> Export<Memory> {
        Export::new(name, Rc::new(Memory::new(8)))
    }

    #[test]
    fn exports_are_found_by_name_and_the_first_without() {
        let exports = Exports::new(vec![export("a"), export("b").read_only(true)]).unwrap();
        assert_eq!(exports.find(b"b").unwrap().name(), "b");
        assert_eq!(exports.find(b"").unwrap().name(), "a");
        assert!(exports.find(b"c").is_none());
        assert!(exports.find(b"\xff").is_none());
        let flags = |name: &[u8]| exports.find(name).unwrap().flags(true);
        assert_eq!(
            flags(b"a") & (transmission::READ_ONLY | transmission::TRIM),
            transmission::TRIM
        );
        assert_eq!(flags(b"b") & transmission::READ_ONLY, transmission::READ_ONLY);
        assert_eq!(flags(b"b") & (transmission::TRIM | transmission::WRITE_ZEROES), 0);
    }

    #[test]
    fn exports_of_one_volume_take_turns() {
        let volume = Rc::new(Memory::new(8));
        let same = |name| Export::new(name, volume.clone());
        let exports = Exports::new(vec![export("a"), same("b"), same("c")]).unwrap();
        let turns = |name: &[u8]| exports.find(name).unwrap().turns.clone();
        assert!(Rc::ptr_eq(&turns(b"b"), &turns(b"c")));
        assert!(!Rc::ptr_eq(&turns(b"a"), &turns(b"b")));
    }

    #[test]
    fn none_two_of_a_name_and_too_long_a_name_are_refused() {
        assert!(Exports::<Memory>::new(Vec::new()).is_err());
        let error = Exports::new(vec![export("a"), export("a")]).err().unwrap();
        assert!(error.to_string().contains("two exports are named 'a'"));
        assert!(Exports::new(vec![export(&"x".repeat(STRING_MAX + 1))]).is_err());
        assert!(Exports::new(vec![export("a").describe("d".repeat(STRING_MAX + 1))]).is_err());
    }
}
