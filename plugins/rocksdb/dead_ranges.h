// SPDX-License-Identifier: Apache-2.0 OR MIT
// Dead ranges: the store is told which parts of blob files no table names any more, and cleans
// zones without them. RocksDB copies nothing.
//
// A collector of table properties sees each blob index that goes into a table, and records the
// ranges of blob files that it names as a property of the table. A range that some table named is
// dead when the last such table file is gone: RocksDB deletes a table file when no version of the
// database, and so no iterator and no reader, uses it any more; compaction keeps everything a
// snapshot sees in tables. When a database is opened, ranges that none of its tables names are
// dead.
//
// RocksDB's collection of blob files should be off (enable_blob_garbage_collection=false, or a
// cut-off of 0): RocksDB still deletes files that are entirely dead.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "rocksdb/db.h"
#include "rocksdb/listener.h"
#include "rocksdb/table_properties.h"

struct furrow_store;

namespace furrow {

// A part of a blob file: bytes from `offset` on.
struct BlobRange {
  uint64_t file = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  bool operator<(const BlobRange& other) const {
    return file != other.file ? file < other.file : offset < other.offset;
  }
  bool operator==(const BlobRange& other) const {
    return file == other.file && offset == other.offset && size == other.size;
  }
};

// Encodes ranges as the value of a table's property, and decodes them. Decoding returns false if
// the text is invalid.
std::string EncodeRanges(std::vector<BlobRange> ranges);
bool DecodeRanges(const std::string& text, std::vector<BlobRange>* ranges);
// The range of the record that a blob index refers to, with header and key. False if it refers to
// none, or is invalid.
bool DecodeBlobIndex(const rocksdb::Slice& index, uint64_t key_bytes, BlobRange* range);

// One for each database. Before DB::Open it goes into the listeners of the options, and its
// Factory() into those of each column family; after that, before the database is used, Attach with
// all column families; before the database is closed Detach.
class DeadRanges : public rocksdb::EventListener {
 public:
  explicit DeadRanges(furrow_store* store);
  ~DeadRanges() override;

  // For ColumnFamilyOptions::table_properties_collector_factories of every column family.
  static std::shared_ptr<rocksdb::TablePropertiesCollectorFactory> Factory();

  // Begins to declare dead ranges. Returns false if some table has no record of its references,
  // because the table was written without Factory(): nothing is declared until all such tables are
  // gone.
  bool Attach(rocksdb::DB* db, const std::vector<rocksdb::ColumnFamilyHandle*>& families);
  void Detach();

  // Ranges and bytes declared so far.
  uint64_t ranges() const;
  uint64_t bytes() const;

  const char* Name() const override { return "furrow.DeadRanges"; }
  void OnTableFileCreated(const rocksdb::TableFileCreationInfo& info) override;
  void OnTableFileDeleted(const rocksdb::TableFileDeletionInfo& info) override;
  void OnBlobFileDeleted(const rocksdb::BlobFileDeletionInfo& info) override;

 private:
  struct Named {
    uint64_t size = 0;
    uint64_t tables = 0;
  };
  // Adds a table with its references.
  void Add(const std::string& path, const rocksdb::TableProperties& properties);
  // Declares the dead ranges, if everything alive is known.
  void Tell(std::unique_lock<std::mutex>* lock);

  furrow_store* store_;
  mutable std::mutex mutex_;
  bool attached_ = false;
  std::string directory_;
  // The ranges that each table refers to, by the table's path.
  std::map<std::string, std::vector<BlobRange>> tables_;
  // Tables whose references are unknown.
  std::set<std::string> unknown_;
  // How many tables refer to each range, by file and offset.
  std::map<uint64_t, std::map<uint64_t, Named>> named_;
  std::vector<BlobRange> dead_;
  uint64_t told_ranges_ = 0;
  uint64_t told_bytes_ = 0;
};

}  // namespace furrow
