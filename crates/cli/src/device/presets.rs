//! `furrow device presets`: the drives with a model, and the source of each figure.

use super::{JSON_VERSION, describe, print_rows, size};
use crate::show::{self, print_table};
use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValuesParser;
use furrow_console::fit::{Column, Table};
use furrow_emu::Model;
use furrow_emu::timing::{Preset, Source};
use furrow_zone::{Geometry, presets};
use serde_json::{Value, json};
use std::io::Write;

const AFTER_HELP: &str = "\
A value is measured (read off such a drive, or published with it), inferred (from how one behaves) \
or assumed (no source says it). All can be changed: model.KEY=VALUE in a device spec, or a file. \
The option --toml prints such a file; after a change it is used as in \
disk.zns,timing=realtime,model=slow.toml.";

/// List the drives with a model, or show all parameters of one
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct PresetsArgs {
    /// Show this preset: every parameter, its value and the value's source.
    #[arg(value_parser = PossibleValuesParser::new(Preset::names().collect::<Vec<_>>()))]
    #[arg(hide_possible_values = true)]
    name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print its timing model as a file that 'model=FILE.toml' reads.
    #[arg(long, requires = "name", conflicts_with = "json")]
    toml: bool,
}

/// Runs the command.
///
/// # Errors
/// An error if there is no such preset, or the output cannot be written.
pub fn run(args: &PresetsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    match &args.name {
        None if args.json => {
            let all = Preset::names().map(|name| Ok(overview(name, &Preset::named(name)?)));
            let all = all.collect::<anyhow::Result<Vec<Value>>>()?;
            show::json(out, &json!({ "version": JSON_VERSION, "presets": all }))
        }
        None => list(out),
        Some(name) => {
            let known = Preset::names().find(|known| known == name);
            let preset = known.with_context(|| format!("unknown preset `{name}`"))?;
            let found = Preset::named(preset)?;
            match (args.json, args.toml) {
                (true, _) => show::json(out, &whole(preset, &found)),
                (_, true) => Ok(out.write_all(toml(&found).as_bytes())?),
                _ => show(out, preset, &found),
            }
        }
    }
}

/// The geometry of the preset called `name`; for the model `plain`, the geometry of a spec without
/// a preset.
fn geometry(name: &str) -> Geometry {
    presets::preset(name).unwrap_or_else(presets::plain)
}

/// The numbers of parameters that are measured, inferred and assumed.
fn counts(preset: &Preset) -> [usize; 3] {
    [Source::Measured, Source::Inferred, Source::Assumed]
        .map(|source| preset.provenance.values().filter(|entry| entry.source == source).count())
}

/// The number of zones, their capacity, and the limit of active zones.
fn shape(geometry: &Geometry) -> [String; 3] {
    let active = geometry.max_active.map_or("any".to_owned(), |most| most.to_string());
    let holds = size(geometry.bytes(geometry.zone_capacity));
    [geometry.zones.to_string(), holds, active]
}

fn list(out: &mut dyn Write) -> anyhow::Result<()> {
    let amounts = ["zones", "of", "active", "measured", "inferred", "assumed"];
    let amounts = amounts.map(|head| Column::amount(head, 0));
    let (name, about) = (Column::word("", 0), Column::word("about", 0));
    let mut table = Table::new(&[&[name], &amounts[..], &[about]].concat());
    for name in Preset::names() {
        let preset = Preset::named(name)?;
        let mut row = vec![name.to_owned()];
        row.extend(shape(&geometry(name)));
        row.extend(counts(&preset).map(|count| count.to_string()));
        row.push(preset.about);
        table.add_row(row);
    }
    print_table(out, &table)?;
    writeln!(out, "\n'furrow device presets NAME' shows each parameter and its source.")?;
    Ok(())
}

