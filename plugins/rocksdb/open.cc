// SPDX-License-Identifier: Apache-2.0 OR MIT
// Replaces DB::Open, and the other functions that open, list, repair and destroy databases, in
// programs into which this library is preloaded, so that stock programs use a store and Same-Victim
// garbage collection without a change.
//
// FURROW_URI=furrow://...   databases lie in that store, also of programs without --fs_uri. All of
//                           these calls must go there: a DestroyDB that went to the host would
//                           spare the store's database, and destroy one of the host's.
// FURROW_SAME_VICTIM=1      Same-Victim collection, for databases that lie in a store;
//                           as-printed: by equation 1 of the paper as it is printed
// FURROW_SAME_VICTIM_LOG=F  adds a line to F for each compaction
// FURROW_REPORT=F           writes the store's figures to F when the program ends (register.cc)
//
// Without these variables nothing changes.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "fs.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/utilities/options_util.h"
#include "rocksdb/utilities/stackable_db.h"
#include "same_victim.h"
#include "versions.h"

namespace furrow {
namespace {

using rocksdb::ColumnFamilyHandle;
using rocksdb::ColumnFamilyOptions;
using rocksdb::DB;
using rocksdb::DBOptions;
using rocksdb::Env;
using rocksdb::FileSystem;
using rocksdb::PinnableSlice;
using rocksdb::ReadOptions;
using rocksdb::Slice;
using rocksdb::StackableDB;
using rocksdb::Status;
using rocksdb::WriteOptions;

using Families = std::vector<rocksdb::ColumnFamilyDescriptor>;
using Handles = std::vector<ColumnFamilyHandle*>;
using Open = Status(const DBOptions&, const std::string&, const Families&, Handles*, Opened*);

// A database that ends its Same-Victim collection before it is closed.
class WatchedDatabase : public StackableDB {
 public:
  WatchedDatabase(DB* db, std::shared_ptr<SameVictim> watch)
      : StackableDB(db), watch_(std::move(watch)) {}
  ~WatchedDatabase() override { watch_->Detach(); }

  Status Close() override {
    watch_->Detach();
    return StackableDB::Close();
  }
  Status CreateColumnFamily(const ColumnFamilyOptions& options, const std::string& name,
                            ColumnFamilyHandle** handle) override {
    Status status = StackableDB::CreateColumnFamily(options, name, handle);
    if (status.ok()) watch_->Add(*handle);
    return status;
  }
  Status CreateColumnFamilies(const ColumnFamilyOptions& options,
                              const std::vector<std::string>& names,
                              std::vector<ColumnFamilyHandle*>* handles) override {
    return Watched(StackableDB::CreateColumnFamilies(options, names, handles), *handles);
  }
  Status CreateColumnFamilies(const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                              std::vector<ColumnFamilyHandle*>* handles) override {
    return Watched(StackableDB::CreateColumnFamilies(families, handles), *handles);
  }
  Status DropColumnFamily(ColumnFamilyHandle* handle) override {
    watch_->Forget(handle);
    return StackableDB::DropColumnFamily(handle);
  }
  Status DropColumnFamilies(const std::vector<ColumnFamilyHandle*>& handles) override {
    for (ColumnFamilyHandle* handle : handles) watch_->Forget(handle);
    return StackableDB::DropColumnFamilies(handles);
  }
  Status DestroyColumnFamilyHandle(ColumnFamilyHandle* handle) override {
    watch_->Forget(handle);
    return StackableDB::DestroyColumnFamilyHandle(handle);
  }

