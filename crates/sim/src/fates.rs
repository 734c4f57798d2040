//! Which fates of the commands in flight a crash sweep tries, and how a failing case is written.
//!
//! A case is `CUT:FATES`, or a chain of them joined by `+`: the power is cut before the CUTth
//! command, then again before the CUTth command of the recovery, and so on. FATES has a letter per
//! command in flight (`D` done, `N` not started, `Tn` torn after n blocks), then `@`, the fate of
//! unflushed blocks (`L` lost, `K` kept, `S` seeded, `C` still in the cache: the program was
//! killed) and a seed: `17:DT2N@S99+3:@L7`.

use furrow_emu::{CommandInfo, Fate, Fates, Unflushed};
use furrow_rt::Rng;
use furrow_zone::Command;

/// With at most this many commands in flight, every combination of fates is tried.
pub const EXHAUSTIVE_MAX: usize = 3;

/// The fates of one command that may make a difference: not started and done; for a read only not
/// started. A write of several blocks may also be torn: after the first block, before the last, or
/// at a random place.
fn fates_of(info: &CommandInfo, rng: &mut Rng) -> Vec<Fate> {
    match info.command {
        Command::Read { .. } => vec![Fate::NotStarted],
        Command::Write { blocks, .. } | Command::Append { blocks, .. } if blocks.0 > 1 => {
            let torn = match rng.below(3) {
                0 => 1,
                1 => blocks.0 - 1,
                _ => 1 + rng.below(blocks.0 - 1),
            };
            vec![Fate::NotStarted, Fate::Torn(torn), Fate::Done]
        }
        _ => vec![Fate::NotStarted, Fate::Done],
    }
}

fn unflushed(rng: &mut Rng) -> Unflushed {
    [Unflushed::Lost, Unflushed::Kept, Unflushed::Seeded][rng.below(3) as usize]
}

/// The fates to try at a cut: every combination for up to three commands in flight (reads do not
/// count), else `samples` drawn from `rng`.
pub fn choose(in_flight: &[CommandInfo], samples: usize, rng: &mut Rng) -> Vec<Fates> {
    let choices: Vec<Vec<Fate>> = in_flight.iter().map(|info| fates_of(info, rng)).collect();
    let counted = choices.iter().filter(|fates| fates.len() > 1).count();
    let combinations: Vec<Vec<Fate>> = if counted <= EXHAUSTIVE_MAX {
        choices.iter().fold(vec![Vec::new()], |heads, fates| {
            let extend = |head: &Vec<Fate>, fate: &Fate| [head.as_slice(), &[*fate]].concat();
            heads.iter().flat_map(|head| fates.iter().map(move |fate| extend(head, fate))).collect()
        })
    } else {
        (0..samples.max(1)).map(|sample| sampled(&choices, sample, rng)).collect()
    };
    combinations
        .into_iter()
        .map(|commands| {
            let seed = rng.next() >> 32;
            Fates { commands: Some(commands), unflushed: unflushed(rng), seed }
        })
        .collect()
}

/// The fates of sample number `sample`. Samples take turns: all commands but one are done; one
/// alone is done; one has a random fate and the others are done; all have random fates. The first
/// two kinds find more defects than random fates do.
fn sampled(choices: &[Vec<Fate>], sample: usize, rng: &mut Rng) -> Vec<Fate> {
    let one = rng.below(choices.len() as u64) as usize;
    let last = |fates: &Vec<Fate>| fates.last().copied().unwrap_or(Fate::NotStarted);
    let pick = |fates: &Vec<Fate>, rng: &mut Rng| fates[rng.below(fates.len() as u64) as usize];
    let each = choices.iter().enumerate();
    match sample % 4 {
        0 => each.map(|(at, f)| if at == one { Fate::NotStarted } else { last(f) }).collect(),
        1 => each.map(|(at, f)| if at == one { last(f) } else { Fate::NotStarted }).collect(),
        2 => each.map(|(at, f)| if at == one { pick(f, rng) } else { last(f) }).collect(),
        _ => choices.iter().map(|f| pick(f, rng)).collect(),
    }
}

