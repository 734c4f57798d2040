#!/usr/bin/env bash
# Installs what was built: scripts/install.sh BINARY. `make install` calls it.
#
# PREFIX (/usr/local) is where the command, manual pages, completions and the systemd unit go.
# SBINDIR (/usr/sbin) is where mount(8), mkfs(8) and fsck(8) look for helpers, whatever PREFIX is.
# UNITDIR (PREFIX/lib/systemd/system). DESTDIR is put before all of them, for packages.
. "$(dirname "$0")/lib.sh"

binary="${1:?which binary?}"
prefix="${PREFIX:-/usr/local}"
sbindir="${SBINDIR:-/usr/sbin}"
unitdir="${UNITDIR:-$prefix/lib/systemd/system}"
dest="${DESTDIR:-}"
[ -x "$binary" ] || fail "$binary is not there: run 'make build' first"

install -d "$dest$prefix/bin" "$dest$sbindir" "$dest$unitdir" \
    "$dest$prefix/share/man/man1" "$dest$prefix/share/man/man8" \
    "$dest$prefix/share/bash-completion/completions" \
    "$dest$prefix/share/zsh/site-functions" "$dest$prefix/share/fish/vendor_completions.d"
install -m 755 "$binary" "$dest$prefix/bin/furrow"

made="$(mktemp -d)"
trap 'rm -rf "$made"' EXIT
"$binary" docs man "$made/man"
"$binary" docs completions "$made/completions"
install -m 644 "$made"/man/*.1 "$dest$prefix/share/man/man1/"
install -m 644 "$made"/man/*.8 "$dest$prefix/share/man/man8/"
install -m 644 "$made/completions/furrow" "$dest$prefix/share/bash-completion/completions/"
install -m 644 "$made/completions/_furrow" "$dest$prefix/share/zsh/site-functions/"
install -m 644 "$made/completions/furrow.fish" "$dest$prefix/share/fish/vendor_completions.d/"

# The names are those of the manual pages.
for page in "$made"/man/*.8; do
    ln -sfnr "$dest$prefix/bin/furrow" "$dest$sbindir/$(basename "$page" .8)"
done
sed "s|@BINDIR@|$prefix/bin|" scripts/systemd/furrow@.service >"$made/unit"
install -m 644 "$made/unit" "$dest$unitdir/furrow@.service"
say "installed: $dest$prefix/bin/furrow, helpers in $dest$sbindir"
