// SPDX-License-Identifier: Apache-2.0 OR MIT
// Registers the file system under furrow:// when the library is loaded, and makes what was written
// durable when a program ends by exit().
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "fs.h"
#include "rocksdb/utilities/object_registry.h"
#include "versions.h"

namespace furrow {
namespace {

// Stores that were opened by a URI. They are never destroyed: threads of RocksDB may use them until
// the process has ended.
std::mutex* opened_lock = new std::mutex;
std::map<std::string, furrow_store*>* opened = new std::map<std::string, furrow_store*>;

// Writes figures of a store as JSON, for FURROW_REPORT.
void Report(const char* path, const std::string& uri, furrow_store* store) {
  furrow_counters c;
  furrow_space s;
  if (furrow_store_counters(store, &c, nullptr) != FURROW_OK ||
      furrow_store_space(store, &s, nullptr) != FURROW_OK) {
    return;
  }
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
  std::lock_guard<std::mutex> guard(*opened_lock);
  for (auto& [uri, store] : *opened) {
    furrow_error error;
    if (furrow_store_sync_all(store, &error) != FURROW_OK && error.kind != FURROW_FORKED) {
      fprintf(stderr, "furrow: %s: unsynced writes are lost: %s\n", uri.c_str(),
              error.message);
    }
    const char* report = getenv("FURROW_REPORT");
    if (report != nullptr && *report != '\0') Report(report, uri, store);
  }
}

void Remember(const std::string& text) {
  std::lock_guard<std::mutex> guard(*opened_lock);
  if (opened->empty()) {
    std::atexit(SyncAll);
#ifdef FURROW_UNTRIED
    fprintf(stderr,
            "furrow: RocksDB %d.%d is newer than any that this plugin was tried with (%d.%d)\n",
            ROCKSDB_MAJOR, ROCKSDB_MINOR, FURROW_TRIED_MAJOR, FURROW_TRIED_MINOR);
#endif
  }
  if (opened->count(text) != 0) return;
  Uri uri;
  std::string why;
  furrow_store* store = nullptr;
  // The store is open already: this is another handle to it.
  if (ParseUri(text, &uri, &why) &&
      furrow_store_open(uri.device.c_str(), uri.options.c_str(), &store, nullptr) == FURROW_OK) {
    opened->emplace(text, store);
  }
}

rocksdb::FileSystem* Make(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* result,
                          std::string* why) {
  *result = StoreFileSystem::Open(uri, why);
  if (*result == nullptr) {
    // RocksDB's tools ignore such an error and crash without a message, so it is printed.
    fprintf(stderr, "furrow: %s\n", why->c_str());
    return nullptr;
  }
  Remember(uri);
  return result->get();
}

// Matches every URI with this scheme, so that RocksDB's tools report what is wrong with the rest:
// they crash over unregistered schemes.
const auto registered = rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::FileSystem>(
    rocksdb::ObjectLibrary::PatternEntry("furrow", true).AddSeparator(":", false), Make);

}  // namespace
}  // namespace furrow
