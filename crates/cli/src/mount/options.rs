//! Mount options: `-o ro,commit=10,cache=1GiB`.

use crate::metrics::Metrics;
use furrow_fs::{AccessTime, GcOptions, MountOptions, OnDamage, Order, VictimPolicy};
use furrow_fuse::{Endpoint, Transport, USUAL_TTL};
use furrow_rt::{Nanos, PAGE_SIZE};
use furrow_zone::{size, words};
use std::time::Duration;

/// An option of Furrow's own.
pub struct Known {
    /// The option as users write it.
    pub form: &'static str,
    /// The effect of the option, in a line.
    pub means: &'static str,
    /// The setting without the option.
    pub usual: Usual,
}

/// The setting that applies without an option.
pub enum Usual {
    /// The same setting as with this option.
    Is(&'static str),
    /// A setting that no option can express.
    Words(&'static str),
}

use Usual::{Is, Words};

const fn known(form: &'static str, means: &'static str, usual: Usual) -> Known {
    Known { form, means, usual }
}

/// Furrow's own options, for help and messages.
pub const KNOWN: &[Known] = &[
    known("ro|rw", "refuse changes, or not", Is("rw")),
    known("commit=SECONDS", "unsynced changes are written after this time", Is("commit=5")),
    known("cache=SIZE", "memory for cached blocks, at least 16MiB", Is("cache=256MiB")),
    known(
        "attr_timeout=SECONDS",
        "how long the kernel may cache names and attributes",
        Words("a day"),
    ),
    known(
        "errors=continue|remount-ro",
        "after damage only that operation fails, or all changes are refused",
        Is("errors=continue"),
    ),
    known("metrics=WHERE", "metrics for Prometheus: ADDRESS:PORT or /FILE", Words("none")),
    known("async_dio", "many direct requests of one program at once", Is("async_dio")),
    known(
        "writeback_cache",
        "the kernel's page cache answers writes and passes them on later",
        Is("nowriteback_cache"),
    ),
    known("handles", "file handles for NFS exports; overlayfs then does not work", Is("nohandles")),
    known("io_uring", "requests come by io_uring", Words("if the kernel allows it")),
    known(
        "order=queued|append|blocking",
        "writes of a zone in flight: many; many, by Zone Append; one",
        Is("order=queued"),
    ),
    known("gc=on|off", "clean in the background, or only for lack of space", Is("gc=on")),
    known(
        "gc_policy=greedy|cost-benefit",
        "clean superzones with the fewest blocks to copy, or prefer long unchanged ones",
        Is("gc_policy=cost-benefit"),
    ),
    known("gc_start=PERCENT", "clean below this share of writable space", Is("gc_start=20")),
    known("gc_urgent=PERCENT", "clean without a pause below this share", Is("gc_urgent=8")),
    known("hot=ENDS", "name suffixes (db:log) of files that soon change", Words("databases")),
    known(
        "cold=ENDS",
        "name suffixes (mp4:iso) of files that hardly change",
        Words("pictures, films, sounds, archives"),
    ),
    known("fsname=NAME", "the source in the mount table", Words("the device")),
];

/// The options for `--help` and the manual page.
pub fn help() -> String {
    let mut text = String::from("Options after -o, and what is in force without them:\n");
    for Known { form, means, usual } in KNOWN {
        let (Is(usual) | Words(usual)) = usual;
        text += &format!("  {form}\n          {means} [{usual}]\n");
    }
    text + "\nA no in front turns async_dio, writeback_cache, handles and io_uring off. relatime, \
            noatime, lazytime, nodiratime, nosuid, nodev, noexec, and what fstab needs, are as in \
            mount(8)."
}

/// Options of mount(8) that are accepted too.
const USUAL: [&str; 34] = [
    "async",
    "atime",
    "auto",
    "defaults",
    "dev",
    "diratime",
    "exec",
    "group",
    "lazytime",
    "loud",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "noexec",
    "nofail",
    "nolazytime",
    "nostrictatime",
    "nosuid",
    "nouser",
    "owner",
    "relatime",
    "remount",
    "silent",
    "suid",
    "sync",
    "user",
    "users",
    "_netdev",
    "_rnetdev",
    "allow_other",
    "default_permissions",
    "comment",
    "subtype",
];

/// The names of all options that are accepted, for proposals and completions.
pub fn names() -> impl Iterator<Item = &'static str> {
    own_names().chain(USUAL)
}

fn own_names() -> impl Iterator<Item = &'static str> {
    let own = KNOWN.iter().flat_map(|known| match known.form.split_once('=') {
        Some((name, _)) => vec![name],
        None => known.form.split('|').collect(),
    });
    own.chain(["noasync_dio", "nowriteback_cache", "nohandles", "noio_uring"])
}

