#!/usr/bin/env bash
# The RocksDB plugin for programs on a Java virtual machine: scripts/rocksdb-jni.sh build|test|smoke VERSION
#
# VERSION is that of the jar which the program uses (rocksdbjni-VERSION.jar): each brings a RocksDB of
# its own, for which the plugin has to be built. `make rocksdb-jni VERSION=...` calls this. The result is
# target/release/java/rocksdbjni-VERSION, where `furrow run` finds it. The jar comes from Maven's
# repository, the headers from Debian's RocksDB or a crate that has the same version, or from:
#
# JAR=FILE           a jar that is here already
# ARTIFACT=GROUP:ID  another jar with the same classes: com.ververica:frocksdbjni
# HEADERS=DIRECTORY  the directory include of that RocksDB's sources
#
# test: the same in the profile of tests, and what Java programs do on a store: every kind of database,
# every way to end, and KILLS (3) ends by SIGKILL, with all that was synced found again. smoke: every kind
# of database, one way to end, and one SIGKILL.
. "$(dirname "$0")/lib.sh"

goal="${1:-build}" version="${2:?which version of rocksdbjni? VERSION=7.8.3, as in the name of the jar}"
case "$goal" in
build) profile=release ;;
test) profile=debug ends="exit halt return fork unclosed" kills="${KILLS:-3}" ;;
smoke) profile=debug ends=exit kills=1 ;;
*) fail "unknown: $goal; scripts/rocksdb-jni.sh build, test or smoke" ;;
esac
artifact="${ARTIFACT:-org.rocksdb:rocksdbjni}"
# frocksdbjni-8.10.0-ververica-1.0 has the headers of 8.10.0.
rocksdb="${version%%-*}"
[[ "$rocksdb" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "$version: no version: expected one like 7.8.3"
name="${artifact##*:}-$version"
built="$(realpath -m "$target_dir/$profile")/java"
to="$built/$name"
work="$to.new"

case "$(uname -m)" in
x86_64) library=librocksdbjni-linux64.so ;;
*) library="librocksdbjni-linux-$(uname -m).so" ;;
esac

# Crates that bring the sources of a RocksDB. Debian's packages have others.
declare -A crates=(
    [7.4.4]=0.8.3 [7.9.2]=0.10.0 [8.1.1]=0.11.0 [8.5.3]=0.12.0 [8.6.7]=0.13.0 [8.8.1]=0.14.0
    [8.9.1]=0.15.0 [8.10.0]=0.16.0 [9.9.3]=0.17.1 [10.4.2]=0.17.3 [11.8.1]=0.19.0
)

# The version that headers are of. $1: their directory
version_of() {
    awk '$1 == "#define" && $2 ~ /^ROCKSDB_(MAJOR|MINOR|PATCH)$/ { printf "%s%s", dot, $3; dot = "." }' \
        "$1/rocksdb/version.h" 2>/dev/null
}

