#!/usr/bin/env bash
# Installs the built files, or removes them again: scripts/install.sh BINARY | --uninstall.
# `make install` and `make uninstall` call it.
#
# The RocksDB plugin, the C library and their headers are installed if they are in the directory of
# BINARY, where `make rocksdb` puts them.
#
# Everything goes below PREFIX (/usr/local), unless told otherwise: SBINDIR (PREFIX/sbin) is where
# the helpers go that mount(8), mkfs(8) and fsck(8) look for; mount(8) looks in /usr/sbin only.
# UNITDIR (PREFIX/lib/systemd/system), RULESDIR (PREFIX/lib/udev/rules.d), DOCDIR (PREFIX/share/doc/furrow). Libraries are always in
# PREFIX/lib, where `furrow run` looks. DESTDIR is put before all of them, for packages.
# PREFIX/share/furrow/installed lists the installed files; uninstalling follows that list.
. "$(dirname "$0")/lib.sh"

binary="${1:?which binary?}"
prefix="${PREFIX:-/usr/local}"
sbindir="${SBINDIR:-$prefix/sbin}"
libdir="$prefix/lib"
includedir="$prefix/include"
unitdir="${UNITDIR:-$prefix/lib/systemd/system}"
rulesdir="${RULESDIR:-$prefix/lib/udev/rules.d}"
docdir="${DOCDIR:-$prefix/share/doc/furrow}"
dest="${DESTDIR:-}"
datadir="$prefix/share/furrow"
list="$datadir/installed"

# Tells the dynamic linker about new or removed libraries. In a package dpkg does that.
refresh_linker() {
    [ -n "$dest" ] || [ "$(id -u)" -ne 0 ] || ! have ldconfig || ldconfig
}

if [ "$binary" = --uninstall ]; then
    [ -f "$dest$list" ] ||
        fail "$dest$list does not exist: nothing was installed below PREFIX=$prefix"
    mapfile -t installed <"$dest$list"
    for file in "${installed[@]}" "$list"; do
        [[ "$file" == */ ]] || rm -f "$dest$file"
    done
    # Directories that the install made, the deepest first; a directory that is not empty stays.
    for directory in "${installed[@]}"; do
        [[ "$directory" != */ ]] || printf '%s\n' "$directory"
    done | sort -r | while IFS= read -r directory; do
        rmdir --ignore-fail-on-non-empty "$dest$directory" 2>/dev/null || true
    done
    refresh_linker
    say "uninstalled: every file listed in $dest$list"
    exit
fi

[ -x "$binary" ] || fail "$binary does not exist: run 'make build' first"
made="$(mktemp -d)"
trap 'rm -rf "$made"' EXIT
# Directories that an earlier install made still belong to Furrow.
touch "$made/installed" "$made/before"
[ ! -f "$dest$list" ] || cp "$dest$list" "$made/before"
grep '/$' "$made/before" >"$made/installed" || true

# Lists the directories to be made for $1; their names end in a slash.
directories() {
    local directory
    directory="$(dirname "$1")"
    while [ "$directory" != / ] && [ ! -d "$dest$directory" ]; do
        printf '%s/\n' "$directory" >>"$made/installed"
        directory="$(dirname "$directory")"
    done
}

# Installs a file, and adds it to the list. $1: mode, $2: file, $3: where to
put() {
    directories "$3"
    install -D -m "$1" "$2" "$dest$3"
    printf '%s\n' "$3" >>"$made/installed"
}

# Without debug information, which is nine tenths of the file.
cp "$binary" "$made/furrow"
! have strip || strip "$made/furrow"
put 755 "$made/furrow" "$prefix/bin/furrow"

