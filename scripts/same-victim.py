#!/usr/bin/env python3
# Writes claims-same-victim.md and its pictures from the runs of scripts/same-victim.sh, and the figures
# that stand for the claims to data/claims.jsonl, for `furrow-lab pages`, which gives the verdicts:
# scripts/same-victim.py RUNS DOCS
#
# A figure is made of the means over the seeds. The mean of the seeds' own ratios would be another one:
# the largest would count most.
import json
import math
import os
import statistics
import sys
import tomllib

MiB = 1 << 20
WORKLOADS = ["fillrandom", "a", "b", "c"]
SCHEMES = ["baseline", "baza", "baza+"]
# Beside the paper's three: the rule of the released ZenFS.
ALL = SCHEMES + ["zenfs"]
NAMES = {"fillrandom": "fillrandom", "a": "A", "b": "B", "c": "C"}


# The runs of a profile, in the order of the page.
TITLES = {
    "timed": "the model of the paper's emulated drive",
    "untimed": "no timing model",
    "paced": "the model, the user at 16 MB a second, so that collection keeps up",
    "open": "the model, 1,000 open files",
    "logged": "the model, with a write-ahead log",
    "zn540": "the model of a ZN540 (V8)",
    "small": "the model, zones of 8 MiB, blob files of 4 MiB (V9)",
    "full": "the published size, no timing model",
    "deep": "the model, small levels: several lifetimes",
    "unlimited": "the model, no limit of active zones",
    "printed": "the model, equation 1 as it is printed",
}


