#!/usr/bin/env bash
# The RocksDB plugin: scripts/rocksdb.sh build|test|newer [SUITE]
#
# build: target/release/libfurrow_rocksdb.so. test: the same in the profile of tests, its own tests,
# stock db_bench and ldb on a store, and the files that `make install` installs of it.
#
# newer: the same tests with the RocksDB of a newer Debian suite (trixie), whose packages are unpacked
# below target/rocksdb-SUITE and run with their own C library. Nothing is installed, and the machine's
# own apt is not touched. Needs the network, once.
. "$(dirname "$0")/lib.sh"

# Builds the core and the plugin. $1: directory of the profile. The tests' build also makes a
# library with a defect, which power cuts must find.
build() {
    local profile="$1" flags=()
    case "$profile" in
    release) cargo build --quiet --locked --release -p furrow-capi ;;
    # What the tests need is built soon rather than fast.
    debug)
        build_as_tests
        flags=(CXXFLAGS=-O1)
        ;;
    esac
    make --no-print-directory -s -j"$(nproc)" -C plugins/rocksdb PROFILE="$profile" \
        TARGET="$(realpath "$target_dir")" ${flags[@]+"${flags[@]}"} "${goal[@]}"
}

furrow="$target_dir/debug/furrow"
# The commands for db_bench and ldb, and the directory of images.
db_bench=(db_bench) ldb=(ldb) images="$target_dir/debug/rocksdb-plugin/images"

# Stock programs on a store: one writes, another reads; a wrong URI is an error.
stock() {
    local drive="$images/stock.zns" out="$images/stock.txt" found
    mkdir -p "$images"
    rm -f "$drive"
    "$furrow" device create "$drive" --option capacity=256MiB,zone-size=4MiB,max-active=14 >/dev/null
    "$furrow" kv mkfs "$drive" >/dev/null
    "$furrow" run --store "$drive" --policy baza --same-victim -- "${db_bench[@]}" \
        --benchmarks=fillseq,overwrite,readrandom,multireadrandom,seekrandom --reads=300 --db=/bench --num=2000 --value_size=8192 --threads=1 \
        --enable_blob_files=true --min_blob_size=1024 --enable_blob_garbage_collection=true \
        --write_buffer_size=1048576 --blob_file_size=1048576 --compression_type=none \
        >"$out" 2>&1 || { cat "$out"; fail "db_bench failed"; }
    found="$("$furrow" run -- "${ldb[@]}" --fs_uri="furrow://$drive" --db=/bench scan --hex 2>/dev/null |
        grep -c '^0x')"
    [ "$found" = 2000 ] || fail "ldb finds $found keys of the 2000 that db_bench wrote"
    found="$("$furrow" run --store "$drive" --read-only -- "${ldb[@]}" --db=/bench scan --hex \
        2>/dev/null | grep -c '^0x')"
    [ "$found" = 2000 ] || fail "ldb finds $found keys of the 2000 in a store opened to be read"
    # The second fill destroys what the first made: in the store, not on the host.
    mkdir -p "$images/host"
    touch "$images/host/CURRENT"
    "$furrow" run --store "$drive" -- db_bench --benchmarks=fillseq,fillrandom --threads=1 \
        --db="$(realpath "$images")/host" --num=1000 --seed=7 >"$out" 2>&1 ||
        { cat "$out"; fail "db_bench failed"; }
    found="$("$furrow" run --store "$drive" -- ldb --db="$(realpath "$images")/host" scan --hex \
        2>/dev/null | grep -c '^0x')"
    [ "$found" -gt 500 ] && [ "$found" -lt 800 ] ||
        fail "$found keys after random writes to a new database, about 632 of 1000 are expected"
    [ -e "$images/host/CURRENT" ] || fail "a file of the host was destroyed instead of the store's"
    rm -r "$images/host"
    "$furrow" kv fsck "$drive" >"$out" || { cat "$out"; fail "the store is damaged"; }
    ! "$furrow" run -- "${db_bench[@]}" --fs_uri=furrow:///no/such.zns >"$out" 2>&1 ||
        fail "a store that does not exist was accepted"
    grep -q "no such file" "$out" || { cat "$out"; fail "a wrong URI is not explained"; }
    rm -f "$drive" "$out"
    say "stock db_bench and ldb on a store: 2000 keys, clean"
}