# Prints the directory with the headers, fetching them if need be.
headers() {
    local found="${HEADERS:-}" suite
    if [ -n "$found" ]; then
        [ "$(version_of "$found")" = "$rocksdb" ] ||
            fail "HEADERS=$found: headers of RocksDB $rocksdb are needed, these are of '$(version_of "$found")'"
        say "$found"
        return
    fi
    if [ "$(version_of /usr/include)" = "$rocksdb" ]; then
        say /usr/include
        return
    fi
    found="$(realpath -m "$target_dir")/rocksdb-headers/$rocksdb"
    if [ "$(version_of "$found")" = "$rocksdb" ]; then
        say "$found"
        return
    fi
    rm -rf "$found"
    mkdir -p "$found"
    if [ -n "${crates[$rocksdb]:-}" ]; then
        mkdir -p "$found/crate/src"
        printf '[package]\nname = "headers"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n[dependencies]\nlibrocksdb-sys = { version = "=%s", default-features = false }\n' \
            "${crates[$rocksdb]}" >"$found/crate/Cargo.toml"
        : >"$found/crate/src/lib.rs"
        (cd "$found/crate" && cargo vendor --quiet vendor >/dev/null) ||
            fail "cannot fetch the crate librocksdb-sys ${crates[$rocksdb]}: is there a network?"
        mv "$found/crate/vendor/librocksdb-sys/rocksdb/include/rocksdb" "$found/"
        rm -rf "$found/crate"
    else
        for suite in bookworm trixie; do
            other_suite "$suite" "$found/apt"
            apt-get "${apt[@]}" update >/dev/null 2>&1 || true
            apt-cache "${apt[@]}" show librocksdb-dev 2>/dev/null |
                grep "^Version: $rocksdb-" >/dev/null || continue
            (cd "$found" && apt-get "${apt[@]}" download librocksdb-dev >/dev/null &&
                dpkg -x librocksdb-dev_*.deb tree && mv tree/usr/include/rocksdb .) ||
                fail "cannot download librocksdb-dev of $suite: is there a network?"
            break
        done
        rm -rf "$found"/apt "$found"/*.deb "$found"/tree
    fi
    [ "$(version_of "$found")" = "$rocksdb" ] ||
        fail "no headers of RocksDB $rocksdb: they are in its sources, in the folder include: HEADERS=DIRECTORY." \
            "Without that: $(printf '%s\n' "${!crates[@]}" "$(version_of /usr/include)" | sort -V | tr '\n' ' ')"
    say "$found"
}

jar="${JAR:-}"
include="$(headers)"
rm -rf "$work"
mkdir -p "$work"
if [ -z "$jar" ]; then
    fetch_jars "$name" "$artifact:$version"
    jar="$jars/$name/$name.jar"
fi
unzip -q -p "$jar" "$library" >"$work/jar.so" 2>/dev/null && [ -s "$work/jar.so" ] ||
    fail "$jar: it has no $library. Some releases have it in a jar of its own" \
        "(${name}-linux64.jar): JAR=FILE"
# The plugin finds the library by the name that it was linked with.
[ -z "$(objdump -p "$work/jar.so" | awk '$1 == "SONAME"')" ] ||
    fail "$jar: $library has a name of its own (SONAME), which is not supported"
case "$profile" in
release) cargo build --quiet --locked --release -p furrow-capi ;;
debug) build_as_tests ;;
esac
# Whether the jar's strings are of the newer ABI of GCC's library.
strings=0
! objdump -T "$work/jar.so" | grep ' _ZN7rocksdb2DB4Open.*St7__cxx11' >/dev/null || strings=1
std=c++17
[ "${rocksdb%%.*}" -lt 11 ] || std=c++20
make --no-print-directory -s -j"$(nproc)" -C plugins/rocksdb jni PROFILE="$profile" TARGET="$(realpath "$target_dir")" \
    JNI="$work" HEADERS="$include" STD="$std" STRING_ABI="$strings"
rm -rf "$work/objects" "$to"
mv "$work" "$to"
say "$to: for $artifact $version"
[ "$goal" != build ] || exit 0

furrow="$(realpath "$target_dir")/debug/furrow"
images="$(mktemp -d)"
trap 'rm -rf "$images"' EXIT
drive="$images/store.zns" out="$images/out"
javac -d "$images" -cp "$jar" plugins/rocksdb/java/StoreTest.java
java=("$(command -v java)" -Xmx256m -cp "$jar:$images" StoreTest)

# Runs the test program on the store. $1: the last line expected, the rest: its arguments
store_test() {
    local expected="$1"
    shift
    timeout 120 "$furrow" run --store "$drive" --same-victim -- "${java[@]}" "$@" >"$out" 2>&1 &&
        [ "$(tail -n 1 "$out")" = "$expected" ] || { cat "$out"; fail "StoreTest $*: failed"; }
}

"$furrow" device create "$drive" -o capacity=512MiB,zone-size=4MiB,max-active=14 >/dev/null
"$furrow" kv mkfs "$drive" >/dev/null
# Same-Victim collection is not for databases with transactions.
timeout 120 "$furrow" run --store "$drive" -- "${java[@]}" use /use >"$out" 2>&1 ||
    { cat "$out"; fail "StoreTest use: failed"; }
for how in $ends; do
    store_test "" end "$how" "/$how" 10000
    store_test whole verify "/$how" 10000
    "$furrow" kv rm -r "$drive" "/$how"
done

# Started by a script, and by a script without --java; a jar whose plugin is not built.
callers() {
    printf '#!/bin/sh\nexec "$@"\n' >"$images/script"
    chmod +x "$images/script"
    "$furrow" run --java --store "$drive" -- "$images/script" "${java[@]}" use /script >"$out" 2>&1 ||
        { cat "$out"; fail "a script with --java: failed"; }
    ! "$furrow" run --store "$drive" -- "$images/script" "${java[@]}" use /script >"$out" 2>&1 &&
        grep -q -- "--java" "$out" || { cat "$out"; fail "a script without --java is not refused"; }
    mkdir -p "$images/none/$name"
    ! FURROW_JAVA="$images/none" "$furrow" run --store "$drive" -- "${java[@]}" use /none >"$out" 2>&1 &&
        grep -q "libfurrow_java.so: no such file" "$out" || { cat "$out"; fail "a missing loader is not refused"; }
    rmdir "$images/none/$name"
    cp "$built/libfurrow_java.so" "$images/none"
    ! FURROW_JAVA="$images/none" "$furrow" run --store "$drive" -- "${java[@]}" use /none >"$out" 2>&1 &&
        grep -q "make rocksdb-jni VERSION=" "$out" || { cat "$out"; fail "a jar without a plugin is not refused"; }
    cp "$jar" "$images/renamed.jar"
    ! FURROW_JAVA="$images/none" "$furrow" run --store "$drive" -- "${java[0]}" -cp "$images/renamed.jar:$images" \
        StoreTest use /none >"$out" 2>&1 && grep -q "make rocksdb-jni VERSION=" "$out" ||
        { cat "$out"; fail "a jar without a plugin, by another name, is not refused"; }
    [ ! -e /none ] || fail "a refused program wrote on the host"
}
[ "$goal" = smoke ] || callers

next=0
RANDOM="${SEED:-1}"
for ((round = 0; round < kills; round++)); do
    # A new database now and then: those before are full of what is known to be whole.
    if [ $((round % 20)) -eq 0 ]; then
        next=0
        [ "$round" -eq 0 ] || "$furrow" kv rm -r "$drive" /kills
    fi
    : >"$out"
    "$furrow" run --store "$drive" --same-victim -- "${java[@]}" put /kills "$next" >"$out" 2>"$images/err" &
    process=$!
    for ((wait = 0; wait < 300; wait++)); do
        [ ! -s "$out" ] || break
        sleep 0.1
    done
    sleep "0.$((RANDOM % 9))"
    kill -KILL "$process"
    wait "$process" 2>/dev/null || true
    # The last line may be cut off.
    last="$(sed '$d' "$out" | tail -n 1)"
    [ -s "$out" ] || { cat "$images/err"; fail "round $round: nothing was put"; }
    [ -z "$last" ] || next=$((last + 1))
    store_test whole verify /kills "$next"
done
"$furrow" kv fsck "$drive" >"$out" || { cat "$out"; fail "the store is damaged"; }
say "RocksDB for Java $version on a store: databases, ends, $kills kills, all whole"
