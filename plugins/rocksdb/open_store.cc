// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "open_store.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "versions.h"

namespace furrow {
namespace {

// What is known of the stores of this process. It is never destroyed: threads of RocksDB may use
// stores until the process has ended.
struct Stores {
  std::mutex lock;
  // By URI.
  std::map<std::string, std::weak_ptr<OpenStore>> open;
  // Drives in memory lose their content with the last use: they stay.
  std::map<std::string, std::shared_ptr<OpenStore>> in_memory;
  // What those did that are closed, by URI.
  std::map<std::string, furrow_counters> done;
  std::map<std::string, uint64_t> peak_zones;
};

Stores& All() {
  static Stores* stores = new Stores;
  return *stores;
}

const char* ReportFile() {
  const char* path = getenv("FURROW_REPORT");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

// Writes figures of a store as JSON.
void Write(const char* path, const std::string& uri, const furrow_counters& c,
           const furrow_space& s) {
  FILE* file = fopen(path, "w");
  if (file == nullptr) {
    fprintf(stderr, "furrow: %s: the report cannot be written\n", path);
    return;
  }
  std::string name;
  for (char each : uri) {
    if (each == '"' || each == '\\') name += '\\';
    name += each;
  }
  fprintf(file,
          "{\"version\": 1, \"uri\": \"%s\", \"capacity\": %" PRIu64 ", \"used\": %" PRIu64
          ", \"available\": %" PRIu64 ", \"peak_zones\": %" PRIu64 ", \"zones\": %" PRIu64
          ", \"appended\": %" PRIu64 ", \"read\": %" PRIu64 ", \"syncs\": %" PRIu64
          ", \"rounds\": %" PRIu64 ", \"zones_cleaned\": %" PRIu64 ", \"copied\": %" PRIu64
          ", \"copied_blobs\": %" PRIu64 ", \"copied_tables\": %" PRIu64 ", \"resets\": %" PRIu64
          ", \"calls\": %" PRIu64 ", \"hops\": %" PRIu64 ", \"handed_calls\": %" PRIu64
          ", \"waits\": %" PRIu64 ", \"waited_nanoseconds\": %" PRIu64 ", \"refused\": %" PRIu64
          ", \"operations\": {",
          name.c_str(), s.capacity, s.used, s.available, s.peak_zones, s.zones, c.appended, c.read,
          c.syncs, c.rounds, c.cleaned, c.copied, c.copied_blobs, c.copied_tables, c.resets, c.calls,
          c.hops, c.handed, c.waits, c.waited, c.refused);
  const std::pair<const char*, furrow_calls> operations[] = {{"append", c.append},
                                                             {"sync", c.sync},
                                                             {"read", c.read_calls},
                                                             {"open", c.open},
                                                             {"names", c.names}};
  const char* before = "";
  for (const auto& [name, told] : operations) {
    fprintf(file, "%s\"%s\": {\"calls\": %" PRIu64 ", \"hops\": %" PRIu64 "}", before, name,
            told.calls, told.hops);
    before = ", ";
  }
  fputs("}}\n", file);
  fclose(file);
}

// A program that ends by exit(), or by returning from main, loses no writes, as with files of the
// system. A program that is killed loses only unsynced writes.
void SyncAll() {
  std::lock_guard<std::mutex> guard(All().lock);
  for (auto& [uri, open] : All().open) {
    if (auto store = open.lock()) store->End(false);
  }
}

}  // namespace

int OpenStore::Open(const Uri& uri, std::shared_ptr<OpenStore>* result, furrow_error* error) {
  std::string name = "furrow://" + uri.device + "?" + uri.options;
  std::lock_guard<std::mutex> guard(All().lock);
  std::weak_ptr<OpenStore>& open = All().open[name];
  if ((*result = open.lock()) != nullptr) return FURROW_OK;
  furrow_store* store = nullptr;
  int kind = furrow_store_open(uri.device.c_str(), uri.options.c_str(), &store, error);
  if (kind != FURROW_OK) return kind;
  result->reset(new OpenStore(store, name));
  open = *result;
  static bool first = true;
  if (std::exchange(first, false)) {
    std::atexit(SyncAll);
#ifdef FURROW_UNTRIED
    fprintf(stderr,
            "furrow: RocksDB %d.%d is newer than any that this plugin was tried with (%d.%d)\n",
            ROCKSDB_MAJOR, ROCKSDB_MINOR, FURROW_TRIED_MAJOR, FURROW_TRIED_MINOR);
#endif
  }
  if (uri.device.compare(0, 4, "mem:") == 0) All().in_memory.emplace(uri.device, *result);
  return kind;
}

OpenStore::~OpenStore() {
  if (ReportFile() != nullptr) {
    std::lock_guard<std::mutex> guard(All().lock);
    End(true);
  }
  // Nobody can handle an error here.
  furrow_store_close(store_, nullptr);
}

void OpenStore::End(bool closes) const {
  furrow_error error;
  if (furrow_store_sync_all(store_, &error) != FURROW_OK) {
    // In the child of a fork the store is the parent's.
    if (error.kind == FURROW_FORKED) return;
    fprintf(stderr, "furrow: %s: unsynced writes are lost: %s\n", uri_.c_str(), error.message);
  }
  const char* path = ReportFile();
  furrow_counters now;
  furrow_space space;
  if (path == nullptr || furrow_store_counters(store_, &now, nullptr) != FURROW_OK ||
      furrow_store_space(store_, &space, nullptr) != FURROW_OK) {
    return;
  }
  // All counters are numbers of this kind: the sum of what was done each time it was open.
  constexpr size_t kCount = sizeof(furrow_counters) / sizeof(uint64_t);
  uint64_t sum[kCount], before[kCount];
  memcpy(sum, &now, sizeof(sum));
  auto done = All().done.try_emplace(uri_, furrow_counters{}).first;
  memcpy(before, &done->second, sizeof(before));
  for (size_t i = 0; i < kCount; i++) sum[i] += before[i];
  memcpy(&now, sum, sizeof(sum));
  uint64_t& peak = All().peak_zones[uri_];
  space.peak_zones = peak = std::max(peak, space.peak_zones);
  if (closes) done->second = now;
  Write(path, uri_, now, space);
}

}  // namespace furrow
