//! The tables: where each node is (NAT), which blocks of each segment are valid (SIT), which node
//! ids are free; their zones, and how their delta logs are merged into them.

pub(crate) mod delta_merge;
pub(crate) mod table;
pub(crate) mod table_zones;
