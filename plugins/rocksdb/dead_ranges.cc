// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "dead_ranges.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <unordered_map>

#include "furrow.h"
#include "rocksdb/metadata.h"

namespace furrow {

using rocksdb::Slice;
using rocksdb::Status;
using rocksdb::TableProperties;

namespace {

constexpr char kProperty[] = "furrow.blob-ranges";
// Bytes of a blob file's header and footer, and of the header of each of its records, which key and
// value follow (RocksDB's db/blob/blob_log_format.h).
constexpr uint64_t kFileHead = 30;
constexpr uint64_t kFileFoot = 32;
constexpr uint64_t kRecordHead = 32;

void PutNumber(std::string* out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out->push_back(static_cast<char>(number | 0x80));
  out->push_back(static_cast<char>(number));
}

bool GetNumber(Slice* from, uint64_t* number) {
  *number = 0;
  for (int shift = 0; shift < 64 && !from->empty(); shift += 7) {
    auto byte = static_cast<uint8_t>((*from)[0]);
    from->remove_prefix(1);
    *number |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Sees the entries of a table.
class Collector : public rocksdb::TablePropertiesCollector {
 public:
  const char* Name() const override { return "furrow.BlobRanges"; }

  Status AddUserKey(const Slice& key, const Slice& value, rocksdb::EntryType type,
                    rocksdb::SequenceNumber, uint64_t) override {
    if (type != rocksdb::kEntryBlobIndex) return Status::OK();
    BlobRange range;
    bool inlined = !value.empty() && value[0] == 0;
    if (DecodeBlobIndex(value, key.size(), &range)) {
      ranges_.push_back(range);
    } else if (!inlined) {
      // The table gets no property, so nothing is declared dead as long as the table exists.
      understood_ = false;
    }
    return Status::OK();
  }

  // Called more than once.
  Status Finish(rocksdb::UserCollectedProperties* properties) override {
    if (understood_) (*properties)[kProperty] = EncodeRanges(ranges_);
    return Status::OK();
  }

  rocksdb::UserCollectedProperties GetReadableProperties() const override {
    return {{kProperty, std::to_string(ranges_.size()) + " ranges"}};
  }

 private:
  std::vector<BlobRange> ranges_;
  bool understood_ = true;
};

class CollectorFactory : public rocksdb::TablePropertiesCollectorFactory {
 public:
  const char* Name() const override { return "furrow.BlobRanges"; }
  rocksdb::TablePropertiesCollector* CreateTablePropertiesCollector(Context) override {
    return new Collector;
  }
};

}  // namespace

std::string EncodeRanges(std::vector<BlobRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::string out;
  uint64_t file = 0;
  uint64_t end = 0;
  for (const BlobRange& range : ranges) {
    PutNumber(&out, range.file - file);
    if (range.file != file) end = 0;
    // Ranges of a file do not overlap, so this is not negative.
    PutNumber(&out, range.offset - end);
    PutNumber(&out, range.size);
    file = range.file;
    end = range.offset + range.size;
  }
  return out;
}

bool DecodeRanges(const std::string& text, std::vector<BlobRange>* ranges) {
  Slice rest(text);
  BlobRange last;
  ranges->clear();
  while (!rest.empty()) {
    uint64_t file, offset, size;
    if (!GetNumber(&rest, &file) || !GetNumber(&rest, &offset) || !GetNumber(&rest, &size)) {
      return false;
    }
    uint64_t end = file == 0 ? last.offset + last.size : 0;
    last = {last.file + file, end + offset, size};
    ranges->push_back(last);
  }
  return true;
}

bool DecodeBlobIndex(const Slice& index, uint64_t key_bytes, BlobRange* range) {
  // The value (0); file, offset, size, compression (1); the same after an expiration (2).
  Slice rest(index);
  if (rest.empty() || rest[0] < 1 || rest[0] > 2) return false;
  bool expires = rest[0] == 2;
  rest.remove_prefix(1);
  uint64_t expiration, offset, size;
  if (expires && !GetNumber(&rest, &expiration)) return false;
  if (!GetNumber(&rest, &range->file) || !GetNumber(&rest, &offset) || !GetNumber(&rest, &size)) {
    return false;
  }
  uint64_t before = kRecordHead + key_bytes;
  if (rest.size() != 1 || offset < kFileHead + before || offset + size < offset) return false;
  range->offset = offset - before;
  range->size = size + before;
  return true;
}

DeadRanges::DeadRanges(furrow_store* store) : store_(store) {}

DeadRanges::~DeadRanges() { Detach(); }

std::shared_ptr<rocksdb::TablePropertiesCollectorFactory> DeadRanges::Factory() {
  return std::make_shared<CollectorFactory>();
}

void DeadRanges::Add(const std::string& path, const TableProperties& properties) {
  if (tables_.count(path) != 0 || unknown_.count(path) != 0) return;
  auto found = properties.user_collected_properties.find(kProperty);
  std::vector<BlobRange> ranges;
  if (found == properties.user_collected_properties.end() ||
      !DecodeRanges(found->second, &ranges)) {
    unknown_.insert(path);
    return;
  }
  for (const BlobRange& range : ranges) {
    Named& named = named_[range.file][range.offset];
    named.size = range.size;
    named.tables++;
  }
  tables_.emplace(path, std::move(ranges));
}

bool DeadRanges::Attach(rocksdb::DB* db, const std::vector<rocksdb::ColumnFamilyHandle*>& families) {
  // The files come first: later files are not considered, and later tables refer to no others of
  // these.
  std::map<uint64_t, uint64_t> files;
  std::map<std::string, std::shared_ptr<const TableProperties>> all;
  for (rocksdb::ColumnFamilyHandle* family : families) {
    rocksdb::ColumnFamilyMetaData data;
    db->GetColumnFamilyMetaData(family, &data);
    for (const rocksdb::BlobMetaData& file : data.blob_files) {
      files[file.blob_file_number] = file.blob_file_size;
    }
  }
  bool read = true;
  for (rocksdb::ColumnFamilyHandle* family : families) {
    rocksdb::TablePropertiesCollection tables;
    read = db->GetPropertiesOfAllTables(family, &tables).ok() && read;
    all.insert(tables.begin(), tables.end());
  }
  std::unique_lock<std::mutex> lock(mutex_);
  directory_ = db->GetName();
  for (const auto& [path, properties] : all) Add(path, *properties);
  // Without these properties the live ranges are unknown.
  if (!read) unknown_.insert("");
  attached_ = true;
  bool known = unknown_.empty();
  if (known) {
    for (const auto& [file, size] : files) {
      uint64_t at = kFileHead;
      auto tell = [&, number = file](uint64_t until) {
        if (at < until) dead_.push_back({number, at, until - at});
      };
      for (const auto& [offset, named] : named_[file]) {
        tell(offset);
        at = std::max(at, offset + named.size);
      }
      if (size > kFileFoot) tell(size - kFileFoot);
    }
  }
  Tell(&lock);
  return known;
}

void DeadRanges::Detach() {
  std::lock_guard<std::mutex> guard(mutex_);
  attached_ = false;
  dead_.clear();
}

uint64_t DeadRanges::ranges() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return told_ranges_;
}

uint64_t DeadRanges::bytes() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return told_bytes_;
}

void DeadRanges::OnTableFileCreated(const rocksdb::TableFileCreationInfo& info) {
  if (!info.status.ok() || info.file_size == 0) return;
  std::lock_guard<std::mutex> guard(mutex_);
  Add(info.file_path, info.table_properties);
}

void DeadRanges::OnTableFileDeleted(const rocksdb::TableFileDeletionInfo& info) {
  std::unique_lock<std::mutex> lock(mutex_);
  unknown_.erase(info.file_path);
  auto table = tables_.find(info.file_path);
  if (table != tables_.end()) {
    for (const BlobRange& range : table->second) {
      auto file = named_.find(range.file);
      if (file == named_.end()) continue;
      auto named = file->second.find(range.offset);
      if (named == file->second.end() || --named->second.tables > 0) continue;
      file->second.erase(named);
      dead_.push_back(range);
    }
    tables_.erase(table);
  }
  Tell(&lock);
}

void DeadRanges::OnBlobFileDeleted(const rocksdb::BlobFileDeletionInfo& info) {
  size_t slash = info.file_path.rfind('/');
  uint64_t number = strtoull(info.file_path.c_str() + (slash + 1), nullptr, 10);
  std::lock_guard<std::mutex> guard(mutex_);
  named_.erase(number);
}

void DeadRanges::Tell(std::unique_lock<std::mutex>* lock) {
  if (!attached_ || !unknown_.empty() || dead_.empty()) return;
  std::vector<BlobRange> dead;
  dead.swap(dead_);
  std::string directory = directory_;
  lock->unlock();
  uint64_t ranges = 0;
  uint64_t bytes = 0;
  for (const BlobRange& range : dead) {
    char name[32];
    snprintf(name, sizeof(name), "/%06" PRIu64 ".blob", range.file);
    // If RocksDB has deleted the file meanwhile, there is nothing to declare.
    if (furrow_forget(store_, (directory + name).c_str(), range.offset, range.size, nullptr) ==
        FURROW_OK) {
      ranges++;
      bytes += range.size;
    }
  }
  lock->lock();
  told_ranges_ += ranges;
  told_bytes_ += bytes;
}

}  // namespace furrow