  // StackableDB forwards none of these; by default DB answers that they are not supported.
  using StackableDB::DeleteRange;
  using StackableDB::Get;
  using StackableDB::KeyMayExist;
  using StackableDB::MultiGet;
  Status Resume() override { return db_->Resume(); }
  Status GetStatsHistory(uint64_t from, uint64_t until,
                         std::unique_ptr<rocksdb::StatsHistoryIterator>* each) override {
    return db_->GetStatsHistory(from, until, each);
  }
  Status DeleteRange(const WriteOptions& options, ColumnFamilyHandle* family, const Slice& begin,
                     const Slice& end, const Slice& timestamp) override {
    return db_->DeleteRange(options, family, begin, end, timestamp);
  }
  bool KeyMayExist(const ReadOptions& options, ColumnFamilyHandle* family, const Slice& key,
                   std::string* value, std::string* timestamp, bool* found) override {
    return db_->KeyMayExist(options, family, key, value, timestamp, found);
  }
#if ROCKSDB_MAJOR < 9
  Status Get(const ReadOptions& options, ColumnFamilyHandle* family, const Slice& key,
             PinnableSlice* value, std::string* timestamp) override {
    return db_->Get(options, family, key, value, timestamp);
  }
  std::vector<Status> MultiGet(const ReadOptions& options,
                               const std::vector<ColumnFamilyHandle*>& families,
                               const std::vector<Slice>& keys, std::vector<std::string>* values,
                               std::vector<std::string>* timestamps) override {
    return db_->MultiGet(options, families, keys, values, timestamps);
  }
  void MultiGet(const ReadOptions& options, ColumnFamilyHandle* family, const size_t count,
                const Slice* keys, PinnableSlice* values, std::string* timestamps,
                Status* statuses, const bool sorted) override {
    db_->MultiGet(options, family, count, keys, values, timestamps, statuses, sorted);
  }
  void MultiGet(const ReadOptions& options, const size_t count, ColumnFamilyHandle** families,
                const Slice* keys, PinnableSlice* values, Status* statuses,
                const bool sorted) override {
    db_->MultiGet(options, count, families, keys, values, statuses, sorted);
  }
  void MultiGet(const ReadOptions& options, const size_t count, ColumnFamilyHandle** families,
                const Slice* keys, PinnableSlice* values, std::string* timestamps,
                Status* statuses, const bool sorted) override {
    db_->MultiGet(options, count, families, keys, values, timestamps, statuses, sorted);
  }
#endif
#if ROCKSDB_MAJOR > 9 || (ROCKSDB_MAJOR == 9 && ROCKSDB_MINOR >= 11)
  Status WriteWithCallback(const WriteOptions& options, rocksdb::WriteBatch* batch,
                           rocksdb::UserWriteCallback* callback) override {
    return db_->WriteWithCallback(options, batch, callback);
  }
#endif
#if ROCKSDB_MAJOR == 9 && ROCKSDB_MINOR >= 11
  Status GetPropertiesOfTablesForLevels(
      ColumnFamilyHandle* family,
      std::vector<std::unique_ptr<rocksdb::TablePropertiesCollection>>* levels) override {
    return db_->GetPropertiesOfTablesForLevels(family, levels);
  }
#endif

 private:
  // Databases that were opened are watched, even if another could not be opened.
  Status Watched(Status status, const std::vector<ColumnFamilyHandle*>& made) {
    for (ColumnFamilyHandle* handle : made) watch_->Add(handle);
    return status;
  }

