//! `furrow-lab completions`: completions for a shell, with the claims and their places in papers.

use clap::Command;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;
use furrow_lab::catalogue::Catalogue;
use std::collections::BTreeSet;
use std::io::Write;

/// Print completions for a shell
///
/// In bash: source <(furrow-lab completions bash)
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Runs the command, which prints the completions of `command`.
pub fn run(args: &Args, command: Command, out: &mut dyn Write) -> anyhow::Result<u8> {
    out.write_all(&script(args.shell, command)?)?;
    Ok(0)
}

fn script(shell: Shell, command: Command) -> anyhow::Result<Vec<u8>> {
    let catalogue = Catalogue::built_in()?;
    // The parser takes words that are never freed; the program ends after it has printed them.
    let word = |text: &String| -> &'static str { text.clone().leak() };
    let ids: Vec<&str> = catalogue.claims.iter().map(|claim| word(&claim.id)).collect();
    let sources: BTreeSet<&str> = catalogue.claims.iter().map(|c| word(&c.source)).collect();
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    // The program itself accepts other claims, those of `--data`; the shell offers the built-in.
    let command = names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |below| {
            below.mut_args(|arg| match arg.get_id().as_str() {
                "ids" | "prefixes" => arg.value_parser(PossibleValuesParser::new(ids.clone())),
                "figure" => arg.value_parser(PossibleValuesParser::new(sources.clone())),
                _ => arg,
            })
        })
    });
    let (mut command, mut text) = (command, Vec::new());
    clap_complete::generate(shell, &mut command, "furrow-lab", &mut text);
    if shell == Shell::Fish {
        // For fish, clap writes no words for arguments without a name.
        let begun = "__fish_seen_subcommand_from run report keep";
        writeln!(text, "complete -c furrow-lab -n \"{begun}\" -f -a \"{}\"", ids.join(" "))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn shells_offer_the_claims() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = script(shell, crate::Cli::command()).unwrap();
            let text = String::from_utf8(text).unwrap();
            for word in ["Z-raw-peak", "R26", "zapraid"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }
}