# Files that `make rocksdb` built in the same directory.
built="$(dirname "$binary")"
plugin="$built/libfurrow_rocksdb.so"
with_plugin=""
if [ -f "$plugin" ]; then
    with_plugin=yes
    version="$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)"
    cp "$plugin" "$built/libfurrow.a" "$made/"
    ! have strip || strip --strip-unneeded "$made/libfurrow_rocksdb.so"
    # Two thirds of the library serve only a linker that optimises again.
    ! have strip || strip --strip-debug -R .llvmbc -R .llvmcmd "$made/libfurrow.a"
    put 644 "$made/libfurrow_rocksdb.so" "$libdir/libfurrow_rocksdb.so"
    put 644 "$made/libfurrow.a" "$libdir/libfurrow.a"
    put 644 include/furrow.h "$includedir/furrow.h"
    for header in fs.h same_victim.h; do
        put 644 "plugins/rocksdb/$header" "$includedir/furrow/rocksdb/$header"
    done
    for package in plugins/rocksdb/*.pc.in; do
        sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$package" >"$made/package"
        put 644 "$made/package" "$libdir/pkgconfig/$(basename "$package" .in)"
    done
    refresh_linker
fi
# Plugins for RocksDB for Java that `make rocksdb-jni` built. A package has none: each has a copy of the
# library in a jar of somebody else's.
for directory in "$built"/java/*/; do
    [ -z "$dest" ] && [ -f "$directory/librocksdbjni.so" ] || continue
    to="$libdir/furrow/java/$(basename "$directory")"
    cp "$directory/librocksdbjni.so" "$made/"
    ! have strip || strip --strip-unneeded "$made/librocksdbjni.so"
    put 644 "$made/librocksdbjni.so" "$to/librocksdbjni.so"
    put 644 "$directory/jar.so" "$to/jar.so"
    put 644 "$built/java/libfurrow_java.so" "$libdir/furrow/java/libfurrow_java.so"
done

"$binary" docs man "$made/man"
"$binary" docs completions "$made/completions"
for page in "$made"/man/*.[178]; do
    put 644 "$page" "$prefix/share/man/man${page##*.}/$(basename "$page")"
done
put 644 "$made/completions/furrow" "$prefix/share/bash-completion/completions/furrow"
put 644 "$made/completions/_furrow" "$prefix/share/zsh/site-functions/_furrow"
put 644 "$made/completions/furrow.fish" "$prefix/share/fish/vendor_completions.d/furrow.fish"
# As they lie in the sources, so that links between them lead somewhere.
find *.md LICENSE-* docs -type f | sort >"$made/documents"
while IFS= read -r document; do
    put 644 "$document" "$docdir/$document"
done <"$made/documents"

# The names are those of the manual pages.
directories "$sbindir/helper"
install -d "$dest$sbindir"
for page in "$made"/man/*.8; do
    name="$sbindir/$(basename "$page" .8)"
    ln -sfnr "$dest$prefix/bin/furrow" "$dest$name"
    printf '%s\n' "$name" >>"$made/installed"
done
for unit in scripts/systemd/*.*; do
    sed -e "s|@BINDIR@|$prefix/bin|" -e "s|@DATADIR@|$datadir|" "$unit" >"$made/unit"
    put 644 "$made/unit" "$unitdir/$(basename "$unit")"
done
for hook in scripts/hooks/*; do
    put 755 "$hook" "$datadir/hooks/$(basename "$hook")"
done
for rules in scripts/prometheus/*; do
    put 644 "$rules" "$datadir/prometheus/$(basename "$rules")"
done
put 644 scripts/magic/furrow "$datadir/magic/furrow"
for rules in scripts/udev/*.rules; do
    sed "s|@BINDIR@|$prefix/bin|" "$rules" >"$made/rules"
    put 644 "$made/rules" "$rulesdir/$(basename "$rules")"
done
# Files of an earlier install that this one does not have, such as the plugin.
grep -v '/$' "$made/before" | grep -vxFf "$made/installed" | while IFS= read -r file; do
    rm -f "$dest$file"
done || true
directories "$list"
install -D -m 644 "$made/installed" "$dest$list"
say "installed: $dest$prefix/bin/furrow, helpers in $dest$sbindir"
say "the laboratory (claims, benchmarks) is not installed: 'make lab' builds furrow-lab in the directory of the command"
if [ -n "$with_plugin" ]; then
    say "RocksDB: $dest$libdir/libfurrow_rocksdb.so, headers in $dest$includedir"
    # A plugin of older sources may not read the format of a newer command.
    [ ! "$binary" -nt "$plugin" ] ||
        say "the plugin is older than the command: run 'make rocksdb', then this again, if sources changed"
else
    say "without the RocksDB plugin, which is not built: run 'make rocksdb', then this again, to install it too"
fi
case "$sbindir" in
/sbin | /usr/sbin) ;;
*)
    say "mount(8) looks for helpers in /usr/sbin only: for 'mount -t fuse.furrow' and /etc/fstab run" \
        "'make install SBINDIR=/usr/sbin'"
    ;;
esac
