//! `furrow map`: a picture of the zones and their content.

mod cells;
mod svg;
mod text;

use crate::show::{self, Screen};
use crate::target::Target;
use anyhow::{Context as _, Result, bail};
use furrow_fuse::report::{MapPage, Zone};
use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};

/// Show the content of each zone
///
/// A picture with one cell per zone, in the order of the drive: a letter for its use, which the
/// table below explains, a capital if at least half of the zone is valid. If the picture would not
/// fit the screen, a cell stands for several zones, and a line says for how many. Without a
/// terminal the picture fits 80 columns and 24 lines; COLUMNS and LINES change that.
#[derive(clap::Args)]
pub struct Args {
    /// Mount point, or device
    #[arg(value_name = "DIR|DEVICE")]
    target: OsString,
    #[command(flatten)]
    form: Form,
}

// How to show a map: the same for a file system and for a store. A documentation comment here
// would replace that of the command.
#[derive(clap::Args)]
pub struct Form {
    /// Show only the table of uses
    #[arg(long, group = "form")]
    summary: bool,
    /// Show a cell for each zone, even if the picture does not fit the screen
    #[arg(long, conflicts_with = "form")]
    all: bool,
    /// Write the picture to FILE as an SVG, which suits light and dark pages; - is standard output
    #[arg(long, value_name = "FILE", group = "form")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long, group = "form")]
    pub json: bool,
}

/// How a use of zones is drawn.
pub struct Style {
    /// Name of the use. Every set of styles has "unused", which also stands for unknown uses.
    pub name: &'static str,
    /// The letter of the use, which is drawn as a capital if at least half of the zone is valid.
    pub letter: char,
    /// SGR colour (foreground).
    pub colour: u8,
    /// True if the fill of a zone counts its written blocks, as for logs; false if it counts its
    /// valid blocks.
    pub by_written: bool,
}

const STYLES: [Style; 13] = [
    Style { name: "checkpoint", letter: 'k', colour: 35, by_written: true },
    Style { name: "delta-log", letter: 'l', colour: 95, by_written: true },
    Style { name: "tables", letter: 't', colour: 33, by_written: true },
    Style { name: "sync-log", letter: 's', colour: 93, by_written: true },
    Style { name: "data-hot", letter: 'h', colour: 31, by_written: false },
    Style { name: "data-warm", letter: 'd', colour: 32, by_written: false },
    Style { name: "data-cold", letter: 'c', colour: 34, by_written: false },
    Style { name: "node-hot", letter: 'm', colour: 91, by_written: false },
    Style { name: "node-warm", letter: 'n', colour: 92, by_written: false },
    Style { name: "node-cold", letter: 'o', colour: 94, by_written: false },
    Style { name: "free", letter: '.', colour: 90, by_written: false },
    Style { name: "unused", letter: '-', colour: 90, by_written: false },
    Style { name: "retired", letter: 'x', colour: 41, by_written: false },
];

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    let target = Target::find(&args.target)?;
    let mut map = target.map()?;
    if args.form.json {
        show::json(out, &map)?;
    } else {
        map.device = titled(&map.device, &target.status()?.label);
        show(out, &map, &STYLES, &args.form, "")?;
    }
    Ok(0)
}

/// The line below a map: the device and the label of its content.
pub fn titled(device: &str, label: &str) -> String {
    let label = if label.is_empty() { String::new() } else { format!(", label {label}") };
    crate::show::printable(&format!("{device}{label}"))
}

/// Shows `map` as text or as an SVG, but not as JSON. A text is followed by `below`.
///
/// # Errors
/// The error of writing; an error if the file exists and is not an SVG file.
pub fn show(
    out: &mut dyn Write,
    map: &MapPage,
    styles: &[Style],
    form: &Form,
    below: &str,
) -> Result<()> {
    if let Some(file) = &form.svg {
        let picture = svg::draw(map, styles);
        if file == Path::new("-") {
            out.write_all(picture.as_bytes())?;
            return Ok(());
        }
        return save(file, &picture);
    }
    let part = match form {
        Form { summary: true, .. } => text::Part::Summary,
        Form { all: true, .. } => text::Part::AllZones,
        _ => text::Part::Fitting,
    };
    out.write_all(text::draw(map, styles, Screen::of_stdout(), part, below).as_bytes())?;
    Ok(())
}

/// Writes `picture` to `file`, unless `file` is something other than an SVG, such as the
/// drive itself.
fn save(file: &Path, picture: &str) -> Result<()> {
    let name = file.display();
    match fs::metadata(file) {
        Err(_) => {}
        Ok(found) if found.is_file() => {
            let mut old = Vec::new();
            let opened = fs::File::open(file).with_context(|| name.to_string())?;
            opened.take(4).read_to_end(&mut old).with_context(|| name.to_string())?;
            if !old.is_empty() && old != b"<svg" {
                bail!(
                    "{name}: exists and is not an SVG file; it was not changed: name another file"
                );
            }
        }
        Ok(_) => bail!("{name}: not a regular file: name a file for the SVG, or -"),
    }
    fs::write(file, picture).with_context(|| name.to_string())
}

/// Index in `styles` of the use of `zone`.
fn style(zone: &Zone, styles: &[Style]) -> usize {
    let named = |name: &str| styles.iter().position(|style| style.name == name);
    // A use that this version does not know is drawn as unused.
    named(&zone.usage).or_else(|| named("unused")).unwrap_or(0)
}

/// The share of `zone` that is full, 0 to 1.
fn fill(zone: &Zone, style: &Style, capacity: u64) -> f64 {
    let blocks = if style.by_written { zone.written } else { zone.valid };
    if capacity == 0 { 0.0 } else { (blocks as f64 / capacity as f64).min(1.0) }
}

#[cfg(test)]
mod tests;
