//! Cells of a picture of zones: one zone each, or several zones each if one cell per zone would
//! not fit.

use super::{Style, fill, style};
use furrow_fuse::report::MapPage;

/// The content of one cell of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Index of the cell's use in the styles.
    pub style: usize,
    /// The share that is full, 0 to 1.
    pub fill: f64,
    /// True if a zone of the cell is open.
    pub open: bool,
}

/// Number of zones per cell: the smallest power of two that keeps the number of cells for `zones`
/// at `places` or less. The number of zones of a superzone is mostly a power of two as well, so
/// superzones begin where cells begin.
pub fn zones_per_cell(zones: usize, places: usize) -> usize {
    let mut each = 1;
    while zones.div_ceil(each) > places.max(1) {
        each *= 2;
    }
    each
}

/// The cells of `map`; each stands for `each` zones.
///
/// A cell of several zones has the use that most of these zones have. Free and unused zones count
/// only if a cell has no others: a cell that is drawn as empty holds nothing.
pub fn cells(map: &MapPage, styles: &[Style], each: usize) -> Vec<Cell> {
    let is_empty = |at: usize| matches!(styles[at].name, "free" | "unused");
    let of = |zones: &[_]| {
        let uses: Vec<usize> = zones.iter().map(|zone| style(zone, styles)).collect();
        let mut counts = vec![0usize; styles.len()];
        uses.iter().for_each(|at| counts[*at] += 1);
        // Uses of empty zones rank last; of equally frequent uses the first in the styles wins.
        let rank = |at: &usize| (counts[*at] > 0 && !is_empty(*at), counts[*at], usize::MAX - at);
        let most = (0..styles.len()).max_by_key(rank);
        let full = zones.iter().zip(&uses).map(|(z, at)| fill(z, &styles[*at], map.zone_blocks));
        Cell {
            style: most.unwrap_or(0),
            fill: full.sum::<f64>() / zones.len() as f64,
            open: zones.iter().any(|zone| zone.open),
        }
    };
    map.zones.chunks(each.max(1)).map(of).collect()
}