# The loader for Java puts the plugin in the place of the library that it was built for, and refuses any
# other library with a RocksDB. $images/java stands for a virtual machine, and loads its argument.
loaded() {
    local plugins="$images/plugins" jar="$images/librocksdbjni-1.so" out="$images/loaded.txt"
    rm -rf "$plugins"
    mkdir -p "$plugins/rocksdbjni-1.2.3"
    cp "$target_dir/debug/java/libfurrow_java.so" "$plugins"
    echo 'void *_ZN7rocksdb10FileSystem7DefaultEv(void) { return 0; }' |
        gcc -x c - -shared -fPIC -o "$jar"
    cp "$jar" "$plugins/rocksdbjni-1.2.3/jar.so"
    printf '#include <stdio.h>\n__attribute__((constructor)) static void loaded(void) { puts("the plugin"); }\n' |
        gcc -x c - -shared -fPIC -o "$plugins/rocksdbjni-1.2.3/librocksdbjni.so"
    printf '#include <dlfcn.h>\nint java(void);\nint main(int n, char **a) { return n == 2 && dlopen(a[1], RTLD_LAZY) ? 0 : 1 + java(); }\n' |
        gcc -x c - -x none "$images/libjli.so" -Wl,-rpath,"$images" -o "$images/java"
    run() { FURROW_JAVA="$plugins" "$furrow" run --store "$drive" -- "$images/java" "$1" >"$out" 2>&1; }
    run "$(realpath "$jar")" && grep -qx "the plugin" "$out" ||
        { cat "$out"; fail "the plugin was not loaded in the place of the jar's library"; }
    cp "$jar" "$images/other-1.so"
    ! run "$(realpath "$images/other-1.so")" && grep -q "make rocksdb-jni" "$out" ||
        { cat "$out"; fail "a RocksDB by another name is not refused"; }
    echo >>"$jar"
    ! run "$(realpath "$jar")" && grep -q "built: rocksdbjni-1.2.3" "$out" ||
        { cat "$out"; fail "a library that differs from the plugin's is not refused"; }
    rm -rf "$plugins" "$jar" "$images/other-1.so" "$out"
}

