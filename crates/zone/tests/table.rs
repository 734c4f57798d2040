//! Compares the state machine with every row of `table.csv`.
//!
//! Each row sets a scene: one zone under test in the row's state, in the middle of a small drive
//! whose other zones take up resources as the condition says. Sequential zones have 12 blocks of
//! address space, 10 of which can be written; in the zone under test 4 are written unless the row
//! says otherwise.
//!
//! Words of `condition`:
//! - where a command goes: `at-wp`, `ahead-of-wp`, `behind-wp`, `past-zcap`, `reaches-zcap`,
//!   `in-gap`, `crosses-zone`, `beyond-drive`, `zero-blocks`, `at-start`, `not-at-start`,
//!   `below-wp`, `above-wp`, `straddles-wp`, `anywhere`;
//! - sizes and features: `over-mdts`, `at-zasl`, `over-zasl`, `zasl=0`, `dulbe`, `razb`;
//! - the neighbours: `next-offline`, `no-active` and `no-open` (other zones use all there is),
//!   `implicit` (one of those that do is open implicitly), `mar=mor`;
//! - what was written: `wp=start`, `wp>start`, `written-full`, `finished`;
//! - what a power cycle loses: `lost-tail`, `lost-all`; what a failed write wrote:
//!   `nothing-written`.

// Helpers may unwrap too: a scene that cannot be set up is a failed test.
#![allow(clippy::unwrap_used)]

use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, Machine, Status, Target, Zone, ZoneId, ZoneState,
};

const SIZE: u64 = 12;
const CAPACITY: u64 = 10;
const WRITTEN: u64 = 4;
const ZONES: u32 = 16;
/// Number of the zone under test; zone 0 is conventional.
const ZONE: u32 = 8;

struct Row {
    line: u64,
    command: String,
    state: String,
    words: Vec<String>,
    result: u16,
    next: String,
}

impl Row {
    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|w| w == word)
    }

    fn first<'a>(&self, words: &[&'a str]) -> Option<&'a str> {
        words.iter().find(|word| self.has(word)).copied()
    }
}

/// Returns the CSV's name for a state.
fn name(state: ZoneState) -> &'static str {
    match state {
        ZoneState::Empty => "E",
        ZoneState::ImplicitlyOpen => "IO",
        ZoneState::ExplicitlyOpen => "EO",
        ZoneState::Closed => "C",
        ZoneState::Full => "F",
        ZoneState::ReadOnly => "RO",
        ZoneState::Offline => "O",
    }
}

fn geometry(row: &Row) -> Geometry {
    // The scarce resource has four units, the other has plenty.
    let (max_open, max_active) =
        match (row.has("mar=mor"), row.has("no-active"), row.has("no-open")) {
            (true, _, _) => (4, 4),
            (false, true, true) => (3, 4),
            (false, true, false) => (7, 8),
            (false, false, true) => (4, 12),
            (false, false, false) => (7, 14),
        };
    Geometry {
        conventional_zones: 1,
        max_open: Some(max_open),
        max_active: Some(max_active),
        max_append: (!row.has("zasl=0")).then_some(BlockCount(5)),
        max_transfer: Some(BlockCount(32)),
        read_across_zones: row.has("razb"),
        unwritten_reads_fail: row.has("dulbe"),
        volatile_cache: true,
        ..Geometry::unlimited(ZONES, SIZE, CAPACITY)
    }
}

fn run(machine: &mut Machine, command: Command) {
    assert!(machine.apply(&command).is_ok(), "the scene: {command:?}");
}

fn manage(zone: u32, action: Action) -> Command {
    Command::Manage { target: Target::Zone(Lba(u64::from(zone) * SIZE)), action }
}

fn write(zone: u32, blocks: u64) -> Command {
    Command::Append { zone_start: Lba(u64::from(zone) * SIZE), blocks: BlockCount(blocks) }
}

