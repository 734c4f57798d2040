//! Validation of geometries, and address arithmetic that cannot overflow.

use crate::{BlockCount, ByteLen, Error, ErrorKind, Geometry, Lba, Result, Status, ZoneId};

/// Largest drive in bytes: offsets must fit the signed 64 bits of the system's files.
const MAX_BYTES: u64 = i64::MAX as u64;

impl Geometry {
    /// Checks that this geometry is possible.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]; the message names the field, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        self.fault().map_err(|fault| {
            Error::new(ErrorKind::Invalid, format!("geometry: {} {}", fault.field, fault.what))
        })
    }

    /// Returns the first problem as an error.
    pub(crate) fn fault(&self) -> Result<(), Fault> {
        self.layout_fault()?;
        self.limits_fault()
    }

    fn layout_fault(&self) -> Result<(), Fault> {
        if self.zones == 0 {
            return Err(fault("zones", "is 0: a drive needs at least one zone"));
        }
        if self.zone_size.0 == 0 {
            return Err(fault("zone_size", "is 0: a zone needs at least one block"));
        }
        if self.zone_capacity.0 == 0 {
            return Err(fault("zone_capacity", "is 0: a zone needs at least one block"));
        }
        if self.zone_capacity > self.zone_size {
            return Err(fault(
                "zone_capacity",
                format!(
                    "is {} blocks, above zone_size of {} blocks",
                    self.zone_capacity, self.zone_size
                ),
            ));
        }
        if !matches!(self.block_size.0, 512 | 4096) {
            return Err(fault(
                "block_size",
                format!("is {} bytes: must be 512 or 4096", self.block_size),
            ));
        }
        let bytes = u64::from(self.zones)
            .checked_mul(self.zone_size.0)
            .and_then(|blocks| blocks.checked_mul(self.block_size.0));
        if bytes.is_none_or(|bytes| bytes > MAX_BYTES) {
            return Err(fault(
                "zones",
                format!(
                    "are too many: {} × {} blocks × {} bytes must be below 8 EiB",
                    self.zones, self.zone_size, self.block_size
                ),
            ));
        }
        if self.conventional_zones > self.zones {
            return Err(fault(
                "conventional_zones",
                format!("is {}, above zones of {}", self.conventional_zones, self.zones),
            ));
        }
        Ok(())
    }

    fn limits_fault(&self) -> Result<(), Fault> {
        let zero = |field| Err(fault(field, "is 0: must be at least 1, or without limit"));
        if self.max_open == Some(0) {
            return zero("max_open");
        }
        if self.max_active == Some(0) {
            return zero("max_active");
        }
        match (self.max_open, self.max_active) {
            (Some(open), Some(active)) if open > active => {
                return Err(fault(
                    "max_open",
                    format!("is {open}, above max_active of {active}: an open zone is active"),
                ));
            }
            (None, Some(active)) => {
                return Err(fault(
                    "max_open",
                    format!("has no limit, above max_active of {active}: an open zone is active"),
                ));
            }
            _ => {}
        }
        if self.max_transfer == Some(BlockCount(0)) {
            return zero("max_transfer");
        }
        if let (Some(append), Some(transfer)) = (self.max_append, self.max_transfer)
            && append > transfer
        {
            return Err(fault(
                "max_append",
                format!("is {append} blocks, above max_transfer of {transfer} blocks"),
            ));
        }
        if self.channels == Some(0) {
            return Err(fault("channels", "is 0: must be at least 1, or unknown"));
        }
        if self.dies == Some(0) {
            return Err(fault("dies", "is 0: must be at least 1, or unknown"));
        }
        Ok(())
    }

    /// Number of blocks in the whole address space, including the gaps between capacity and size.
    pub fn blocks(&self) -> BlockCount {
        BlockCount(u64::from(self.zones).saturating_mul(self.zone_size.0))
    }

    /// Largest append in blocks; `None`: no limit. It is ZASL, or MDTS if ZASL is 0. A drive that
    /// refuses appends has 0: callers then write at the write pointer instead.
    #[inline]
    pub fn append_limit(&self) -> Option<BlockCount> {
        self.max_append.or(self.max_transfer)
    }

    /// Converts `blocks` to bytes.
    pub fn bytes(&self, blocks: BlockCount) -> ByteLen {
        ByteLen(blocks.0.saturating_mul(self.block_size.0))
    }

    /// The zone that starts exactly at `lba`; `None` if no zone does.
    pub fn zone_at(&self, lba: Lba) -> Option<ZoneId> {
        self.locate(lba).and_then(|(zone, offset)| (offset.0 == 0).then_some(zone))
    }

    /// Zone and offset of the first block of a range. The range may extend into further zones.
    ///
    /// # Errors
    /// [`Status::InvalidField`] if `blocks` is 0, [`Status::LbaOutOfRange`] if the range leaves
    /// the drive.
    #[inline]
    pub fn check_range(
        &self,
        lba: Lba,
        blocks: BlockCount,
    ) -> std::result::Result<(ZoneId, BlockCount), Status> {
        if blocks.0 == 0 {
            return Err(Status::InvalidField);
        }
        match lba.0.checked_add(blocks.0) {
            Some(end) if end <= self.blocks().0 => {}
            _ => return Err(Status::LbaOutOfRange),
        }
        self.locate(lba).ok_or(Status::LbaOutOfRange)
    }
}

/// A reason why a geometry is impossible.
pub(crate) struct Fault {
    /// The field of [`Geometry`] at fault.
    pub field: &'static str,
    /// The fault of the field: the end of a sentence that begins with its name.
    pub what: String,
}

fn fault(field: &'static str, what: impl Into<String>) -> Fault {
    Fault { field, what: what.into() }
}
