//! Variants of soft zones.

use crate::SoftDefect;

/// A variant of soft zones. The default is the product.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SoftVariant {
    /// The defect built in, if any.
    pub defect: Option<SoftDefect>,
}

impl SoftVariant {
    /// Whether this variant has the defect.
    #[inline]
    pub fn has(&self, defect: SoftDefect) -> bool {
        self.defect == Some(defect)
    }
}

impl std::fmt::Debug for SoftVariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        crate::print(f, *self == SoftVariant::default())
    }
}
