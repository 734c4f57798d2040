//! Variants of the file store.

use crate::StoreDefect;

/// A variant of the file store. The default is the product.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreVariant {
    /// The defect built in, if any.
    pub defect: Option<StoreDefect>,
}

impl StoreVariant {
    /// Whether this variant has the defect.
    #[inline]
    pub fn has(&self, defect: StoreDefect) -> bool {
        self.defect == Some(defect)
    }
}

impl std::fmt::Debug for StoreVariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        crate::print(f, *self == StoreVariant::default())
    }
}
