#!/usr/bin/env python3
# Writes claims-same-victim.md and its pictures from the runs of scripts/same-victim.sh, and the figures
# that stand for the claims to data/claims.jsonl, for `furrow-lab pages`:
# scripts/same-victim.py RUNS DOCS
#
# A figure is "reproduced" within 10 %, by runs on a timing model only: what is copied depends on time.
# What goes the published way, but is not within that, or was tried without a timing model, is
# "direction reproduced". Both need that the runs of each seed go that way, and the first that the
# largest of their figures is not over one and a half times the least.
import json
import statistics
import sys
from collections import Counter

MiB = 1 << 20
WORKLOADS = ["fillrandom", "a", "b", "c"]
SCHEMES = ["baseline", "baza", "baza+"]
# Beside the paper's three: the rule of the released ZenFS.
ALL = SCHEMES + ["zenfs"]
NAMES = {"fillrandom": "fillrandom", "a": "A", "b": "B", "c": "C"}


TITLES = {
    "timed": "On the model of the paper's emulated drive",
    "logged": "On that model, with a write-ahead log",
    "paced": "On that model, the user at 16 MB a second: collection keeps up",
    "open": "On that model, with 1,000 open files",
    "untimed": "Without a timing model",
    "zn540": "On the model of a ZN540 (V8)",
    "small": "Zones of 8 MiB, blob files of 4 MiB, on the model of the emulated drive (V9)",
    "full": "At the published size, without a timing model",
    "deep": "Small levels: several lifetimes; on the model of the emulated drive",
    "unlimited": "Without a limit of active zones, on the model of the emulated drive",
    "printed": "Equation 1 as it is printed, on the model of the emulated drive",
}


class Runs:
    """The runs of one profile, and the scheme that the others are held against: the paper's baseline
    is today's ZenFS, which is LIZA as the paper describes it (`baseline`) or as it is released (`zenfs`)."""

    def __init__(self, runs, profile, base="baseline"):
        self.profile, self.base = profile, base
        self.all = [run for run in runs if run["profile"] == profile]
        self.good = [run for run in self.all if "failed" not in run]

    def seeds(self):
        """The same, of one seed each."""
        for seed in sorted({run["seed"] for run in self.all}):
            yield Runs([run for run in self.all if run["seed"] == seed], self.profile, self.base)

    def values(self, scheme, workload, figure, **where):
        return [
            figure(run)
            for run in self.good
            if run["scheme"] == scheme
            and run["workload"] == workload
            and all(run[key] == value for key, value in where.items())
        ]

    def mean(self, scheme, workload, figure, **where):
        values = self.values(scheme, workload, figure, **where)
        return statistics.mean(values) if values else None

    def ratio(self, scheme, workloads, figure):
        """Mean over workloads of a scheme's figure over the baseline's."""
        ratios = []
        for workload in workloads:
            base = self.mean(self.base, workload, figure)
            ours = self.mean(scheme, workload, figure)
            if not base or ours is None:
                return None
            ratios.append(ours / base)
        return statistics.mean(ratios)

    def average(self, scheme, figure):
        means = [self.mean(scheme, workload, figure) for workload in WORKLOADS]
        return None if None in means else statistics.mean(means)


def copied(run):
    return run["copied_blobs"] / MiB


def relocated(run):
    return run["relocated"] / MiB


def used(run):
    return 100 * run["used_zones"] / run["zones"]


def compaction(run):
    return run["compaction_seconds"]


def throughput(run):
    return run["operations"] / run["seconds"]


def put(run):
    return 1 / run["put_us"]


def get(run):
    return 1 / run["get_us"] if run["get_us"] else None


def spread(values, digits=0):
    if not values:
        return "–"
    text = f"{statistics.mean(values):,.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):,.{digits}f}–{max(values):,.{digits}f})"
    return text


def number(value, form):
    return "–" if value is None else form.format(value)