fn show(out: &mut dyn Write, name: &str, preset: &Preset) -> anyhow::Result<()> {
    let [measured, inferred, assumed] = counts(preset);
    writeln!(out, "{name}: {}", preset.about)?;
    writeln!(out, "\nShape")?;
    let mut rows = Vec::new();
    describe(&geometry(name), &mut rows);
    print_rows(out, rows)?;
    let of = Model::KEYS.len();
    writeln!(
        out,
        "\nTiming model: {of} parameters, {measured} measured, {inferred} inferred, {assumed} \
         assumed"
    )?;
    let mut table = Table::of_words(&["parameter", "value", "source", "why", "meaning"]);
    for (key, meaning) in Model::KEYS {
        let (source, why) = provenance(preset, key);
        let value = preset.model.get(key).unwrap_or_default();
        table.add_row([*key, value.as_str(), source.as_str(), why, *meaning]);
    }
    Ok(print_table(out, &table)?)
}

fn provenance<'a>(preset: &'a Preset, key: &str) -> (String, &'a str) {
    let found = preset.provenance.get(key);
    found.map_or_else(
        || (Source::Given.to_string(), ""),
        |entry| (entry.source.to_string(), entry.why.as_str()),
    )
}

fn overview(name: &str, preset: &Preset) -> Value {
    let [measured, inferred, assumed] = counts(preset);
    let geometry = geometry(name);
    json!({
        "name": name,
        "about": preset.about,
        "measured": measured,
        "inferred": inferred,
        "assumed": assumed,
        "capacity_bytes": geometry.capacity().0,
        "zones": geometry.zones,
        "zone_size_bytes": geometry.bytes(geometry.zone_size).0,
        "zone_capacity_bytes": geometry.bytes(geometry.zone_capacity).0,
        "max_open": geometry.max_open,
        "max_active": geometry.max_active,
        "block_bytes": geometry.block_size.0,
        "oob_bytes": geometry.oob_bytes,
        "channels": geometry.channels,
        "dies": geometry.dies,
    })
}

fn whole(name: &str, preset: &Preset) -> Value {
    let parameters: Vec<Value> = Model::KEYS
        .iter()
        .map(|(key, meaning)| {
            let (source, why) = provenance(preset, key);
            let value = preset.model.get(key);
            json!({ "key": key, "value": value, "source": source, "why": why, "meaning": meaning })
        })
        .collect();
    let mut value = overview(name, preset);
    value["version"] = json!(JSON_VERSION);
    value["parameters"] = json!(parameters);
    value
}

/// The model as the text of a file; reading that file gives the same model.
fn toml(preset: &Preset) -> String {
    let mut text = format!(
        "# A timing model. Use it in a device spec: mem:zn540-1t,timing=realtime,model=FILE.toml\n\
         # With a line base = \"PRESET\", keys that are left out are as in PRESET.\n\n\
         about = {}\n",
        quoted(&preset.about)
    );
    for (key, meaning) in Model::KEYS {
        let (source, why) = provenance(preset, key);
        let value = preset.model.get(key).unwrap_or_default();
        text.push_str(&format!(
            "\n# {meaning}\n{key} = {{ value = {}, source = {}, why = {} }}\n",
            quoted(&value),
            quoted(&source),
            quoted(why)
        ));
    }
    text
}

/// `text` as a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_model_reads_back_the_same() {
        for name in Preset::names() {
            let preset = Preset::named(name).unwrap();
            let again = Preset::parse(&toml(&preset)).unwrap();
            assert_eq!((&again.model, &again.about), (&preset.model, &preset.about), "{name}");
            assert_eq!(again.provenance, preset.provenance, "{name}");
        }
    }

    #[test]
    fn strings_survive_toml() {
        let preset =
            Preset::parse("base = \"plain\"\nabout = \"a \\\"b\\\" \\\\ \\u0007\"").unwrap();
        assert_eq!(preset.about, "a \"b\" \\ \u{7}");
        assert_eq!(Preset::parse(&toml(&preset)).unwrap().about, preset.about);
    }

    #[test]
    fn every_parameter_is_counted_once() {
        for name in Preset::names() {
            let counted: usize = counts(&Preset::named(name).unwrap()).iter().sum();
            assert_eq!(counted, Model::KEYS.len(), "{name}");
        }
    }
}
