#!/usr/bin/env bash
# The workloads of the Same-Victim GC paper: scripts/same-victim.sh [--out FILE] [--seeds N] PROFILE...
#
# An eighth of the paper's size with counts kept: 64 zones of 128 MiB, values of 16 KiB, blob files
# and memtable of 8 MiB, tables of 64 MiB as published; values are zeros behind their first bytes, which
# a drive in memory keeps in little room. Each run adds a line of JSON to FILE
# (docs/research/data/same-victim.jsonl). Profiles:
#   untimed    three schemes and the rule of the released ZenFS, four workloads; a drive in memory
#              without a timing model
#   timed      the same on the model of its emulated drive (ConfZNS), by the real clock: all
#              its sizes divided by eight, its times left, so that a value, a zone and a run take as long
#              as those of the published size would
#   logged     the same with RocksDB's write-ahead log
#   paced      as timed, workloads fillrandom and A at 16 MB a second of the user: collection keeps up
#   open       as timed, workload A with 1,000 open files instead of the published 4: what RocksDB
#              collects is read without opening a file for nearly each value
#   zn540      claim V8: workload A on the first 64 zones of a ZN540, by the real clock, likewise
#   small      claim V9: workload A, zones of 8 MiB, blob files of 4 MiB, on the emulated drive's model
#   full       the published size once: 64 zones of 1 GiB, values of 128 KiB,
#              blob files and memtable of 64 MiB; about 1 GB of memory
#   sweep      as timed, workload A with cut-offs from 0.05 to 0.5, which the paper does not state
#   deep       as timed, workload A with levels so small that tables, and with them blob files, have
#              several lifetimes: base 1 MiB, tables of 256 KiB
#   unlimited  as timed, workload A without a limit of active zones
#   printed    as timed, workload A with equation 1 as it is printed
#   all        all of these; those by the real clock six at a time
#   table      from FILE, nothing is run: docs/research/claims-same-victim.md, and the figures of claims V1 to V9 in
#              docs/research/data/claims.jsonl, of which `furrow-lab pages docs/research` makes the pages about claims
. "$(dirname "$0")/lib.sh"

out=docs/research/data/same-victim.jsonl
seeds=3
profiles=()
while [ $# -gt 0 ]; do
    case "$1" in
    --out) out="$2"; shift ;;
    --seeds) seeds="$2"; shift ;;
    all) profiles+=(untimed small deep sweep unlimited printed full timed logged paced open zn540 table) ;;
    untimed | timed | logged | paced | open | zn540 | small | full | deep | sweep | unlimited | printed | table) profiles+=("$1") ;;
    *) fail "unknown: $1; scripts/same-victim.sh [--out FILE] [--seeds N] PROFILE..., see its head" ;;
    esac
    shift
done
[ "${#profiles[@]}" -gt 0 ] || fail "no profile; all runs all, two hours"

program="$target_dir/release/rocksdb-plugin/workload"
if [ "${profiles[*]}" != table ]; then
    scripts/rocksdb.sh build
    make --no-print-directory -s -C plugins/rocksdb PROFILE=release \
        TARGET="$(realpath "$target_dir")" workload
fi
mkdir -p "$(dirname "$out")"

limits=max-active=14,max-open=14
plain="mem:capacity=8GiB,zone-size=128MiB"
confzns="max-transfer=256KiB,max-append=16KiB,timing=realtime,model=confzns,model.unit=2KiB\
,model.page=2KiB,model.group-rate=36408888B/s,model.channel-rate=81920kB/s,model.link-rate=400MB/s"
zn540="max-transfer=256KiB,max-append=16KiB,timing=realtime,model=zn540-1t\
,model.write-service=512B:5.32us/1KiB:5.6us/2KiB:8.9us/16KiB:62.3us\
,model.append-service=512B:7.25us/1KiB:6.6us/2KiB:8.9us/16KiB:62.3us\
,model.write-latency=512B:11.6us/1KiB:11.6us/2KiB:16.6us/4KiB:22.6us/16KiB:47us\
,model.append-latency=512B:15.1us/1KiB:14.3us/2KiB:20.5us/4KiB:28.3us/16KiB:52us\
,model.buffer=512KiB,model.zone-quota=128KiB,model.unit=12KiB,model.group-rate=147200KiB/s\
,model.page=2KiB,model.channel-rate=56250kB/s,model.link-rate=340MB/s,model.reset-rate=10281250kB/s\
,model.reset-active-above=12800B,model.finish-rate=151808KiB/s"
timed="$plain,$limits,$confzns"
# Runs by the real clock wait for their drives most of the time.
abreast=6

