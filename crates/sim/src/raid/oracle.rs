//! The oracle of a volume's blocks, for everything that runs a volume under faults.
//!
//! A block has the content of its last acknowledged write or trim, or of a later one in flight.
//! Contents are identified by versions: every 16 bytes of a block hold the block's number
//! and version.

use furrow_raid::Volume;
use furrow_rt::Page;
use furrow_rt::buf::is_zero;
use std::collections::BTreeMap;

/// Versions from here up to [`TRIM`] are written to a volume after a crash. They are not promised
/// if the volume crashes again.
pub const AFTER: u64 = 1 << 20;
/// Versions from here on are trims: zeros.
pub const TRIM: u64 = 1 << 40;

/// The content of `block` in a version.
pub fn page(block: u64, version: u64) -> Page {
    let mut page = Page::zeroed();
    for chunk in page.make_mut().chunks_mut(16) {
        chunk[..8].copy_from_slice(&block.to_le_bytes());
        chunk[8..].copy_from_slice(&version.to_le_bytes());
    }
    page
}

/// Returns the version of `block` that was read; 0 for zeros.
///
/// # Errors
/// Describes bytes that belong to no version of `block`.
pub fn version(block: u64, found: &Page) -> Result<u64, String> {
    let word = |at: usize| {
        let bytes = found.bytes()[at..at + 8].try_into().expect("invariant: eight bytes");
        u64::from_le_bytes(bytes)
    };
    let version = word(8);
    if is_zero(found.bytes()) {
        return Ok(0);
    }
    if found.bytes() != page(block, version).bytes() {
        return Err(format!("block {block} reads as block {} version {version}", word(0)));
    }
    Ok(version)
}

/// The versions that each block may hold.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// Versions that a block may have; blocks without an entry are zeros.
    versions: BTreeMap<u64, Vec<u64>>,
    /// Operations in flight, by number: first block, number of blocks, version.
    under_way: BTreeMap<u64, (u64, u64, u64)>,
}

impl Blocks {
    /// Allows exactly the content that was found.
    pub fn found(found: BTreeMap<u64, u64>) -> Blocks {
        let versions = found.into_iter().map(|(block, version)| (block, vec![version])).collect();
        Blocks { versions, under_way: BTreeMap::new() }
    }

    /// Records that operation `operation` begins to give a version to the `count` blocks from
    /// `block` on.
    pub fn began(&mut self, operation: u64, (block, count, version): (u64, u64, u64)) {
        self.under_way.insert(operation, (block, count, version));
        for block in block..block + count {
            self.versions.entry(block).or_insert_with(|| vec![0]).push(version);
        }
    }

    /// Records that the operation was acknowledged: earlier versions are not allowed any more.
    pub fn acknowledged(&mut self, operation: u64) {
        let Some((block, count, version)) = self.under_way.remove(&operation) else { return };
        for block in block..block + count {
            let versions = self.versions.entry(block).or_default();
            if let Some(at) = versions.iter().skip(1).position(|v| *v == version) {
                versions.drain(..=at);
            }
        }
    }

    /// Allows only this version of a block.
    pub fn set(&mut self, block: u64, version: u64) {
        self.versions.insert(block, vec![version]);
    }

    /// The version of `block` as read, if the block may have it.
    ///
    /// # Errors
    /// Names the versions that it may have.
    pub fn check(&self, block: u64, found: &Page) -> Result<u64, String> {
        let version = version(block, found)?;
        match self.versions.get(&block) {
            _ if (AFTER..TRIM).contains(&version) => Ok(version),
            None if version == 0 => Ok(version),
            Some(versions) if versions.contains(&version) => Ok(version),
            Some(versions) if version == 0 && versions.iter().any(|v| *v >= TRIM) => Ok(version),
            versions => Err(format!("block {block} has version {version}, expected {versions:?}")),
        }
    }

    /// Reads the whole volume and compares; returns the versions found.
    ///
    /// # Errors
    /// Names the block that is wrong or cannot be read.
    pub async fn compare(&self, volume: &Volume) -> Result<BTreeMap<u64, u64>, String> {
        let (mut at, mut all) = (0, BTreeMap::new());
        while at < volume.blocks() {
            let count = 256.min(volume.blocks() - at);
            let read = volume.read(at, count as u32).await;
            let read = read.map_err(|error| format!("blocks {at} + {count}: {error}"))?;
            for (block, page) in (at..).zip(&read) {
                all.insert(block, self.check(block, page)?);
            }
            at += count;
        }
        Ok(all)
    }
}
