//! Words that completions offer besides commands and options: running arrays, their members, and
//! mount options. The shells ask the command for them.

use crate::mount;
use crate::raid::client::{self, Running};
use anyhow::Result;
use clap::ValueEnum;
use clap_complete::Shell;
use std::io::Write;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Time limit for the answers of arrays: the user waits at the keyboard.
const PATIENCE: Duration = Duration::from_secs(1);

/// The words to list, one on each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Names of running arrays
    Arrays,
    /// Numbers and drives of an array's members
    Members,
    /// Directories of mounts and names of running arrays
    Watched,
    /// Options after -o of furrow mount; those that take a value end in =
    MountOptions,
}

/// Lists the words of a kind, for members those of `array`.
///
/// # Errors
/// An error if writing fails.
pub fn list(kind: Kind, array: Option<&str>, out: &mut dyn Write) -> Result<()> {
    let words = match kind {
        Kind::MountOptions => mount::option_words(),
        Kind::Arrays => arrays().collect(),
        Kind::Watched => {
            // Without /proc, mounts are unknown; arrays are listed nevertheless.
            let mounts = furrow_fuse::endpoint::mounted().unwrap_or_default();
            let directories = mounts.into_iter().map(|it| it.directory.display().to_string());
            directories.chain(arrays()).collect()
        }
        Kind::Members => {
            let wanted = running().into_iter().find(|one| Some(&*one.status.array) == array);
            let members = wanted.into_iter().flat_map(|array| array.status.members);
            let words = members.flat_map(|one| [Some(one.member.to_string()), one.device]);
            words.flatten().collect()
        }
    };
    words.iter().try_for_each(|word| writeln!(out, "{word}"))?;
    Ok(())
}

/// The names of the running arrays.
fn arrays() -> impl Iterator<Item = String> {
    running().into_iter().map(|array| array.status.array)
}

/// The running arrays; empty if one of them does not answer within `PATIENCE`.
fn running() -> Vec<Running> {
    let (tell, told) = channel();
    // The thread is not joined: it ends with the program at the latest.
    std::thread::spawn(move || drop(tell.send(client::running())));
    told.recv_timeout(PATIENCE).unwrap_or_default()
}

/// Adds to a shell's generated completions the functions that list arrays, members, what
/// `furrow top` can show, and mount options.
pub fn add(shell: Shell, generated: String) -> String {
    match shell {
        Shell::Bash => generated + BASH,
        Shell::Fish => generated + FISH,
        Shell::Zsh => {
            let lines = generated.lines().map(|line| {
                let function = match line {
                    _ if line.contains(":array -- ") || line.contains("::arrays -- ") => "arrays",
                    _ if line.contains(":member -- ") => "members",
                    _ if line.contains("::targets -- ") => "watched",
                    _ if line.contains("Options, separated by commas") => "mount_options",
                    _ => return format!("{line}\n"),
                };
                format!("{}\n", line.replace(":_default'", &format!(":_furrow_{function}'")))
            });
            let text: String = lines.collect();
            // `ZSH` must come before the function that runs as soon as the shell loads the file.
            text.replacen("autoload -U is-at-least\n", ZSH, 1)
        }
        _ => generated,
    }
}

const BASH: &str = r#"
_furrow_words() {
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""
    _furrow "$@"
    if [[ "${COMP_WORDS[1]}" == mount && ( "$prev" == -o || "$prev" == --options ) ]]; then
        words="$(furrow docs words mount-options 2>/dev/null)"
        COMPREPLY=($(compgen -P "${cur%"${cur##*,}"}" -W "$words" -- "${cur##*,}"))
        compopt -o nospace 2>/dev/null
        return 0
    fi
    [[ "$cur" != -* ]] || return 0
    if [[ "${COMP_WORDS[1]}" == top && "$prev" != --every ]]; then
        words="$(furrow docs words watched 2>/dev/null)"
        local IFS=$'\n'
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
        return 0
    fi
    [[ "${COMP_WORDS[1]}" == raid ]] || return 0
    case "${COMP_WORDS[2]} $COMP_CWORD" in
        status\ *|fail\ 3|replace\ 3|add-spare\ 3|rebuild\ 3|scrub\ 3|clear\ 3|stop\ 3|fault\ 3)
            words="$(furrow docs words arrays 2>/dev/null)" ;;
        fail\ 4|replace\ 4|fault\ 4)
            words="$(furrow docs words members "${COMP_WORDS[3]}" 2>/dev/null)" ;;
        *) return 0 ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}