# Each figure of a claim: what, of which profile, ours, published in the size of ours, the verdict.
def figures(by):
    main = [
        Runs(by[profile].all, profile, base)
        for profile in ("timed", "untimed", "paced", "open")
        for base in ("baseline", "zenfs")
        if any(run["scheme"] == base for run in by[profile].all)
    ]
    zn540, small = [by["zn540"]], [by["small"]]
    out = []

    # What: of a profile's runs. Holds: what is found, and the runs, go the published way.
    def add(claim, what, form, published, value, holds, profiles):
        for runs in profiles:
            found = value(runs)
            if found is None:
                continue
            each = [(value(one), one) for one in runs.seeds()]
            each = [(x, one) for x, one in each if x is not None]
            agreeing = sum(1 for x, one in each if holds(x, one))
            # Nothing, published, is nothing.
            within = abs(found - published) <= 0.1 * published + (0.5 if published == 0 else 0)
            clocked = runs.profile != "untimed"
            if len(each) < len(list(runs.seeds())):
                verdict = f"cannot be told: no ratio in {len(list(runs.seeds())) - len(each)} of the seeds"
            elif not holds(found, runs):
                verdict = "not reproduced"
            elif agreeing < len(each):
                verdict = f"not reproduced: {agreeing} of {len(each)} seeds"
            elif within and clocked and max(x for x, _ in each) <= 1.5 * min(x for x, _ in each):
                verdict = "reproduced"
            else:
                verdict = "direction reproduced"
            profile = runs.profile + (", zenfs" if runs.base == "zenfs" else "")
            ours = form.format(found)
            if len(each) > 1:
                least, most = min(x for x, _ in each), max(x for x, _ in each)
                ours += f" ({form.format(least)} to {form.format(most)})"
            out.append((claim, what, profile, ours, form.format(published), verdict))

    # Blobs that zone cleaning copied. More than nothing under the baseline, and the less the more of the
    # paper is used.
    def cleaned(claim, what, workload, published, profiles):
        mean = lambda scheme: lambda runs: runs.mean(
            runs.base if scheme == "baseline" else scheme, workload, copied)
        base = lambda runs: mean("baseline")(runs) or 0
        for scheme, figure in published.items():
            holds = {
                "baseline": lambda x, runs: x > 1 and x > (mean("baza+")(runs) or 0),
                "baza": lambda x, runs: base(runs) > 1 and x < base(runs),
                "baza+": lambda x, runs: base(runs) > 1 and x < min(
                    base(runs), mean("baza")(runs) or base(runs)) / 2,
            }[scheme]
            add(claim, f"{what}: blobs copied by zone cleaning, {scheme}", "{:,.0f} MiB",
                figure * 1e9 / 8 / MiB, mean(scheme), holds, profiles)

    cleaned("V1", "A", "a", {"baseline": 19, "baza": 0.053, "baza+": 0}, main)
    cleaned("V2", "fillrandom", "fillrandom", {"baza": 0.105, "baza+": 0}, main)
    # None where a workload failed under a scheme: then there is nothing to hold the others against.
    def in_use(runs, scheme):
        if None in [runs.average(other, used) for other in (runs.base, "baza")]:
            return None
        return runs.average(runs.base if scheme == "baseline" else scheme, used)

    for scheme, published in [("baseline", 83), ("baza", 67), ("baza+", 61)]:
        holds = {
            "baseline": lambda x, runs: x > runs.average("baza", used),
            "baza": lambda x, runs: x < runs.average(runs.base, used) - 1,
            "baza+": lambda x, runs: x < runs.average("baza", used) - 1,
        }[scheme]
        add("V3", f"zones in use at the end, mean of the four, {scheme}", "{:.0f} %", published,
            lambda r, s=scheme: in_use(r, s), holds, main)
    less, more = lambda x, runs: x < 0.97, lambda x, runs: x > 1.03
    of_all = lambda scheme, figure: lambda runs: runs.ratio(scheme, WORKLOADS, figure)
    of_some = lambda scheme, some, figure: lambda runs: runs.ratio(scheme, some, figure)
    add("V4", "relocated by RocksDB, baza over baseline", "{:.2f}", 1.0, of_all("baza", relocated),
        lambda x, runs: 0.9 <= x <= 1.1, main)
    add("V4", "relocated by RocksDB, baza+ over baseline", "{:.2f}", 0.67, of_all("baza+", relocated),
        less, main)
    add("V5", "compaction time, baza over baseline", "{:.2f}", 0.83, of_all("baza", compaction), less, main)
    add("V5", "compaction time, baza+ over baseline", "{:.2f}", 0.5, of_all("baza+", compaction), less, main)
    add("V6", "throughput, baza over baseline", "{:.2f}", 1.27, of_all("baza", throughput), more, main)
    add("V6", "throughput, baza+ over baseline", "{:.2f}", 1.44, of_all("baza+", throughput), more, main)
    add("V7", "puts, baza over baseline", "{:.2f}", 1.37, of_all("baza", put), more, main)
    add("V7", "puts, baza+ over baseline", "{:.2f}", 1.6, of_all("baza+", put), more, main)
    add("V7", "gets of B and C, baza over baseline", "{:.2f}", 1.1, of_some("baza", ["b", "c"], get), more, main)
    add("V7", "gets of B and C, baza+ over baseline", "{:.2f}", 1.34, of_some("baza+", ["b", "c"], get),
        more, main)
    for claim, what, profiles, baseline, share, faster in [
        ("V8", "ZN540, A", zn540, 9, 0.4, 1.09),
        ("V9", "small zones, A", small, 13, 0.0005, 1.72),
    ]:
        cleaned(claim, what, "a", {"baseline": baseline, "baza+": 0}, profiles)
        add(claim, f"{what}: relocated by RocksDB, baza+ over baseline", "{:.4f}", share,
            of_some("baza+", ["a"], relocated), less, profiles)
        add(claim, f"{what}: throughput, baza+ over baseline", "{:.2f}", faster,
            of_some("baza+", ["a"], throughput), more, profiles)
    return out


