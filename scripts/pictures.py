#!/usr/bin/env python3
"""The drawings of the documents: scripts/pictures.py [--check]

Writes docs/stack.svg, what stands on what, and docs/use/speed.svg, the mount's speed beside other
file systems, from the tables of the pages that have the measurements. With --check it writes nothing
and ends with 1 if a drawing is not what the pages say.
"""

import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FONT = "font-family:system-ui,sans-serif"
STYLE = (
    f".fp text{{{FONT};font-size:13px;fill:#1f2328}}.fp .s{{font-size:11px;fill:#59636e}}"
    ".fp .m{text-anchor:middle}.fp .e{text-anchor:end}.fp .h{font-weight:600}"
    ".fp .l{stroke:#59636e;fill:none}.fp .g{stroke:#d1d9e0;fill:none}.fp .b{stroke:#8c959f;stroke-width:1}"
    ".fp .c0{fill:#ddf4ff}.fp .c1{fill:#dafbe1}.fp .c2{fill:#fff8c5}.fp .c3{fill:#f6f8fa}"
    ".fp .up{fill:#1a7f37}.fp .down{fill:#bc4c00}"
    "@media (prefers-color-scheme:dark){.fp text{fill:#f0f3f6}.fp .s{fill:#b7bdc8}"
    ".fp .l{stroke:#b7bdc8}.fp .g{stroke:#3d444d}.fp .b{stroke:#656c76}"
    ".fp .c0{fill:#0c2d6b}.fp .c1{fill:#033a16}.fp .c2{fill:#3b2300}.fp .c3{fill:#212830}"
    ".fp .up{fill:#3fb950}.fp .down{fill:#f0883e}}"
)


def drawing(width, height, label, parts):
    """An SVG of `parts`, right in light and dark."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fp" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def box(x, y, width, height, color, title, *below):
    """A box with a title and lines below it."""
    middle = x + width / 2
    top = y + height / 2 - 7 * len(below) + 5
    parts = [f'<rect class="b c{color}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>']
    parts.append(f'<text class="m h" x="{middle:g}" y="{top:g}">{escape(title)}</text>')
    for number, line in enumerate(below, 1):
        parts.append(f'<text class="m s" x="{middle:g}" y="{top + 15 * number:g}">{escape(line)}</text>')
    return parts


def arrow(x, y, end):
    """A line down from `y` to `end` with a head."""
    return [f'<path class="l" d="M{x:g} {y}V{end}M{x - 4:g} {end - 5}L{x:g} {end}L{x + 4:g} {end - 5}"/>']


def stack():
    """Three engines on one core, and the drives below it."""
    parts = []
    columns = [
        ("any program", "mount (FUSE)", "file system", ("Z-LFS on small zones,", "HZFS on large ones")),
        ("any block client", "NBD, ublk", "RAID volume", ("ZapRAID:", "appends and writes")),
        ("RocksDB, Java too", "plugin, C interface", "file store", ("Same-Victim", "collection")),
    ]
    for number, (user, front, engine, about) in enumerate(columns):
        x = 10 + 210 * number
        parts += box(x, 10, 200, 30, 3, user)
        parts += arrow(x + 100, 40, 56)
        parts += box(x, 56, 200, 30, 0, front)
        parts += arrow(x + 100, 86, 102)
        parts += box(x, 102, 200, 62, 1, engine, *about)
        parts += arrow(x + 100, 164, 180)
    parts += box(10, 180, 620, 46, 2, "one core", "ordered writers, zone pool, cleaning, checkpoints, checks")
    drives = [
        ("ZNS SSD", "block device or NVMe"),
        ("SMR disk", "host-managed"),
        ("soft zones", "any SSD, disk, file"),
        ("emulated drive", "image or memory"),
    ]
    for number, (title, about) in enumerate(drives):
        x = 10 + 157 * number
        parts += arrow(x + 74.5, 226, 242)
        parts += box(x, 242, 149, 46, 3, title, about)
    label = "Programs use a mount, a volume or a file store; all three engines stand on one core, which uses any drive"
    return drawing(640, 298, label, parts)


def table(page, heading):
    """The rows of the first table of `page` after `heading`."""
    lines = (ROOT / page).read_text().split(heading, 1)[1].split("\n")
    first = next(at for at, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[0], rows[2:]


def number(cell):
    return float(cell.replace(",", ""))


def speeds():
    """Groups of (title, [(name, the mount's rate over another file system's)])."""
    _, rows = table("docs/use/soft-zones.md", "## Speed")
    names = []
    for name, _, mount, *_ in rows:
        name = re.sub(r", (?:MB|1)/s$", "", name).replace("the same", "random and fsync")
        names.append((name.replace("at random", "random"), float(mount.split(", ")[1])))
    groups = [("over ext4, soft zones on a virtual disk (soft-zones.md)", names)]
    head, rows = table("docs/research/side-by-side.md", "## Times")
    phases = {"sequential": "sequential write", "create": "create and fsync", "read": "sequential read"}
    for other, shown in (("xfs", "XFS"), ("f2fs", "F2FS"), ("btrfs", "btrfs")):
        at, names = head.index(other), []
        for row in rows:
            if row[1] != "left out":
                names.append((phases[row[0].split(",")[0]], number(row[1]) / number(row[at])))
        groups.append((f"over {shown}, modelled ZNS drive (side-by-side.md)", names))
    return groups


def speed():
    """Bars from 1 to each ratio, on a logarithmic axis."""
    left, right, low, high = 300, 590, 0.1, 4.0
    place = lambda ratio: left + (right - left) * math.log(ratio / low) / math.log(high / low)
    parts, y = [], 34
    for title, rows in speeds():
        parts.append(f'<text class="h" x="10" y="{y + 4}">{escape(title)}</text>')
        y += 10
        for name, ratio in rows:
            assert low < ratio < high, f"{name}: {ratio} is outside the axis"
            start, end = sorted((place(1), place(ratio)))
            kind = "up" if ratio >= 1 else "down"
            parts.append(f'<text class="e s" x="{left - 8}" y="{y + 12}">{escape(name)}</text>')
            parts.append(
                f'<rect class="{kind}" x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="11"/>'
            )
            side, x = ("", end + 4) if ratio >= 1 else ("e ", start - 4)
            parts.append(f'<text class="{side}s" x="{x:.1f}" y="{y + 12}">{ratio:.2f}</text>')
            y += 17
        y += 22
    height = y - 8
    axis = []
    for tick in (0.1, 0.25, 0.5, 1, 2, 4):
        x = place(tick)
        axis.append(f'<path class="{"l" if tick == 1 else "g"}" d="M{x:.1f} 22V{height - 4}"/>')
        axis.append(f'<text class="m s" x="{x:.1f}" y="16">{tick:g}</text>')
    axis.append('<text class="s" x="10" y="16">Furrow\'s rate over another\'s: right of 1 is faster</text>')
    return drawing(640, height, "Rates of Furrow's mount over those of ext4, XFS, F2FS and btrfs", axis + parts)


def main():
    check = "--check" in sys.argv[1:]
    stale = []
    for name, text in (("docs/stack.svg", stack()), ("docs/use/speed.svg", speed())):
        path = ROOT / name
        if check:
            if not path.exists() or path.read_text() != text:
                stale.append(name)
        else:
            path.write_text(text)
    for name in stale:
        print(f"{name} is not what the pages say: run scripts/pictures.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
