//! Metadata of open segments, and of zones under rebuild, that is not on the drives yet.

use crate::format::BlockMeta;
use crate::meta::place::MetaPlace;
use crate::meta::window;
use crate::meta::windows::{Cover, Listing, Windows};
use std::rc::Rc;

/// In-band metadata of an open segment that is not on the drives yet; `None` if metadata is out
/// of band.
#[derive(Clone, Default)]
pub(crate) struct OpenMeta(pub(super) Option<Rc<Windows>>);

impl OpenMeta {
    pub(crate) fn new(place: MetaPlace, chunk: u32, drives: u32) -> OpenMeta {
        match place {
            MetaPlace::OutOfBand => OpenMeta(None),
            MetaPlace::InBand => OpenMeta(Some(Rc::new(Windows::new(chunk, drives)))),
        }
    }

    /// Notes the metadata of a stripe's chunk on a drive; callers come in the order of stripes.
    /// Returns the bytes for the out-of-band area.
    pub(crate) fn note<'a>(&self, stripe: u32, drive: u32, metas: &'a [u8]) -> &'a [u8] {
        match &self.0 {
            None => metas,
            Some(windows) => {
                windows.note(stripe, drive, metas);
                &[]
            }
        }
    }

    /// Whether stripe `next` of a segment of `stripes` stripes has to be a metadata stripe.
    pub(crate) fn ends_window(&self, next: u32, stripes: u32) -> bool {
        self.0.is_some() && window::ends(next, stripes)
    }

    /// Number of stripes that may hold data, in a segment of `stripes` stripes: with in-band
    /// metadata the last stripe does not.
    pub(crate) fn data_stripes(&self, stripes: u32) -> u32 {
        stripes - u32::from(self.0.is_some())
    }

    /// Adds the stripe just noted to the stripes that wait for a metadata stripe. Returns that
    /// metadata stripe, for which the caller then waits. The flag is true if the caller has to
    /// spawn a task that checks [`OpenMeta::is_due`] after the tasks that run now. `None` if
    /// metadata is out of band.
    pub(crate) fn join(&self) -> Option<(Rc<Cover>, bool)> {
        self.0.as_ref().map(|windows| windows.join())
    }

    /// Whether stripes wait for a metadata stripe and none is in flight.
    pub(crate) fn is_due(&self) -> bool {
        self.0.as_ref().is_some_and(|windows| windows.is_due())
    }

    /// The metadata of row `row` of a stripe's chunk on a drive; `None` if the list of the stripe's
    /// window is not in memory, `Some(None)` if the list lacks the row.
    pub(super) fn kept(&self, stripe: u32, drive: u32, row: u32) -> Option<Option<BlockMeta>> {
        self.0.as_ref().and_then(|windows| windows.get(stripe, drive, row))
    }
}

/// The in-band metadata of a zone that is being rebuilt, collected row by row.
pub(crate) struct RebuiltMeta(pub(super) Option<Listing>);

impl RebuiltMeta {
    pub(crate) fn new(place: MetaPlace, chunk: u32) -> RebuiltMeta {
        RebuiltMeta((place == MetaPlace::InBand).then(|| Listing::new(chunk)))
    }
}