class Runs:
    """The runs of one profile, and the scheme that the others are compared with: the paper's baseline
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


CATALOGUE = os.path.join(os.path.dirname(__file__), "../crates/lab/data/claims.toml")


# The published figures by claim and name: unit and number.
def published():
    with open(CATALOGUE, "rb") as file:
        claims = tomllib.load(file)["claim"]
    return {
        (claim["id"], figure["name"]): (figure["unit"], figure["paper"])
        for claim in claims if claim["source"] == "same-victim"
        for figure in claim["figures"] if "paper" in figure
    }


# Bytes of blobs that zone cleaning copied, at the published size.
def cleaned(scheme, workload, unit):
    def figure(runs):
        mean = runs.mean(scheme or runs.base, workload, copied)
        return None if mean is None else mean * MiB * 8 / unit
    return figure


# Zones in use. None where a workload failed under a scheme: then there is nothing to hold the others
# against.
def in_use(scheme):
    def figure(runs):
        if None in [runs.average(other, used) for other in (runs.base, "baza")]:
            return None
        return runs.average(scheme or runs.base, used)
    return figure


def over(scheme, workloads, figure):
    return lambda runs: runs.ratio(scheme, workloads, figure)


def less(ratio):
    return lambda runs: None if ratio(runs) is None else 100 * (1 - ratio(runs))


def share(ratio):
    return lambda runs: None if ratio(runs) is None else 100 * ratio(runs)


# How each figure of the catalogue is made of runs, by claim and by name; bytes at the published size.
FIGURES = {
    "V1": {
        "lifetime allocation": cleaned(None, "a", 1e9),
        "by age": cleaned("baza", "a", 1e6),
        "by age, cut off by zone": cleaned("baza+", "a", 1e6),
    },
    "V2": {
        "by age": cleaned("baza", "fillrandom", 1e6),
        "by age, cut off by zone": cleaned("baza+", "fillrandom", 1e6),
    },
    "V3": {
        "lifetime allocation": in_use(None),
        "by age": in_use("baza"),
        "by age, cut off by zone": in_use("baza+"),
    },
    "V4": {
        "less, on average": less(over("baza+", WORKLOADS, relocated)),
        "by age, less": less(over("baza", WORKLOADS, relocated)),
    },
    "V5": {
        "by age, less": less(over("baza", WORKLOADS, compaction)),
        "both, less": less(over("baza+", WORKLOADS, compaction)),
    },
    "V6": {
        "by age": over("baza", WORKLOADS, throughput),
        "both": over("baza+", WORKLOADS, throughput),
    },
    "V7": {
        "PUT, by age": over("baza", WORKLOADS, put),
        "PUT, both": over("baza+", WORKLOADS, put),
        "GET, by age": over("baza", ["b", "c"], get),
        "GET, both": over("baza+", ["b", "c"], get),
    },
    "V8": {
        "cleaning copies, baseline": cleaned(None, "a", 1e9),
        "cleaning copies, both": cleaned("baza+", "a", 1e9),
        "blob GC copies, less": less(over("baza+", ["a"], relocated)),
        "throughput": over("baza+", ["a"], throughput),
    },
    "V9": {
        "cleaning copies, baseline": cleaned(None, "a", 1e9),
        "cleaning copies, both": cleaned("baza+", "a", 1e9),
        "blob GC copies, of before": share(over("baza+", ["a"], relocated)),
        "throughput": over("baza+", ["a"], throughput),
    },
}
# The profile of the runs that stand for a claim, and what they are compared with: the paper's baseline is
# "current BlobDB-ZenFS", the rule of the released ZenFS; with zn540 and small zones only LIZA was run.
STANDS = {claim: ("timed", "zenfs") for claim in FIGURES} | {
    "V8": ("zn540", "baseline"), "V9": ("small", "baseline")}
# Figures of V1 that nothing was published of: with a user that leaves collection the time it needs.
TRIAL = ("V1", "paced", "user at 16 MB/s, ")


# Four digits.
def quantity(value):
    digits = 0 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# What the appendix of the claims lacks: figures on other drives and against the other baseline.
BESIDES = [("timed", "baseline"), ("untimed", "baseline"), ("untimed", "zenfs")]


# A row for each figure that has others: claim, name, unit, published, ours with the seeds' range.
def figures(by):
    out = []
    for (claim, name), (unit, paper) in published().items():
        if STANDS[claim] != ("timed", "zenfs"):
            continue
        cells = []
        for profile, base in BESIDES:
            runs = Runs(by[profile].all, profile, base)
            found = FIGURES[claim][name](runs)
            seeds = [FIGURES[claim][name](one) for one in runs.seeds()]
            each = [x for x in seeds if x is not None]
            cell = "–" if found is None else quantity(found)
            if found is not None and len(each) < len(seeds):
                cell += f" (of {len(each)} seed)" if len(each) == 1 else f" (of {len(each)} seeds)"
            elif len(each) > 1 and min(each) != max(each):
                cell += f" ({quantity(min(each))} to {quantity(max(each))})"
            cells.append(cell)
        out.append([claim, name, f"{quantity(paper)} {unit.replace('x', '×')}"] + cells)
    return out


# The commit that the runs of the profiles in `kept` were landed with.
COMMIT = "d07a573"


# Lines for docs/research/data/claims.jsonl, at the published size.
def kept(by):
    units = published()

    # Where the mean of the seeds' figures is not the figure of all seeds, that of all stands.
    def line_of(name, unit, value, runs):
        found = value(runs)
        each = [value(one) for one in runs.seeds()]
        line = {"name": name, "unit": unit}
        if None not in each and math.isclose(statistics.mean(each), found, abs_tol=1e-12):
            return line | {"values": each}
        return line | {"values": [found], "by_seed": each}

    out = []
    for claim, all_figures in FIGURES.items():
        profile, base = STANDS[claim]
        runs = Runs(by[profile].all, profile, base)
        rule = "the rule of the released ZenFS" if base == "zenfs" else "LIZA as the paper describes it"
        lines = [
            line_of(name, units[claim, name][0], value, runs)
            for name, value in all_figures.items() if value(runs) is not None
        ]
        if claim == TRIAL[0]:
            tried = [run for run in by[TRIAL[1]].all if run["workload"] == "a"]
            tried = Runs(tried, TRIAL[1], base)
            lines += [
                line_of(TRIAL[2] + name, units[claim, name][0], value, tried)
                for name, value in all_figures.items() if value(tried) is not None
            ]
        note = f"Bytes times eight; the baseline is {rule}."
        if any("by_seed" in line for line in lines):
            note += " A ratio is that of the means over the seeds, ± the range of the seeds' own."
        out.append({
            "claim": claim, "commit": COMMIT,
            "command": f"scripts/same-victim.sh {profile}", "size": "scaled",
            "seeds": [one.all[0]["seed"] for one in runs.seeds()], "note": note,
            "figures": lines,
        })
    return out


# Our lines of the file of kept figures are written again; all others stay. A new file takes the place of
# the old one at once, so that nobody finds half of it.
def keep(path, lines):
    with open(path) as file:
        others = [text for text in file if not json.loads(text)["command"].startswith("scripts/same-victim.sh")]
    with open(f"{path}.new", "w") as file:
        file.writelines(others + [json.dumps(line) + "\n" for line in lines])
    os.replace(f"{path}.new", path)


MEASURES = [
    ("MiB of blobs copied by zone cleaning", copied, True),
    ("MiB of blobs relocated by RocksDB", relocated, False),
    ("Operations a second", throughput, False),
]


# A measure by profile, workload and scheme: the mean, with the range if that is asked for.
def table(by, figure, ranges):
    lines = ["| profile | workload | " + " | ".join(ALL) + " |", "|---|---|" + "--:|" * len(ALL)]
    for profile in TITLES:
        for workload in WORKLOADS:
            tried = [r for r in by[profile].all if r["workload"] == workload]
            if not tried:
                continue
            cells = []
            for scheme in ALL:
                values = by[profile].values(scheme, workload, figure)
                if not ranges or not values or spread([min(values)]) == spread([max(values)]):
                    values = [statistics.mean(values)] if values else []
                failed = sum(1 for r in tried if r["scheme"] == scheme and "failed" in r)
                cells.append(spread(values) + (f", {failed} failed" if failed else ""))
            lines.append(f"| {profile} | {NAMES[workload]} | " + " | ".join(cells) + " |")
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
    found = figures(by)
    page = [
        "# Same-Victim garbage collection: the runs",
        "",
        "Means of all runs of `scripts/same-victim.sh all`, by profile, workload and scheme. What they show is in",
        "[same-victim-findings.md](same-victim-findings.md), the verdicts on those that stand for the claims in",
        "[claims/same-victim.md](claims/same-victim.md). `scripts/same-victim.sh table` makes this page from",
        "`docs/research/data/same-victim.jsonl`, which has a line for each run, with more measures and all seeds.",
        "",
        "Schemes: *baseline* is LIZA as the paper describes it, *zenfs* the rule of the released ZenFS, *baza* BAZA,",
        "*baza+* BAZA with Same-Victim collection. Profiles, with the number of runs of a scheme and workload:",
        "",
    ]
    for profile, title in TITLES.items():
        counts = {}
        for run in by[profile].all:
            counts[run["scheme"], run["workload"]] = counts.get((run["scheme"], run["workload"]), 0) + 1
        if counts:
            least, most = min(counts.values()), max(counts.values())
            page.append(f"- *{profile}*: {title}; " + (f"{least}" if least == most else f"{least} to {most}"))
    page += [
        "",
        "## Figures of the claims on other drives and baselines",
        "",
        "Bytes are times eight, as the drive is an eighth of the published one. In brackets the range of the seeds' own",
        "figures; a figure of all seeds is made of their means. The appendix has *timed* compared with *zenfs*.",
        "",
        "| claim | figure | published | "
        + " | ".join(f"{profile}, {base}" for profile, base in BESIDES) + " |",
        "|---|---|--:|" + "--:|" * len(BESIDES),
    ]
    page += ["| " + " | ".join(row) + " |" for row in found]
    for title, figure, ranges in MEASURES:
        page += ["", f"## {title}", ""]
        page += table(by, figure, ranges)
    if by["sweep"].all:
        page += [
            "", "## Cut-offs", "", "The cut-off is the oldest share of blob files that RocksDB collects: 0.25 in all runs above. Workload A, *timed*.", "",
            "| cut-off | scheme | MiB copied by zones | relocated by RocksDB | operations a second |",
            "|--:|---|--:|--:|--:|",
        ]
        for cutoff in [0.05, 0.1, 0.25, 0.35, 0.5]:
            profile = by["timed"] if cutoff == 0.25 else by["sweep"]
            for scheme in ["baseline", "baza"]:
                values = [
                    profile.values(scheme, "a", figure, cutoff=cutoff)
                    for figure in (copied, relocated, throughput)
                ]
                if values[0]:
                    means = " | ".join(spread([statistics.mean(v)]) for v in values)
                    page.append(f"| {cutoff} | {scheme} | {means} |")
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
    print(f"{docs}/claims-same-victim.md: {len(runs)} runs")


main()