# $1: profile, $2: drive, $3: scheme, $4: workload, $5: seed, the rest: settings
run() {
    local profile="$1" drive="$2" scheme="$3" workload="$4" seed="$5" line policy=baza
    local err="$out.$profile-$scheme-$workload-$seed.err"
    shift 5
    local settings=(records=196608 operations=196608 cutoff=0.25 zeros=1)
    [ "$workload" != fillrandom ] || settings=(operations=294912 cutoff=0.25 zeros=1)
    case "$scheme" in
    baseline) policy=liza-paper ;;
    zenfs) policy=liza-zenfs ;;
    baza+) settings+=(same-victim=on) ;;
    esac
    if ! line="$("$program" "furrow://$drive?policy=$policy" workload="$workload" seed="$seed" \
        "${settings[@]}" "$@" 2>"$err")"; then
        line="{\"version\": 1, \"workload\": \"$workload\", \"seed\": $seed, \"failed\": \"$(
            tail -1 "$err" | tr -d '"\\')\"}"
        say "$profile, $scheme, $workload, seed $seed: failed: $(tail -1 "$err")"
    fi
    rm -f "$err"
    printf '{"profile": "%s", "scheme": "%s", %s\n' "$profile" "$scheme" "${line#\{}" >>"$out"
    say "$profile, $scheme, $workload, seed $seed: after $SECONDS s"
}

# As `run`, but as many at a time as wait for their drives.
run_abreast() {
    while [ "$(jobs -rp | wc -l)" -ge "$abreast" ]; do wait -n; done
    run "$@" &
}

schemes="baseline baza baza+"
for profile in "${profiles[@]}"; do
    for seed in $(seq 1 "$seeds"); do
        case "$profile" in
        untimed)
            for workload in fillrandom a b c; do
                for scheme in $schemes zenfs; do
                    run untimed "$plain,$limits" "$scheme" "$workload" "$seed"
                done
            done
            ;;
        timed | logged)
            wal=0
            [ "$profile" = timed ] || wal=1
            for workload in fillrandom a b c; do
                for scheme in $schemes zenfs; do
                    run_abreast "$profile" "$timed" "$scheme" "$workload" "$seed" wal=$wal
                done
            done
            ;;
        paced)
            for workload in fillrandom a; do
                for scheme in $schemes zenfs; do
                    run_abreast paced "$timed" "$scheme" "$workload" "$seed" rate=16000000
                done
            done
            ;;
        open)
            for scheme in $schemes zenfs; do run_abreast open "$timed" "$scheme" a "$seed" open-files=1000; done
            ;;
        zn540)
            # An eighth of 1,077 MiB, in whole MiB.
            drive="mem:capacity=8640MiB,zone-size=135MiB,$limits,$zn540"
            for scheme in baseline baza+; do run_abreast zn540 "$drive" "$scheme" a "$seed"; done
            ;;
        small)
            drive="mem:capacity=8GiB,zone-size=8MiB,$limits,$confzns"
            for scheme in baseline baza+; do
                run_abreast small "$drive" "$scheme" a "$seed" blob=4194304 memtable=4194304
            done
            ;;
        full)
            [ "$seed" = 1 ] || continue
            for workload in fillrandom a b c; do
                for scheme in $schemes; do
                    run full "mem:capacity=64GiB,zone-size=1GiB,$limits" "$scheme" "$workload" 1 \
                        value=131072 blob=67108864 memtable=67108864
                done
            done
            ;;
        sweep)
            for cutoff in 0.05 0.1 0.35 0.5; do
                for scheme in baseline baza; do
                    run_abreast sweep "$timed" "$scheme" a "$seed" cutoff=$cutoff
                done
            done
            ;;
        deep)
            for scheme in $schemes zenfs; do
                run_abreast deep "$timed" "$scheme" a "$seed" level=1048576 table=262144
            done
            ;;
        unlimited)
            for scheme in $schemes; do run_abreast unlimited "$plain,$confzns" "$scheme" a "$seed"; done
            ;;
        printed) run_abreast printed "$timed" baza+ a "$seed" same-victim=as-printed ;;
        table) ;;
        esac
    done
    wait
    [ "$profile" != table ] || python3 scripts/same-victim.py "$out" docs/research
done
