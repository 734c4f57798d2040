// SPDX-License-Identifier: Apache-2.0 OR MIT
// Test of dead ranges: dead [SEED [STEPS]]
//
// Writes a database of two column families, with snapshots, iterators and restarts, on a drive that
// is cleaned all the time, and compares everything readable.
#include <algorithm>
#include <cinttypes>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "dead_ranges.h"
#include "fs.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"

using namespace rocksdb;

namespace {

constexpr uint64_t kKeys = 600;
// The present version of each key, by column family and key.
using Model = std::map<std::pair<int, uint64_t>, uint64_t>;

struct Random {
  uint64_t state;
  uint64_t Below(uint64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 8) % limit;
  }
};

std::string ValueOf(int family, uint64_t key, uint64_t version) {
  uint64_t seed = version * 1000003 + key * 2 + static_cast<uint64_t>(family);
  return Content(seed, 5000 + seed % 15000);
}

// A database with a view of it that must not change.
struct View {
  const Snapshot* snapshot = nullptr;
  std::vector<std::unique_ptr<Iterator>> iterators;
  Model model;
};

class Database {
 public:
  Database(Env* env, furrow_store* store) : store_(store) {
    options_ = BlobOptions(env);
    options_.write_buffer_size = 256 << 10;
    options_.target_file_size_base = 16 << 10;
    options_.max_bytes_for_level_base = 32 << 10;
    options_.max_subcompactions = 2;
    options_.max_background_jobs = 4;
    options_.blob_file_size = 512 << 10;
    options_.enable_blob_garbage_collection = false;
    options_.table_properties_collector_factories.push_back(furrow::DeadRanges::Factory());
    Open();
  }
  ~Database() { Close(); }

  void Open() {
    // A listener belongs to one database.
    dead_ = std::make_shared<furrow::DeadRanges>(store_);
    options_.listeners = {dead_};
    std::vector<ColumnFamilyDescriptor> families{{kDefaultColumnFamilyName, options_},
                                                 {"other", options_}};
    db_ = OpenDatabase(options_, "/db", families, &handles_);
    CHECK(dead_->Attach(db_.get(), handles_), "tables without a record of ranges");
  }
  void Close() {
    told_ += dead_->bytes();
    dead_->Detach();
    for (ColumnFamilyHandle* handle : handles_) CHECK_OK(db_->DestroyColumnFamilyHandle(handle));
    handles_.clear();
    db_.reset();
  }

  void Put(int family, uint64_t key, uint64_t version) {
    CHECK_OK(db_->Put(WriteOptions(), handles_[family], KeyOf(key), ValueOf(family, key, version)));
    model[{family, key}] = version;
  }
  void Delete(int family, uint64_t key) {
    CHECK_OK(db_->Delete(WriteOptions(), handles_[family], KeyOf(key)));
    model.erase({family, key});
  }
  void CheckKey(const ReadOptions& read, const Model& model, int family, uint64_t key) {
    std::string found;
    Status status = db_->Get(read, handles_[family], KeyOf(key), &found);
    auto known = model.find({family, key});
    if (known == model.end()) {
      CHECK(status.IsNotFound(), KeyOf(key) + ": " + status.ToString());
      return;
    }
    CHECK_OK(status);
    CHECK(found == ValueOf(family, key, known->second), KeyOf(key) + ": another value");
  }
  // The view is a snapshot, for which compaction keeps versions, or only iterators, which keep the
  // table files of their time.
  View See(bool by_snapshot) {
    View view;
    view.model = model;
    if (by_snapshot) view.snapshot = db_->GetSnapshot();
    for (ColumnFamilyHandle* handle : handles_) {
      if (by_snapshot) break;
      view.iterators.emplace_back(db_->NewIterator(ReadOptions(), handle));
    }
    return view;
  }
  // The view must not have changed.
  void CheckView(View* view) {
    ReadOptions read;
    read.snapshot = view->snapshot;
    for (int family = 0; family < 2; family++) {
      if (view->snapshot != nullptr) {
        for (uint64_t key = 0; key < kKeys; key++) CheckKey(read, view->model, family, key);
        continue;
      }
      Iterator* each = view->iterators[family].get();
      uint64_t count = 0;
      for (each->SeekToFirst(); each->Valid(); each->Next(), count++) {
        uint64_t key = strtoull(each->key().ToString().c_str(), nullptr, 10);
        auto known = view->model.find({family, key});
        CHECK(known != view->model.end(), "a key that was not there");
        CHECK(each->value() == ValueOf(family, key, known->second), KeyOf(key) + " by iterator");
      }
      CHECK_OK(each->status());
      for (const auto& [place, version] : view->model) count -= place.first == family;
      CHECK(count == 0, "keys are missing");
    }
    if (view->snapshot != nullptr) db_->ReleaseSnapshot(view->snapshot);
    view->iterators.clear();
  }
  void CheckAll() {
    for (int family = 0; family < 2; family++) {
      for (uint64_t key = 0; key < kKeys; key++) CheckKey(ReadOptions(), model, family, key);
    }
  }
  void Compact(int family) {
    CHECK_OK(db_->CompactRange(CompactRangeOptions(), handles_[family], nullptr, nullptr));
  }
  uint64_t told() const { return told_ + (db_ == nullptr ? 0 : dead_->bytes()); }

