// SPDX-License-Identifier: Apache-2.0 OR MIT
// Registers the file system under furrow:// when the library is loaded.
#include <cstdio>
#include <string>

#include "fs.h"
#include "rocksdb/utilities/object_registry.h"

namespace furrow {
namespace {

rocksdb::FileSystem* Make(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* result,
                          std::string* why) {
  *result = StoreFileSystem::Open(uri, why);
  if (*result == nullptr) {
    // RocksDB's tools ignore such an error and crash without a message, so it is printed.
    fprintf(stderr, "furrow: %s\n", why->c_str());
    return nullptr;
  }
  return result->get();
}

// Matches every URI with this scheme, so that RocksDB's tools report what is wrong with the rest:
// they crash over unregistered schemes.
const auto registered = rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::FileSystem>(
    rocksdb::ObjectLibrary::PatternEntry("furrow", true).AddSeparator(":", false), Make);

}  // namespace
}  // namespace furrow
