//! The grammar of device specs: every example in its document, round trips, and errors that point
//! at the faulty part.

// Helpers may unwrap too: an example that does not parse is a failed test.
#![allow(clippy::unwrap_used)]

use furrow_zone::spec::{Key, Medium, Node, Timing, parse_geometry, parse_list, show_list};
use furrow_zone::{BlockCount, ByteLen, DeviceSpec, Error, ErrorKind, Geometry, presets};
use proptest::prelude::*;

const DOCUMENT: &str = include_str!("../../../docs/use/device-spec.md");

/// Returns the lines of the document's code blocks marked `kind`.
fn examples(kind: &str) -> Vec<&'static str> {
    let mut lines = Vec::new();
    let mut inside = false;
    for line in DOCUMENT.lines() {
        match line.strip_prefix("```") {
            Some(mark) => inside = !inside && mark == kind,
            None if inside => lines.push(line),
            None => {}
        }
    }
    assert!(lines.len() >= 3, "the document has examples of {kind}");
    lines
}

fn geometry(spec: &str) -> Geometry {
    match spec.parse::<DeviceSpec>().unwrap_or_else(|error| panic!("{error}")) {
        DeviceSpec::Memory(memory) => memory.geometry,
        other => panic!("{spec} is {other:?}"),
    }
}

#[test]
fn examples_of_the_document_parse_and_show_again() {
    for line in examples("spec") {
        let specs = parse_list(line).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(parse_list(&show_list(&specs)).unwrap(), specs, "{line}");
    }
    for line in examples("geometry") {
        parse_geometry(line).unwrap_or_else(|error| panic!("{error}")).validate().unwrap();
    }
}

#[test]
fn errors_of_the_document_are_the_real_ones() {
    let lines = examples("error");
    for pair in lines.chunks(2) {
        assert_eq!(parse_list(pair[0]).unwrap_err().to_string(), pair[1]);
    }
}

#[test]
fn the_document_names_every_key_and_preset() {
    for key in Key::ALL {
        assert!(DOCUMENT.contains(&format!("| `{key}` |")), "no row for {key}");
        assert_eq!(Key::named(key.name()), Some(key));
    }
    for name in presets::NAMES {
        let row = format!("| `{name}` | {} |", presets::describe(name).unwrap());
        assert!(DOCUMENT.contains(&row), "no row like {row}");
    }
}

#[test]
fn kinds_are_told_apart() {
    assert_eq!("/dev/ng0n1".parse(), Ok(DeviceSpec::Node(Node::new("/dev/ng0n1"))));
    let queued = Node { path: "/dev/ng0n1".into(), queued: true };
    assert_eq!("/dev/ng0n1,order=queued".parse(), Ok(DeviceSpec::Node(queued)));
    let image = |spec: &str| match spec.parse().unwrap() {
        DeviceSpec::Image(image) => image,
        other => panic!("{spec} is {other:?}"),
    };
    assert_eq!(image("/dev/shm/a.zns").path, "/dev/shm/a.zns");
    assert_eq!(image("a b.zns").path, "a b.zns");
    assert_eq!(image("./mem:x").path, "./mem:x");
    assert_eq!(image("\\mem:x").path, "mem:x");
    assert_eq!(image("a\\,b\\+c\\\\d").path, "a,b+c\\d");
    // Options come last, and each has an equals sign.
    for plain in ["x,y.zns", "x, y,,z.zns", "a=b,c.zns", "x:y,z", "-x,y", "a,b=c,d"] {
        assert_eq!(image(plain).path, plain);
        assert_eq!(image(&image(plain).to_string()).path, plain);
    }
    let (seeded, escaped) = (image("x,y.zns,seed=9"), image("x\\,seed=9"));
    assert_eq!((seeded.path.as_str(), seeded.run.seed), ("x,y.zns", Some(9)));
    assert_eq!((escaped.path.as_str(), escaped.run.seed), ("x,seed=9", None));
    let error = parse_list("x,y=z.zns").unwrap_err().to_string();
    assert!(error.contains("write `\\,` for a comma"), "{error}");
    assert_eq!(image("d.zns,seed=9,timing=off").run.seed, Some(9));
    assert_eq!(image("d.zns").run.timing, Timing::Off);
    let DeviceSpec::Memory(memory) = "mem:cns,medium=discard,seed=3".parse().unwrap() else {
        panic!("not in memory");
    };
    assert_eq!(
        (memory.medium, memory.run.seed, memory.preset()),
        (Medium::Discard, Some(3), Some("cns"))
    );
    assert_eq!(parse_list("a+b\\+c+mem:").unwrap().len(), 3);
}

