// SPDX-License-Identifier: Apache-2.0 OR MIT
// Registers the file system under furrow:// when the library is loaded, and makes what was written
// durable when a program ends by exit().
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "fs.h"
#include "rocksdb/utilities/object_registry.h"

namespace furrow {
namespace {

// Stores that were opened by a URI. They are never destroyed: threads of RocksDB may use them until
// the process is gone.
std::mutex* opened_lock = new std::mutex;
std::map<std::string, furrow_store*>* opened = new std::map<std::string, furrow_store*>;

// A program that ends by exit(), or by returning from main, loses nothing that it wrote, as with
// files of the system. One that is killed keeps what it synced.
void SyncAll() {
  std::lock_guard<std::mutex> guard(*opened_lock);
  for (auto& [uri, store] : *opened) {
    furrow_error error;
    if (furrow_store_sync_all(store, &error) != FURROW_OK && error.kind != FURROW_FORKED) {
      fprintf(stderr, "furrow: %s: what was not synced is lost: %s\n", uri.c_str(),
              error.message);
    }
  }
}

void Remember(const std::string& text) {
  std::lock_guard<std::mutex> guard(*opened_lock);
  if (opened->empty()) std::atexit(SyncAll);
  if (opened->count(text) != 0) return;
  Uri uri;
  std::string why;
  furrow_store* store = nullptr;
  // The store is open: this is another handle to it.
  if (ParseUri(text, &uri, &why) &&
      furrow_store_open(uri.device.c_str(), uri.options.c_str(), &store, nullptr) == FURROW_OK) {
    opened->emplace(text, store);
  }
}

rocksdb::FileSystem* Make(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* result,
                          std::string* why) {
  *result = StoreFileSystem::Open(uri, why);
  if (*result == nullptr) {
    // RocksDB's tools ignore what they cannot make and crash without a word: this one is said.
    fprintf(stderr, "furrow: %s\n", why->c_str());
    return nullptr;
  }
  Remember(uri);
  return result->get();
}

const auto registered = rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::FileSystem>(
    rocksdb::ObjectLibrary::PatternEntry("furrow", false).AddSeparator("://", false), Make);

}  // namespace
}  // namespace furrow