/// All accepted options: those that take a value end in `=`, and those that take one of a few
/// values are listed once for each value.
pub fn words() -> Vec<String> {
    let valued = KNOWN.iter().filter_map(|known| known.form.split_once('='));
    let valued = valued.flat_map(|(name, value)| {
        let choices = value.split('|').filter(|choice| choice.to_lowercase() == **choice);
        let choices: Vec<String> = choices.map(|choice| format!("{name}={choice}")).collect();
        if choices.is_empty() { vec![format!("{name}=")] } else { choices }
    });
    let takes_value = |name: &str| {
        KNOWN.iter().any(|known| known.form.split_once('=').is_some_and(|f| f.0 == name))
    };
    let plain = names().filter(|name| !takes_value(name)).map(str::to_owned);
    valued.chain(plain).collect()
}

/// Whether `name` is an option of the daemon, not of the kernel or of mount(8).
pub fn is_own(name: &str) -> bool {
    !matches!(name, "ro" | "rw") && own_names().any(|own| own == name)
}

/// The forms of all own options, for messages.
fn forms() -> String {
    let forms: Vec<&str> = KNOWN.iter().map(|known| known.form).collect();
    forms.join(", ")
}
/// Smallest size of the cache in bytes; a smaller cache cannot hold a large request.
const MIN_CACHE: u64 = 16 << 20;

/// The options given with `-o`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of the engine.
    pub engine: MountOptions,
    /// Options of the kernel; the source is filled in later.
    pub endpoint: Endpoint,
    /// How long the kernel may cache names and attributes, if an option says so.
    ttl: Option<Duration>,
    /// The source in the mount table; `None` for the device.
    pub fsname: Option<String>,
    /// True if several direct requests of one program run concurrently.
    pub async_dio: bool,
    /// True if the kernel collects writes in its page cache.
    pub writeback_cache: bool,
    /// True if files can be found by file handles.
    pub handles: bool,
    /// True to change only the options of an existing mount.
    pub remount: bool,
    /// The destination of metrics.
    pub metrics: Option<Metrics>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            engine: MountOptions::default(),
            endpoint: Endpoint::default(),
            ttl: None,
            fsname: None,
            async_dio: true,
            writeback_cache: false,
            handles: false,
            remount: false,
            metrics: None,
        }
    }
}

impl Options {
    /// How long the kernel may cache names and attributes.
    pub fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(USUAL_TTL)
    }
}

/// Parses the texts after `-o`, whose options are separated by commas; later options win.
///
/// # Errors
/// A sentence that names the invalid option.
pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Options, String> {
    let mut options = Options::default();
    for option in texts.into_iter().flat_map(|text| text.split(',')).filter(|o| !o.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        apply(&mut options, name, value)?;
    }
    options.engine.read_only = options.endpoint.read_only;
    let GcOptions { start, urgent, .. } = options.engine.gc;
    if urgent > start {
        return Err(format!(
            "mount options gc_urgent={urgent} and gc_start={start}: cleaning cannot be urgent \
             before it starts"
        ));
    }
    Ok(options)
}

