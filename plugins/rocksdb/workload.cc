// SPDX-License-Identifier: Apache-2.0 OR MIT
// The workloads of the Same-Victim GC paper, on RocksDB's interface: workload URI [NAME=VALUE...]
//
// Prints one line of JSON: what was written, what each collector copied, space and times.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fs.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/statistics.h"
#include "same_victim.h"

using namespace rocksdb;

namespace {

constexpr char kUsage[] =
    "usage: workload URI [NAME=VALUE...]\n"
    "  workload=fillrandom|a|b|c  random writes; or, after a load, by a zipfian distribution (0.99):\n"
    "                             a 80 % updates 20 % inserts, b 80 % updates 20 % reads, c 50/50\n"
    "  records=N operations=N value=BYTES blob=BYTES memtable=BYTES table=BYTES level=BYTES\n"
    "  cutoff=SHARE same-victim=off|on|as-printed log=FILE threads=N seed=N wal=0|1 open-files=N\n"
    "  zeros=0|1                  values are zeros behind their first bytes, so that a drive in memory\n"
    "                             takes little of it\n";

struct Settings {
  std::map<std::string, std::string> values{
      {"workload", "a"},      {"records", "20000"}, {"operations", "20000"}, {"value", "16384"},
      {"blob", "8388608"},    {"memtable", "8388608"}, {"table", "67108864"},
      {"level", "268435456"}, {"cutoff", "0.25"},   {"same-victim", "off"}, {"log", ""},
      {"threads", "1"},       {"seed", "1"},        {"wal", "0"},           {"open-files", "4"},
      {"zeros", "0"},
  };
  uint64_t Number(const char* name) const { return strtoull(values.at(name).c_str(), nullptr, 10); }
  double Share(const char* name) const { return strtod(values.at(name).c_str(), nullptr); }
  const std::string& Text(const char* name) const { return values.at(name); }
};

uint64_t Next(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

double Unit(uint64_t* state) { return static_cast<double>(Next(state) >> 11) / 9007199254740992.0; }

uint64_t Scramble(uint64_t number) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int i = 0; i < 8; i++, number >>= 8) hash = (hash ^ (number & 0xff)) * 0x100000001b3;
  return hash;
}

// Zipfian numbers below n, as Gray et al. draw them (SIGMOD 1994), which YCSB uses.
class Zipfian {
 public:
  Zipfian(uint64_t n, double theta) : n_(n), theta_(theta) {
    double zeta2 = 0;
    for (uint64_t i = 1; i <= n; i++) {
      zeta_ += 1 / std::pow(static_cast<double>(i), theta);
      if (i == 2) zeta2 = zeta_;
    }
    alpha_ = 1 / (1 - theta);
    eta_ = (1 - std::pow(2.0 / static_cast<double>(n), 1 - theta)) / (1 - zeta2 / zeta_);
  }
  uint64_t Draw(uint64_t* state) const {
    double u = Unit(state);
    double z = u * zeta_;
    if (z < 1) return 0;
    if (z < 1 + std::pow(0.5, theta_)) return 1;
    auto drawn = static_cast<uint64_t>(static_cast<double>(n_) *
                                       std::pow(eta_ * u - eta_ + 1, alpha_));
    return std::min(drawn, n_ - 1);
  }

 private:
  uint64_t n_;
  double theta_, zeta_ = 0, alpha_, eta_;
};