/// One power cut of a case: before which command, with which fates.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Number of commands executed before the cut.
    pub at: u64,
    /// The fates of the commands in flight.
    pub fates: Fates,
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.at)?;
        for fate in self.fates.commands.iter().flatten() {
            match fate {
                Fate::NotStarted => f.write_str("N")?,
                Fate::Done => f.write_str("D")?,
                Fate::Torn(blocks) => write!(f, "T{blocks}")?,
            }
        }
        let unflushed = match self.fates.unflushed {
            Unflushed::Lost => 'L',
            Unflushed::Kept => 'K',
            Unflushed::Seeded => 'S',
            Unflushed::Cached => 'C',
        };
        write!(f, "@{unflushed}{}", self.fates.seed)
    }
}

/// Writes a chain of cuts as text, in the form that [`parse_case`] reads.
pub fn print_case(cuts: &[Cut]) -> String {
    cuts.iter().map(Cut::to_string).collect::<Vec<_>>().join("+")
}

/// Parses a chain of cuts.
///
/// # Errors
/// Names the part that is wrong.
pub fn parse_case(text: &str) -> Result<Vec<Cut>, String> {
    text.split('+').map(|part| parse_cut(part).ok_or(part)).collect::<Result<_, _>>().map_err(
        |part: &str| {
            format!("{part:?} is not a cut: write CUT:FATES@UNFLUSHED, such as 17:DT2N@S99")
        },
    )
}

fn parse_cut(part: &str) -> Option<Cut> {
    let (at, rest) = part.split_once(':')?;
    let (letters, rest) = rest.split_once('@')?;
    let unflushed = match rest.chars().next()? {
        'L' => Unflushed::Lost,
        'K' => Unflushed::Kept,
        'S' => Unflushed::Seeded,
        'C' => Unflushed::Cached,
        _ => return None,
    };
    let mut commands = Vec::new();
    let mut letters = letters.chars().peekable();
    while let Some(letter) = letters.next() {
        commands.push(match letter {
            'N' => Fate::NotStarted,
            'D' => Fate::Done,
            'T' => {
                let mut digits = String::new();
                while let Some(digit) = letters.next_if(char::is_ascii_digit) {
                    digits.push(digit);
                }
                Fate::Torn(digits.parse().ok()?)
            }
            _ => return None,
        });
    }
    let seed = rest[1..].parse().ok()?;
    Some(Cut { at: at.parse().ok()?, fates: Fates { commands: Some(commands), unflushed, seed } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_zone::{BlockCount, Lba, QueueId};

    fn write(blocks: u64) -> CommandInfo {
        let command = Command::Write { lba: Lba(0), blocks: BlockCount(blocks) };
        CommandInfo { sequence: 0, queue: QueueId(0), command, fua: false }
    }

    #[test]
    fn up_to_three_commands_give_every_combination_and_more_a_sample() {
        let mut rng = Rng::new(1);
        let read = CommandInfo {
            command: Command::Read { lba: Lba(0), blocks: BlockCount(1) },
            ..write(1)
        };
        assert_eq!(choose(&[], 9, &mut rng).len(), 1);
        assert_eq!(choose(&[write(1)], 9, &mut rng).len(), 2);
        let three = [write(4), write(2), read, write(9)];
        let all = choose(&three, 9, &mut rng);
        assert_eq!(all.len(), 27);
        let distinct: std::collections::BTreeSet<String> =
            all.iter().map(|f| format!("{:?}", f.commands)).collect();
        assert_eq!(distinct.len(), 27);
        assert_eq!(choose(&[write(4), write(2), write(1), write(9)], 9, &mut rng).len(), 9);
    }

    #[test]
    fn a_case_is_written_down_and_read_back() {
        let text = "17:DT2NT13@S99+3:@L7+0:N@K0+2:@C1";
        assert_eq!(print_case(&parse_case(text).unwrap()), text);
        for wrong in ["", "17", "17:D", "x:D@S1", "1:Q@S1", "1:T@S1", "1:D@S", "1:D@S1+"] {
            assert!(parse_case(wrong).is_err(), "{wrong}");
        }
    }
}
