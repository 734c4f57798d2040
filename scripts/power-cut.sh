#!/usr/bin/env bash
# fio writes over NBD, the power of all drives is cut, and fio verifies its data:
# scripts/power-cut.sh [ROUNDS] [LEVEL]
#
# Each round fio writes at random with checksums (32 requests under way); in the middle it notes the
# acknowledged writes, and has the power of all drives cut at once. The daemon is killed, the array
# is assembled from the data that the drives kept, and fio reads back all noted writes. The drives
# have no volatile cache: with a cache only flushed data must survive, which
# crates/cli/tests/power.rs checks.
. "$(dirname "$0")/lib.sh"

rounds="${1:-5}" level="${2:-5}"
have fio || fail "missing: fio; run scripts/setup.sh test"
furrow="${FURROW:-$target_dir/release/furrow}"
if [ -z "${FURROW:-}" ]; then
    say "building furrow, optimised (a few minutes the first time)"
    cargo build --release --locked -p furrow-cli
fi
work="$(mktemp -d)"
export FURROW_RUN="$work/run"
uri="nbd+unix:///p?socket=$FURROW_RUN/p.nbd"
finish() {
    local status=$?
    trap - EXIT INT TERM
    kill -9 "$(pid)" 2>/dev/null || true
    if [ "$status" -eq 0 ]; then rm -rf "$work"; else say "kept for inspection: $work"; fi
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Blocks written since the array was assembled.
written() { "$furrow" raid status p --json | sed -n 's/.*"written": \([0-9]*\).*/\1/p'; }
pid() { "$furrow" raid status p --json 2>/dev/null | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'; }
cd "$work"
drives=()
for i in 0 1 2 3; do
    "$furrow" device create "d$i.zns" \
        -o zones=64,zone-size=4MiB,oob=64,max-active=14,max-open=14,volatile-cache=off >/dev/null
    drives+=("d$i.zns")
done
"$furrow" raid create --level "$level" --name p "${drives[@]}"
"$furrow" raid assemble "${drives[@]}" --log log

# Arguments of both halves of a round. $1: its number, which fio takes as the seed only with randrepeat off:
# otherwise all rounds write the same bytes to the same places, and a lost write looks like the earlier one.
job() {
    printf '%s\n' --name=p --ioengine=nbd --uri="$uri" \
        --rw=randwrite --bs=4k --size=160m --iodepth=32 --verify=crc32c --verify_fatal=1 \
        --randrepeat=0 --randseed="$1" --random_generator=tausworthe64 --norandommap=0 --group_reporting
}
for round in $(seq "$rounds"); do
    mapfile -t arguments < <(job "$round")
    rm -f ./*.state trigger
    # At the trigger fio ends the job that it will verify, notes the acknowledged writes, and has
    # the power cut at once.
    fio "${arguments[@]}" --do_verify=0 --rate=60m --verify_state_save=1 \
        --trigger-file="$work/trigger" \
        --trigger="$furrow raid fault p all add power-cut" >"fio-$round.log" 2>&1 &
    load=$!
    while [ "$(written)" -lt 2000 ]; do sleep 0.05; done
    # Continues to write during the power cut, so that commands are in flight.
    fio --name=beside --ioengine=nbd --uri="$uri" --rw=randwrite --bsrange=4k-64k --iodepth=16 \
        --offset=160m --size=96m --time_based --runtime=60 --randrepeat=0 --randseed="$((round + 1000))" \
        >"beside-$round.log" 2>&1 &
    beside=$!
    sleep "0.$((RANDOM % 9 + 1))"
    : >trigger
    wait "$load" || true
    # fio ends with errors, as it must.
    wait "$beside" && fail "round $round: the power was not cut"
    kill -9 "$(pid)"
    first="${drives[0]}"
    drives=("${drives[@]:1}" "$first")
    "$furrow" raid assemble "${drives[@]}" --log log
    ls ./*.state >/dev/null 2>&1 || fail "round $round: fio has kept no state"
    fio "${arguments[@]}" --verify_only=1 --verify_state_load=1 >"verify-$round.log" 2>&1 ||
        { tail -n 20 "verify-$round.log"; fail "round $round: an acknowledged write is lost"; }
    verified="$(sed -n 's/.*issued rwts: total=\([0-9]*\),.*/\1/p' "verify-$round.log")"
    [ "${verified:-0}" -ge 100 ] ||
        { cat "fio-$round.log"; fail "round $round: too little was written to verify"; }
    say "round $round: the power was cut, $verified acknowledged writes of fio, none lost"
done
"$furrow" raid scrub p --wait
"$furrow" raid stop p
