#!/usr/bin/env bash
# Kills programs of Kafka Streams with a store on a zoned drive, and compares what is left with the tables'
# changelogs: scripts/streams-kills.sh [KILLS [SEED]]
#
# Two programs, one exactly-once and one at-least-once, run in one Java virtual machine. BlobDB and
# Same-Victim collection are on, and databases follow the host's directories. KILLS (20) by SIGKILL take turns:
#
# work      while records are processed
# wipe      the same; then directories of tasks are removed on the host, of one task or of all
# restore   while tables are rebuilt from their changelogs, after their directories were removed
# start     while the programs start, after they had ended by themselves
# again     while records are processed, and once more while the exactly-once table, which Kafka Streams
#           discards without .checkpoint, is rebuilt after that
#
# After each kill, the databases are read as the kill left them: no value is torn or older than .checkpoint
# says, and .checkpoint is not beyond the changelog. Databases that must not come back, since their directory
# is gone or Kafka Streams is about to discard them, get a key that no topic has. Then the programs are
# started again, and their whole tables compared with the topic and with the changelogs. A line for each kill.
# Needs what `make demo-jvm` needs and builds.
. "$(dirname "$0")/lib.sh"

kills="${1:-20}" seed="${2:-1}"
[[ "$kills$seed" =~ ^[0-9]+$ ]] || fail "'$*': expected how often to kill the programs, and a seed"
started=$SECONDS
. scripts/streams-lib.sh
kinds=(work wipe restore start again)
state=("${on_store[@]}" "${java[@]}" -cp "$path" StreamsState)
tasks=(once/0_0 once/0_1 least/0_0 least/0_1)
interrupted=0 marked=0
RANDOM="$seed"

# The program is in the middle of new records for a random time when it is killed.
kill_at_work() {
    "${test[@]}" feed "$broker" "$((seed * 1000 + round))" 24000 8000 600 &
    local feeder=$!
    processes+=("$feeder")
    sleep "$((1 + RANDOM % 5)).$((RANDOM % 10))"
    kill_program
    wait "$feeder" || fail "the topic cannot be written"
}

# Starts the programs and kills them while tables are rebuilt.
kill_at_restore() {
    local wait
    delay=50 program once least
    for ((wait = 0; wait < 600; wait++)); do
        ! grep -q '^batch' "$work/restores" || break
        sleep 0.1
    done
    [ "$wait" -lt 600 ] || fail "no restore has begun within a minute"
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    kill_program
    [ "$(grep -c '^restoring' "$work/restores")" -le "$(grep -c '^restored' "$work/restores")" ] ||
        interrupted=$((interrupted + 1))
}

# Removes directories of tasks on the host. $@: PROGRAM/TASK
wipe() {
    local task
    for task in "$@"; do
        rm -rf "$work/state/streams-$task"
    done
}

# Marks the databases of tasks. $@: PROGRAM/TASK
mark() {
    [ $# -gt 0 ] || return 0
    "${state[@]}" mark "$work/state" "$@" >"$work/marked" 2>"$work/log" ||
        { tail "$work/log"; fail "a database cannot be marked"; }
    marked=$((marked + $(grep -c ' marked' "$work/marked" || true)))
}

"${test[@]}" feed "$broker" "$((seed * 1000))" 24000 8000 600
program once least
compare once least
for ((round = 1; round <= kills; round++)); do
    kind="${kinds[(round - 1) % ${#kinds[@]}]}"
    doomed=()
    case "$kind" in
    work | wipe) kill_at_work ;;
    restore)
        end_program || { tail "$work/program.log"; fail "the programs have failed"; }
        mark "${tasks[@]}"
        wipe "${tasks[@]}"
        kill_at_restore
        ;;
    start)
        end_program || { tail "$work/program.log"; fail "the programs have failed"; }
        program once least
        sleep "$((RANDOM % 5)).$((RANDOM % 10))"
        kill_program
        ;;
    again)
        kill_at_work
        rm -f "$work/state"/streams-once/*/.checkpoint
        mark once/0_0 once/0_1
        kill_at_restore
        ;;
    esac
    "${state[@]}" check "$broker" "$work/state" once least >"$work/found" 2>"$work/log" ||
        { cat "$work/found"; tail "$work/log"; fail "kill $round of $kills ($kind): the state is not as the changelog"; }
    if [ "$kind" = wipe ]; then
        doomed=("${tasks[@]}")
        [ $((RANDOM % 3)) -eq 0 ] || doomed=("${tasks[RANDOM % 2]}" "${tasks[2 + RANDOM % 2]}")
    fi
    # Kafka Streams discards an exactly-once table that it finds without .checkpoint.
    for task in once/0_0 once/0_1; do
        [[ -e "$work/state/streams-$task/.checkpoint" || " ${doomed[*]} " = *" $task "* ]] || doomed+=("$task")
    done
    mark "${doomed[@]}"
    [ "$kind" != wipe ] || wipe "${doomed[@]}"
    program once least
    compare once least
    say "kill $round of $kills, $kind: $(paste -sd ';' "$work/found" | sed 's/;/; /g');" \
        "then all $keys keys as in the changelogs"
done
end_program || { tail "$work/program.log"; fail "the programs have failed"; }
"$furrow" kv fsck "$drive" >"$work/log" || { cat "$work/log"; fail "the store is damaged"; }
[ "$kills" -lt 5 ] || [ "$interrupted" -gt 0 ] || fail "no kill fell into a restore"
say "$kills kills, $interrupted in a restore; $marked databases that had to go are gone; nothing was lost;" \
    "$((SECONDS - started)) s"
