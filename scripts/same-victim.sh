#!/usr/bin/env bash
# The workloads of the Same-Victim GC paper: scripts/same-victim.sh [--out FILE] [--seeds N] PROFILE...
#
# An eighth of the paper's size with counts kept: 64 zones of 128 MiB, values of 16 KiB, blob files
# and memtable of 8 MiB, tables of 64 MiB as published; values are zeros behind their first bytes, which
# a drive in memory keeps in little room. Each run adds a line of JSON to FILE
# (docs/data/same-victim.jsonl). Profiles:
#   untimed    three schemes and the rule of the released ZenFS, four workloads; a drive in memory
#              without a timing model
#   timed      the same on the model of a ZN540 by the real clock, eight times slower than the drive:
#              an eighth of the bytes then takes as long as all of them would
#   zn540      claim V8: workload A on the first 64 zones of a ZN540, by the real clock
#   small      claim V9: workload A, zones of 8 MiB, blob files of 4 MiB
#   full       the published size once: 64 zones of 1 GiB, values of 128 KiB,
#              blob files and memtable of 64 MiB; about 1 GB of memory
#   sweep      workload A with cut-offs from 0.05 to 0.5, which the paper does not state
#   deep       workload A with levels so small that tables, and with them blob files, have several
#              lifetimes: base 1 MiB, tables of 256 KiB
#   unlimited  workload A without a limit of active zones
#   printed    workload A with equation 1 as it is printed
#   all        all of these
#   table      docs/claims-same-victim.md from FILE; nothing is run
. "$(dirname "$0")/lib.sh"

out=docs/data/same-victim.jsonl
seeds=3
profiles=()
while [ $# -gt 0 ]; do
    case "$1" in
    --out) out="$2"; shift ;;
    --seeds) seeds="$2"; shift ;;
    all) profiles+=(untimed small deep sweep unlimited printed full timed zn540 table) ;;
    untimed | timed | zn540 | small | full | deep | sweep | unlimited | printed | table) profiles+=("$1") ;;
    *) fail "unknown: $1; scripts/same-victim.sh [--out FILE] [--seeds N] PROFILE..., see its head" ;;
    esac
    shift
done
[ "${#profiles[@]}" -gt 0 ] || fail "no profile; all runs all, several hours"

program="$target_dir/release/rocksdb-plugin/workload"
if [ "${profiles[*]}" != table ]; then
    scripts/rocksdb.sh build
    make --no-print-directory -s -C plugins/rocksdb PROFILE=release \
        TARGET="$(realpath "$target_dir")" workload
fi
mkdir -p "$(dirname "$out")"

limits=max-active=14,max-open=14
plain="mem:capacity=8GiB,zone-size=128MiB"
clock="timing=realtime,model=zn540-1t,time-scale=8"

# $1: profile, $2: drive, $3: scheme, $4: workload, $5: seed, the rest: settings
run() {
    local profile="$1" drive="$2" scheme="$3" workload="$4" seed="$5" line policy=baza
    shift 5
    local settings=(records=196608 operations=196608 cutoff=0.25 zeros=1)
    [ "$workload" != fillrandom ] || settings=(operations=294912 cutoff=0.25 zeros=1)
    case "$scheme" in
    baseline) policy=liza-paper ;;
    zenfs) policy=liza-zenfs ;;
    baza+) settings+=(same-victim=on) ;;
    esac
    if ! line="$("$program" "furrow://$drive?policy=$policy" workload="$workload" seed="$seed" \
        "${settings[@]}" "$@" 2>"$out.err")"; then
        line="{\"version\": 1, \"workload\": \"$workload\", \"seed\": $seed, \"failed\": \"$(
            tail -1 "$out.err" | tr -d '"\\')\"}"
        say "$profile, $scheme, $workload, seed $seed: failed: $(tail -1 "$out.err")"
    fi
    rm -f "$out.err"
    printf '{"profile": "%s", "scheme": "%s", %s\n' "$profile" "$scheme" "${line#\{}" >>"$out"
    say "$profile, $scheme, $workload, seed $seed: after $SECONDS s"
}

schemes="baseline baza baza+"
for profile in "${profiles[@]}"; do
    for seed in $(seq 1 "$seeds"); do
        case "$profile" in
        untimed | timed)
            drive="$plain,$limits"
            [ "$profile" = untimed ] || drive="$drive,$clock"
            for workload in fillrandom a b c; do
                for scheme in $schemes; do run "$profile" "$drive" "$scheme" "$workload" "$seed"; done
                [ "$profile" = timed ] || run "$profile" "$drive" zenfs "$workload" "$seed"
            done
            ;;
        zn540)
            # An eighth of 1,077 MiB, in whole MiB.
            drive="mem:capacity=8640MiB,zone-size=135MiB,$limits,$clock"
            for scheme in baseline baza+; do run zn540 "$drive" "$scheme" a "$seed"; done
            ;;
        small)
            drive="mem:capacity=8GiB,zone-size=8MiB,$limits"
            for scheme in baseline baza+; do
                run small "$drive" "$scheme" a "$seed" blob=4194304 memtable=4194304
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
                    run sweep "$plain,$limits" "$scheme" a "$seed" cutoff=$cutoff
                done
            done
            ;;
        deep)
            for scheme in $schemes zenfs; do
                run deep "$plain,$limits" "$scheme" a "$seed" level=1048576 table=262144
            done
            ;;
        unlimited)
            for scheme in $schemes; do run unlimited "$plain" "$scheme" a "$seed"; done
            ;;
        printed) run printed "$plain,$limits" baza+ a "$seed" same-victim=as-printed ;;
        table) ;;
        esac
    done
    [ "$profile" != table ] || python3 scripts/same-victim.py "$out" docs
done
