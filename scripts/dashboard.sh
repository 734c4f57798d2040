#!/usr/bin/env bash
# Draws the dashboard of docs/use/metrics.md from a mount under load: docs/use/dashboard.webp and, for dark
# pages, docs/use/dashboard-dark.webp. It takes seven minutes.
#
# An emulated drive is mounted on /srv/data, in a mount namespace of its own. fio fills four fifths of the
# file system, then overwrites, syncs and reads; a scrub runs meanwhile. Prometheus scrapes the mount every
# five seconds. A page of scripts/dashboard.jsx asks it what the panels of the dashboard ask, and draws them
# with Grafana's components; Chromium takes the pictures.
#
# Needs root, 3 GiB below /tmp, and what scripts/setup.sh dashboard installs. PROMETHEUS=FILE names
# another Prometheus; FURROW=FILE a furrow that has been built already.
. "$(dirname "$0")/lib.sh"

if [ "${1:-}" != --inside ]; then
    exec unshare --mount --propagation private "$root/scripts/dashboard.sh" --inside
fi
prometheus="${PROMETHEUS:-prometheus}"
for tool in npm fio "$prometheus" chromium; do
    have "$tool" || fail "missing: $tool; run 'scripts/setup.sh dashboard'"
done
problem="$(fuse_problem)"
[ -z "$problem" ] || fail "$problem"
if [ -z "${FURROW:-}" ]; then
    say "building furrow, optimised (a few minutes the first time)"
    cargo build --quiet --release --locked -p furrow-cli
    FURROW="$target_dir/release/furrow"
fi

# The versions that have been tried together.
packages=(@grafana/ui@11.6.0 @grafana/data@11.6.0 react@18.2.0 react-dom@18.2.0 rxjs@7.8.1
    @fontsource/inter@5.3.0 esbuild@0.28.2)
page="$(realpath -m "$target_dir")/dashboard"
if ! printf '%s\n' "${packages[@]}" | cmp -s - "$page/installed"; then
    say "fetching Grafana's components (once)"
    mkdir -p "$page"
    echo '{"private": true}' >"$page/package.json"
    npm install --prefix "$page" --no-audit --no-fund --ignore-scripts --legacy-peer-deps --loglevel error \
        "${packages[@]}"
    printf '%s\n' "${packages[@]}" >"$page/installed"
fi
cp scripts/dashboard.jsx scripts/prometheus/furrow-dashboard.json "$page"
(cd "$page" && node_modules/.bin/esbuild dashboard.jsx --bundle --outfile=dashboard.js --jsx=automatic \
    --main-fields=module,browser,main --log-level=error --define:global=window \
    --define:process.env.NODE_ENV='"production"' \
    --loader:.svg=dataurl --loader:.woff=dataurl --loader:.woff2=dataurl --loader:.ttf=dataurl)
cat >"$page/index.html" <<END
<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="dashboard.css"><div id="root"></div>
<script src="dashboard.js"></script>
END

work="$(mktemp -d)"
prometheus_id= scrub_id=
finish() {
    status=$?
    trap - EXIT INT TERM
    [ -z "$prometheus_id" ] || kill "$prometheus_id" 2>/dev/null || true
    [ -z "$scrub_id" ] || kill "$scrub_id" 2>/dev/null || true
    ! mountpoint -q /srv/data || "$FURROW" umount -f /srv/data
    wait
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mount -t tmpfs none /srv
mkdir /srv/data
"$FURROW" device create "$work/disk.zns" -o zones=128 >"$work/made"
"$FURROW" mkfs -L data "$work/disk.zns" >"$work/made"
"$FURROW" mount -o cache=64MiB,metrics=127.0.0.1:9790 "$work/disk.zns" /srv/data 2>"$work/notes" || {
    cat "$work/notes" >&2
    exit 1
}
cat >"$work/prometheus.yml" <<END
global: {scrape_interval: 5s}
scrape_configs: [{job_name: furrow, static_configs: [{targets: ["127.0.0.1:9790"]}]}]
END
"$prometheus" --config.file "$work/prometheus.yml" --storage.tsdb.path "$work/series" \
    --web.listen-address 127.0.0.1:9791 2>"$work/prometheus.log" &
prometheus_id=$!

begun=$SECONDS
say "load for five minutes"
sleep 10
fio=(fio --output="$work/fio" --directory=/srv/data --fallocate=none --filename=big --size=1200M)
"${fio[@]}" --name=fill --rw=write --bs=1M --rate=30M
(sleep 150 && "$FURROW" scrub /srv/data) >"$work/scrub" 2>&1 &
scrub_id=$!
"${fio[@]}" --time_based --name=overwrite --rw=randwrite --bs=16k --rate=6M --runtime=180 \
    --name=read --startdelay=60 --rw=randread --bs=64k --direct=1 --rate=10M --runtime=140 \
    --name=log --filename=log --size=64M --rw=write --bs=8k --fsync=1 --rate_iops=50 --runtime=230
wait "$scrub_id"
sleep 10

draw() {
    local asked="mode=$1&prometheus=http://127.0.0.1:9791&seconds=$((SECONDS - begun))&scrape=5&row=Mounts"
    timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/$1" \
        --window-size=968,1300 --virtual-time-budget=10000 --screenshot="$work/$2" \
        "file://$page/index.html?$asked" >"$work/chromium" 2>&1 || fail "$(tail -n 3 "$work/chromium")"
    cp "$work/$2" "docs/use/$2"
}
draw light dashboard.webp
draw dark dashboard-dark.webp
say "docs/use/dashboard.webp and docs/use/dashboard-dark.webp are drawn"