/// Brings the zone under test into the row's state, by commands and faults only.
fn set_scene(row: &Row, machine: &mut Machine) -> u32 {
    let zone = if row.state == "CV" { 0 } else { ZONE };
    let written = if row.has("wp=start") { 0 } else { WRITTEN };
    if row.has("written-full") {
        run(machine, write(zone, WRITTEN));
        run(machine, write(zone, CAPACITY - WRITTEN));
    } else {
        match row.state.as_str() {
            "E" | "CV" => {}
            "IO" if written > 0 => run(machine, write(zone, written)),
            // Only a failed write leaves an implicitly opened zone with its write pointer at
            // the start.
            "IO" => machine.fail_write_at(ZoneId(zone), BlockCount(0)).unwrap(),
            "EO" | "C" | "F" | "RO" | "O" => {
                run(machine, manage(zone, Action::Open));
                if written > 0 {
                    run(machine, write(zone, written));
                }
                match row.state.as_str() {
                    "C" => run(machine, manage(zone, Action::Close)),
                    "F" => run(machine, manage(zone, Action::Finish)),
                    "RO" => machine.set_read_only(ZoneId(zone)).unwrap(),
                    "O" => machine.set_offline(ZoneId(zone)).unwrap(),
                    _ => {}
                }
            }
            other => panic!("line {}: unknown state {other}", row.line),
        }
    }
    if row.has("next-offline") {
        machine.set_offline(ZoneId(zone + 1)).unwrap();
    }
    use_up_resources(row, machine);
    if row.state != "CV" && !row.has("written-full") {
        assert_eq!(name(machine.zone(ZoneId(zone)).unwrap().state), row.state, "the scene");
    }
    zone
}

/// Opens and closes other zones until the resource that the row wants scarce is used up.
fn use_up_resources(row: &Row, machine: &mut Machine) {
    let mut others = [1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14].into_iter();
    let limits = machine.geometry().clone();
    // Select All needs something to open, or nothing could go wrong.
    if row.command == "open-all" && row.has("no-open") && row.state != "C" {
        let closed = others.next().unwrap();
        run(machine, manage(closed, Action::Open));
        run(machine, manage(closed, Action::Close));
    }
    if row.has("no-active") && !row.has("mar=mor") {
        // Make closed zones first: they are active and not open.
        let open = if row.has("no-open") { limits.max_open.unwrap() } else { 1 };
        while machine.active_zones() + open - machine.open_zones().min(open)
            < limits.max_active.unwrap()
        {
            let zone = others.next().unwrap();
            run(machine, manage(zone, Action::Open));
            run(machine, write(zone, 1));
            run(machine, manage(zone, Action::Close));
        }
    }
    let mut implicit = row.has("implicit");
    let short = |machine: &Machine| {
        (row.has("no-active") && machine.active_zones() < limits.max_active.unwrap())
            || (row.has("no-open") && machine.open_zones() < limits.max_open.unwrap())
    };
    while short(machine) {
        let zone = others.next().unwrap();
        if std::mem::take(&mut implicit) {
            run(machine, write(zone, 1));
        } else {
            run(machine, manage(zone, Action::Open));
            run(machine, write(zone, 1));
        }
    }
    if row.has("no-open") {
        assert_eq!(machine.open_zones(), limits.max_open.unwrap(), "the scene");
    }
    if row.has("no-active") {
        assert_eq!(machine.active_zones(), limits.max_active.unwrap(), "the scene");
    }
}

/// Returns the range of a transfer: the offset from the start of the zone, and the number
/// of blocks.
fn range(row: &Row, zone: u32, pointer: u64) -> (u64, u64) {
    let to_end_of_drive = u64::from(ZONES) * SIZE - u64::from(zone) * SIZE;
    let places = [
        "over-mdts",
        "over-zasl",
        "at-zasl",
        "zero-blocks",
        "beyond-drive",
        "not-at-start",
        "behind-wp",
        "in-gap",
        "crosses-zone",
        "reaches-zcap",
        "straddles-wp",
        "below-wp",
        "above-wp",
        "anywhere",
    ];
    let ahead = row.has("ahead-of-wp");
    match row.first(&places) {
        Some("over-mdts") => (pointer, 33),
        Some("over-zasl") => (0, 6),
        Some("at-zasl") => (0, 5),
        Some("zero-blocks") => (pointer, 0),
        Some("beyond-drive") if row.command == "append" => (to_end_of_drive, 1),
        Some("beyond-drive") => (to_end_of_drive - 1, 2),
        Some("not-at-start") => (1, 1),
        Some("behind-wp") => (pointer - 1, 1),
        Some("in-gap") => (CAPACITY, 1),
        Some("crosses-zone") if row.command == "read" => (SIZE - 1, 2),
        Some("crosses-zone") => (pointer, SIZE - pointer + 1),
        Some("reaches-zcap") => (pointer, CAPACITY - pointer),
        Some("straddles-wp") => (pointer - 1, 2),
        Some("below-wp") => (0, WRITTEN),
        Some("above-wp") => (pointer, 2),
        Some("anywhere") => (3, 5),
        _ if row.has("past-zcap") && ahead => (pointer + 1, CAPACITY - pointer),
        _ if row.has("past-zcap") => (pointer, CAPACITY - pointer + 1),
        _ if ahead => (pointer + 1, 1),
        _ => (pointer, 2),
    }
}