fn apply(options: &mut Options, name: &str, value: Option<&str>) -> Result<(), String> {
    let (endpoint, engine) = (&mut options.endpoint, &mut options.engine);
    match (name, value) {
        ("ro", None) => endpoint.read_only = true,
        ("rw", None) => endpoint.read_only = false,
        ("remount", None) => options.remount = true,
        ("nosuid", None) => endpoint.no_suid = true,
        ("suid", None) => endpoint.no_suid = false,
        ("nodev", None) => endpoint.no_dev = true,
        ("dev", None) => endpoint.no_dev = false,
        ("noexec", None) => endpoint.no_exec = true,
        ("exec", None) => endpoint.no_exec = false,
        ("defaults", None) => {
            (endpoint.read_only, endpoint.no_suid) = (false, false);
            (endpoint.no_dev, endpoint.no_exec) = (false, false);
        }
        ("noatime", None) => engine.access_time = AccessTime::Never,
        ("strictatime" | "norelatime", None) => {
            return Err(format!(
                "mount option {name}: the kernel answers most reads from its cache and does not \
                 tell the daemon, so not every access can be noted: use relatime or noatime"
            ));
        }
        ("relatime" | "atime" | "nostrictatime", None) => {
            engine.access_time = AccessTime::Relative;
        }
        ("lazytime", None) => engine.lazy_time = true,
        ("nolazytime", None) => engine.lazy_time = false,
        ("sync", None) => endpoint.synchronous = true,
        ("async", None) => endpoint.synchronous = false,
        ("async_dio", None) => options.async_dio = true,
        ("noasync_dio", None) => options.async_dio = false,
        ("writeback_cache", None) => options.writeback_cache = true,
        ("nowriteback_cache", None) => options.writeback_cache = false,
        ("handles", None) => options.handles = true,
        ("nohandles", None) => options.handles = false,
        ("io_uring", None) => endpoint.transport = Transport::Rings,
        ("noio_uring", None) => endpoint.transport = Transport::Channel,
        ("diratime", None) => engine.directory_access_time = true,
        ("nodiratime", None) => engine.directory_access_time = false,
        // Options that are always on, or are for mount(8) and tools that read fstab.
        (
            "auto"
            | "noauto"
            | "user"
            | "nouser"
            | "users"
            | "owner"
            | "group"
            | "_netdev"
            | "nofail"
            | "allow_other"
            | "default_permissions"
            | "silent"
            | "loud"
            | "_rnetdev",
            None,
        ) => {}
        ("subtype" | "comment", Some(_)) => {}
        // Options that the mount table shows, which mount(8) passes back with a remount.
        ("user_id" | "group_id" | "max_read" | "blksize", Some(_)) => {}
        (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
        ("fsname", Some(source)) if !source.is_empty() => options.fsname = Some(source.to_owned()),
        ("commit", Some(value)) => options.engine.commit_interval = nanoseconds(name, value, 1)?,
        ("attr_timeout", Some(value)) => {
            options.ttl = Some(Duration::from_nanos(nanoseconds(name, value, 0)?));
        }
        ("metrics", Some(value)) => {
            let metrics = value.parse().map_err(|why| format!("mount option metrics: {why}"))?;
            options.metrics = Some(metrics);
        }
        ("cache", Some(value)) => options.engine.cache_pages = pages(value)?,
        ("errors", Some("continue")) => engine.on_damage = OnDamage::Continue,
        ("errors", Some("remount-ro")) => engine.on_damage = OnDamage::ReadOnly,
        ("errors", Some(value)) => {
            return Err(format!("mount option errors={value}: expected continue or remount-ro"));
        }
        ("order", Some("blocking")) => engine.order = Order::Blocking,
        ("order", Some("queued")) => engine.order = Order::Queued,
        ("order", Some("append")) => engine.order = Order::Append,
        ("order", Some(value)) => {
            return Err(format!("mount option order={value}: expected blocking, queued or append"));
        }
        ("gc", Some("on")) => engine.gc.background = true,
        ("gc", Some("off")) => engine.gc.background = false,
        ("gc_policy", Some("greedy")) => engine.gc.policy = VictimPolicy::Greedy,
        ("gc_policy", Some("cost-benefit")) => engine.gc.policy = VictimPolicy::CostBenefit,
        ("gc", Some(value)) => {
            return Err(format!("mount option gc={value}: expected on or off"));
        }
        ("gc_policy", Some(value)) => {
            return Err(format!("mount option gc_policy={value}: expected greedy or cost-benefit"));
        }
        ("hot", Some(value)) => engine.extensions.hot = extensions(name, value)?,
        ("cold", Some(value)) => engine.extensions.cold = extensions(name, value)?,
        ("gc_start", Some(value)) => engine.gc.start = percent(name, value)?,
        ("gc_urgent", Some(value)) => engine.gc.urgent = percent(name, value)?,
        (
            "commit" | "attr_timeout" | "cache" | "errors" | "fsname" | "metrics" | "order" | "gc"
            | "gc_policy" | "gc_start" | "gc_urgent" | "hot" | "cold",
            _,
        ) => {
            return Err(format!("mount option {name} needs a value: {name}=…"));
        }
        (name, Some(_)) if apply(&mut options.clone(), name, None).is_ok() => {
            return Err(format!("mount option {name} takes no value"));
        }
        _ => {
            let known = forms();
            return Err(format!(
                "unknown mount option '{name}'{}; known: {known}, and the usual ones of mount(8)",
                words::hint(name, names())
            ));
        }
    }
    Ok(())
}

/// Seconds, possibly with a fraction, up to a day; `least` is 1 if 0 is invalid.
fn nanoseconds(name: &str, value: &str, least: u8) -> Result<u64, String> {
    let range = if least == 0 { "0 to 86400" } else { "0.001 to 86400" };
    let seconds = value
        .parse::<f64>()
        .ok()
        .filter(|s| (0.0..=86_400.0).contains(s) && (least == 0 || *s >= 0.001));
    match seconds {
        Some(seconds) => Ok((seconds * Nanos::SECOND as f64) as u64),
        None => Err(format!("mount option {name}={value}: expected {range} seconds")),
    }
}

/// Parses suffixes of names, separated by colons; an empty value means none.
fn extensions(name: &str, value: &str) -> Result<Vec<String>, String> {
    let ends = value.split(':').filter(|end| !end.is_empty()).map(|end| {
        let end = end.trim_start_matches('.');
        let fine = !end.is_empty() && end.len() < 255 && !end.contains('/');
        let message = || format!("mount option {name}={value}: expected name suffixes, as jpg:mp4");
        fine.then(|| end.to_owned()).ok_or_else(message)
    });
    ends.collect()
}

fn percent(name: &str, value: &str) -> Result<u8, String> {
    let percent = value.trim_end_matches('%').parse::<u8>().ok().filter(|p| *p <= 100);
    percent.ok_or_else(|| format!("mount option {name}={value}: expected 0 to 100 percent"))
}

fn pages(value: &str) -> Result<usize, String> {
    let bytes = size::parse(value).map_err(|why| format!("mount option cache: '{value}' {why}"))?.0;
    if bytes < MIN_CACHE {
        return Err(format!("mount option cache={value}: too small, at least 16MiB"));
    }
    crate::limits::check_memory(bytes)
        .map_err(|why| format!("mount option cache={value}: {why}"))?;
    usize::try_from(bytes / PAGE_SIZE as u64)
        .map_err(|_| format!("mount option cache={value}: larger than the address space"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse([text]).expect_err(text)
    }

    /// Help, message, parser and page agree about the options and their defaults.
    #[test]
    fn what_help_says_of_an_option_is_so() {
        let page = include_str!("../../../../docs/use/mounting.md");
        let plain = format!("{:?}", Options::default());
        for Known { form, usual, .. } in KNOWN {
            let (name, value) = form.split_once('=').unwrap_or((form, ""));
            assert!(help().contains(form) && refused("nosuch").contains(form), "{form}");
            let named = |line: &str| line.starts_with("| `") && line.contains(&format!("`{name}"));
            assert!(name == "ro|rw" || page.lines().any(named), "{form} is on no line of the page");
            let choices = value.split('|').filter(|value| value.to_lowercase() == *value);
            let choices = choices.filter(|value| !value.is_empty());
            for choice in choices {
                assert!(parse([&*format!("{name}={choice}")]).is_ok(), "{name}={choice}");
            }
            match usual {
                Is(option) => {
                    let parsed = parse([*option]).unwrap();
                    assert_eq!(format!("{parsed:?}"), plain, "{option} is not the default");
                }
                Words(words) => assert!(!words.is_empty()),
            }
        }
    }

    #[test]
    fn completions_offer_what_is_accepted() {
        let words = words();
        for word in ["commit=", "errors=remount-ro", "gc=off", "ro", "noio_uring", "nofail"] {
            assert!(words.iter().any(|known| known == word), "{word}: {words:?}");
        }
        let others = ["comment", "subtype"];
        for word in words.iter().filter(|word| !others.contains(&&***word)) {
            assert!(word.ends_with('=') || parse([&**word]).is_ok(), "{word}");
        }
    }

    #[test]
    fn what_mount_and_fstab_pass_is_accepted() {
        let usual = "rw,suid,dev,exec,auto,nouser,async,relatime,noatime,user,noauto,_netdev,\
                     x-systemd.automount,defaults,allow_other,default_permissions,subtype=furrow";
        let options = parse([usual]).unwrap();
        assert!(!options.engine.read_only && !options.endpoint.no_suid);
        assert_eq!(options.ttl(), Duration::from_secs(86_400));
        assert_eq!(options.engine.commit_interval, 5 * Nanos::SECOND);
    }

    #[test]
    fn later_options_win_and_reach_engine_and_kernel() {
        let options = parse(["ro,nosuid,nodev", "noexec,,commit=0.5", "dev,cache=1GiB"]).unwrap();
        assert!(options.engine.read_only && options.endpoint.read_only);
        assert!(options.endpoint.no_suid && !options.endpoint.no_dev && options.endpoint.no_exec);
        assert_eq!(options.engine.commit_interval, Nanos::SECOND / 2);
        assert_eq!(options.engine.cache_pages, 262_144);
        let options = parse(["attr_timeout=0,fsname=a b,ro,rw"]).unwrap();
        assert_eq!((options.ttl(), options.fsname.as_deref()), (Duration::ZERO, Some("a b")));
        let caches = |text| parse([text]).map(|o| (o.writeback_cache, o.async_dio)).unwrap();
        assert_eq!(caches("rw"), (false, true));
        assert_eq!(caches("writeback_cache,noasync_dio"), (true, false));
        assert!(parse(["sync"]).unwrap().endpoint.synchronous);
        assert!(!options.engine.read_only);
    }

    #[test]
    fn requests_come_as_asked() {
        let of = |text| parse([text]).unwrap().endpoint.transport;
        assert_eq!(of("rw"), Transport::Offered);
        assert_eq!(of("io_uring"), Transport::Rings);
        assert_eq!(of("io_uring,noio_uring"), Transport::Channel);
        assert!(refused("io_uring=8").contains("takes no value"));
    }

    #[test]
    fn times_of_access_are_kept_as_asked() {
        let of = |text| parse([text]).unwrap().engine;
        assert_eq!(of("ro").access_time, AccessTime::Relative);
        assert_eq!(of("noatime").access_time, AccessTime::Never);
        assert_eq!(of("noatime,relatime").access_time, AccessTime::Relative);
        assert!(of("nodiratime,lazytime").lazy_time);
        assert!(!of("nodiratime,lazytime").directory_access_time);
        assert!(of("nodiratime,diratime").directory_access_time);
        for exact in ["strictatime", "norelatime"] {
            assert!(refused(exact).contains("use relatime or noatime"));
        }
    }

    #[test]
    fn cleaning_is_set_by_options() {
        let gc = |text| parse([text]).map(|options| options.engine.gc);
        assert_eq!(gc("rw").unwrap(), GcOptions::default());
        let set = gc("gc=off,gc_policy=greedy,gc_start=30,gc_urgent=10%").unwrap();
        let policy = VictimPolicy::Greedy;
        assert_eq!(set, GcOptions { background: false, policy, start: 30, urgent: 10 });
        assert!(refused("gc=maybe").contains("on or off"));
        assert!(refused("gc_policy=best").contains("greedy or cost-benefit"));
        assert!(refused("gc_start=101").contains("0 to 100"));
        assert!(refused("gc_urgent=90,gc_start=20").contains("before it starts"));
        assert!(refused("gc").contains("gc needs a value"));
    }

    #[test]
    fn the_order_of_writes_is_chosen() {
        let of = |text| parse([text]).map(|options| options.engine.order);
        assert_eq!(of("rw").unwrap(), Order::Queued);
        assert_eq!(of("order=append").unwrap(), Order::Append);
        assert_eq!(of("order=append,order=blocking").unwrap(), Order::Blocking);
        assert!(refused("order=random").contains("blocking, queued or append"));
        assert!(refused("order").contains("order needs a value"));
    }

    #[test]
    fn ends_of_names_are_lists() {
        let of = |text| parse([text]).map(|options| options.engine.extensions);
        let usual = of("rw").unwrap();
        assert!(usual.hot.contains(&"db".to_owned()) && usual.cold.contains(&"mp4".to_owned()));
        let set = of("hot=wal:.tmp,cold=").unwrap();
        assert_eq!((set.hot, set.cold), (vec!["wal".to_owned(), "tmp".to_owned()], vec![]));
        assert!(refused("hot").contains("hot needs a value"));
        assert!(refused("cold=a/b").contains("name suffixes"));
        assert!(refused("cold=.").contains("name suffixes"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refused("ro,comit=5").contains("unknown mount option 'comit'"));
        assert!(refused("commit").contains("commit needs a value"));
        assert!(refused("ro=1").contains("ro takes no value"));
        assert!(refused("x=1").contains("unknown mount option 'x'"));
        assert!(refused("fsname=").contains("fsname needs a value"));
        for wrong in ["commit=0", "commit=-1", "commit=NaN", "commit=inf", "commit=x", "commit=1e9"]
        {
            assert!(refused(wrong).contains("seconds"), "{wrong}");
        }
        assert!(refused("cache=1KiB").contains("at least 16MiB"));
        assert!(refused("cache=lots").contains("'lots' is not a size"));
        assert!(refused("cache=99TiB").contains("more than the memory of this machine"));
    }
}
