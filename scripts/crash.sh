#!/usr/bin/env bash
# Power cuts at every command of simulated runs: scripts/crash.sh slice|full
#
# First it simulates whole lives of file systems and file stores on drives of many shapes, and of
# volumes on several drives, with faults and power cuts, by seed.
# For each subject it prints cut points, fates, a histogram of the commands in flight, and the
# number of crashed states that were reopened and compared with the promises. Then built-in defects
# must be caught: a harness that finds nothing may be blind.
. "$(dirname "$0")/lib.sh"

case "${1:-slice}" in
# Many seeds, each cut at up to the given number of commands. The tests' profile is optimised and
# has assertions; with the features of the other tests the program is built already. `cargo test`
# runs the seeds below these, lives of stores among them, and catches the defects of all engines but
# the volume's: this form does not repeat that.
slice)
    build=(build_as_tests) profile=debug
    lives="60 --runs 240" volumes="41 --runs 30" stores=""
    effort="--seed 1000 --cuts 150 --seconds"
    fs=12 fsync=5 rot=5 flip=3 raid=12 kv=6 soft=4 soft_fs=4 ledger=3
    ;;
# Every command of every run.
full)
    build=(cargo build --locked --release -p furrow-sim) profile=release
    lives="1 --runs 50000" volumes="1 --runs 1000" stores="1 --runs 10000"
    effort="--reopens"
    fs=300000 fsync=50000 rot=50000 flip=50000 raid=50000 kv=50000 soft=50000 soft_fs=50000
    ledger=50000
    ;;
*) fail "unknown form '$1': slice or full" ;;
esac
form="${1:-slice}"
threads="$(nproc)"

say "building the simulator, optimised (a few minutes the first time)"
"${build[@]}"
sim="$target_dir/$profile/furrow-sim"
failed=0

# $1: subject, $2: seconds or reopens
sweep() {
    say
    # shellcheck disable=SC2086 # an option and the name of another
    "$sim" crash --subject "$1" $effort "$2" --threads "$threads" || failed=1
}

# $1: subject with its defect; further options
caught() {
    local output status=0
    # One status for "a failure was found", others for anything else that goes wrong.
    output="$("$sim" crash --subject "$@" --seconds 60 --threads "$threads" 2>&1)" || status=$?
    if [ "$status" -eq 1 ]; then
        local reopens
        reopens="$(awk '$1 == "reopens" { print $2 }' <<<"$output")"
        printf '%-28s caught, within %s reopens\n' "$1" "$reopens"
    else
        printf '%-28s NOT CAUGHT (status %s)\n%s\n' "$1" "$status" "$output"
        failed=1
    fi
}

# A simulation takes one processor: all three run at once, and what they print comes in order.
outputs="$(mktemp -d)"
trap 'rm -rf "$outputs"' EXIT
running=()
# $1: subject, $2: the first seed and the number of runs
simulate() {
    # shellcheck disable=SC2086 # a seed, an option and its value
    "$sim" --subject "$1" $2 --quiet >"$outputs/$1" 2>&1 &
    running+=("$1:$!")
}
simulate raid "$volumes"
simulate fs "$lives"
[ -z "$stores" ] || simulate kv "$stores"
for one in "${running[@]}"; do
    wait "${one#*:}" || failed=1
    cat "$outputs/${one%:*}"
done
sweep fs "$fs"
sweep fsync "$fsync"
sweep rot "$rot"
sweep flip "$flip"
sweep raid "$raid"
sweep kv "$kv"
sweep soft "$soft"
sweep soft-fs "$soft_fs"
sweep ledger "$ledger"
say
for defect in EarlyAck TornStripe FreshSequence TrimWithoutRecord Unlisted EarlyDegradedAck \
    SkippedFlush UnflushedMember; do
    caught "raid:$defect" --cuts 40
done
if [ "$form" = full ]; then
    for defect in SkippedFlush EarlyAck IgnoredExtent ReuseBeforeRelease ReleaseLiveRecord SkippedUnit \
        NoWritePointers SkippedRecord ForgottenBlocks; do
        caught "fs:$defect"
    done
    for defect in DroppedCrc RecomputedCrc; do caught "rot:$defect"; done
    for defect in SkippedFlush EarlyAck EarlyRelease UncheckedCommit EarlyRingReset; do
        caught "kv:$defect" --cuts 100
    done
    for defect in SkippedFlush LateRecord VolatileGeneration EarlyLife UncheckedRange TornTable \
        DiscardBelieved UnflushedRecovery; do
        caught "soft:$defect"
    done
    for defect in SkippedFlush EarlyAck IgnoredExtent EarlyRelease; do caught "ledger:$defect"; done
fi
say
[ "$failed" -eq 0 ] || fail "failures above"
say "no failure, each of these defects caught, ${SECONDS} s"