  Model model;

 private:
  furrow_store* store_;
  Options options_;
  std::shared_ptr<furrow::DeadRanges> dead_;
  std::vector<ColumnFamilyHandle*> handles_;
  std::unique_ptr<DB> db_;
  uint64_t told_ = 0;
};

void RangesAreEncoded() {
  std::vector<furrow::BlobRange> some{{300, 30, 10}, {12, 500, 1 << 20}, {12, 62, 4}, {12, 66, 9}};
  std::vector<furrow::BlobRange> found;
  CHECK(furrow::DecodeRanges(furrow::EncodeRanges(some), &found), "ranges");
  std::sort(some.begin(), some.end());
  CHECK(found == some, "ranges");
  std::string text = furrow::EncodeRanges(some);
  CHECK(!furrow::DecodeRanges(text.substr(0, text.size() - 1), &found), "cut off");
  furrow::BlobRange range;
  // File 300, offset 100, 5 bytes, not compressed; the key has 16.
  CHECK(furrow::DecodeBlobIndex(Slice("\1\xac\2\x64\5\0", 6), 16, &range), "an index");
  CHECK((range == furrow::BlobRange{300, 52, 53}), "an index");
  CHECK(!furrow::DecodeBlobIndex(Slice("\1\xac\2\x64\5", 5), 16, &range), "cut off");
  CHECK(!furrow::DecodeBlobIndex(Slice("\0\1abc", 5), 16, &range), "the value itself");
  CHECK(!furrow::DecodeBlobIndex(Slice("\1\xac\2\x20\5\0", 6), 16, &range), "before the records");
}

}  // namespace

int main(int count, char** arguments) {
  RangesAreEncoded();
  uint64_t seed = count > 1 ? strtoull(arguments[1], nullptr, 10) : 1;
  uint64_t steps = count > 2 ? strtoull(arguments[2], nullptr, 10) : 12000;
  Random random{seed * 0x9e3779b97f4a7c15 + 1};
  std::string uri =
      "furrow://mem:capacity=192MiB,zone-size=2MiB,max-active=14,max-open=14"
      "?policy=generations,clean-below=90";
  std::shared_ptr<FileSystem> fs = OpenFileSystem(uri);
  furrow_store* store = fs->CheckedCast<furrow::StoreFileSystem>()->store();
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  Database database(env.get(), store);
  std::vector<View> views;
  uint64_t version = 0;
  for (uint64_t step = 0; step < steps; step++) {
    int family = static_cast<int>(random.Below(2));
    uint64_t key = random.Below(random.Below(3) == 0 ? kKeys : kKeys / 8);
    if (random.Below(12) == 0) {
      database.Delete(family, key);
    } else {
      database.Put(family, key, ++version);
    }
    if (random.Below(4) == 0) database.CheckKey(ReadOptions(), database.model, family, key);
    switch (random.Below(1500)) {
      case 0:
        views.push_back(database.See(random.Below(2) == 0));
        break;
      case 1:
      case 2:
        if (!views.empty()) {
          database.CheckView(&views.front());
          views.erase(views.begin());
        }
        break;
      case 3:
        database.Compact(family);
        break;
      case 4:
        for (View& view : views) database.CheckView(&view);
        views.clear();
        database.Close();
        database.Open();
        break;
      default:
        break;
    }
    if (views.size() > 4) {
      database.CheckView(&views.front());
      views.erase(views.begin());
    }
  }
  for (View& view : views) database.CheckView(&view);
  database.CheckAll();
  database.Close();
  database.Open();
  database.CheckAll();
  furrow_counters counters;
  CHECK(furrow_store_counters(store, &counters, nullptr) == FURROW_OK, "counters");
  CHECK(database.told() > (16 << 20), std::to_string(database.told()) + " bytes were dead");
  CHECK(counters.cleaned > 10, std::to_string(counters.cleaned) + " zones were cleaned");
  printf("dead ranges: %" PRIu64 " writes, %.1f MiB dead, %" PRIu64
         " zones cleaned, %.1f MiB of blobs copied\n",
         steps, static_cast<double>(database.told()) / 1048576, counters.cleaned,
         static_cast<double>(counters.copied_blobs) / 1048576);
  return 0;
}
