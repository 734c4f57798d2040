//! Manual pages and completions, generated from the command line: the hidden subcommand `docs`.

mod page;
mod words;

use crate::helper;
use anyhow::{Context as _, Result};
use clap::{Command, Subcommand};
use clap_complete::Shell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write manual pages or completions
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Manual pages: section 1 for commands, 8 for their other names, 7 for overviews
    Man {
        /// Target directory, which is created
        directory: PathBuf,
    },
    /// Words that completions offer
    Words {
        /// Kind of words
        kind: words::Kind,
        /// The array whose members are listed
        array: Option<String>,
    },
    /// Completions for bash, zsh and fish
    Completions {
        /// Target directory, which is created
        directory: PathBuf,
    },
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<u8> {
    match &args.what {
        What::Man { directory } => man(directory)?,
        What::Completions { directory } => completions(directory)?,
        What::Words { kind, array } => words::list(*kind, array.as_deref(), out)?,
    }
    Ok(0)
}

fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// Completions under the names by which each shell looks for them.
fn completions(directory: &Path) -> Result<()> {
    make(directory)?;
    for (shell, name) in
        [(Shell::Bash, "furrow"), (Shell::Zsh, "_furrow"), (Shell::Fish, "furrow.fish")]
    {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut crate::command(), "furrow", &mut text);
        let text = words::add(shell, String::from_utf8(text).context("completions")?);
        write(&directory.join(name), text.as_bytes())?;
    }
    Ok(())
}

fn man(directory: &Path) -> Result<()> {
    make(directory)?;
    for (name, text) in pages()? {
        write(&directory.join(name), &text)?;
    }
    Ok(())
}

/// Every page: file name and text.
fn pages() -> Result<Vec<(String, Vec<u8>)>> {
    let mut command = crate::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, "furrow", &mut pages)?;
    for (name, subcommand) in helper::NAMES {
        let page = format!(".so man1/furrow-{subcommand}.1\n");
        pages.push((format!("{name}.8"), page.into_bytes()));
    }
    let metrics = include_str!("../../../docs/use/metrics.md");
    let metrics = page::manual("furrow-metrics", 7, "metrics for Prometheus, with units", metrics);
    pages.push(("furrow-metrics.7".to_owned(), metrics.into_bytes()));
    let overview = include_str!("../../../docs/use/furrow.md");
    let overview = page::manual("furrow", 7, "storage for zoned drives", overview);
    pages.push(("furrow.7".to_owned(), overview.into_bytes()));
    Ok(pages)
}

/// Adds to `pages` the page of `command`, called `name`, and the pages of all its subcommands.
fn add_pages(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let mut command = command.clone();
    let usage = command.render_usage().to_string();
    // The heading of the page shows the page's name.
    let page = clap_mangen::Man::new(command.clone().display_name(name.to_owned()))
        .title(name.to_uppercase())
        .source(format!("furrow {version}"))
        .manual("Furrow");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    write!(text, "{}", page::RAGGED)?;
    page.render_name_section(&mut text)?;
    writeln!(text, ".SH SYNOPSIS\n{}", synopsis(&usage))?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        page.render_subcommands_section(&mut text)?;
    }
    if command.get_after_help().is_some() || command.get_after_long_help().is_some() {
        let mut notes = Vec::new();
        page.render_extra_section(&mut notes)?;
        text.extend(String::from_utf8(notes)?.replace(".SH EXTRA", ".SH NOTES").bytes());
    }
    pages.push((format!("{name}.1"), text));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        add_pages(below, &format!("{name}-{}", below.get_name()), pages)?;
    }
    Ok(())
}

/// The part of `--help` after `Usage:` as roff, with one line for each form.
fn synopsis(usage: &str) -> String {
    let usage = usage.strip_prefix("Usage:").unwrap_or(usage);
    let lines = usage.lines().map(|line| line.trim().replace('\\', "\\e").replace('-', "\\-"));
    lines.collect::<Vec<_>>().join("\n.br\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds to `all` the page names of `command` and of all visible commands below it.
    fn names(command: &Command, name: &str, all: &mut Vec<String>) {
        all.push(name.to_owned());
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            if below.get_name() != "help" {
                names(below, &format!("{name}-{}", below.get_name()), all);
            }
        }
    }

    #[test]
    fn every_command_has_a_page_that_names_it_and_what_it_is_for() {
        let pages = pages().unwrap();
        let mut all = Vec::new();
        names(&crate::command(), "furrow", &mut all);
        assert!(all.len() > 20, "{all:?}");
        for name in all {
            let file = format!("{name}.1");
            let page = pages.iter().find(|page| page.0 == file).unwrap_or_else(|| panic!("{name}"));
            let text = String::from_utf8(page.1.clone()).unwrap().replace("\\-", "-");
            assert!(text.contains(&format!(".SH NAME\n{name}")), "{text}");
            assert!(text.contains(".SH SYNOPSIS"), "{text}");
            assert!(!text.contains(".SH EXTRA"), "{text}");
            // The line with the command's name must also say what the command does.
            let line = text.lines().find(|line| line.starts_with(&format!("{name} - ")));
            assert!(line.is_some_and(|line| line.len() > name.len() + 10), "{name}: {line:?}");
        }
    }

    #[test]
    fn names_of_helpers_lead_to_pages_that_are_there() {
        let pages = pages().unwrap();
        for (name, _) in helper::NAMES {
            let page = pages.iter().find(|page| page.0 == format!("{name}.8")).unwrap();
            let text = String::from_utf8(page.1.clone()).unwrap();
            let target = text.trim().strip_prefix(".so man1/").unwrap();
            assert!(pages.iter().any(|page| page.0 == target), "{target}");
        }
    }
}
