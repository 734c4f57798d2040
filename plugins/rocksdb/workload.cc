// SPDX-License-Identifier: Apache-2.0 OR MIT
// The workloads of the Same-Victim GC paper, and one that writes several drive capacities, on
// RocksDB's interface: workload URI [NAME=VALUE...]
//
// Prints one line of JSON: bytes written, bytes that each collector copied, space and times.
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
#include "dead_ranges.h"
#include "fs.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/listener.h"
#include "rocksdb/statistics.h"
#include "same_victim.h"

using namespace rocksdb;

namespace {

constexpr char kUsage[] =
    "usage: workload URI [NAME=VALUE...]\n"
    "  workload=fillrandom|a|b|c  random writes; or, after a load, by a zipfian distribution (0.99):\n"
    "                             a 80 % updates 20 % inserts, b 80 % updates 20 % reads, c 50/50\n"
    "  workload=sustained         as a, but each insert deletes a record drawn evenly: live=SHARE of\n"
    "                             nominal=BYTES stays live, turns=N times nominal is written\n"
    "  records=N operations=N value=BYTES blob=BYTES memtable=BYTES table=BYTES level=BYTES\n"
    "  cutoff=SHARE same-victim=off|on|as-printed log=FILE threads=N seed=N wal=0|1 open-files=N\n"
    "  zeros=0|1                  values are zeros behind their first bytes, so that a drive in memory\n"
    "                             takes little of it; sustained values always are\n"
    "  collect=on|off             off: RocksDB collects no blob files\n"
    "  dead-ranges=on|off         on: the store is told what no table names; with collect=off\n"
    "  rate=BYTES                 user bytes a second, at most; 0: as fast as it goes\n"
    "  short=PERCENT              Same-Victim collects only while fewer zones than that are free\n"
    "  trace=FILE                 writes keys and sizes, in the order of writing (sustained), to FILE;\n"
    "                             with the URI `trace:` nothing else is done\n";

// Bytes of a blob file's record in addition to the value: header and key.
constexpr uint64_t kRecordHead = 32 + 16;

struct Settings {
  std::map<std::string, std::string> values{
      {"workload", "a"},      {"records", "20000"}, {"operations", "20000"}, {"value", "16384"},
      {"blob", "8388608"},    {"memtable", "8388608"}, {"table", "67108864"},
      {"level", "268435456"}, {"cutoff", "0.25"},   {"same-victim", "off"}, {"log", ""},
      {"threads", "1"},       {"seed", "1"},        {"wal", "0"},           {"open-files", "4"},
      {"zeros", "0"},         {"live", "0.5"},      {"nominal", "0"},       {"turns", "4"},
      {"rate", "0"},          {"collect", "on"},    {"short", "0"},         {"trace", ""},
      {"dead-ranges", "off"},
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

// The writes of the sustained workload, a function of the seed: records are loaded, then four of
// five writes update a record drawn by a zipfian distribution, and the fifth replaces a record
// drawn evenly by a new one. So the amount of live data stays the same.
class Sustained {
 public:
  struct Write {
    uint64_t key;
    // The key that is deleted with this write.
    uint64_t gone;
    bool deletes;
  };

  Sustained(uint64_t records, uint64_t seed)
      : state_(seed * 1000003 + 1), zipfian_(records, 0.99), keys_(records) {
    for (uint64_t slot = 0; slot < records; slot++) keys_[slot] = slot;
    next_ = records;
  }
  uint64_t records() const { return keys_.size(); }
  // The records that are loaded first, in the order of hashes.
  uint64_t Loaded(uint64_t record) const { return Key(record); }
  Write Next() {
    if (Unit(&state_) < 0.8) {
      uint64_t slot = Scramble(zipfian_.Draw(&state_)) % keys_.size();
      return {Key(keys_[slot]), 0, false};
    }
    uint64_t slot = ::Next(&state_) % keys_.size();
    uint64_t gone = Key(keys_[slot]);
    keys_[slot] = next_++;
    return {Key(keys_[slot]), gone, true};
  }

 private:
  static uint64_t Key(uint64_t number) { return Scramble(number) % 10000000000000000u; }

  uint64_t state_;
  Zipfian zipfian_;
  // The record in each place.
  std::vector<uint64_t> keys_;
  uint64_t next_;
};

// The trace of a sustained workload: lines of key and size, size 0 deletes the key.
bool WriteTrace(const std::string& path, Sustained workload, uint64_t operations, uint64_t size) {
  FILE* file = fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  fprintf(file, "key,size\n");
  for (uint64_t record = 0; record < workload.records(); record++) {
    fprintf(file, "%" PRIu64 ",%" PRIu64 "\n", workload.Loaded(record), size);
  }
  for (uint64_t i = 0; i < operations; i++) {
    Sustained::Write write = workload.Next();
    if (write.deletes) fprintf(file, "%" PRIu64 ",0\n", write.gone);
    fprintf(file, "%" PRIu64 ",%" PRIu64 "\n", write.key, size);
  }
  return fclose(file) == 0;
}

// Counts compactions out of level 0. Compactions within level 0, which RocksDB runs while another
// compaction out of level 0 runs, touch few keys and so collect almost nothing.
class Downward : public EventListener {
 public:
  void OnCompactionCompleted(DB*, const CompactionJobInfo& info) override {
    if (info.output_level == 0) return;
    count++;
    micros += info.stats.elapsed_micros;
  }
  std::atomic<uint64_t> count{0}, micros{0};
};

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
  const std::string workload = settings.Text("workload");
  const bool sustained = workload == "sustained";
  const uint64_t value_size = settings.Number("value");
  const uint64_t nominal = settings.Number("nominal");
  uint64_t records = settings.Number("records");
  uint64_t operations = settings.Number("operations");
  if (sustained) {
    const uint64_t record = value_size + kRecordHead;
    records = static_cast<uint64_t>(settings.Share("live") * static_cast<double>(nominal)) / record;
    operations = settings.Number("turns") * nominal / record;
    if (records < 2) {
      fprintf(stderr, "workload: live=%s nominal=%s: no two records of %" PRIu64 " bytes\n",
              settings.Text("live").c_str(), settings.Text("nominal").c_str(), record);
      return 2;
    }
    const std::string& trace = settings.Text("trace");
    Sustained writes(records, settings.Number("seed"));
    if (!trace.empty() && !WriteTrace(trace, writes, operations, record)) {
      fprintf(stderr, "workload: %s: the trace cannot be written\n", trace.c_str());
      return 1;
    }
    if (std::string(arguments[1]) == "trace:") return 0;
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
  options.enable_blob_garbage_collection = settings.Text("collect") != "off";
  options.blob_garbage_collection_age_cutoff = settings.Share("cutoff");
  options.statistics = CreateDBStatistics();
  auto downward = std::make_shared<Downward>();
  options.listeners.push_back(downward);
  std::shared_ptr<furrow::SameVictim> watch;
  const std::string same_victim = settings.Text("same-victim");
  if (same_victim != "off") {
    furrow::SameVictimOptions how;
    how.as_printed = same_victim == "as-printed";
    how.log = settings.Text("log");
    how.short_below = static_cast<uint32_t>(settings.Number("short"));
    watch = std::make_shared<furrow::SameVictim>(store, how);
    options.listeners.push_back(watch);
  }
  std::shared_ptr<furrow::DeadRanges> dead;
  if (settings.Text("dead-ranges") == "on") {
    dead = std::make_shared<furrow::DeadRanges>(store);
    options.listeners.push_back(dead);
    options.table_properties_collector_factories.push_back(furrow::DeadRanges::Factory());
  }
  std::unique_ptr<DB> owned = OpenDatabase(options, "/db");
  DB* db = owned.get();
  if (dead != nullptr) {
    CHECK(dead->Attach(db, {db->DefaultColumnFamily()}), "tables without a record of ranges");
  }
  if (watch != nullptr) watch->Attach(db, {db->DefaultColumnFamily()});
  WriteOptions write;
  write.disableWAL = settings.Number("wal") == 0;

  // Values differ in their first bytes only, so that a store copies the same for all. Long runs
  // write zeros behind these bytes, which a drive in memory does not store.
  const bool zeros = sustained || settings.Number("zeros") != 0;
  const std::string body =
      zeros ? std::string(value_size, '\0') : Content(settings.Number("seed"), value_size);
  auto try_put = [&](uint64_t key, uint64_t version, std::string* value) {
    memcpy(&(*value)[0], &key, sizeof(key));
    memcpy(&(*value)[8], &version, sizeof(version));
    return db->Put(write, KeyOf(key), *value);
  };
  auto put = [&](uint64_t key, uint64_t version, std::string* value) {
    CHECK_OK(try_put(key, version, value));
  };
  // A drive that is too small for a scheme is a result, not an error.
  Status failed;
  uint64_t written = 0;
  auto begun = std::chrono::steady_clock::now();
  // Waits until the rate allows this number of values since `begun`.
  auto keep_rate = [&](uint64_t values) {
    if (settings.Number("rate") == 0) return;
    double seconds = static_cast<double>(values * value_size) / settings.Share("rate");
    std::this_thread::sleep_until(begun + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
  };
  if (sustained) {
    std::string value = body;
    Sustained writes(records, settings.Number("seed"));
    for (uint64_t record = 0; record < records && failed.ok(); record++) {
      failed = try_put(writes.Loaded(record), 0, &value);
    }
  } else if (workload != "fillrandom") {
    std::string value = body;
    // In the order of hashes, as YCSB loads.
    for (uint64_t record = 0; record < records; record++) {
      keep_rate(record);
      put(Scramble(record) % 10000000000000000u, 0, &value);
    }
  }
  double load_seconds = Seconds(begun);
  uint64_t loaded_relocated = options.statistics->getTickerCount(BLOB_DB_GC_BYTES_RELOCATED);
  furrow_counters loaded;
  CHECK(furrow_store_counters(store, &loaded, nullptr) == FURROW_OK, "counters");
  CHECK_OK(options.statistics->Reset());
  downward->count = downward->micros = 0;

  std::unique_ptr<Zipfian> zipfian;
  if (!sustained && workload != "fillrandom") zipfian = std::make_unique<Zipfian>(records, 0.99);
  std::atomic<uint64_t> inserted{0};
  begun = std::chrono::steady_clock::now();
  if (sustained) {
    Sustained writes(records, settings.Number("seed"));
    std::string value = body;
    for (; written < operations && failed.ok(); written++) {
      Sustained::Write next = writes.Next();
      if (next.deletes) failed = db->Delete(write, KeyOf(next.gone));
      if (failed.ok()) failed = try_put(next.key, written + 1, &value);
      // A full drive shows as an error of background writes.
      if (!failed.ok()) break;
    }
  }
  std::vector<std::thread> running;
  for (uint64_t thread = 0; thread < threads && !sustained; thread++) {
    running.emplace_back([&, thread] {
      uint64_t state = settings.Number("seed") * 1000003 + thread * 7919 + 1;
      std::string value = body;
      std::string found;
      for (uint64_t i = thread; i < operations; i += threads) {
        keep_rate(i);
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
  // Writers queued behind the failed one get another message.
  const bool full = failed.IsNoSpace() || failed.ToString().find("No space") != std::string::npos;
  printf("{\"version\": 1, \"workload\": \"%s\", \"uri\": \"%s\", \"seed\": %" PRIu64
         ", \"cutoff\": %s, \"same_victim\": \"%s\", \"records\": %" PRIu64
         ", \"operations\": %" PRIu64 ", \"value\": %" PRIu64 ", \"load_seconds\": %.3f"
         ", \"seconds\": %.3f, \"copied_blobs\": %" PRIu64 ", \"copied_tables\": %" PRIu64
         ", \"copied_blobs_load\": %" PRIu64 ", \"relocated\": %" PRIu64
         ", \"relocated_load\": %" PRIu64 ", \"zones_cleaned\": %" PRIu64 ", \"resets\": %" PRIu64
         ", \"zones\": %" PRIu64 ", \"used_zones\": %" PRIu64 ", \"peak_zones\": %" PRIu64
         ", \"used_bytes\": %" PRIu64 ", \"blob_files\": %zu, \"put_us\": %.2f, \"get_us\": %.2f"
         ", \"compactions\": %" PRIu64 ", \"compaction_seconds\": %.3f, \"compactions_down\": %" PRIu64
         ", \"compaction_down_seconds\": %.3f, \"flushes\": %" PRIu64
         ", \"stall_seconds\": %.3f, \"sets\": %" PRIu64 ", \"watched\": %" PRIu64
         ", \"stale\": %" PRIu64 ", \"calls\": %" PRIu64 ", \"hops\": %" PRIu64
         ", \"collect\": \"%s\", \"short\": %" PRIu64 ", \"live\": %s, \"nominal\": %" PRIu64
         ", \"live_bytes\": %" PRIu64 ", \"user_bytes\": %" PRIu64 ", \"zone_bytes\": %" PRIu64
         ", \"appended\": %" PRIu64 ", \"copied\": %" PRIu64
         ", \"dead_ranges\": %" PRIu64 ", \"dead_bytes\": %" PRIu64 ", \"stopped\": \"%s\"}\n",
         workload.c_str(), arguments[1], settings.Number("seed"), settings.Text("cutoff").c_str(),
         same_victim.c_str(), records, operations, value_size, load_seconds, seconds,
         counters.copied_blobs - loaded.copied_blobs, counters.copied_tables - loaded.copied_tables,
         loaded.copied_blobs, ticker(BLOB_DB_GC_BYTES_RELOCATED), loaded_relocated,
         counters.cleaned, counters.resets, space.zones, space.zones - space.free_zones,
         space.peak_zones, space.used, data.blob_files.size(), puts.average, gets.average,
         compactions.count, static_cast<double>(compactions.sum) / 1e6,
         downward->count.load(), static_cast<double>(downward->micros) / 1e6, flushes.count,
         static_cast<double>(ticker(STALL_MICROS)) / 1e6, watch ? watch->sets() : 0,
         watch ? watch->compactions() : 0, watch ? watch->stale() : 0, counters.calls,
         counters.hops, settings.Text("collect").c_str(), settings.Number("short"),
         settings.Text("live").c_str(), nominal, records * (value_size + kRecordHead),
         written * (value_size + kRecordHead), space.zone_bytes,
         counters.appended, counters.copied, dead ? dead->ranges() : 0, dead ? dead->bytes() : 0,
         failed.ok() ? "" : full ? "no space" : "failed");
  if (!failed.ok()) {
    fprintf(stderr, "workload: stopped after %" PRIu64 " of %" PRIu64 " writes: %s\n", written,
            operations, failed.ToString().c_str());
    // There is nothing left to sync.
    fflush(stdout);
    _exit(full ? 0 : 1);
  }
  if (watch != nullptr) watch->Detach();
  if (dead != nullptr) dead->Detach();
  owned.reset();
  return 0;
}
