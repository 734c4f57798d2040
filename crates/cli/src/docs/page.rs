//! A page of `docs` as a manual page: headings, paragraphs, lists, tables and code.
//!
//! Only the part of Markdown that the project's pages use is converted. A table becomes a list, in
//! which the first cell of each row is the name of the entry.

/// Turns off the stretching and hyphenation of lines, so that commands can be copied unchanged.
pub const RAGGED: &str = ".nh\n.ad l\n";

/// Converts `page` from Markdown to roff. The first heading is left out, since `about` is the text
/// of the NAME section.
pub fn manual(name: &str, section: u8, about: &str, page: &str) -> String {
    let (title, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    let mut text = format!(".TH {title} {section} \"\" \"furrow {version}\" \"Furrow\"\n");
    text.push_str(RAGGED);
    text.push_str(&format!(".SH NAME\n{} \\- {}\n.SH DESCRIPTION\n", plain(name), plain(about)));
    let (mut code, mut columns): (bool, Option<Vec<&str>>) = (false, None);
    // Whether a paragraph has ended and no heading has followed it yet.
    let mut ended = false;
    for line in page.lines().skip_while(|line| line.starts_with("# ") || line.is_empty()) {
        if line.starts_with("```") {
            code = !code;
            text.push_str(if code { ".PP\n.nf\n" } else { ".fi\n" });
            continue;
        }
        if code {
            text.push_str(&format!("{}\n", escaped(line)));
            continue;
        }
        if let Some(row) = line.strip_prefix('|') {
            let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
            match &columns {
                None => columns = Some(cells),
                Some(_) if line.starts_with("|--") => {}
                Some(columns) => text.push_str(&entry(columns, &cells)),
            }
            continue;
        }
        columns = None;
        // A terminal shows no pictures.
        let picture = ["![", "<picture", "<source", "<img", "</picture"];
        if picture.iter().any(|tag| line.starts_with(tag)) {
            continue;
        }
        if line.is_empty() {
            ended = true;
        } else if let Some(heading) = line.strip_prefix("## ") {
            text.push_str(&format!(".SH {}\n", plain(&heading.to_uppercase())));
            ended = false;
        } else {
            text.push_str(if ended { ".PP\n" } else { "" });
            text.push_str(&format!("{}\n", plain(line)));
            ended = false;
        }
    }
    text
}

/// A row of a table as an entry of a list: the first cell is its name, the last cell its text, and
/// the non-empty cells between them follow in parentheses.
fn entry(columns: &[&str], cells: &[&str]) -> String {
    let (Some(name), Some(meaning)) = (cells.first(), cells.last()) else { return String::new() };
    let between = columns.iter().zip(cells).skip(1).take(cells.len().saturating_sub(2));
    let between: Vec<String> = between
        .filter(|(_, cell)| !cell.is_empty() && **cell != "-")
        .map(|(column, cell)| match *column {
            "type" | "unit" => plain(cell),
            column => format!("{} {}", plain(column.trim_start_matches("more ")), plain(cell)),
        })
        .collect();
    let between = match between.is_empty() {
        true => String::new(),
        false => format!(" ({})", between.join(", ")),
    };
    format!(".TP\n\\fB{}\\fR\n{}{between}\n", plain(name), plain(meaning))
}

/// `line` without the marks of emphasis and code; only the text of a link remains.
fn plain(line: &str) -> String {
    let (mut text, mut rest) = (String::new(), line);
    while let Some((before, after)) = rest.split_once('[') {
        text.push_str(before);
        rest = match after.split_once("](").and_then(|(label, link)| {
            let (_, rest) = link.split_once(')')?;
            Some((label, rest))
        }) {
            Some((label, rest)) => {
                text.push_str(label);
                rest
            }
            None => {
                text.push('[');
                after
            }
        };
    }
    text.push_str(rest);
    escaped(&text.replace(['`', '*'], ""))
}

/// A line of text, escaped so that roff prints it unchanged.
fn escaped(line: &str) -> String {
    // roff has no ASCII replacement for the ellipsis character.
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('…', "...");
    match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_a_manual_page() {
        let page = "# Title\n\nFirst [link](x.md#y) and `code`.\n\n## Part\n\n| name | unit | \
                    more labels | what |\n|---|---|---|---|\n| `a_b` | bytes | `x` | *One* |\n\
                    | c | | | Two |\n\n```sh\n.x -y [z]\n```\n\n<picture>\n\
                    ![x](x.svg)\n</picture>\n\nLast.\n";
        let text = manual("furrow-x", 7, "what it is", page);
        let expected = ".SH DESCRIPTION\nFirst link and code.\n.SH PART\n.TP\n\\fBa_b\\fR\nOne \
                        (bytes, labels x)\n.TP\n\\fBc\\fR\nTwo\n.PP\n.nf\n\\&.x \\-y [z]\n.fi\n\
                        .PP\nLast.\n";
        assert!(text.starts_with(".TH FURROW-X 7 "), "{text}");
        assert!(text.contains(".SH NAME\nfurrow\\-x \\- what it is\n"), "{text}");
        assert!(text.ends_with(expected), "{text}");
    }
}