/// Returns where the zone's data ends; a full, read-only or offline zone reports another pointer.
fn pointer(row: &Row) -> u64 {
    match row.state.as_str() {
        "E" | "CV" => 0,
        _ => WRITTEN,
    }
}

fn action(word: &str) -> Option<Action> {
    Some(match word {
        "open" => Action::Open,
        "close" => Action::Close,
        "finish" => Action::Finish,
        "reset" => Action::Reset,
        "offline" => Action::Offline,
        _ => return None,
    })
}

/// Builds the row's command, if it is a command of the drive.
fn command(row: &Row, zone: u32) -> Option<Command> {
    let start = u64::from(zone) * SIZE;
    let (offset, blocks) = range(row, zone, pointer(row));
    let (lba, blocks) = (Lba(start + offset), BlockCount(blocks));
    if let Some(word) = row.command.strip_suffix("-all") {
        return action(word).map(|action| Command::Manage { target: Target::All, action });
    }
    if let Some(action) = action(&row.command) {
        let lba = match row.first(&["not-at-start", "beyond-drive"]) {
            Some("not-at-start") => start + 1,
            Some(_) => u64::from(ZONES) * SIZE,
            None => start,
        };
        return Some(Command::Manage { target: Target::Zone(Lba(lba)), action });
    }
    Some(match row.command.as_str() {
        "write" => Command::Write { lba, blocks },
        "read" => Command::Read { lba, blocks },
        "append" => {
            let off = row.has("not-at-start") || row.has("beyond-drive");
            let lba = if off { lba } else { Lba(start) };
            let blocks = match row.first(&["at-start", "past-zcap", "reaches-zcap"]) {
                Some("at-start") => BlockCount(2),
                Some("past-zcap") => BlockCount(CAPACITY - pointer(row) + 1),
                Some(_) => BlockCount(CAPACITY - pointer(row)),
                None => blocks,
            };
            Command::Append { zone_start: lba, blocks }
        }
        "flush" => Command::Flush,
        _ => return None,
    })
}

/// Carries out an event that is not a command.
fn happen(row: &Row, machine: &mut Machine, zone: ZoneId) -> Status {
    let result = match row.command.as_str() {
        "goes-read-only" => machine.set_read_only(zone),
        "goes-offline" => machine.set_offline(zone),
        "goes-full" => machine.force_full(zone),
        "capacity-change" => machine.set_capacity(zone, BlockCount(7)),
        "failed-write" => {
            let at = pointer(row);
            let place = ["nothing-written", "reaches-zcap", "behind-wp", "past-zcap"];
            let left_at = match row.first(&place) {
                Some("nothing-written") => at,
                Some("reaches-zcap") => CAPACITY,
                Some("behind-wp") => at - 1,
                Some(_) => CAPACITY + 1,
                None => at + 1,
            };
            machine.fail_write_at(zone, BlockCount(left_at))
        }
        "power-cycle" => {
            machine.power_cycle(|id, zone: &Zone| match row.first(&["lost-tail", "lost-all"]) {
                Some("lost-tail") if id.0 == ZONE => BlockCount(zone.write_pointer.0 - 1),
                Some("lost-all") if id.0 == ZONE => BlockCount(0),
                _ => zone.write_pointer,
            });
            Ok(())
        }
        other => panic!("line {}: unknown command {other}", row.line),
    };
    result.err().unwrap_or(Status::Success)
}

/// Plays a row; the error describes a wrong outcome.
fn play(row: &Row) -> Result<(), String> {
    let mut geometry = geometry(row);
    if row.has("written-full")
        || row.command == "append" && row.has("past-zcap")
        || row.has("reaches-zcap")
    {
        // From an empty zone, the append is larger than the usual limit.
        geometry.max_append = Some(BlockCount(CAPACITY + 1));
    }
    let mut machine = Machine::new(geometry).unwrap();
    let zone = ZoneId(set_scene(row, &mut machine));
    let before = machine.report(ZoneId(0), ZONES);
    let full_before = machine.zone(zone).unwrap();
    let oldest = machine.implicitly_open().next();
    let status = match command(row, zone.0) {
        Some(command) => {
            let checked = machine.check(&command);
            let status = machine.apply(&command).err().unwrap_or(Status::Success);
            if checked != status {
                return Err(format!("check says {checked}, apply {status}"));
            }
            status
        }
        None => happen(row, &mut machine, zone),
    };
    if status.code() != row.result {
        return Err(format!("status {status}, expected {:03X}h", row.result));
    }
    let after = machine.zone(zone).unwrap();
    // A conventional zone that has not failed reports full.
    let next = if row.next == "CV" { "F" } else { &row.next };
    if name(after.state) != next {
        return Err(format!("next state {}, expected {next}", name(after.state)));
    }
    if !status.is_ok() {
        let same = machine.report(ZoneId(0), ZONES) == before && after == full_before;
        return same.then_some(()).ok_or("refused, yet something changed".into());
    }
    check_pointer(row, &full_before, &after)?;
    let opens = matches!(full_before.state, ZoneState::Empty | ZoneState::Closed);
    let makes_room = opens && row.has("implicit") && row.has("no-open");
    if makes_room && machine.zone(oldest.unwrap()).unwrap().state != ZoneState::Closed {
        return Err(format!("zone {} was not closed to make room", oldest.unwrap()));
    }
    Ok(())
}

