// SPDX-License-Identifier: Apache-2.0 OR MIT
// A database that keeps its store full while it is overwritten: full URI [LIVE [CAPACITIES]]
//
// LIVE (0.70) is the share of the store's capacity that values take; the rest of the used space is
// garbage that RocksDB has not collected. When 95 % are in use the oldest 3 % of the blob files are
// collected, again and again until less is in use: RocksDB writes the collected values before it
// removes files, so a larger share would need more space than there is. Keys are overwritten at
// random until CAPACITIES (1) times the capacity has been written. Prints the bytes written, by
// writer, as JSON; exits with 1 at the first write that fails.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <memory>

#include "check.h"
#include "fs.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/statistics.h"

using namespace rocksdb;

int main(int count, char** arguments) {
  if (count < 2) {
    fputs("usage: full URI [LIVE [CAPACITIES]]\n", stderr);
    return 2;
  }
  const double live = count > 2 ? atof(arguments[2]) : 0.70;
  const double capacities = count > 3 ? atof(arguments[3]) : 1;
  CHECK(live > 0 && live < 0.95 && capacities > 0, "LIVE is below 0.95, CAPACITIES above 0");
  std::shared_ptr<FileSystem> fs;
  CHECK_OK(FileSystem::CreateFromString(ConfigOptions(), arguments[1], &fs));
  auto* store_fs = fs->CheckedCast<furrow::StoreFileSystem>();
  CHECK(store_fs != nullptr, "not a store");
  furrow_store* store = store_fs->store();
  furrow_space space;
  auto share = [&] {
    CHECK(furrow_store_space(store, &space, nullptr) == FURROW_OK, "space");
    return static_cast<double>(space.used) / static_cast<double>(space.capacity);
  };
  share();
  constexpr uint64_t kValue = 16 << 10;
  const uint64_t keys = static_cast<uint64_t>(live * static_cast<double>(space.capacity)) / kValue;
  const uint64_t writes =
      static_cast<uint64_t>(capacities * static_cast<double>(space.capacity)) / kValue;
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  Options options;
  options.env = env.get();
  options.create_if_missing = true;
  options.compression = kNoCompression;
  options.write_buffer_size = 512 << 10;
  options.target_file_size_base = 256 << 10;
  options.max_bytes_for_level_base = 1 << 20;
  options.enable_blob_files = true;
  options.min_blob_size = 1024;
  options.blob_file_size = 256 << 10;
  // Otherwise both grow without limit, and both are in the store.
  options.max_log_file_size = 1 << 20;
  options.keep_log_file_num = 2;
  options.max_manifest_file_size = 1 << 20;
  options.statistics = CreateDBStatistics();
  DB* db = nullptr;
  CHECK_OK(DB::Open(options, "/full", &db));
  WriteOptions write;
  write.disableWAL = true;
  CompactRangeOptions collect;
  collect.blob_garbage_collection_policy = BlobGarbageCollectionPolicy::kForce;
  collect.blob_garbage_collection_age_cutoff = 0.03;
  collect.bottommost_level_compaction = BottommostLevelCompaction::kForce;

  std::string value = Content(1, kValue);
  uint64_t state = 88172645463325252u, collections = 0, samples = 0;
  double most = 0, sum = 0;
  for (uint64_t i = 0; i < keys + writes; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uint64_t key = i < keys ? i : state % keys;
    char name[21];
    snprintf(name, sizeof(name), "%016" PRIu64, key);
    memcpy(&value[0], &key, sizeof(key));
    memcpy(&value[8], &i, sizeof(i));
    CHECK_OK(db->Put(write, Slice(name, 16), value));
    if (i % 16 != 0) continue;
    for (int tries = 0; share() > 0.95; tries++) {
      CHECK(tries < 200, "nothing is left to collect: less must be live");
      CHECK_OK(db->CompactRange(collect, nullptr, nullptr));
      collections++;
    }
    if (i < keys) continue;
    most = std::max(most, share());
    sum += share();
    samples++;
  }
  CHECK_OK(db->Flush(FlushOptions()));
  uint64_t relocated = options.statistics->getTickerCount(BLOB_DB_GC_BYTES_RELOCATED);
  uint64_t found = 0;
  std::string one;
  for (uint64_t key = 0; key < keys; key++) {
    char name[21];
    snprintf(name, sizeof(name), "%016" PRIu64, key);
    CHECK_OK(db->Get(ReadOptions(), Slice(name, 16), &one));
    found += memcmp(one.data(), &key, sizeof(key)) == 0;
  }
  CHECK(found == keys, "a key has the value of another");
  furrow_counters c;
  CHECK(furrow_store_counters(store, &c, nullptr) == FURROW_OK, "counters");
  const double user = static_cast<double>((keys + writes) * (kValue + 16));
  printf("{\"version\": 1, \"uri\": \"%s\", \"live\": %.2f, \"capacity\": %" PRIu64
         ", \"user_bytes\": %.0f, \"mean_used\": %.4f, \"most_used\": %.4f, \"collections\": %" PRIu64
         ", \"appended\": %" PRIu64 ", \"relocated\": %" PRIu64 ", \"copied\": %" PRIu64
         ", \"copied_blobs\": %" PRIu64 ", \"copied_tables\": %" PRIu64 ", \"zones_cleaned\": %" PRIu64
         ", \"waits\": %" PRIu64 ", \"refused\": %" PRIu64 ", \"by_rocksdb\": %.3f"
         ", \"by_cleaning\": %.3f, \"write_amplification\": %.3f}\n",
         arguments[1], live, space.capacity, user, sum / static_cast<double>(samples), most,
         collections, c.appended, relocated, c.copied, c.copied_blobs, c.copied_tables, c.cleaned,
         c.waits, c.refused, static_cast<double>(c.appended) / user,
         1 + static_cast<double>(c.copied) / static_cast<double>(c.appended),
         static_cast<double>(c.appended + c.copied) / user);
  delete db;
  return 0;
}