std::string KeyOf(uint64_t number) {
  char key[21];
  snprintf(key, sizeof(key), "%016" PRIu64, number);
  return std::string(key, 16);
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

int main(int count, char** arguments) {
  Settings settings;
  if (count < 2 || arguments[1][0] == '-') {
    fputs(kUsage, stderr);
    return 2;
  }
  for (int i = 2; i < count; i++) {
    std::string word = arguments[i];
    size_t equals = word.find('=');
    if (equals == std::string::npos || settings.values.count(word.substr(0, equals)) == 0) {
      fprintf(stderr, "workload: %s: no such setting\n%s", word.c_str(), kUsage);
      return 2;
    }
    settings.values[word.substr(0, equals)] = word.substr(equals + 1);
  }
  std::shared_ptr<FileSystem> fs;
  Status opened = FileSystem::CreateFromString(ConfigOptions(), arguments[1], &fs);
  if (!opened.ok()) {
    fprintf(stderr, "workload: %s\n", opened.ToString().c_str());
    return 1;
  }
  auto* store_fs = fs->CheckedCast<furrow::StoreFileSystem>();
  if (store_fs == nullptr) {
    fprintf(stderr, "workload: %s: not a store\n", arguments[1]);
    return 1;
  }
  furrow_store* store = store_fs->store();
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  const std::string workload = settings.Text("workload");
  const uint64_t records = settings.Number("records");
  const uint64_t operations = settings.Number("operations");
  const uint64_t value_size = settings.Number("value");
  const uint64_t threads = settings.Number("threads");

  Options options;
  options.env = env.get();
  options.create_if_missing = true;
  options.write_buffer_size = settings.Number("memtable");
  options.target_file_size_base = settings.Number("table");
  options.max_bytes_for_level_base = settings.Number("level");
  options.max_background_flushes = 2;
  options.max_background_compactions = 2;
  options.max_subcompactions = 4;
  options.max_open_files = static_cast<int>(settings.Number("open-files"));
  options.compression = kNoCompression;
  options.enable_blob_files = true;
  options.min_blob_size = 1024;
  options.blob_file_size = settings.Number("blob");
  options.enable_blob_garbage_collection = true;
  options.blob_garbage_collection_age_cutoff = settings.Share("cutoff");
  options.statistics = CreateDBStatistics();
  std::shared_ptr<furrow::SameVictim> watch;
  const std::string same_victim = settings.Text("same-victim");
  if (same_victim != "off") {
    furrow::SameVictimOptions how;
    how.as_printed = same_victim == "as-printed";
    how.log = settings.Text("log");
    watch = std::make_shared<furrow::SameVictim>(store, how);
    options.listeners.push_back(watch);
  }
  std::unique_ptr<DB> owned = OpenDatabase(options, "/db");
  DB* db = owned.get();
  if (watch != nullptr) watch->Attach(db, {db->DefaultColumnFamily()});
  WriteOptions write;
  write.disableWAL = settings.Number("wal") == 0;

  // Values differ in their first bytes: what a store copies is the same for all.
  const std::string body = settings.Number("zeros") == 0
                               ? Content(settings.Number("seed"), value_size)
                               : std::string(value_size, '\0');
  auto put = [&](uint64_t key, uint64_t version, std::string* value) {
    memcpy(&(*value)[0], &key, sizeof(key));
    memcpy(&(*value)[8], &version, sizeof(version));
    CHECK_OK(db->Put(write, KeyOf(key), *value));
  };
  auto begun = std::chrono::steady_clock::now();
  if (workload != "fillrandom") {
    std::string value = body;
    // In the order of hashes, as YCSB loads.
    for (uint64_t record = 0; record < records; record++) {
      put(Scramble(record) % 10000000000000000u, 0, &value);
    }
  }
  double load_seconds = Seconds(begun);
  uint64_t loaded_relocated = options.statistics->getTickerCount(BLOB_DB_GC_BYTES_RELOCATED);
  furrow_counters loaded;
  CHECK(furrow_store_counters(store, &loaded, nullptr) == FURROW_OK, "counters");
  CHECK_OK(options.statistics->Reset());

  std::unique_ptr<Zipfian> zipfian;
  if (workload != "fillrandom") zipfian = std::make_unique<Zipfian>(records, 0.99);
  std::atomic<uint64_t> inserted{0};
  begun = std::chrono::steady_clock::now();
  std::vector<std::thread> running;
  for (uint64_t thread = 0; thread < threads; thread++) {
    running.emplace_back([&, thread] {
      uint64_t state = settings.Number("seed") * 1000003 + thread * 7919 + 1;
      std::string value = body;
      std::string found;
      for (uint64_t i = thread; i < operations; i += threads) {
        if (workload == "fillrandom") {
          put(Next(&state) % operations, i, &value);
          continue;
        }
        double chance = Unit(&state);
        uint64_t key = Scramble(zipfian->Draw(&state)) % 10000000000000000u;
        if (workload == "a" && chance >= 0.8) {
          put(Scramble(records + inserted++) % 10000000000000000u, i, &value);
        } else if (chance < (workload == "c" ? 0.5 : 0.8)) {
          put(key, i, &value);
        } else {
          CHECK_OK(db->Get(ReadOptions(), KeyOf(key), &found));
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  double seconds = Seconds(begun);
  furrow_counters counters;
  furrow_space space;
  CHECK(furrow_store_counters(store, &counters, nullptr) == FURROW_OK, "counters");
  CHECK(furrow_store_space(store, &space, nullptr) == FURROW_OK, "space");
  auto ticker = [&](Tickers which) { return options.statistics->getTickerCount(which); };
  HistogramData puts, gets, compactions, flushes;
  options.statistics->histogramData(DB_WRITE, &puts);
  options.statistics->histogramData(DB_GET, &gets);
  options.statistics->histogramData(COMPACTION_TIME, &compactions);
  options.statistics->histogramData(FLUSH_TIME, &flushes);
  ColumnFamilyMetaData data;
  db->GetColumnFamilyMetaData(&data);
  printf("{\"version\": 1, \"workload\": \"%s\", \"uri\": \"%s\", \"seed\": %" PRIu64
         ", \"cutoff\": %s, \"same_victim\": \"%s\", \"records\": %" PRIu64
         ", \"operations\": %" PRIu64 ", \"value\": %" PRIu64 ", \"load_seconds\": %.3f"
         ", \"seconds\": %.3f, \"copied_blobs\": %" PRIu64 ", \"copied_tables\": %" PRIu64
         ", \"copied_blobs_load\": %" PRIu64 ", \"relocated\": %" PRIu64
         ", \"relocated_load\": %" PRIu64 ", \"zones_cleaned\": %" PRIu64 ", \"resets\": %" PRIu64
         ", \"zones\": %" PRIu64 ", \"used_zones\": %" PRIu64 ", \"peak_zones\": %" PRIu64
         ", \"used_bytes\": %" PRIu64 ", \"blob_files\": %zu, \"put_us\": %.2f, \"get_us\": %.2f"
         ", \"compactions\": %" PRIu64 ", \"compaction_seconds\": %.3f, \"flushes\": %" PRIu64
         ", \"stall_seconds\": %.3f, \"sets\": %" PRIu64 ", \"watched\": %" PRIu64
         ", \"stale\": %" PRIu64 ", \"calls\": %" PRIu64 ", \"hops\": %" PRIu64 "}\n",
         workload.c_str(), arguments[1], settings.Number("seed"), settings.Text("cutoff").c_str(),
         same_victim.c_str(), records, operations, value_size, load_seconds, seconds,
         counters.copied_blobs - loaded.copied_blobs, counters.copied_tables - loaded.copied_tables,
         loaded.copied_blobs, ticker(BLOB_DB_GC_BYTES_RELOCATED), loaded_relocated,
         counters.cleaned, counters.resets, space.zones, space.zones - space.free_zones,
         space.peak_zones, space.used, data.blob_files.size(), puts.average, gets.average,
         compactions.count, static_cast<double>(compactions.sum) / 1e6, flushes.count,
         static_cast<double>(ticker(STALL_MICROS)) / 1e6, watch ? watch->sets() : 0,
         watch ? watch->compactions() : 0, watch ? watch->stale() : 0, counters.calls,
         counters.hops);
  if (watch != nullptr) watch->Detach();
  owned.reset();
  return 0;
}
