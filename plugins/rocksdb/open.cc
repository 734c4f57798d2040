// SPDX-License-Identifier: Apache-2.0 OR MIT
// Makes the store the default file system of programs into which this library is preloaded, so that
// stock programs use a store and Same-Victim garbage collection without a change.
//
// FURROW_URI=furrow://...   RocksDB's files lie in that store: Env::Default() and everything above
//                           it asks FileSystem::Default(), which is replaced here. So every way to
//                           open, list, copy, repair and destroy databases ends in the store. What
//                           opens a database with files of another make is refused.
// FURROW_SAME_VICTIM=1      Same-Victim collection, for databases that lie in a store;
//                           as-printed: by equation 1 of the paper as it is printed
// FURROW_SAME_VICTIM_LOG=F  adds a line to F for each compaction
// FURROW_FOLLOW=1           a database goes with its directory on the host (follow.h)
// FURROW_REPORT=F           writes the store's figures to F when the program ends (open_store.cc)
//
// Without these variables nothing changes. The library is not for a Java virtual machine, whose
// RocksDB is another one in the same process (java.cc).
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "follow.h"
#include "fs.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/utilities/stackable_db.h"
#include "rocksdb/utilities/transaction_db.h"
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
  WatchedDatabase(DB* db, std::shared_ptr<SameVictim> watch, StoreFileSystem::Pin store)
      : StackableDB(db), store_(std::move(store)), watch_(std::move(watch)) {}
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

  StoreFileSystem::Pin store_;
  std::shared_ptr<SameVictim> watch_;
};

const char* Setting(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// The function that this library's function replaces: both have the same name for the linker.
template <typename Function>
Function* Replaced(Function* ours) {
  Dl_info own, info;
  static const char anchor = 0;
  void* address = reinterpret_cast<void*>(ours);
  if (dladdr(address, &info) == 0 || info.dli_sname == nullptr || dladdr(&anchor, &own) == 0) {
    return nullptr;
  }
  // Linked before this library, RocksDB's own comes first, and nothing is replaced.
  if (info.dli_fbase != own.dli_fbase) return ours;
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, info.dli_sname));
}

// Calls the function that this library's function replaces, if the database will be in a store.
template <typename Function, typename Options, typename Call>
Status Checked(Function* ours, const Options& options, const std::string& name, Call call) {
  Function* next = Replaced(ours);
  if (next == nullptr) {
    return Status::NotSupported(
        "furrow: this RocksDB is not of the kind the plugin was built for: build the plugin "
        "against it");
  }
  Env* env = options.env != nullptr ? options.env : Env::Default();
  if (Setting("FURROW_URI") != nullptr && !StoreFileSystem::Serves(env)) {
    return Status::NotSupported(
        name, "furrow: this database has an environment with files of its own, not the store's: "
              "open it with Env::Default(), or with an Env above it");
  }
  return call(next);
}

// The store whose databases follow directories of the host; null if they do not.
StoreFileSystem* Followed(const Env* asked) {
  if (Setting("FURROW_FOLLOW") == nullptr) return nullptr;
  const Env* env = asked != nullptr ? asked : Env::Default();
  return env->GetFileSystem()->CheckedCast<StoreFileSystem>();
}

// Before a database is opened to be written.
Status Prepare(const Env* asked, const std::string& name) {
  StoreFileSystem* fs = Followed(asked);
  return fs == nullptr ? Status::OK() : Follow(fs, name);
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
  Status ready = Prepare(options.env, name);
  if (!ready.ok()) return ready;
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
  StoreFileSystem::Pin pin;
  Status held = fs->Hold(&pin);
  if (!held.ok()) return held;
  auto watch = std::make_shared<SameVictim>(fs->store(), same_victim);
  options.listeners.push_back(watch);
  Status status = next(options, name, families, handles, db);
  if (!status.ok()) return status;
  DB* opened = Release(db);
  watch->Attach(opened, *handles);
  *db = Opened(new WatchedDatabase(opened, std::move(watch), std::move(pin)));
  return status;
}

}  // namespace

std::shared_ptr<FileSystem> HostFileSystem() {
  static auto* ours = &FileSystem::Default;
  static auto* host = Replaced(ours);
  return host();
}

}  // namespace furrow