/// Checks where an accepted row leaves the end of the zone's data.
fn check_pointer(row: &Row, before: &Zone, after: &Zone) -> Result<(), String> {
    let was = before.write_pointer.0;
    let (_, blocks) = range(row, ZONE, was);
    let expected = match row.command.as_str() {
        _ if row.state == "CV" => was,
        "write" => was + blocks,
        "append" if row.has("at-start") => was + 2,
        "append" if row.has("at-zasl") => was + 5,
        "append" => CAPACITY,
        "reset" | "reset-all" if after.state == ZoneState::Empty => 0,
        "failed-write" if row.has("nothing-written") => was,
        "failed-write" if row.has("reaches-zcap") => CAPACITY,
        "failed-write" => was + 1,
        "power-cycle" if row.has("lost-tail") => was - 1,
        "power-cycle" if row.has("lost-all") => 0,
        _ => was,
    };
    let found = after.write_pointer.0;
    if found == expected { Ok(()) } else { Err(format!("pointer {found}, expected {expected}")) }
}

fn rows() -> Vec<Row> {
    let mut reader = csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .from_reader(include_str!("table.csv").as_bytes());
    let header: Vec<String> = reader.headers().unwrap().iter().map(String::from).collect();
    assert_eq!(header, ["command", "state", "condition", "result", "next", "clause"]);
    let row = |record: csv::StringRecord| Row {
        line: record.position().unwrap().line(),
        command: record[0].into(),
        state: record[1].into(),
        words: record[2].split(' ').map(String::from).collect(),
        result: u16::from_str_radix(&record[3], 16).unwrap(),
        next: record[4].into(),
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}

/// All words that a condition may use; an unknown word would silently set no scene.
const WORDS: &[&str] = &[
    "-",
    "at-wp",
    "ahead-of-wp",
    "behind-wp",
    "past-zcap",
    "reaches-zcap",
    "in-gap",
    "crosses-zone",
    "beyond-drive",
    "zero-blocks",
    "at-start",
    "not-at-start",
    "below-wp",
    "above-wp",
    "straddles-wp",
    "anywhere",
    "over-mdts",
    "at-zasl",
    "over-zasl",
    "zasl=0",
    "dulbe",
    "razb",
    "next-offline",
    "no-active",
    "no-open",
    "implicit",
    "mar=mor",
    "wp=start",
    "wp>start",
    "written-full",
    "finished",
    "lost-tail",
    "lost-all",
    "nothing-written",
];

#[test]
fn every_row_of_the_table_holds() {
    let rows = rows();
    let mut wrong = Vec::new();
    let mut covered = 0;
    for row in &rows {
        for word in &row.words {
            assert!(WORDS.contains(&word.as_str()), "line {}: unknown word {word}", row.line);
        }
        match play(row) {
            Ok(()) => covered += 1,
            Err(what) => wrong.push(format!(
                "table.csv:{}: {} in {} ({}): {what}",
                row.line,
                row.command,
                row.state,
                row.words.join(" ")
            )),
        }
    }
    println!("rows covered {covered} of {}", rows.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(covered, rows.len());
}

/// Each of these commands must be in the table for every state, so that a deleted row is noticed.
#[test]
fn the_table_has_no_holes() {
    let rows = rows();
    let states = ["E", "IO", "EO", "C", "F", "RO", "O", "CV"];
    let commands = [
        "write",
        "append",
        "read",
        "flush",
        "open",
        "close",
        "finish",
        "reset",
        "offline",
        "open-all",
        "close-all",
        "finish-all",
        "reset-all",
        "offline-all",
        "power-cycle",
        "goes-read-only",
        "goes-offline",
        "goes-full",
        "failed-write",
        "capacity-change",
    ];
    for command in commands {
        for state in states {
            let found = rows.iter().any(|row| row.command == command && row.state == state);
            assert!(found, "no row for {command} in {state}");
        }
    }
}
