#!/usr/bin/env bash
# Kafka and Garage on three Furrow mounts: scripts/cluster.sh demo|rounds|bench [OPTION]...
#
# demo: what `make demo-cluster` runs. rounds N --seed S --engine garage|kafka|both: rounds of faults,
# each followed by a comparison of all that was acknowledged. bench --engine ...: speed against ext4 on the
# same disk, which needs root. scripts/cluster/run.py says more.
#
# Kafka comes from Maven's repository. Garage is a program of its own, under its own licence, built
# from its sources below the target folder by scripts/setup.sh; GARAGE=FILE names another. Neither
# becomes part of Furrow.
. "$(dirname "$0")/lib.sh"

furrow="$(realpath -m "$target_dir")/release/furrow"
garage="${GARAGE:-$(command -v garage || true)}"
[ -x "$furrow" ] || fail "$furrow does not exist: run 'make build' first"
problem="$(fuse_problem)"
[ -z "$problem" ] || fail "$problem"
case " $* " in
*" --engine kafka "*) ;;
*) [ -n "$garage" ] || fail "missing: garage; run 'scripts/setup.sh cluster-garage'" ;;
esac
fetch_jars "kafka-$KAFKA_VERSION" "org.apache.kafka:kafka_2.13:$KAFKA_VERSION" org.slf4j:slf4j-simple:1.7.36
# Debian's interpreter: its packages have the S3 client.
exec env PATH="/usr/bin:$PATH" PYTHONDONTWRITEBYTECODE=1 python3 scripts/cluster/run.py "$@" \
    --furrow "$furrow" --garage "${garage:-garage}" --jars "$jars/kafka-$KAFKA_VERSION"