#[test]
fn options_change_what_they_say_and_what_must_follow() {
    assert_eq!(geometry("mem:"), presets::plain());
    for name in presets::NAMES {
        assert_eq!(geometry(&format!("mem:{name}")), presets::preset(name).unwrap());
    }
    let scaled = geometry("mem:zn540-1t,capacity=8GiB");
    assert_eq!(scaled.zones, 7, "8 GiB hold 7 whole zones of 1,077 MiB");
    let small = geometry("mem:zn540-1t,zone-size=16MiB");
    // The zone capacity is the share 1077 / 2048 of 16 MiB, in whole blocks.
    assert_eq!((small.zone_size, small.zone_capacity), (BlockCount(4096), BlockCount(2154)));
    assert_eq!(small.zones, 904);
    let cns = geometry("mem:cns,capacity=3GiB");
    assert_eq!((cns.zones, cns.conventional_zones), (3, 3));
    let half = geometry("mem:block=512,oob=8");
    assert_eq!(
        (half.block_size, half.zone_size, half.oob_bytes),
        (ByteLen(512), BlockCount(32768), 8)
    );
    assert_eq!(half.capacity(), presets::plain().capacity());
    let few = geometry("mem:max-active=6,max-transfer=64KiB");
    assert_eq!((few.max_open, few.max_active), (Some(6), Some(6)));
    assert_eq!((few.max_append, few.max_transfer), (Some(BlockCount(16)), Some(BlockCount(16))));
    let free =
        geometry("mem:max-active=none,max-open=none,max-append=none,max-transfer=none,dies=none");
    assert_eq!((free.max_open, free.max_active, free.dies), (None, None, None));
    assert_eq!((free.max_append, free.max_transfer), (None, None));
    let none = geometry("mem:max-append=0B");
    assert_eq!(none.append_limit(), Some(BlockCount(0)), "a drive that takes no append");
    let flags = geometry("mem:read-across=on,unwritten-fails=on,volatile-cache=off");
    assert!(flags.read_across_zones && flags.unwritten_reads_fail && !flags.volatile_cache);
    let odd =
        geometry("mem:zone-size=3MiB,zone-capacity=2564096,zones=5,conventional=2,channels=3");
    assert_eq!((odd.zone_size.0, odd.zone_capacity.0), (768, 626));
    assert_eq!((odd.zones, odd.conventional_zones, odd.channels), (5, 2, Some(3)));
}

#[test]
fn errors_point_at_the_part_at_fault() {
    // The carets stand under the part in brackets.
    for marked in [
        "mem:zn540-1t,[capacty]=8GiB",
        "mem:[zn541],capacity=8GiB",
        "mem:[zones]",
        "mem:zones=[many]",
        "mem:zones=[-1]",
        "mem:zones=[]+b",
        "mem:zones=[4294967296]",
        "mem:zones=[]",
        "mem:oob=[65536]",
        "mem:volatile-cache=[yes]",
        "mem:medium=[disk]",
        "mem:time-scale=[fast]",
        "mem:model=[]",
        "mem:[model.=1]",
        "mem:[model.buffer=]",
        "mem:model.buffer=1MiB,[model.buffer=2MiB]",
        "mem:timing=[fast]",
        "mem:max-open=[unlimited]",
        "mem:zone-size=[1.5GiB]",
        "mem:capacity=[99999999999999999999]",
        "mem:zn540-1t,[],",
        "mem:zones=1,[zones=2]",
        "mem:zones=1,[capacity=1GiB]",
        "mem:[capacity=1MiB]",
        "mem:zone-size=4KiB,[capacity=16TiB],zone-capacity=4KiB",
        "mem:[block=1024]",
        "mem:[zone-size=5000]",
        "mem:[zone-capacity=5000]",
        "mem:[max-append=1000]",
        "mem:[zone-size=0]",
        "mem:[zone-capacity=0]",
        "mem:[zones=0]",
        "mem:[conventional=257]",
        "mem:[max-open=33]",
        "mem:[max-open=0]",
        "mem:[max-append=4MiB]",
        "mem:zone-size=2MiB,[zone-capacity=3MiB]",
        "ä.zns+mem:[größe]=1",
        "disk.zns,[capacity]=1GiB",
        "disk.zns,[size]=1GiB",
        "disk.zns,sync=[yes]",
        "mem:[sync]=on",
        "zn540-1t,[capacity]=8GiB",
        "/dev/nvme0n2,[timing]=off",
        "/dev/ng0n1,order=[fast]",
        "x.zns,[order]=queued",
        "mem:[order]=queued",
        "disk.zns+[]",
        "[]+disk.zns",
        "[],seed=1",
        "disk[\\]",
    ] {
        let text = marked.replace(['[', ']'], "");
        let column = marked.chars().position(|c| c == '[').unwrap() + 1;
        let length = marked.chars().position(|c| c == ']').unwrap() - column;
        let error = parse_list(&text).expect_err(&text);
        let line = error.to_string();
        assert!(!line.contains('\n') && line.starts_with("device spec: "), "{line}");
        assert_eq!(error.column(), column, "{line}");
        assert!(line.contains(&format!("at column {column} of `{text}`")), "{line}");
        let caret = error.caret();
        let last = caret.lines().last().unwrap();
        let expected = format!("  {}{}", " ".repeat(column - 1), "^".repeat(length.max(1)));
        assert_eq!(last, expected, "{caret}");
        assert_eq!(Error::from(error).kind(), ErrorKind::Invalid);
    }
}

