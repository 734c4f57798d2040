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
# Streams 3.9 works with the RocksDB for which Debian has the headers.
streams=3.9.1 rocksdb=7.8.3 kafka=4.1.0 slf4j=org.slf4j:slf4j-simple:1.7.36
started=$SECONDS
furrow="$(realpath -m "$target_dir")/release/furrow"
plugin="$(realpath -m "$target_dir")/release/java/rocksdbjni-$rocksdb"
[ -x "$furrow" ] || fail "$furrow does not exist: run 'make build' first"
[ -e "$plugin" ] || fail "$plugin does not exist: run 'make rocksdb-jni VERSION=$rocksdb' first"
work="$(mktemp -d)"
processes=()
# What this script started is ended by its process number, the newest first.
finish() {
    local index
    for ((index = ${#processes[@]} - 1; index >= 0; index--)); do
        kill -KILL "${processes[index]}" 2>/dev/null || true
        wait "${processes[index]}" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT

# A port of the loopback that nobody listens on.
free_port() {
    local port
    for port in $(shuf -i 20000-29999 -n 50); do
        if ! (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            say "$port"
            return
        fi
    done
    fail "no free port on the loopback"
}

fetch_jars "streams-$streams" "org.apache.kafka:kafka-streams:$streams" "org.rocksdb:rocksdbjni:$rocksdb" "$slf4j"
fetch_jars "kafka-$kafka" "org.apache.kafka:kafka_2.13:$kafka" "$slf4j"
mkdir "$work/classes"
javac -nowarn -d "$work/classes" -cp "$jars/streams-$streams/*" plugins/rocksdb/java/StreamsTest.java
java="$(command -v java)"
quiet="-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
test=("$java" -Xmx300m "$quiet" -cp "$jars/streams-$streams/*:$work/classes" StreamsTest)

port="$(free_port)" control="$(free_port)"
broker="127.0.0.1:$port"
cat >"$work/server.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$control
listeners=PLAINTEXT://$broker,CONTROLLER://127.0.0.1:$control
advertised.listeners=PLAINTEXT://$broker
controller.listener.names=CONTROLLER
log.dirs=$work/kafka
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
END
server=("$java" -Xmx400m "$quiet" -cp "$jars/kafka-$kafka/*")
"${server[@]}" kafka.tools.StorageTool format -t "$("${server[@]}" kafka.tools.StorageTool random-uuid)" \
    -c "$work/server.properties" >"$work/log" 2>&1 || { cat "$work/log"; fail "the broker's storage"; }
"${server[@]}" kafka.Kafka "$work/server.properties" >"$work/broker.log" 2>&1 &
processes+=($!)
for ((wait = 0; wait < 600; wait++)); do
    ! (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    kill -0 "${processes[0]}" 2>/dev/null || { tail "$work/broker.log"; fail "the broker has ended"; }
    sleep 0.1
done
"${test[@]}" topic "$broker"
say "a Kafka $kafka broker runs on $broker"

drive="$work/store.zns"
"$furrow" device create "$drive" -o capacity=512MiB,zone-size=4MiB,max-active=14 >/dev/null
"$furrow" kv mkfs "$drive" >/dev/null
say "a store for RocksDB on an emulated zoned drive of 512 MiB"

# Runs the program; it reads what it is told from $work/told. Its process is in $program.
program() {
    rm -f "$work/told"
    mkfifo "$work/told"
    "$furrow" run --store "$drive" --same-victim --follow-directories -- \
        "${test[@]}" run "$broker" "$work/state" <"$work/told" >"$work/table" 2>"$work/program.log" &
    program=$!
    processes+=("$program")
    exec 9>"$work/told"
}

# Asks the program for its table, ends it, and compares the table.
compare() {
    local topic
    program
    printf 'show\n' >&9
    exec 9>&-
    wait "$program" || { tail "$work/program.log"; fail "the program has failed"; }
    for topic in numbers streams-test-newest-changelog; do
        "${test[@]}" expect "$broker" "$topic" >"$work/expected"
        cmp -s "$work/expected" "$work/table" || fail "the table is not that of the topic $topic:" \
            "$(tail -n 1 "$work/table") instead of $(tail -n 1 "$work/expected")"
    done
    say "$1: $(tail -n 1 "$work/table" | cut -d' ' -f2) keys, as in the topic and in the table's changelog"
}

RANDOM="${SEED:-1}"
for ((round = 1; round <= kills; round++)); do
    program
    "${test[@]}" feed "$broker" "$round" 3000 700
    sleep "$((1 + RANDOM % 4)).$((RANDOM % 10))"
    kill -KILL "$program" || { tail "$work/program.log"; fail "the program has ended by itself"; }
    wait "$program" 2>/dev/null || true
    exec 9>&-
    say "killed ($round of $kills)"
done
compare "restarted after the last kill"
"$furrow" kv fsck "$drive" >"$work/log" || { cat "$work/log"; fail "the store is damaged"; }

# The group of the program that ended is known to the broker for a moment.
for ((wait = 0; wait < 30; wait++)); do
    ! "${test[@]}" forget "$broker" >"$work/log" 2>&1 || break
    sleep 1
done
"${test[@]}" reset "$broker" "$work/state"
"${test[@]}" topic "$broker"
"${test[@]}" feed "$broker" 0 200 100
compare "restarted after the program wiped its state"
# Another store has not what the directory stands for.
"$furrow" kv mkfs --force "$drive" >/dev/null
program
printf 'show\n' >&9
exec 9>&-
! wait "$program" && grep -q "is not in this store" "$work/program.log" ||
    { tail "$work/program.log"; fail "an empty store was taken for the program's"; }
say "an empty store in its place is refused: the offsets that Kafka Streams keeps would not fit"
say "done, after $((SECONDS - started)) s"
