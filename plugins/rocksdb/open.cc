// SPDX-License-Identifier: Apache-2.0 OR MIT
// Takes the place of DB::Open in programs that this library is preloaded into, so that stock
// programs use a store and Same-Victim garbage collection without a change.
//
// FURROW_URI=furrow://...   databases lie in that store, also of programs without --fs_uri
// FURROW_SAME_VICTIM=1      Same-Victim collection, for databases that lie in a store;
//                           as-printed: by equation 1 of the paper as it is printed
// FURROW_SAME_VICTIM_LOG=F  adds a line to F for each compaction
// FURROW_REPORT=F           writes what the store did to F when the program ends (register.cc)
//
// Without these nothing is changed.
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
#include "rocksdb/utilities/stackable_db.h"
#include "same_victim.h"

namespace furrow {
namespace {

using rocksdb::ColumnFamilyHandle;
using rocksdb::ColumnFamilyOptions;
using rocksdb::DB;
using rocksdb::DBOptions;
using rocksdb::Env;
using rocksdb::FileSystem;
using rocksdb::StackableDB;
using rocksdb::Status;

using Open = Status (*)(const DBOptions&, const std::string&,
                        const std::vector<rocksdb::ColumnFamilyDescriptor>&,
                        std::vector<ColumnFamilyHandle*>*, DB**);

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
  Status DropColumnFamily(ColumnFamilyHandle* handle) override {
    watch_->Forget(handle);
    return StackableDB::DropColumnFamily(handle);
  }
  Status DestroyColumnFamilyHandle(ColumnFamilyHandle* handle) override {
    watch_->Forget(handle);
    return StackableDB::DestroyColumnFamilyHandle(handle);
  }

 private:
  std::shared_ptr<SameVictim> watch_;
};

const char* Setting(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// The environment that FURROW_URI names, made once and never destroyed: RocksDB's threads may use
// it until the process is gone.
Status Environment(const char* uri, Env** env) {
  static std::mutex* lock = new std::mutex;
  static Env* made = nullptr;
  std::lock_guard<std::mutex> guard(*lock);
  if (made == nullptr) {
    std::shared_ptr<FileSystem> fs;
    Status status = FileSystem::CreateFromString(rocksdb::ConfigOptions(), uri, &fs);
    if (!status.ok()) return status;
    made = rocksdb::NewCompositeEnv(fs).release();
  }
  *env = made;
  return Status::OK();
}

Status OpenWatched(Open next, const DBOptions& asked, const std::string& name,
                   const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                   std::vector<ColumnFamilyHandle*>* handles, DB** db) {
  DBOptions options = asked;
  const char* uri = Setting("FURROW_URI");
  if (uri != nullptr && (options.env == nullptr || options.env == Env::Default())) {
    Status status = Environment(uri, &options.env);
    if (!status.ok()) return status;
  }
  const char* wanted = Setting("FURROW_SAME_VICTIM");
  auto* fs = wanted == nullptr || options.env == nullptr
                 ? nullptr
                 : options.env->GetFileSystem()->CheckedCast<StoreFileSystem>();
  if (fs == nullptr) return next(options, name, families, handles, db);
  SameVictimOptions same_victim;
  same_victim.as_printed = strcmp(wanted, "as-printed") == 0;
  if (const char* log = Setting("FURROW_SAME_VICTIM_LOG")) same_victim.log = log;
  auto watch = std::make_shared<SameVictim>(fs->store(), same_victim);
  options.listeners.push_back(watch);
  Status status = next(options, name, families, handles, db);
  if (!status.ok()) return status;
  watch->Attach(*db, *handles);
  *db = new WatchedDatabase(*db, std::move(watch));
  return status;
}

}  // namespace
}  // namespace furrow

namespace rocksdb {

// The one that all others end in (but TransactionDB's).
Status DB::Open(const DBOptions& options, const std::string& name,
                const std::vector<ColumnFamilyDescriptor>& families,
                std::vector<ColumnFamilyHandle*>* handles, DB** db) {
  static const auto next = reinterpret_cast<furrow::Open>(dlsym(
      RTLD_NEXT,
      "_ZN7rocksdb2DB4OpenERKNS_9DBOptionsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
      "RKSt6vectorINS_22ColumnFamilyDescriptorESaISD_EEPSC_IPNS_18ColumnFamilyHandleESaISJ_EEPPS0_"));
  if (next == nullptr) {
    return Status::NotSupported(
        "furrow: this RocksDB has no DB::Open of the kind the plugin was built for: build the "
        "plugin against it");
  }
  return furrow::OpenWatched(next, options, name, families, handles, db);
}

}  // namespace rocksdb
