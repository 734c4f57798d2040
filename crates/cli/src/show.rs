//! How the commands print.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use std::io::Write;

/// A plain table: `head` above columns, the first aligned left, the others right.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(head.to_vec());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Prints `table` without the blanks at the ends of its lines.
pub fn print_table(out: &mut dyn Write, table: &Table) -> std::io::Result<()> {
    for line in table.to_string().lines() {
        writeln!(out, "{}", line.strip_prefix(' ').unwrap_or(line).trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_end_where_their_text_ends() {
        let mut some = table(&["what", "bytes"]);
        some.add_row(["data", "17"]);
        let mut out = Vec::new();
        print_table(&mut out, &some).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| !line.ends_with(' ') && !line.starts_with(' ')), "{text}");
    }
}