# The commit that the runs of the profiles in `kept` were landed with.
COMMIT = "d07a573"


# Lines for docs/data/claims.jsonl, at the published size: names and units are the catalogue's. The
# paper's baseline is "current BlobDB-ZenFS", the rule of the released ZenFS; with zn540 and small zones
# only LIZA was run.
def kept(by):
    out = []

    def line(claim, runs, note, figures):
        # Where a seed has no ratio, the one of all seeds together stands for them.
        def values(figure):
            each = [figure(one) for one in runs.seeds()]
            return each if None not in each else [figure(runs)]

        found = [(name, unit, values(figure)) for name, unit, figure in figures]
        out.append({
            "claim": claim, "commit": COMMIT,
            "command": f"scripts/same-victim.sh {runs.profile}", "size": "scaled",
            "seeds": [one.all[0]["seed"] for one in runs.seeds()], "note": note,
            "figures": [
                {"name": name, "unit": unit, "values": values}
                for name, unit, values in found if None not in values
            ],
        })

    # Bytes of blobs that zone cleaning copied, at the published size.
    def cleaned(scheme, workload, unit):
        def figure(runs):
            mean = runs.mean(scheme or runs.base, workload, copied)
            return None if mean is None else mean * MiB * 8 / unit
        return figure

    less = lambda ratio: lambda runs: None if ratio(runs) is None else 100 * (1 - ratio(runs))
    of_all = lambda scheme, figure: lambda runs: runs.ratio(scheme, WORKLOADS, figure)
    of_a = lambda figure: lambda runs: runs.ratio("baza+", ["a"], figure)
    reads = lambda scheme: lambda runs: runs.ratio(scheme, ["b", "c"], get)
    timed = Runs(by["timed"].all, "timed", "zenfs")
    note = "Bytes times eight; the baseline is the rule of the released ZenFS."
    line("V1", timed, note, [
        ("lifetime allocation", "GB", cleaned(None, "a", 1e9)),
        ("by age", "MB", cleaned("baza", "a", 1e6)),
        ("by age, cut off by zone", "MB", cleaned("baza+", "a", 1e6)),
    ])
    paced = Runs(by["paced"].all, "paced", "zenfs")
    for name, unit, figure in [
        ("user at 16 MB/s, lifetime allocation", "GB", cleaned(None, "a", 1e9)),
        ("user at 16 MB/s, by age", "MB", cleaned("baza", "a", 1e6)),
        ("user at 16 MB/s, by age, cut off by zone", "MB", cleaned("baza+", "a", 1e6)),
    ]:
        mean = figure(paced)
        if mean is not None:
            out[-1]["figures"].append({"name": name, "unit": unit, "values": [mean]})
    line("V2", timed, note, [
        ("by age", "MB", cleaned("baza", "fillrandom", 1e6)),
        ("by age, cut off by zone", "MB", cleaned("baza+", "fillrandom", 1e6)),
    ])
    line("V3", timed, note, [
        ("lifetime allocation", "%", lambda runs: runs.average(runs.base, used)),
        ("by age", "%", lambda runs: runs.average("baza", used)),
        ("by age, cut off by zone", "%", lambda runs: runs.average("baza+", used)),
    ])
    line("V4", timed, note, [("less, on average", "%", less(of_all("baza+", relocated)))])
    line("V5", timed, note, [
        ("by age, less", "%", less(of_all("baza", compaction))),
        ("both, less", "%", less(of_all("baza+", compaction))),
    ])
    line("V6", timed, note, [
        ("by age", "x", of_all("baza", throughput)), ("both", "x", of_all("baza+", throughput)),
    ])
    line("V7", timed, note, [
        ("PUT, by age", "x", of_all("baza", put)), ("PUT, both", "x", of_all("baza+", put)),
        ("GET, by age", "x", reads("baza")), ("GET, both", "x", reads("baza+")),
    ])
    note = "Bytes times eight; the baseline is LIZA as the paper describes it."
    for claim, profile, relocation in [
        ("V8", "zn540", ("blob GC copies, less", "%", less(of_a(relocated)))),
        ("V9", "small", ("blob GC copies, of before", "%", lambda runs: 100 * of_a(relocated)(runs)
                         if of_a(relocated)(runs) is not None else None)),
    ]:
        line(claim, by[profile], note, [
            ("cleaning copies, baseline", "GB", cleaned(None, "a", 1e9)),
            ("cleaning copies, both", "GB", cleaned("baza+", "a", 1e9)),
            relocation,
            ("throughput", "x", of_a(throughput)),
        ])
    return out


