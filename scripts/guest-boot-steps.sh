#!/bin/bash
# What the guest of scripts/guest-boot.sh does at a boot, after systemd has started everything. Each line for the host
# begins with GUEST.
exec 2>&1
export FURROW_RUN=/run/furrow
step=$(sed -n 's/.*furrow=\([a-z]*\).*/\1/p' /proc/cmdline)

tell() { echo "GUEST $*"; }
# Shows a command and what it prints. $@: the command
show() {
    tell "# $*"
    "$@" 2>&1 | sed 's/^/GUEST   /'
}
# Runs a check and reports it. $1: what holds, then the command
holds() {
    local what="$1"
    shift
    if "$@" >/run/out 2>&1; then tell "ok   $what"; else
        tell "FAIL $what"
        sed 's/^/GUEST   /' /run/out | tail -n 40
    fi
}
# The drive with this serial number: the kernel numbers drives in the order in which they answer.
drive() {
    local one
    for one in /sys/class/nvme/nvme*; do
        grep -q "^furrow$1 *$" "$one/serial" && echo "/dev/${one##*/}n1"
    done
}
drives() { local number; for number in "$@"; do drive "$number"; done; }
states() { furrow raid status "$1" --json | sed -n 's/^ *"state": "\(.*\)".*/\1/p' | paste -s -d ' '; }
is() { echo "$2"; [ "$1" = "$2" ]; }

make() {
    udevadm settle
    local one
    for one in $(drives 0 1 2 3 4 5 6 7 8); do
        holds "soft zones on $one" furrow device create --soft "$one" --zone-size 4MiB
    done
    holds "an array of four" furrow raid create -l 6 -n tank $(drives 0 1 2 3)
    holds "assembled with a spare" furrow raid assemble -n tank --ublk --spare "$(drive 4)" $(drives 0 1 2 3)
    udevadm settle
    holds "udev links the volume" test -b /dev/furrow/tank
    holds "ext4 on it" mkfs.ext4 -q -L tankfs /dev/furrow/tank
    mount /dev/furrow/tank /srv/tank
    dd if=/dev/urandom of=/srv/tank/file bs=1M count=20 status=none
    holds "a member fails" furrow raid fail tank 1
    sleep 2
    holds "the spare is rebuilt" furrow raid rebuild tank --wait
    holds "a member is failed and replaced" sh -c "furrow raid fail tank 2 && furrow raid replace tank 2 $(drive 5) --wait"
    holds "every member is online" is "online online online online online" "$(states tank)"
    sha256sum /srv/tank/file | cut -c 1-64 >/run/sum
    cp /run/sum /srv/tank/sum
    umount /srv/tank
    holds "stopped" furrow raid stop tank
    holds "a second array" furrow raid create -l 5 -n pool $(drives 6 7)
    holds "assembled" furrow raid assemble -n pool --ublk $(drives 6 7)
    udevadm settle
    holds "soft zones on its volume" furrow device create --soft /dev/furrow/pool --zone-size 4MiB
    holds "a file system there" furrow mkfs -L onpool /dev/furrow/pool
    holds "a file system on a drive" furrow mkfs -L data "$(drive 8)"
    furrow mount /dev/furrow/pool /srv/pool && echo pool >/srv/pool/file && furrow umount /srv/pool
    furrow mount "$(drive 8)" /srv/data && echo data >/srv/data/file && furrow umount /srv/data
    holds "stopped" furrow raid stop pool
    show file -s "$(drive 8)"
}

# What every boot has to have.
found() {
    show lsblk -o NAME,FSTYPE,LABEL,MOUNTPOINTS
    show findmnt -t ext4,fuse.furrow.fs,fuse.furrow
    holds "ext4 is mounted from the array" mountpoint /srv/tank
    holds "its file is whole" sh -c 'sha256sum /srv/tank/file | cut -c 1-64 | cmp - /srv/tank/sum'
    holds "the file system on the other array is mounted" grep -qx pool /srv/pool/file
    holds "the file system on a drive is mounted" grep -qx data /srv/data/file
    holds "nothing failed" is "" "$(systemctl list-units --failed --no-legend --plain | grep -v guest-boot)"
    holds "no ordering cycle" sh -c '! journalctl -b | grep -i "ordering cycle"'
    holds "links by label" ls /dev/disk/by-label/data /dev/disk/by-label/onpool /dev/disk/by-label/tankfs
    holds "lsblk knows the members" sh -c '[ "$(lsblk -n -o FSTYPE,LABEL $(furrow raid status tank | grep -o "/dev/nvme[^ ]*$") |
        sort -u | tr -s " ")" = "furrow_raid_member tank" ]'
    show systemctl --no-pager list-dependencies --after srv-tank.mount srv-pool.mount
    show furrow raid status tank
    show cat /run/tank.events
}

again() {
    found
    holds "every member is online" is "online online online online online" "$(states tank)"
}

without() {
    found
    holds "the member is missing" is "degraded missing online online online" "$(states tank)"
    holds "the status says why" sh -c 'furrow raid status tank | grep "absent: member 0: .*found nowhere in 30 s"'
    holds "an event" grep -q 'degraded 0 runs without member 0: its drive was found nowhere in 30 s' /run/tank.events
    holds "the hook ran" grep -q '^degraded tank 0 runs without member 0' /run/tank.hooked
}

# Everything else has started or has failed.
for ((second = 0; second < 300; second++)); do
    [ "$(systemctl list-jobs --no-legend --plain | grep -vc 'guest-boot-steps\|\.target')" != 0 ] || break
    sleep 1
done
tell "$step: started after $(cut -d ' ' -f 1 /proc/uptime) s"
"$step"
# For those who look for the cause of a failure.
journalctl -b --no-pager -o short-monotonic | grep -v ' kernel: '
tell end
systemctl poweroff --no-block
