#!/usr/bin/env bash
# RocksJava's own tests on a store and on the host: SOURCES=DIRECTORY scripts/rocksdb-jni-own.sh VERSION
#
# SOURCES has the sources of that RocksDB (its java/src/test). VERSION and ARTIFACT are as in
# scripts/rocksdb-jni.sh, which has built the plugin before. Prints the tests whose results differ, with the
# first line of why; `unknown` is one that never ended. EXCEPT=PATTERN leaves out classes, such as
# MultiGetManyKeysTest, which takes as long as all others. The store is in memory.
. "$(dirname "$0")/lib.sh"

version="${1:?which version of rocksdbjni? VERSION=7.8.3, as in the name of the jar}"
tests="${SOURCES:?the directory of the sources of that RocksDB}/java/src/test"
artifact="${ARTIFACT:-org.rocksdb:rocksdbjni}"
name="${artifact##*:}-$version"
furrow="$(realpath -m "$target_dir")/release/furrow"
[ -d "$tests" ] || fail "$tests does not exist"
[ -e "$(dirname "$furrow")/java/$name" ] || fail "no plugin for $name: scripts/rocksdb-jni.sh build $version"
fetch_jars "$name" "$artifact:$version"
fetch_jars rocksjava-tests junit:junit:4.13.1 org.hamcrest:hamcrest:2.2 cglib:cglib:3.3.0 \
    org.assertj:assertj-core:2.9.0 org.mockito:mockito-all:1.10.19
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/classes"
path="$jars/$name/$name.jar:$jars/rocksjava-tests/*"
find "$tests/java" plugins/rocksdb/java/OwnTests.java -name '*.java' >"$work/sources"
javac -nowarn -d "$work/classes" -cp "$path" "@$work/sources" >"$work/log" 2>&1 ||
    { tail "$work/log"; fail "the tests cannot be compiled"; }
[ ! -d "$tests/resources" ] || cp -r "$tests/resources/." "$work/classes"
mapfile -t classes < <(cd "$tests/java" && find . -name '*Test.java' | sed 's|^\./||; s|\.java$||; s|/|.|g' |
    grep -Ev "${EXCEPT:-^$}" | sort)
# RocksJava's tests of buffers want this of a newer Java.
java=("$(command -v java)" -Xmx1g -ea --add-opens=java.base/java.nio=ALL-UNNAMED -cp "$path:$work/classes" OwnTests
    "${classes[@]}")

# $1: host or store, the rest: command
run() {
    local where="$1"
    shift
    mkdir "$work/$where"
    # Some tests make a database in the working directory.
    (cd "$work/$where" && TMPDIR="$work/$where" exec timeout 1800 "$@") >"$work/$where.out" 2>"$work/$where.err" ||
        { tail "$work/$where.err"; say "$where: the virtual machine has failed"; }
    sed -n 's/^test //p' "$work/$where.out" | sort >"$work/$where.tests"
    say "$where: $(grep -c ' passed$' "$work/$where.tests") tests of ${#classes[@]} classes pass"
}
run host "${java[@]}"
run store "$furrow" run --store mem:capacity=4GiB,zone-size=64MiB -- "${java[@]}"
join -a 1 -a 2 -e unknown -o 0,1.2,2.2 "$work/host.tests" "$work/store.tests" | awk '$2 != $3' >"$work/differ"
while read -r test host store; do
    say "$test: $host on the host, $store on the store: $(grep -m 1 "^$test: " "$work/store.err" | cut -c -160)"
done <"$work/differ"
[ -s "$work/differ" ] || say "no test differs"