# Our lines of the file of kept figures are written again; all others stay.
def keep(path, lines):
    with open(path) as file:
        others = [text for text in file if not json.loads(text)["command"].startswith("scripts/same-victim.sh")]
    with open(path, "w") as file:
        file.writelines(others + [json.dumps(line) + "\n" for line in lines])


COLUMNS = [
    ("zones copied, blobs MiB", lambda r: copied(r), 0),
    ("RocksDB relocated MiB", lambda r: relocated(r), 0),
    ("in use %", used, 0),
    ("most in use %", lambda r: 100 * r["peak_zones"] / r["zones"], 0),
    ("compaction s", compaction, 0),
    ("operations/s", throughput, 0),
    ("put µs", lambda r: r["put_us"], 0),
    ("get µs", lambda r: r["get_us"], 0),
    ("flushes per compaction", lambda r: r["flushes"] / max(1, r["compactions"]), 1),
    ("compactions out of level 0", lambda r: r["compactions_down"], 0),
    ("cut-offs that were late", lambda r: r["stale"], 0),
]


def table(runs, workloads, schemes):
    lines = [
        "| workload | scheme | " + " | ".join(name for name, _, _ in COLUMNS) + " | runs |",
        "|---|---|" + "--:|" * (len(COLUMNS) + 1),
    ]
    for workload in workloads:
        for scheme in schemes:
            tried = [r for r in runs.all if r["workload"] == workload and r["scheme"] == scheme]
            if not tried:
                continue
            failed = sum(1 for r in tried if "failed" in r)
            cells = [
                spread(runs.values(scheme, workload, figure), digits)
                for _, figure, digits in COLUMNS
            ]
            count = f"{len(tried)}" + (f", {failed} failed" if failed else "")
            lines.append(f"| {NAMES[workload]} | {scheme} | " + " | ".join(cells) + f" | {count} |")
    return lines


