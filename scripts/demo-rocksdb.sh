#!/usr/bin/env bash
# Stock db_bench on an emulated drive, three times the same: files placed by lifetime (the baseline
# of the Same-Victim GC paper), blob files placed in the order of creation (BAZA), and BAZA with
# Same-Victim collection. Shown side by side: bytes that each collector copied, space, throughput,
# zone maps.
. "$(dirname "$0")/lib.sh"

furrow="$target_dir/release/furrow"
work="$target_dir/demo-rocksdb"
rm -rf "$work"
mkdir -p "$work"

# 96 zones of 16 MiB, values of 16 KiB, blob files of 2 MiB: 8 to a zone.
shape=capacity=1792MiB,zone-size=16MiB,max-active=14,max-open=14
keys=32000

# $1: name, $2: policy, the rest: options of `furrow run`
run() {
    local name="$1" policy="$2" drive="$work/$1.zns" from=$SECONDS
    shift 2
    "$furrow" device create "$drive" --option "$shape" >/dev/null
    "$furrow" kv mkfs "$drive" >/dev/null
    say "$name: furrow run --store $drive --policy $policy $* -- db_bench ..."
    "$furrow" run --store "$drive" --policy "$policy" --report "$work/$name.json" "$@" -- db_bench \
        --benchmarks=fillrandom,overwrite,overwrite,waitforcompaction --statistics \
        --db=/bench --num=$keys --key_size=16 --value_size=16384 --seed=7 --disable_wal=1 \
        --enable_blob_files=true --min_blob_size=4096 --blob_file_size=2097152 \
        --enable_blob_garbage_collection=true --blob_garbage_collection_age_cutoff=0.25 \
        --write_buffer_size=2097152 --compression_type=none --max_bytes_for_level_base=131072 \
        --target_file_size_base=16384 --max_background_flushes=2 --max_background_compactions=2 \
        --subcompactions=4 >"$work/$name.txt" 2>&1 ||
        { tail -5 "$work/$name.txt"; fail "db_bench failed on $name"; }
    "$furrow" kv fsck "$drive" | sed 's/^/  /'
    say "  $((SECONDS - from)) s"
}

run lifetime liza-paper
run baza baza
run same-victim baza --same-victim --same-victim-log "$work/same-victim.csv"

python3 - "$work" <<'END'
import json, re, sys
work = sys.argv[1]
names = ["lifetime", "baza", "same-victim"]
MiB = 1 << 20
rows = {}
for name in names:
    report = json.load(open(f"{work}/{name}.json"))
    text = open(f"{work}/{name}.txt").read()
    count = lambda what: int((re.findall(rf"{what} COUNT : (\d+)", text) or ["0"])[-1])
    rates = [float(x) for x in re.findall(r"^(?:fillrandom|overwrite).*?(\d+) ops/sec", text, re.M)]
    rows[name] = [
        ("user bytes written", f"{count('rocksdb.bytes.written') / MiB:.0f} MiB"),
        ("copied by RocksDB's collection", f"{count('rocksdb.blobdb.gc.bytes.relocated') / MiB:.0f} MiB"),
        ("copied by zone cleaning, blobs", f"{report['copied_blobs'] / MiB:.1f} MiB"),
        ("copied by zone cleaning, tables", f"{report['copied_tables'] / MiB:.1f} MiB"),
        ("zones cleaned, zones reset", f"{report['zones_cleaned']}, {report['resets']}"),
        ("most zones in use", f"{report['peak_zones']} of {report['zones']}"),
        ("in use at the end", f"{report['used'] / MiB:.0f} MiB"),
        ("operations/s, each of three fills", " ".join(f"{rate:.0f}" for rate in rates)),
    ]
print()
print(f"{'':34}" + "".join(f"{name:>22}" for name in names))
for i, (label, _) in enumerate(rows[names[0]]):
    print(f"{label:34}" + "".join(f"{rows[name][i][1]:>22}" for name in names))
lines = [line.strip().split(",") for line in open(f"{work}/same-victim.csv")]
late = 0
for line in lines:
    k, n, ideal_k, ideal_n = map(int, line[2:6])
    late += int((k + 0.5) / max(n, 1) * ideal_n) != ideal_k
print(f"\nSame-Victim: {len(lines)} compactions, {late} of them with a cut-off that was out of date")
END

for name in lifetime baza same-victim; do
    say
    say "$name:"
    "$furrow" kv map "$work/$name.zns" >"$work/map.txt"
    sed -n '/^ *[0-9]/p' "$work/map.txt" | cut -c1-110
done
say
sed -n '/^use /,/^cells:/p' "$work/map.txt"
say
say "one untimed run each: the bytes copied depend on timing, see docs/use/rocksdb.md"
rm -f "$work"/*.zns
