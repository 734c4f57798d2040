#!/usr/bin/env bash
# The cost of collecting garbage of blob files over several drive capacities, at equal peak space:
# scripts/collection.sh [SEEDS [OUT]]
#
# The nominal drive has 62 zones of ZONE MiB (4), of which the record ring takes six. Live data are
# 50, 65 and 80 % of the drive, and four times the nominal drive is overwritten, also on larger
# drives, so that schemes that find no space on the nominal one show the space they need. The six
# schemes on drives of 1 and 1.5 times the nominal size are run for each seed, the other points of
# the curves once. Drives are in memory and not timed. Each run adds a line to OUT
# (docs/research/collection/runs.jsonl); runs with a line there are not run again. The bound goes to
# bound.jsonl in the same directory. Then the pictures and tables of docs/research/collection.md are made.
. "$(dirname "$0")/lib.sh"

seeds="${1:-3}"
out="${2:-docs/research/collection/runs.jsonl}"
bounds="$(dirname "$out")/bound.jsonl"
profile=release
program="${WORKLOAD:-$target_dir/$profile/rocksdb-plugin/workload}"
furrow="${FURROW:-$target_dir/$profile/furrow}"
lab="${FURROW_LAB:-$target_dir/$profile/furrow-lab}"
if [ -z "${WORKLOAD:-}" ]; then
    scripts/rocksdb.sh build
    cargo build --quiet --locked --release -p furrow-cli -p furrow-lab
    make --no-print-directory -s -C plugins/rocksdb PROFILE=$profile \
        TARGET="$(realpath "$target_dir")" workload
fi
mkdir -p "$(dirname "$out")"
touch "$out"

zone="${ZONE:-4}"
first="${FIRST:-1}"
nominal=$((62 * zone * 1024 * 1024))
# Blob files and memtables are an eighth of a zone.
part=$((zone * 131072))
common="workload=sustained nominal=$nominal turns=4 value=16384 blob=$part memtable=$part \
table=262144 level=1048576 open-files=256"

# $1: scheme, $2: setting, $3: live share, $4: seed, $5: size of the drive over the nominal one,
# $6: options of the store, the rest: settings of the driver
run() {
    local scheme="$1" setting="$2" live="$3" seed="$4" drive="$5" options="$6" line size
    shift 6
    if grep -q "\"scheme\": \"$scheme\", \"setting\": \"$setting\", .*\"seed\": $seed,.*\"live\": $live," "$out"; then
        return
    fi
    # Two zones more, and the spare zones of the record ring: one in 32, at least one, at most four.
    # Without the spare ones the ring has eight zones.
    size=$(awk "BEGIN {
        files = int(62 * $drive + 0.5)
        for (spares = 1; spares < 4 && files + 2 + spares >= 32 * (spares + 1);) spares++
        print (files + 2 + spares) * $zone
    }")
    # shellcheck disable=SC2086
    if ! line="$(timeout 1200 "$program" \
        "furrow://mem:capacity=${size}MiB,zone-size=${zone}MiB,max-active=14,max-open=14?$options" \
        $common live="$live" seed="$seed" "$@" 2>"$out.err")"; then
        say "$scheme, $setting, $live live, seed $seed: FAILED: $(tail -1 "$out.err")"
        return
    fi
    printf '{"scheme": "%s", "setting": "%s", %s\n' "$scheme" "$setting" "${line#\{}" >>"$out"
    say "$scheme, $setting, $live live, seed $seed: $(tail -1 "$out.err") after $SECONDS s"
}

# The six schemes on a drive of $3 times the nominal size. $1: live share, $2: seed
schemes() {
    local live="$1" seed="$2" drive="$3"
    run "LIZA" "cut-off 0.25, drive $drive" "$live" "$seed" "$drive" policy=liza-paper cutoff=0.25
    run "BAZA" "cut-off 0.25, drive $drive" "$live" "$seed" "$drive" policy=baza cutoff=0.25
    run "Same-Victim" "drive $drive" "$live" "$seed" "$drive" policy=baza same-victim=on
    run "Same-Victim if short" "below 20 %, drive $drive" "$live" "$seed" "$drive" policy=baza \
        same-victim=on short=20
    run "no collection" "drive $drive" "$live" "$seed" "$drive" policy=baza collect=off
    run "dead ranges" "below 20 %, drive $drive" "$live" "$seed" "$drive" policy=generations \
        collect=off dead-ranges=on
}

# The other points of the curves. $1: live share, $2: seed
walk() {
    local live="$1" seed="$2" cutoff drive
    schemes "$live" "$seed" 2
    for cutoff in 0.5 1; do
        run "LIZA" "cut-off $cutoff, drive 1.5" "$live" "$seed" 1.5 policy=liza-paper cutoff="$cutoff"
        run "BAZA" "cut-off $cutoff, drive 1.5" "$live" "$seed" 1.5 policy=baza cutoff="$cutoff"
    done
    run "BAZA" "cut-off 0.1, drive 2" "$live" "$seed" 2 policy=baza cutoff=0.1
    run "Same-Victim" "drive 1.25" "$live" "$seed" 1.25 policy=baza same-victim=on
    # Zones are hardly cleaned here: RocksDB's collection works alone.
    for drive in 1.5 2; do
        run "Same-Victim" "zones below 3 %, drive $drive" "$live" "$seed" "$drive" \
            policy=baza,clean-below=3 same-victim=on
        run "Same-Victim if short" "zones below 3 %, drive $drive" "$live" "$seed" "$drive" \
            policy=baza,clean-below=3 same-victim=on short=20
        run "BAZA" "cut-off 0.25, zones below 3 %, drive $drive" "$live" "$seed" "$drive" \
            policy=baza,clean-below=3 cutoff=0.25
    done
    for cutoff in 0.05 0.1; do
        for drive in 1 1.25; do
            run "BAZA" "cut-off $cutoff, zones below 3 %, drive $drive" "$live" "$seed" "$drive" \
                policy=baza,clean-below=3 cutoff="$cutoff"
        done
    done
    run "dead ranges" "below 5 %, drive 1" "$live" "$seed" 1 policy=generations,clean-below=5 \
        collect=off dead-ranges=on
    run "dead ranges" "below 50 %, drive 1.5" "$live" "$seed" 1.5 \
        policy=generations,clean-below=50 collect=off dead-ranges=on
    run "dead ranges" "below 20 %, drive 1.25" "$live" "$seed" 1.25 policy=generations \
        collect=off dead-ranges=on
}

# The bound: the best that one writer could do.
bound() {
    local live="$1" trace="$target_dir/collection.csv"
    ! grep -q "\"live\":$live," "$bounds" 2>/dev/null || return 0
    # shellcheck disable=SC2086
    "$program" trace: $common live="$live" seed=1 trace="$trace"
    "$lab" bound "$trace" --zone-size ${zone}MiB --step 1MiB --memtable $part --points 16 \
        --live "$live" --nominal "$nominal" --json >>"$bounds"
    rm -f "$trace"
    say "bound, $live live: after $SECONDS s"
}

if [ "$first" -eq 1 ]; then
    for live in 0.5 0.65 0.8; do
        bound "$live"
    done
fi
for seed in $(seq "$first" "$seeds"); do
    for live in 0.5 0.65 0.8; do
        schemes "$live" "$seed" 1
        schemes "$live" "$seed" 1.5
    done
done
for live in 0.5 0.65 0.8; do
    [ "$first" -gt 1 ] || walk "$live" 1
done
rm -f "$out.err"
[ "$out" != docs/research/collection/runs.jsonl ] || "$lab" collection docs/research
