#!/usr/bin/env bash
# The workloads of the Same-Victim GC paper: scripts/same-victim.sh [SEEDS [OUT]]
#
# An eighth of the paper's size with counts kept: 64 zones of 128 MiB, values of 16 KiB, blob files
# and memtable of 8 MiB, tables of 64 MiB as published; a drive in memory without a timing model.
# Three schemes, four workloads, each with SEEDS seeds (3), one after the other. Each run adds a line
# of JSON to OUT (target/same-victim.jsonl); at the end a table of medians.
. "$(dirname "$0")/lib.sh"

seeds="${1:-3}"
out="${2:-$target_dir/same-victim.jsonl}"
profile=release
program="$target_dir/$profile/rocksdb-plugin/workload"
scripts/rocksdb.sh build
make --no-print-directory -s -C plugins/rocksdb PROFILE=$profile \
    TARGET="$(realpath "$target_dir")" workload

drive="${FURROW_SV_DRIVE:-mem:capacity=8GiB,zone-size=128MiB,max-active=14,max-open=14}"
: >"$out"
# $1: scheme, $2: policy, $3: workload, $4: seed, the rest: settings
run() {
    local scheme="$1" policy="$2" workload="$3" seed="$4" line
    shift 4
    local counts="records=196608 operations=196608"
    [ "$workload" != fillrandom ] || counts="operations=294912"
    # shellcheck disable=SC2086
    if ! line="$("$program" "furrow://$drive?policy=$policy" workload="$workload" seed="$seed" \
        $counts "$@" 2>"$out.err")"; then
        line="{\"version\": 1, \"workload\": \"$workload\", \"seed\": $seed, \"failed\": true}"
        say "$scheme $workload seed $seed: FAILED: $(tail -1 "$out.err")"
    fi
    printf '{"scheme": "%s", %s\n' "$scheme" "${line#\{}" >>"$out"
}

for seed in $(seq 1 "$seeds"); do
    for workload in fillrandom a b c; do
        run baseline liza-paper "$workload" "$seed" cutoff=0.25
        run baza baza "$workload" "$seed" cutoff=0.25
        run baza+ baza "$workload" "$seed" cutoff=0.25 same-victim=on
        say "seed $seed, $workload: done after $SECONDS s"
    done
done

python3 - "$out" <<'END'
import json, statistics, sys
runs = [json.loads(line) for line in open(sys.argv[1])]
MiB = 1 << 20
columns = [
    ("blobs copied by zones, MiB", lambda r: r["copied_blobs"] / MiB),
    ("relocated by RocksDB, MiB", lambda r: r["relocated"] / MiB),
    ("zones used", lambda r: r["used_zones"]),
    ("peak", lambda r: r["peak_zones"]),
    ("compaction s", lambda r: r["compaction_seconds"]),
    ("operations/s", lambda r: r["operations"] / r["seconds"]),
    ("put us", lambda r: r["put_us"]),
    ("get us", lambda r: r["get_us"]),
    ("flushes/compaction", lambda r: r["flushes"] / max(1, r["compactions"])),
    ("stale", lambda r: r["stale"] / max(1, r["watched"])),
]
print(f"{'workload':11}{'scheme':10}" + "".join(f"{name:>32}" for name, _ in columns))
for workload in ["fillrandom", "a", "b", "c"]:
    for scheme in ["baseline", "baza", "baza+"]:
        some = [r for r in runs if r["workload"] == workload and r["scheme"] == scheme]
        good = [r for r in some if not r.get("failed")]
        cells = []
        for _, value in columns:
            values = [value(r) for r in good]
            cells.append(
                f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
                if values else "failed")
        print(f"{workload:11}{scheme:10}" + "".join(f"{cell:>32}" for cell in cells)
              + (f"  {len(some) - len(good)} failed" if len(good) < len(some) else ""))
END