  std::shared_ptr<SameVictim> watch_;
};

const char* Setting(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// The environment of FURROW_URI, made once and never destroyed: RocksDB's threads may use it until
// the process has ended.
Status Environment(const char* uri, Env** env) {
  static std::mutex* lock = new std::mutex;
  static Env* made = nullptr;
  std::lock_guard<std::mutex> guard(*lock);
  if (made == nullptr) {
    Uri parsed;
    std::string why;
    if (!ParseUri(uri, &parsed, &why)) return Status::InvalidArgument("FURROW_URI: " + why);
    std::shared_ptr<FileSystem> fs;
    Status status = FileSystem::CreateFromString(rocksdb::ConfigOptions(), uri, &fs);
    if (!status.ok()) return status;
    made = rocksdb::NewCompositeEnv(fs).release();
  }
  *env = made;
  return Status::OK();
}

// Replaces the host's environment by the store's.
Status Redirect(Env** env) {
  const char* uri = Setting("FURROW_URI");
  if (uri == nullptr || (*env != nullptr && *env != Env::Default())) return Status::OK();
  return Environment(uri, env);
}

// Calls the function that this library's function replaces, with options whose environment is the
// store's. Both have the same name for the linker.
template <typename Function, typename Options, typename Call>
Status Redirected(Function* ours, const Options& asked, Call call) {
  Dl_info info;
  void* found = dladdr(reinterpret_cast<void*>(ours), &info) != 0 && info.dli_sname != nullptr
                    ? dlsym(RTLD_NEXT, info.dli_sname)
                    : nullptr;
  if (found == nullptr) {
    return Status::NotSupported(
        "furrow: this RocksDB is not of the kind the plugin was built for: build the plugin "
        "against it");
  }
  Options options = asked;
  Status status = Redirect(&options.env);
  return status.ok() ? call(reinterpret_cast<Function*>(found), options) : status;
}

template <typename Pointer>
DB* Release(Pointer* db) {
  if constexpr (std::is_pointer_v<Pointer>) {
    return *db;
  } else {
    return db->release();
  }
}

Status OpenWatched(Open* next, DBOptions options, const std::string& name, const Families& families,
                   Handles* handles, Opened* db) {
  const char* wanted = Setting("FURROW_SAME_VICTIM");
  auto* fs = wanted == nullptr || options.env == nullptr
                 ? nullptr
                 : options.env->GetFileSystem()->CheckedCast<StoreFileSystem>();
  if (fs == nullptr) return next(options, name, families, handles, db);
  SameVictimOptions same_victim;
  same_victim.as_printed = strcmp(wanted, "as-printed") == 0;
  if (const char* log = Setting("FURROW_SAME_VICTIM_LOG")) {
    FILE* tried = fopen(log, "a");
    if (tried == nullptr) return Status::IOError(log, "FURROW_SAME_VICTIM_LOG: cannot be written");
    fclose(tried);
    same_victim.log = log;
  }
  auto watch = std::make_shared<SameVictim>(fs->store(), same_victim);
  options.listeners.push_back(watch);
  Status status = next(options, name, families, handles, db);
  if (!status.ok()) return status;
  DB* opened = Release(db);
  watch->Attach(opened, *handles);
  *db = Opened(new WatchedDatabase(opened, std::move(watch)));
  return status;
}

}  // namespace
}  // namespace furrow

namespace rocksdb {

// All others call this one in the end (except TransactionDB's).
Status DB::Open(const DBOptions& asked, const std::string& name,
                const std::vector<ColumnFamilyDescriptor>& families,
                std::vector<ColumnFamilyHandle*>* handles, furrow::Opened* db) {
  furrow::Open* ours = &DB::Open;
  return furrow::Redirected(ours, asked, [&](furrow::Open* next, const DBOptions& options) {
    return furrow::OpenWatched(next, options, name, families, handles, db);
  });
}

Status DB::OpenForReadOnly(const DBOptions& asked, const std::string& name,
                           const std::vector<ColumnFamilyDescriptor>& families,
                           std::vector<ColumnFamilyHandle*>* handles, furrow::Opened* db, bool if_wal) {
  using Ours = Status(const DBOptions&, const std::string&, const furrow::Families&,
                      furrow::Handles*, furrow::Opened*, bool);
  Ours* ours = &DB::OpenForReadOnly;
  return furrow::Redirected(ours, asked, [&](Ours* next, const DBOptions& options) {
    return next(options, name, families, handles, db, if_wal);
  });
}

Status DB::OpenForReadOnly(const Options& asked, const std::string& name, furrow::Opened* db, bool if_wal) {
  using Ours = Status(const Options&, const std::string&, furrow::Opened*, bool);
  Ours* ours = &DB::OpenForReadOnly;
  return furrow::Redirected(ours, asked, [&](Ours* next, const Options& options) {
    return next(options, name, db, if_wal);
  });
}

Status DB::OpenAsSecondary(const DBOptions& asked, const std::string& name,
                           const std::string& secondary,
                           const std::vector<ColumnFamilyDescriptor>& families,
                           std::vector<ColumnFamilyHandle*>* handles, furrow::Opened* db) {
  using Ours = Status(const DBOptions&, const std::string&, const std::string&,
                      const furrow::Families&, furrow::Handles*, furrow::Opened*);
  Ours* ours = &DB::OpenAsSecondary;
  return furrow::Redirected(ours, asked, [&](Ours* next, const DBOptions& options) {
    return next(options, name, secondary, families, handles, db);
  });
}

Status DB::ListColumnFamilies(const DBOptions& asked, const std::string& name,
                              std::vector<std::string>* families) {
  using Ours = Status(const DBOptions&, const std::string&, std::vector<std::string>*);
  Ours* ours = &DB::ListColumnFamilies;
  return furrow::Redirected(ours, asked, [&](Ours* next, const DBOptions& options) {
    return next(options, name, families);
  });
}

Status DestroyDB(const std::string& name, const Options& asked,
                 const std::vector<ColumnFamilyDescriptor>& families) {
  using Ours = Status(const std::string&, const Options&, const furrow::Families&);
  Ours* ours = &DestroyDB;
  return furrow::Redirected(ours, asked, [&](Ours* next, const Options& options) {
    return next(name, options, families);
  });
}

Status RepairDB(const std::string& name, const Options& asked) {
  using Ours = Status(const std::string&, const Options&);
  Ours* ours = &RepairDB;
  return furrow::Redirected(
      ours, asked, [&](Ours* next, const Options& options) { return next(name, options); });
}

Status LoadLatestOptions(const ConfigOptions& asked, const std::string& name, DBOptions* options,
                         std::vector<ColumnFamilyDescriptor>* families,
                         std::shared_ptr<Cache>* cache) {
  using Ours = Status(const ConfigOptions&, const std::string&, DBOptions*, furrow::Families*,
                      std::shared_ptr<Cache>*);
  Ours* ours = &LoadLatestOptions;
  return furrow::Redirected(ours, asked, [&](Ours* next, const ConfigOptions& config) {
    return next(config, name, options, families, cache);
  });
}

}  // namespace rocksdb