namespace rocksdb {

std::shared_ptr<FileSystem> FileSystem::Default() {
  const char* uri = furrow::Setting("FURROW_URI");
  if (uri == nullptr) return furrow::HostFileSystem();
  static auto* store =
      new std::shared_ptr<FileSystem>(furrow::StoreFileSystem::WhileUsed(uri));
  return *store;
}

// The other forms of DB::Open, and those of databases with TTL, blobs or optimistic transactions,
// call this one.
Status DB::Open(const DBOptions& asked, const std::string& name,
                const std::vector<ColumnFamilyDescriptor>& families,
                std::vector<ColumnFamilyHandle*>* handles, furrow::Opened* db) {
  furrow::Open* ours = &DB::Open;
  return furrow::Checked(ours, asked, name, [&](furrow::Open* next) {
    return furrow::OpenWatched(next, asked, name, families, handles, db);
  });
}

Status TransactionDB::Open(const DBOptions& asked, const TransactionDBOptions& transactions,
                           const std::string& name,
                           const std::vector<ColumnFamilyDescriptor>& families,
                           std::vector<ColumnFamilyHandle*>* handles, TransactionDB** db) {
  using Ours = Status(const DBOptions&, const TransactionDBOptions&, const std::string&,
                      const furrow::Families&, furrow::Handles*, TransactionDB**);
  Ours* ours = &TransactionDB::Open;
  return furrow::Checked(ours, asked, name, [&](Ours* next) {
    if (furrow::Setting("FURROW_SAME_VICTIM") != nullptr) {
      return Status::NotSupported(
          name, "furrow: Same-Victim collection is not for databases with transactions");
    }
    Status ready = furrow::Prepare(asked.env, name);
    if (!ready.ok()) return ready;
    return next(asked, transactions, name, families, handles, db);
  });
}

Status DB::ListColumnFamilies(const DBOptions& asked, const std::string& name,
                              std::vector<std::string>* families) {
  using Ours = Status(const DBOptions&, const std::string&, std::vector<std::string>*);
  Ours* ours = &DB::ListColumnFamilies;
  return furrow::Checked(ours, asked, name, [&](Ours* next) {
    furrow::StoreFileSystem* fs = furrow::Followed(asked.env);
    Status ready = fs == nullptr ? Status::OK() : furrow::RemoveOrphans(fs);
    return ready.ok() ? next(asked, name, families) : ready;
  });
}

Status DB::OpenForReadOnly(const DBOptions& asked, const std::string& name,
                           const std::vector<ColumnFamilyDescriptor>& families,
                           std::vector<ColumnFamilyHandle*>* handles, furrow::Opened* db,
                           bool if_wal) {
  using Ours = Status(const DBOptions&, const std::string&, const furrow::Families&,
                      furrow::Handles*, furrow::Opened*, bool);
  Ours* ours = &DB::OpenForReadOnly;
  return furrow::Checked(ours, asked, name, [&](Ours* next) {
    return next(asked, name, families, handles, db, if_wal);
  });
}

Status DB::OpenForReadOnly(const Options& asked, const std::string& name, furrow::Opened* db,
                           bool if_wal) {
  using Ours = Status(const Options&, const std::string&, furrow::Opened*, bool);
  Ours* ours = &DB::OpenForReadOnly;
  return furrow::Checked(
      ours, asked, name, [&](Ours* next) { return next(asked, name, db, if_wal); });
}

Status DB::OpenAsSecondary(const DBOptions& asked, const std::string& name,
                           const std::string& secondary,
                           const std::vector<ColumnFamilyDescriptor>& families,
                           std::vector<ColumnFamilyHandle*>* handles, furrow::Opened* db) {
  using Ours = Status(const DBOptions&, const std::string&, const std::string&,
                      const furrow::Families&, furrow::Handles*, furrow::Opened*);
  Ours* ours = &DB::OpenAsSecondary;
  return furrow::Checked(ours, asked, name, [&](Ours* next) {
    return next(asked, name, secondary, families, handles, db);
  });
}

}  // namespace rocksdb
