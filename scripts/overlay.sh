#!/usr/bin/env bash
# Packages installed in an overlay on a mount whose daemon is killed meanwhile, and containers:
# scripts/overlay.sh [KILLS]
#
# All layers are on one mount. A Debian system is made by debootstrap, as the lower layer. Packages
# are installed and removed in the overlay while the daemon is killed (KILLS times, 10; SEED=1). After
# each kill fsck must find nothing, and each package that dpkg calls unpacked or installed must have the
# files that were packed. Then Podman keeps an image and containers on the mount, through a kill too.
. "$(dirname "$0")/lib.sh"

kills="${1:-10}"
[[ "$kills" =~ ^[0-9]+$ ]] || fail "'$kills': expected how often to kill the daemon"
problem="$(fuse_problem)"
[ -z "$problem" ] || fail "no mount is possible: $problem"
grep -q 'overlay$' /proc/filesystems || modprobe overlay 2>/dev/null ||
    fail "this kernel has no overlay file system (modprobe overlay)"
have debootstrap || fail "missing: debootstrap (package debootstrap)"
build_as_tests
furrow="$(realpath "$target_dir")/debug/furrow"
work="$(mktemp -d)"
drive="$work/drive.zns" mount="$work/mnt" merged="$work/merged"
mkdir "$mount" "$merged" "$work/debs"
detach() {
    umount -l "$merged" 2>/dev/null || true
    umount -l "$mount"/podman/overlay 2>/dev/null || true
    "$furrow" umount -l "$mount" 2>/dev/null || true
}
trap 'detach; rm -rf "$work"' EXIT

attach() {
    "$furrow" mount "$drive" "$mount" --log "$work/log" -o commit=600 2>"$work/out" ||
        { cat "$work/out"; fail "mount"; }
}
over() {
    mount -t overlay overlay \
        -o "lowerdir=$mount/lower,upperdir=$mount/upper,workdir=$mount/work" "$merged"
}
# The daemon ends without a word, and fsck looks at what it left.
crash() {
    kill -KILL "$("$furrow" df --json "$mount" | sed -nE 's/.*"pid": ?([0-9]+).*/\1/p')"
    wait 2>/dev/null || true
    detach
    "$furrow" fsck "$drive" >"$work/out" || { cat "$work/out"; fail "after $1: fsck found damage"; }
    attach
}

"$furrow" device create "$drive" -o capacity=3GiB,zone-size=8MiB >/dev/null
"$furrow" mkfs "$drive" >/dev/null
attach
suite="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)"
mirror="$(cat $(find /etc/apt -name '*.sources' -o -name sources.list) |
    awk '$1 == "deb" || $1 == "URIs:" { for (i = 2; i <= NF; i++) if ($i ~ /^http/) { print $i; exit } }')"
debootstrap --variant=minbase "$suite" "$mount/lower" "$mirror" >"$work/out" 2>&1 ||
    { tail -n 5 "$work/out"; fail "debootstrap"; }
# tzdata is in the lower layer already: its files are replaced, and removed.
packages=(tree less file libmagic1 libmagic-mgc manpages tzdata)
(cd "$work/debs" && apt-get download -qq "${packages[@]}" -o APT::Sandbox::User=root >/dev/null) ||
    fail "cannot download ${packages[*]}"
mkdir "$mount/upper" "$mount/work" "$mount/lower/debs"
cp "$work"/debs/*.deb "$mount/lower/debs"
lower() { (cd "$mount/lower" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }
before="$(lower)"
"$furrow" sync "$mount"
say "a Debian system of $(find "$mount/lower" | wc -l) files on the mount, and an overlay on it"

in_overlay() { chroot "$merged" env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
# What dpkg calls unpacked or installed must be there, as it was packed.
whole() {
    local installed
    installed="$(in_overlay dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${packages[@]}" 2>/dev/null |
        awk '$1 ~ /^i[iUF]$/ { print $2 }' || true)"
    count=$(printf '%s' "$installed" | grep -c . || true)
    [ -n "$installed" ] || return 0
    # A configuration file comes with the configuration.
    # shellcheck disable=SC2086 # names of packages
    in_overlay dpkg -V $installed 2>&1 | grep -v ' c /' >"$work/out" || true
    [ ! -s "$work/out" ] || { cat "$work/out"; fail "after $1: packages are not whole"; }
}
RANDOM="${SEED:-1}"
for ((round = 1; round <= kills; round++)); do
    over
    in_overlay dpkg --force-depends --configure -a >"$work/out" 2>&1 || { cat "$work/out"; fail "round $round: dpkg --configure"; }
    if [ $((round % 3)) -eq 0 ]; then
        in_overlay dpkg --force-depends --purge "${packages[@]}" >"$work/out" 2>&1 &
    else
        in_overlay sh -c 'dpkg --force-depends -i /debs/*.deb' >"$work/out" 2>&1 &
    fi
    sleep "$((RANDOM % 4)).$((RANDOM % 10))"
    crash "kill $round"
    over
    whole "kill $round"
    say "kill $round: fsck clean, $count packages unpacked or installed, whole"
    umount "$merged"
done
over
in_overlay dpkg --force-depends --configure -a >/dev/null 2>&1
in_overlay sh -c 'dpkg --force-depends -i /debs/*.deb' >"$work/out" 2>&1 || { cat "$work/out"; fail "dpkg -i at the end"; }
whole "the end"
[ "$count" -eq ${#packages[@]} ] || fail "at the end $count of ${#packages[@]} packages are installed"
in_overlay dpkg --force-depends --purge tree tzdata >/dev/null 2>&1
[ ! -e "$merged/usr/share/zoneinfo/UTC" ] || fail "a file of a removed package is there"
umount "$merged"
[ "$(lower)" = "$before" ] || fail "the lower layer has changed"
say "overlay: $kills kills, all packages whole, the lower layer as before"

have podman && have runc || { say "containers: not tried, podman and runc are not here"; exit 0; }
contained() {
    timeout 120 podman --root "$mount/podman" --runroot "$work/run" --cgroup-manager cgroupfs \
        --storage-driver overlay --runtime runc "$@"
}
run() { contained run --network none --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$@"; }
{
    tar -C "$mount/lower" -c . | contained import - furrow-test
    run --name install furrow-test sh -c 'dpkg --force-depends -i /debs/*.deb && rm -r /usr/share/doc'
    contained commit install furrow-test:more
} >"$work/out" 2>&1 || { tail -n 5 "$work/out"; fail "podman"; }
"$furrow" sync "$mount"
crash "a kill of the mount with Podman's storage"
run --rm furrow-test:more sh -c 'test ! -e /usr/share/doc && tree -L 1 / && dpkg -V --verify-format rpm tree' \
    >"$work/out" 2>&1 || { tail -n 5 "$work/out"; fail "podman after a kill"; }
contained rmi --force --all >/dev/null
detach
"$furrow" fsck "$drive" | tail -n 1
say "containers: an image, an installation, a commit, a kill, a container of the committed image"