complete -F _furrow_words -o bashdefault -o default furrow
"#;

const ZSH: &str = r#"autoload -U is-at-least

_furrow_arrays() {
    compadd -- ${(f)"$(furrow docs words arrays 2>/dev/null)"}
}

_furrow_members() {
    compadd -- ${(f)"$(furrow docs words members "$words[2]" 2>/dev/null)"}
}

_furrow_watched() {
    compadd -- ${(f)"$(furrow docs words watched 2>/dev/null)"}
}

_furrow_mount_options() {
    compset -P '*,'
    compadd -S '' -- ${(f)"$(furrow docs words mount-options 2>/dev/null)"}
}
"#;

const FISH: &str = r#"
function __fish_furrow_mount_options
    set -l begun (commandline -ct | string replace -r '[^,]*$' '')
    for word in (furrow docs words mount-options 2>/dev/null)
        echo $begun$word
    end
end
function __fish_furrow_takes_array
    __fish_seen_subcommand_from raid
    and __fish_seen_subcommand_from \
        status fail replace add-spare rebuild scrub clear stop fault
end
complete -c furrow -n "__fish_seen_subcommand_from mount" \
    -s o -l options -x -a "(__fish_furrow_mount_options)"
complete -c furrow -n __fish_furrow_takes_array \
    -f -a "(furrow docs words arrays 2>/dev/null)"
complete -c furrow -n "__fish_seen_subcommand_from top" \
    -f -a "(furrow docs words watched 2>/dev/null)"
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn generated(shell: Shell) -> String {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut crate::command(), "furrow", &mut text);
        add(shell, String::from_utf8(text).unwrap())
    }

    #[test]
    fn each_shell_asks_for_what_only_the_command_knows() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = generated(shell);
            for kind in ["arrays", "mount-options", "watched"] {
                assert!(text.contains(&format!("furrow docs words {kind}")), "{shell} {kind}");
            }
            // The presets are values of the argument parser, so clap writes them itself.
            assert!(text.contains("zn540-1t"), "{shell}: presets");
        }
        let zsh = generated(Shell::Zsh);
        for function in ["arrays", "members", "mount_options", "watched"] {
            assert!(zsh.matches(&format!(":_furrow_{function}'")).count() > 0, "{function}");
        }
    }

    #[test]
    fn bash_completes_them() {
        let script = generated(Shell::Bash)
            + r#"
furrow() {
    case "$3 $4" in
        "arrays ") printf 'tank\nother\n' ;;
        "members tank") printf '0\n1\n/d0.zns\n' ;;
        "watched ") printf '/mnt/one\ntank\n' ;;
        "mount-options ") printf 'commit=\ncache=\nro\n' ;;
    esac
}
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _furrow_words furrow "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        echo "${COMPREPLY[*]}"; }
try furrow raid fail t
try furrow raid fail tank ""
try furrow mount -o ro,c
try furrow raid create --f
try furrow device create --preset zn540
try furrow top /
"#;
        let bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut bash = bash.unwrap();
        bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = bash.wait_with_output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[..3], ["tank", "0 1 /d0.zns", "ro,commit= ro,cache="]);
        assert_eq!(lines[3..], ["--force", "zn540-1t zn540-4t", "/mnt/one"]);
    }
}
