//! The audit of the zone pool: compares counts, states and owners of superzones.

use super::{STATES, SuperzoneState, ZonePool};
use crate::audit::{equal, holds};
use furrow_zone::Result;

impl ZonePool {
    /// Compares the counts of superzones with their states, and the states with the blocks that the
    /// writer placed in their zones. The cost is proportional to the number of zones.
    ///
    /// # Errors
    /// `Internal`: names the account, the expected value and the value found.
    pub fn audit(&self) -> Result<()> {
        let superzones = self.0.superzones.borrow();
        let mut counts = [0; STATES];
        let mut narrow = false;
        for superzone in superzones.iter() {
            let (id, state) = (superzone.id, superzone.state);
            counts[state as usize] += 1;
            narrow |= superzone.zones.len() != usize::from(superzone.width);
            let retired = state == SuperzoneState::Retired;
            holds("zones of superzones", superzone.zones.is_empty() == retired, || {
                format!("superzone {id} is {state:?}, found {} zones", superzone.zones.len())
            })?;
            for zone in &superzone.zones {
                equal(format_args!("owner of zone {zone}"), Some(id), self.owner(*zone))?;
                // Zones of a free superzone were reset, or never written.
                if state == SuperzoneState::Free && !superzone.releasing {
                    let written = self.0.writer.written(*zone);
                    holds("free superzones", written == 0, || {
                        format!(
                            "expected nothing in zone {zone} of superzone {id}, found {written} \
                             blocks"
                        )
                    })?;
                }
            }
        }
        let found = std::array::from_fn(|state| self.0.counts[state].get());
        equal("superzones by state", counts, found)?;
        holds("narrow superzones", !narrow || self.is_narrow(), || {
            "a superzone that lacks a zone, found none".into()
        })
    }
}