#[test]
fn a_forgotten_prefix_and_a_second_device_are_explained() {
    let error = parse_list("zn540-1t,capacity=8GiB").unwrap_err().to_string();
    assert!(error.contains("write `mem:zn540-1t,…`"), "{error}");
    let error = "a.zns+b.zns".parse::<DeviceSpec>().unwrap_err().to_string();
    assert!(error.contains("more than one device at column 6"), "{error}");
    let error = parse_geometry("zn540-1t,seed=1").unwrap_err().to_string();
    assert!(error.starts_with("drive geometry: `seed` is not part"), "{error}");
    let error = parse_list("mem:a\nb").unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
}

fn option() -> impl Strategy<Value = (usize, String)> {
    let sizes = prop_oneof![(1u64..64).prop_map(|n| n << 20), (1u64..4096).prop_map(|n| n << 12)];
    (0..Key::ALL.len(), sizes, 1u64..40, any::<bool>()).prop_map(|(key, size, count, yes)| {
        let none = |value: String| if yes { "none".to_string() } else { value };
        let value = match Key::ALL[key] {
            Key::Capacity => format!("{}", size << 10),
            Key::ZoneSize | Key::ZoneCapacity => format!("{}KiB", size >> 10),
            Key::Block => if yes { "512" } else { "4KiB" }.into(),
            Key::MaxAppend | Key::MaxTransfer => none(size.to_string()),
            Key::Zones | Key::Conventional | Key::Oob | Key::Seed => count.to_string(),
            Key::MaxOpen | Key::MaxActive | Key::Channels | Key::Dies => none(count.to_string()),
            Key::ReadAcross | Key::UnwrittenFails | Key::VolatileCache | Key::Sync => {
                if yes { "on" } else { "off" }.into()
            }
            Key::Medium => if yes { "memory" } else { "discard" }.into(),
            Key::Timing => "off".into(),
            Key::TimeScale => "10".into(),
            Key::Model => "pm1731a".into(),
            Key::Order => if yes { "queued" } else { "blocking" }.into(),
        };
        (key, format!("{}={value}", Key::ALL[key]))
    })
}

fn spec() -> impl Strategy<Value = String> {
    let memory = (
        prop::option::of(prop::sample::select(presets::NAMES)),
        prop::collection::vec(option(), 0..4),
    )
        .prop_map(|(preset, mut options)| {
            options.sort();
            options.dedup_by_key(|(key, _)| *key);
            let parts = preset.map(String::from).into_iter();
            let parts: Vec<_> = parts.chain(options.into_iter().map(|(_, text)| text)).collect();
            format!("mem:{}", parts.join(","))
        });
    let path = "[a-z/.:,+\\\\ ü]{1,12}".prop_map(|path| {
        path.chars().map(|c| if ",+\\".contains(c) { format!("\\{c}") } else { c.into() }).collect()
    });
    let run = (0u64..9, any::<bool>()).prop_map(|(seed, sync)| {
        format!("x.zns,seed={seed},sync={}", if sync { "on" } else { "off" })
    });
    let node = prop::sample::select(&["", ",order=queued", ",order=blocking"])
        .prop_map(|order| format!("/dev/ng0n1{order}"));
    prop_oneof![memory, path, run, node]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_shown_reads_as_the_same(specs in prop::collection::vec(spec(), 1..4)) {
        let text = specs.join("+");
        // Random limits may contradict each other: then the error must be well-formed.
        match parse_list(&text) {
            Ok(parsed) => {
                let shown = show_list(&parsed);
                prop_assert_eq!(parse_list(&shown).unwrap(), parsed, "{} shown as {}", text, shown);
            }
            Err(error) => prop_assert!(error.column() <= text.chars().count() + 1),
        }
    }

    #[test]
    fn no_text_panics(text in "(mem:)?[a-z0-9=,+:\\\\ \\PC]{0,40}") {
        for result in [parse_list(&text).map(drop), parse_geometry(&text).map(drop)] {
            if let Err(error) = result {
                prop_assert!(error.column() <= text.chars().count() + 1);
                prop_assert_eq!(error.caret().lines().count(), 3);
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }

    #[test]
    fn a_geometry_that_parses_is_possible(options in prop::collection::vec(option(), 0..6)) {
        let text: Vec<_> = options.into_iter().map(|(_, text)| text).collect();
        if let Ok(geometry) = parse_geometry(&text.join(",")) {
            prop_assert!(geometry.validate().is_ok());
        }
    }
}
