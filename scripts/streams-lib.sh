# Sourced by demo-jvm.sh and streams-kills.sh: a Kafka broker on the loopback, a store on an emulated zoned
# drive, and programs of Kafka Streams on it. Everything that is started ends with the script.

# Streams 3.9 works with the RocksDB for which Debian has the headers.
streams=3.9.1 rocksdb="$ROCKSDBJNI_VERSION" kafka=4.1.0 slf4j=org.slf4j:slf4j-simple:1.7.36
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
javac -nowarn -d "$work/classes" -cp "$jars/streams-$streams/*" plugins/rocksdb/java/Streams*.java
quiet="-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
# Most of what runs is short: the compiler of long runs would not pay.
java=("$(command -v java)" -Xmx400m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "$quiet")
path="$jars/streams-$streams/*:$work/classes"
test=("${java[@]}" -cp "$path" StreamsTest)

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
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
END
server=("${java[@]}" -cp "$jars/kafka-$kafka/*")
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
on_store=("$furrow" run --store "$drive" --same-victim --follow-directories --)
mkdir "$work/tables" "$work/expected"

# Runs the programs of StreamsTest that are named; they read what they are told from $work/told and tell
# what they restore in $work/restores. Their process is in $program. $delay: of each batch that is restored
program() {
    rm -f "$work/told"
    mkfifo "$work/told"
    # Of the programs before; whoever waits for a restore must not see theirs.
    : >"$work/restores"
    "${on_store[@]}" "${java[@]}" "-Dbatch.delay=${delay:-0}" -cp "$path" StreamsTest run "$broker" \
        "$work/state" "$@" <"$work/told" >"$work/restores" 2>"$work/program.log" &
    program=$!
    processes+=("$program")
    exec 9>"$work/told"
}

# The process $program, by SIGKILL
kill_program() {
    kill -KILL "$program" || { tail "$work/program.log"; fail "the program has ended by itself"; }
    wait "$program" 2>/dev/null || true
    exec 9>&-
}

# Ends the running programs as they want it. $?: theirs
end_program() {
    exec 9>&-
    wait "$program"
}

# Asks the running programs for their tables and compares them with the topic and the tables' changelogs.
# $@: the programs. $keys: the number of keys
compare() {
    local name topic wait table changelogs=("${@/#/streams-}")
    changelogs=("${changelogs[@]/%/-newest-changelog}")
    for name in "$@"; do
        table="$work/tables/$name"
        rm -f "$table"
        say "show $name $table" >&9
        for ((wait = 0; wait < 1200; wait++)); do
            [ ! -e "$table" ] || break
            kill -0 "$program" 2>/dev/null || break
            sleep 0.1
        done
        [ -e "$table" ] || { tail "$work/program.log"; fail "the program $name has failed"; }
    done
    "${test[@]}" expect "$broker" "$work/expected" numbers "${changelogs[@]}"
    for name in "$@"; do
        table="$work/tables/$name"
        for topic in numbers "streams-$name-newest-changelog"; do
            cmp -s "$work/expected/$topic" "$table" || fail "the table of $name is not that of the topic" \
                "$topic: $(diff "$table" "$work/expected/$topic" | cut -c -100 | head -n 5)"
        done
        keys="$(tail -n 1 "$table" | cut -d' ' -f2)"
    done
}