def picture(path, title, unit, groups, series):
    """Bars side by side: groups of a name and a value (or None) for each of the series."""
    width, height, left, bottom = 640, 260, 60, 40
    top = max((value or 0 for _, values in groups for value in values), default=1) or 1
    step = (width - left - 20) / max(1, len(groups))
    bar = step / (len(series) + 1)
    colours = ["#8c8c8c", "#3b75af", "#d1722a"]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="16">{title}, {unit}</text>',
    ]
    scale = (height - bottom - 50) / top
    for part in range(5):
        value = top * part / 4
        y = height - bottom - value * scale
        out.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
    for place, (name, values) in enumerate(groups):
        x = left + place * step
        out.append(
            f'<text x="{x + step / 2:.1f}" y="{height - bottom + 16}" text-anchor="middle">{name}</text>')
        for index, value in enumerate(values):
            if value is None:
                continue
            h = max(value * scale, 0.5)
            out.append(
                f'<rect x="{x + bar * (index + 0.5):.1f}" y="{height - bottom - h:.1f}" '
                f'width="{bar * 0.9:.1f}" height="{h:.1f}" fill="{colours[index]}"/>')
    for index, name in enumerate(series):
        x = left + index * 130
        out.append(f'<rect x="{x}" y="24" width="10" height="10" fill="{colours[index]}"/>')
        out.append(f'<text x="{x + 14}" y="33">{name}</text>')
    out.append("</svg>")
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n")


def main():
    source, docs = sys.argv[1], sys.argv[2]
    with open(source) as file:
        runs = [json.loads(line) for line in file]
    by = {
        profile: Runs(runs, profile)
        for profile in TITLES | {"sweep": None}
    }
    with open(f"{docs}/same-victim-findings.md") as file:
        findings = file.read().split("\n", 2)[2].strip()
    found = figures(by)
    counts = Counter(verdict.split(":")[0] for *_, verdict in found)
    page = [
        "# Same-Victim garbage collection: the paper's claims",
        "",
        "Made by `scripts/same-victim.sh table` from `docs/data/same-victim.jsonl`, one line for each run of",
        "`scripts/same-victim.sh all`; what is found, in words, is `docs/same-victim-findings.md`.",
        "",
        findings,
        "",
        "## Figures",
        "",
        ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + ".",
        "Published bytes are divided by eight, as the drive is. Ours are means over the seeds, with the least and",
        "the most; a direction counts if every seed goes that way. *zenfs*: held against the rule of the released",
        "ZenFS instead of LIZA as the paper describes it; the paper's baseline is \"current BlobDB-ZenFS\".",
        "",
        "| claim | figure | profile | ours | published | verdict |",
        "|---|---|---|--:|--:|---|",
    ]
    page += ["| " + " | ".join(row) + " |" for row in found]
    for profile, title in TITLES.items():
        if not by[profile].all:
            continue
        page += ["", f"## {title}", "", "Means, in brackets the range.", ""]
        page += table(by[profile], WORKLOADS, ALL)
    if by["sweep"].all:
        page += [
            "", "## Cut-offs", "", "Workload A, on the model of the emulated drive; 0.25 is that of the runs above.", "",
            "| cut-off | scheme | zones copied, blobs MiB | RocksDB relocated MiB | in use % | operations/s | runs |",
            "|--:|---|--:|--:|--:|--:|--:|",
        ]
        for cutoff in [0.05, 0.1, 0.25, 0.35, 0.5]:
            profile = by["timed"] if cutoff == 0.25 else by["sweep"]
            for scheme in ["baseline", "baza"]:
                values = [
                    profile.values(scheme, "a", figure, cutoff=cutoff)
                    for figure in (copied, relocated, used, throughput)
                ]
                if values[0]:
                    page.append(
                        f"| {cutoff} | {scheme} | " + " | ".join(spread(v) for v in values)
                        + f" | {len(values[0])} |")
    for profile in ["untimed", "timed", "logged"]:
        if not by[profile].good:
            continue
        for name, title, figure in [
            ("copied", "blobs copied by zone cleaning", copied),
            ("relocated", "blobs relocated by RocksDB", relocated),
        ]:
            picture(
                f"{docs}/data/same-victim-{profile}-{name}.svg", f"{title}, {profile}", "MiB",
                [
                    (NAMES[w], [by[profile].mean(s, w, figure) for s in SCHEMES])
                    for w in WORKLOADS
                ],
                SCHEMES)
            page += ["", f"![{title}](data/same-victim-{profile}-{name}.svg)"]
    with open(f"{docs}/claims-same-victim.md", "w") as file:
        file.write("\n".join(page) + "\n")
    keep(f"{docs}/data/claims.jsonl", kept(by))
    print(f"{docs}/claims-same-victim.md: {len(runs)} runs, {len(found)} figures")


main()
