#!/usr/bin/env bash
# A program of Kafka Streams whose table is in RocksDB on a zoned drive: scripts/demo-jvm.sh [KILLS]
#
# A Kafka broker runs on the loopback. The program, unmodified, keeps the newest value of each key, exactly
# once; it is killed with SIGKILL while it works (KILLS times, 1), started again, and its table compared
# with the topic and with the table's changelog. Then its state is wiped as Kafka Streams does it, by
# removing directories of the host, and must be gone from the store too. Everything ends by itself.
. "$(dirname "$0")/lib.sh"

kills="${1:-1}"
[[ "$kills" =~ ^[0-9]+$ ]] || fail "'$kills': expected how often to kill the program"
started=$SECONDS
. scripts/streams-lib.sh

RANDOM="${SEED:-1}"
for ((round = 1; round <= kills; round++)); do
    program once
    "${test[@]}" feed "$broker" "$round" 3000 700 2000
    sleep "$((1 + RANDOM % 4)).$((RANDOM % 10))"
    kill_program
    say "killed ($round of $kills)"
done
same="keys, as in the topic and in the table's changelog"
program once
compare once
end_program || { tail "$work/program.log"; fail "the program has failed"; }
say "restarted after the last kill: $keys $same"
"$furrow" kv fsck "$drive" >"$work/log" || { cat "$work/log"; fail "the store is damaged"; }

# The group of the program that ended is known to the broker for a moment.
for ((wait = 0; wait < 30; wait++)); do
    ! "${test[@]}" forget "$broker" once >"$work/log" 2>&1 || break
    sleep 1
done
"${test[@]}" reset "$broker" "$work/state" once
"${test[@]}" topic "$broker"
"${test[@]}" feed "$broker" 0 200 100 2000
program once
compare once
end_program || { tail "$work/program.log"; fail "the program has failed"; }
say "restarted after the program wiped its state: $keys $same"
# Another store has not what the directory stands for.
"$furrow" kv mkfs --force "$drive" >/dev/null
program once
say "show once $work/tables/once" >&9
! end_program && grep -q "is not in this store" "$work/program.log" ||
    { tail "$work/program.log"; fail "an empty store was taken for the program's"; }
say "an empty store in its place is refused: the offsets that Kafka Streams keeps would not fit"
say "done, after $((SECONDS - started)) s"