# Programs that cannot work are refused with one line, and nothing crashes.
refused() {
    local drive="$images/refused.zns" out="$images/refused.txt"
    rm -f "$drive"
    "$furrow" device create "$drive" -o capacity=64MiB,zone-size=2MiB >/dev/null
    # $1: the expected message, the rest: the arguments of `furrow run`
    refuse() {
        local expected="$1" status=0
        shift
        "$furrow" run "$@" >"$out" 2>&1 || status=$?
        [ "$status" = 1 ] && grep -q -- "$expected" "$out" ||
            { cat "$out"; fail "status $status, expected '$expected': furrow run $*"; }
    }
    refuse "furrow kv mkfs" --store "$drive" -- db_bench
    "$furrow" kv mkfs "$drive" >/dev/null
    # RocksDB's tools take the store as an option: this one does not use DB::Open.
    refuse " none/CURRENT: no such file" --store "$drive" -- ldb --db=/none get key
    flock "$drive" bash -c "! '$furrow' run --store '$drive' -- ldb --db=/none get key >'$out' 2>&1"
    grep -q "in use by process [0-9]* (flock)" "$out" ||
        { cat "$out"; fail "the message does not name the user of the store"; }
    refuse "cannot be written" --store "$drive" --report /no/such/file -- db_bench
    refuse "crash over others" -- ldb --fs_uri=zenfs://x scan
    # A Java virtual machine needs the plugin for its jar, also one that a script starts.
    echo 'int java(void) { return 0; }' |
        gcc -x c - -shared -Wl,-soname,libjli.so -o "$images/libjli.so"
    echo 'int java(void); int main(void) { return java(); }' |
        gcc -x c - -x none "$images/libjli.so" -Wl,-rpath,"$images" -o "$images/java"
    printf '#!/bin/sh\nexec "%s"\n' "$(realpath "$images")/java" >"$images/java.sh"
    chmod +x "$images/java.sh"
    mkdir -p "$images/none"
    FURROW_JAVA="$images/none" refuse "libfurrow_java.so: no such file" --store "$drive" -- "$images/java" Main
    : >"$images/none/libfurrow_java.so"
    FURROW_JAVA="$images/none" refuse "make rocksdb-jni VERSION=1.2.3" --store "$drive" -- \
        "$images/java" -cp "$images/rocksdbjni-1.2.3.jar" Main
    [ "$(wc -l <"$out")" = 1 ] || { cat "$out"; fail "more than one line of refusal"; }
    refuse "option --java" --store "$drive" -- "$images/java.sh"
    loaded
    # Without a store the program runs, and is told where its databases are.
    "$furrow" run -- ldb --db="$images/none" list_column_families >"$out" 2>&1 || true
    grep -q "no --store: its databases are files of the host" "$out" ||
        { cat "$out"; fail "nothing says that the databases are on the host"; }
    # A RocksDB other than the plugin's: two in one process would crash.
    echo 'int other(void) { return 0; }' |
        gcc -x c - -shared -Wl,-soname,librocksdb.so.99 -o "$images/librocksdb.so.99"
    echo 'int other(void); int main(void) { return other(); }' |
        gcc -x c - -x none "$images/librocksdb.so.99" -Wl,-rpath,"$images" -o "$images/other"
    refuse "linked to librocksdb.so.99" --store "$drive" -- "$images/other"
    rm -rf "$drive" "$out" "$images/librocksdb.so.99" "$images/other" "$images"/java* "$images/none" \
        "$images/libjli.so"
    say "programs that cannot work are refused"
}

# The installed files work in their place: stock ldb, and a program of three lines that is compiled
# against the headers by pkg-config. Then everything is uninstalled.
installed() {
    local to="$images/installed" drive="$images/installed.zns" out="$images/installed.txt"
    rm -rf "$to" "$drive"
    env -u DESTDIR -u SBINDIR -u UNITDIR -u RULESDIR -u DOCDIR PREFIX="$to" scripts/install.sh "$furrow" >"$out"
    cat >"$images/program.cc" <<'END'
#include <furrow/rocksdb/same_victim.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
int main(int, char** arguments) {
  std::shared_ptr<rocksdb::FileSystem> fs;
  auto made = rocksdb::FileSystem::CreateFromString(rocksdb::ConfigOptions(), arguments[1], &fs);
  if (!made.ok()) return 1;
  auto env = rocksdb::NewCompositeEnv(fs);
  rocksdb::Options options;
  options.create_if_missing = true;
  options.env = env.get();
  rocksdb::DB* db = nullptr;
  if (!rocksdb::DB::Open(options, "/program", &db).ok()) return 2;
  if (!db->Put(rocksdb::WriteOptions(), "key", "value").ok()) return 3;
  delete db;
  return 0;
}
END
    # shellcheck disable=SC2046
    g++ -std=c++17 -o "$images/program" "$images/program.cc" \
        $(PKG_CONFIG_PATH="$to/lib/pkgconfig" pkg-config --cflags --libs furrow-rocksdb)
    printf '#include <furrow.h>\nint main(void) { return furrow_store_close(NULL, NULL); }\n' \
        >"$images/plain.c"
    # shellcheck disable=SC2046
    gcc -o "$images/plain" "$images/plain.c" \
        $(PKG_CONFIG_PATH="$to/lib/pkgconfig" pkg-config --cflags --libs furrow)
    "$images/plain" || fail "the C library that was installed does not work"
    "$to/bin/furrow" device create "$drive" -o capacity=64MiB,zone-size=2MiB >/dev/null
    "$to/bin/furrow" kv mkfs "$drive" >/dev/null
    LD_LIBRARY_PATH="$to/lib" "$images/program" "furrow://$drive" ||
        fail "a program against the installed headers and library failed: $?"
    "$to/bin/furrow" run -- ldb --fs_uri="furrow://$drive" --db=/program get key >"$out" 2>&1 ||
        { cat "$out"; fail "the installed furrow cannot run ldb"; }
    grep -qx value "$out" || { cat "$out"; fail "ldb does not find what the program wrote"; }
    PREFIX="$to" scripts/install.sh --uninstall >/dev/null
    [ ! -e "$to/lib" ] && [ ! -e "$to/include" ] || fail "uninstall leaves $(find "$to" | tail -n 1)"
    rm -rf "$to" "$drive" "$out" "$images"/program* "$images"/plain*
    say "installed, used and uninstalled: ldb, a program by pkg-config, one in C"
}

