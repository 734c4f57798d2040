//! Where blocks go in the main area, which of them are valid, and how much room is left.

pub(crate) mod group_load;
pub(crate) mod heads;
pub(crate) mod place;
pub(crate) mod space;
pub mod stripe;
pub(crate) mod zone_quota;
