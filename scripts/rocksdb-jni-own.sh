#!/usr/bin/env bash
# RocksJava's own tests on a store and on the host: SOURCES=DIRECTORY scripts/rocksdb-jni-own.sh VERSION
#
# SOURCES has the sources of that RocksDB (its java/src/test). VERSION and ARTIFACT are as in
# scripts/rocksdb-jni.sh, which has built the plugin before. Prints the tests whose results differ, with the
# first line of why; `unknown` is one that never ended. EXCEPT=PATTERN leaves out classes, such as
# MultiGetManyKeysTest, which takes as long as all others. The store is in memory. scripts/setup.sh rocksdb-jni
# installs what it needs.
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
failed=0

# $1: host or store, the rest: what java is run by
run() {
    local where="$1"
    shift
    mkdir "$work/$where"
    # RocksJava's tests of buffers want the option of java.nio of a newer Java. Some make a database in the
    # working directory.
    (cd "$work/$where" && exec timeout 1800 "$@" "$(command -v java)" -Xmx1g -ea \
        --add-opens=java.base/java.nio=ALL-UNNAMED "-Djava.io.tmpdir=$work/$where" \
        -cp "$path:$work/classes" OwnTests "${classes[@]}") >"$work/$where.out" 2>"$work/$where.err" ||
        { failed=1; tail "$work/$where.err"; say "$where: the virtual machine has failed"; }
    sed -n 's/^test //p' "$work/$where.out" | sort >"$work/$where.tests"
    [ -s "$work/$where.tests" ] || fail "$where: no test has run"
    say "$where: $(grep -c ' passed$' "$work/$where.tests") tests of ${#classes[@]} classes pass"
}
run host
run store "$furrow" run --store mem:capacity=4GiB,zone-size=64MiB --
join -a 1 -a 2 -e unknown -o 0,1.2,2.2 "$work/host.tests" "$work/store.tests" | awk '$2 != $3' >"$work/differ"
while read -r test host store; do
    say "$test: $host on the host, $store on the store: $(awk -v begin="$test: " \
        'index($0, begin) == 1 { print substr($0, 1, 160); exit }' "$work/store.err")"
done <"$work/differ"
[ -s "$work/differ" ] || say "no test differs"
exit "$failed"
