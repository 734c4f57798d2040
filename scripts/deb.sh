#!/usr/bin/env bash
# Makes a Debian package of the built files: scripts/deb.sh BINARY [DIRECTORY]. `make deb` calls it.
#
# Needs dpkg-deb and binutils, nothing from the network. DEB_LEVEL (6) is the level of compression.
# Prints the path of the package.
. "$(dirname "$0")/lib.sh"

binary="${1:?which binary?}"
out="${2:-$target_dir}"
have dpkg-deb || fail "missing: dpkg-deb. Packages are made on Debian or Ubuntu."
version="$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)"
architecture="$(dpkg --print-architecture)"
# The newest version of the C library that the program refers to.
libc="$(objdump -T "$binary" | sed -n 's/.*(\?GLIBC_\([0-9.]*\))\?.*/\1/p' | sort -V | tail -n 1)"
maintainer="${DEBFULLNAME:-Furrow maintainers} <${DEBEMAIL:-maintainers@localhost.localdomain}>"
date="$(LC_ALL=C date -R -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}")"

umask 022
stage="$(mktemp -d)"
trap 'rm -rf "$stage"' EXIT
tree="$stage/tree"
DESTDIR="$tree" PREFIX=/usr SBINDIR=/usr/sbin scripts/install.sh "$binary" >/dev/null
# Only the plugin needs RocksDB: RocksDB is recommended, and the package installs without it.
plugin="$tree/usr/lib/libfurrow_rocksdb.so" recommends=kmod
if [ -f "$plugin" ]; then
    needed="$(objdump -p "$plugin" | sed -n 's/^ *NEEDED *\(librocksdb\.so.*\)/\1/p')"
    library="$(dpkg-query -S "*/$needed" 2>/dev/null | sed -n '1s/:.*//p')"
    [ -n "$library" ] || fail "no package has $needed, which the plugin was built for"
    recommends="kmod, $library"
else
    say "without the RocksDB plugin, which is not built: 'make rocksdb deb' includes it"
fi
# dpkg keeps its own list of installed files.
rm "$tree/usr/share/furrow/installed"
# Debian's place for these documents.
mv "$tree/usr/share/zsh/site-functions" "$tree/usr/share/zsh/vendor-completions"
find "$tree/usr/share/man" -type f -exec gzip -9n {} +

doc="$tree/usr/share/doc/furrow"
install -d "$tree/DEBIAN" "$tree/etc/furrow/raid"
[ ! -f "$plugin" ] || printf 'activate-noawait ldconfig\n' >"$tree/DEBIAN/triggers"
cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: furrow

Files: *
Copyright: Furrow maintainers
License: Apache-2.0 or MIT

License: Apache-2.0
 The text is in /usr/share/common-licenses/Apache-2.0.

License: MIT
$(sed -e 's/^$/./' -e 's/^/ /' LICENSE-MIT)
END
# The pages stay as they are: in compressed pages links would lead nowhere. Common licences are of Debian's.
ln -sf ../../common-licenses/Apache-2.0 "$doc/LICENSE-APACHE"
install -d "$tree/usr/share/lintian/overrides"
cat >"$tree/usr/share/lintian/overrides/furrow" <<'END'
# Pages lead to them by these names.
furrow: extra-license-file
# Programs load the plugin by its path, none is linked to it.
furrow: package-name-doesnt-match-sonames libfurrow-rocksdb
furrow: shared-library-lacks-version usr/lib/libfurrow_rocksdb.so libfurrow_rocksdb.so
END
# What the newest part of CHANGELOG.md says, in Debian's form.
{
    printf 'furrow (%s) unstable; urgency=medium\n\n' "$version"
    awk '/^## / { part++ } part == 1 && /^- / { print entry; entry = $0 }
        part == 1 && /^  [^ ]/ { entry = entry " " substr($0, 3) } END { print entry }' CHANGELOG.md |
        fold -s -w 74 | sed -e '/^ *$/d' -e 's/ *$//' -e '/^- /!s/^/    /' -e 's/^- /  * /'
    printf '\n -- %s  %s\n' "$maintainer" "$date"
} | gzip -9n >"$doc/changelog.gz"
cat >"$tree/DEBIAN/control" <<END
Package: furrow
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$tree" | cut -f 1)
Depends: libc6 (>= $libc), libgcc-s1
Recommends: $recommends
Suggests: default-mta | mail-transport-agent, rocksdb-tools, librocksdb-dev
Section: admin
Priority: optional
Description: file system and RAID volumes for zoned flash, in user space
 A POSIX file system, log-structured from the drive's write pointers up to
 fsync(2), on zoned drives (NVMe ZNS), mounted through FUSE; and RAID volumes
 (levels 0, 01, 4, 5 and 6) over several of them, served over NBD (network
 block device) to the kernel, virtual machines and anything that speaks the
 protocol. And a file store for LSM engines, which RocksDB and its stock tools
 use through a plugin without any change.
 .
 With them come the checker, tools that show what is on a drive, and an emulated
 zoned drive that obeys every rule of the standard, can fail in every way and
 takes the time that measured drives take.
 .
 The drives are zoned block devices of the kernel and generic NVMe devices, or
 drives without zones, partitions and files, on which it keeps zones of its own.
END
(cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
for script in postinst prerm postrm; do
    install -m 755 "scripts/debian/$script" "$tree/DEBIAN/$script"
done

mkdir -p "$out"
package="$out/furrow_${version}_$architecture.deb"
dpkg-deb --root-owner-group -z"${DEB_LEVEL:-6}" --build "$tree" "$package" >/dev/null
say "$package"
