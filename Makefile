# The targets of this repository. `make help` lists them.
# Each target installs what it needs on Debian and Ubuntu; see scripts/setup.sh.

.DEFAULT_GOAL := help
.PHONY: help build lab claims rocksdb rocksdb-jni install uninstall deb test test-guest test-guest-long test-long lint demo demo-raid demo-rocksdb demo-jvm demo-cluster crash crash-full bench realtime

help: ## list the targets
	@echo 'Furrow: a storage stack for zoned flash, in user space.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the furrow command, optimised: target/release/furrow
	@scripts/setup.sh build
	cargo build --release --locked -p furrow-cli

rocksdb: build ## the RocksDB plugin: target/release/libfurrow_rocksdb.so
	@scripts/setup.sh rocksdb
	@scripts/rocksdb.sh build

rocksdb-jni: ## the RocksDB plugin for programs on a JVM: VERSION= that of their rocksdbjni jar
	@scripts/setup.sh rocksdb-jni
	@scripts/rocksdb-jni.sh build "$(VERSION)"

install: ## what `make build` and `make rocksdb` built, below PREFIX (/usr/local)
	@scripts/install.sh "$${CARGO_TARGET_DIR:-target}/release/furrow"

uninstall: ## take away what `make install` put below PREFIX
	@scripts/install.sh --uninstall

deb: build ## a Debian package of it: target/furrow_VERSION_ARCHITECTURE.deb
	@scripts/setup.sh deb
	@scripts/deb.sh "$${CARGO_TARGET_DIR:-target}/release/furrow"

test: ## for each change: lints, tests, crash sweep, fsx on a mount (about 30 minutes)
	@scripts/setup.sh test
	@scripts/test.sh

test-guest: ## real zoned drives, on a current kernel in QEMU (about 10 minutes)
	@scripts/setup.sh test-guest
	@scripts/guest.sh

test-guest-long: ## the same guest: pjdfstest, a rebuild, ext4 and XFS on a volume, db_bench on a store
	@scripts/setup.sh test-guest-long
	@FURROW_GUEST_PROFILE=release scripts/guest.sh long

test-long: ## for nights: make test, then longer sweeps, simulations and what stock tools ask
	@scripts/setup.sh test-long
	@scripts/test.sh long

lint: ## formatting, clippy, prose, licences (the quick part of `make test`)
	@scripts/setup.sh lint
	@scripts/test.sh lint

demo: ## a source tree on an emulated zoned drive, killed five times, checked
	@scripts/setup.sh demo
	@scripts/demo.sh

demo-raid: ## a RAID-5 over NBD: a drive pulled under load, replaced, rebuilt, scrubbed
	@scripts/setup.sh demo-raid
	@scripts/demo-raid.sh

demo-rocksdb: rocksdb ## stock db_bench on a zoned drive, with and without Same-Victim collection
	@scripts/demo-rocksdb.sh

demo-jvm: build ## Kafka Streams with its state on a zoned drive, killed, checked, wiped
	@scripts/setup.sh rocksdb-jni
	@scripts/rocksdb-jni.sh build 7.8.3
	@scripts/demo-jvm.sh

ENGINE ?= both
demo-cluster: build ## Kafka and Garage on three mounts, a power cut, a drive replaced; ENGINE=kafka or garage
	@scripts/setup.sh $(if $(filter kafka,$(ENGINE)),cluster,cluster-garage)
	@scripts/cluster.sh demo --engine $(ENGINE)

crash: ## power cuts at every command, the slice CI runs (under 5 minutes)
	@scripts/setup.sh build
	@scripts/crash.sh slice

crash-full: ## power cuts at every command, the long form
	@scripts/setup.sh build
	@scripts/crash.sh full

lab: ## the furrow-lab command, optimised: claims, calibration, benchmarks; it is not installed
	@scripts/setup.sh build
	cargo build --release --locked -p furrow-lab --bin furrow-lab

claims: lab ## the headlines of four papers beside ours, run again in virtual time
	@"$${CARGO_TARGET_DIR:-target}/release/furrow-lab" headlines docs/research --seeds 1

bench: lab ## every layer against what limits it; ratios within one run
	@scripts/setup.sh bench
	@"$${CARGO_TARGET_DIR:-target}/release/furrow-lab" bench
	cargo bench --quiet --locked -p furrow-lab --bench parity

realtime: ## a mount on a drive that takes its time, by fio, against the drive's own figures
	@scripts/setup.sh realtime
	@scripts/realtime.sh
