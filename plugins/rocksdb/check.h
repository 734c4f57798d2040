// SPDX-License-Identifier: Apache-2.0 OR MIT
// Shared by the tests of the plugin.
#pragma once

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "furrow.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "versions.h"

// Ends the program with the place and the reason if `condition` does not hold.
#define CHECK(condition, message)                                                              \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                       \
              std::string(message).c_str());                                                   \
      _exit(1);                                                                                \
    }                                                                                          \
  } while (0)

// The same for a status of RocksDB.
#define CHECK_OK(expression)                                \
  do {                                                      \
    auto checked = (expression);                            \
    CHECK(checked.ok(), checked.ToString());                \
  } while (0)

// An image of a drive with an empty store, removed at the end.
class Image {
 public:
  Image(const std::string& furrow, const std::string& path, const std::string& options)
      : path_(path) {
    unlink(path.c_str());
    std::string make = furrow + " device create " + path + " --option " + options + " >/dev/null";
    CHECK(system(make.c_str()) == 0, make);
    furrow_error error;
    CHECK(furrow_store_format(path.c_str(), "test", &error) == FURROW_OK, error.message);
  }
  ~Image() { unlink(path_.c_str()); }

  const std::string& path() const { return path_; }
  std::string uri() const { return "furrow://" + path_; }

 private:
  std::string path_;
};

// A key of 16 digits.
inline std::string KeyOf(uint64_t number) {
  char key[21];
  snprintf(key, sizeof(key), "%016" PRIu64, number);
  return key;
}

// Bytes that depend on `seed`.
inline std::string Content(uint64_t seed, size_t size) {
  std::string bytes(size, '\0');
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i < size; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    bytes[i] = static_cast<char>(state >> 24);
  }
  return bytes;
}

inline std::shared_ptr<rocksdb::FileSystem> OpenFileSystem(const std::string& uri) {
  std::shared_ptr<rocksdb::FileSystem> fs;
  CHECK_OK(rocksdb::FileSystem::CreateFromString(rocksdb::ConfigOptions(), uri, &fs));
  CHECK(fs != nullptr, uri);
  return fs;
}

// Options of a small database with blob files, half of which may be collected.
inline rocksdb::Options BlobOptions(rocksdb::Env* env) {
  rocksdb::Options options;
  options.env = env;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.write_buffer_size = 1 << 20;
  options.compression = rocksdb::kNoCompression;
  options.enable_blob_files = true;
  options.min_blob_size = 1024;
  options.blob_file_size = 1 << 20;
  options.enable_blob_garbage_collection = true;
  options.blob_garbage_collection_age_cutoff = 0.5;
  return options;
}

// Opens a database; `more` names its column families and the place for their handles, if there are
// any.
template <typename... More>
std::unique_ptr<rocksdb::DB> OpenDatabase(const rocksdb::Options& options, const std::string& path,
                                          More... more) {
  furrow::Opened db{};
  CHECK_OK(rocksdb::DB::Open(options, path, more..., &db));
  return std::unique_ptr<rocksdb::DB>(std::move(db));
}