# Unpacks RocksDB of Debian's suite $1, and its dependencies, below $2.
unpack() {
    local suite="$1" to="$2" packages package apt
    have apt-get && have dpkg || fail "missing: apt-get and dpkg. Newer packages come from Debian."
    rm -rf "$to"
    mkdir -p "$to"/debs
    other_suite "$suite" "$to/apt"
    # Missing parts of the suite (such as security updates) do not matter.
    apt-get "${apt[@]}" update >/dev/null 2>&1 || true
    packages="$(apt-cache "${apt[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts \
        --no-breaks --no-replaces --no-enhances rocksdb-tools 2>/dev/null | sed -n '/^[a-z]/p' | sort -u)"
    [ -n "$packages" ] || fail "no package rocksdb-tools in the suite $suite of this machine's sources"
    # shellcheck disable=SC2086
    (cd "$to/debs" && apt-get "${apt[@]}" download librocksdb-dev $packages >/dev/null) ||
        fail "cannot download the packages of $suite: is there a network?"
    for package in "$to"/debs/*.deb; do dpkg -x "$package" "$to/tree"; done
    rm -rf "$to/apt" "$to/debs"
}

newer() {
    local suite="$1" to lib linker
    to="$(realpath -m "$target_dir/rocksdb-$suite")"
    [ -e "$to/tree/usr/include/rocksdb/db.h" ] || unpack "$suite" "$to"
    lib="$(dirname "$(find "$to/tree/usr/lib" -name librocksdb.so)")"
    linker="$(find "$lib" "$to/tree/usr/lib64" -name 'ld-linux*' 2>/dev/null | head -n 1)"
    goal=(all test BUILT="$to/built" ROCKSDB="$to/tree/usr" ROCKSDB_LIB="$lib" LINKER="$linker")
    build debug
    images="$to/built/rocksdb-plugin/images"
    db_bench=("$linker" --library-path "$lib" "$to/tree/usr/bin/db_bench")
    ldb=("$linker" --library-path "$lib" "$to/tree/usr/bin/ldb")
    FURROW_ROCKSDB="$to/built/libfurrow_rocksdb.so" stock
    say "passed with $("${db_bench[@]}" --version)"
}

case "${1:-build}" in
build)
    goal=()
    build release
    say "$target_dir/release/libfurrow_rocksdb.so"
    ;;
test)
    goal=(all loader test)
    build debug
    stock
    refused
    installed
    ;;
newer) newer "${2:-trixie}" ;;
*) fail "unknown: $1; scripts/rocksdb.sh build, test or newer" ;;
esac
