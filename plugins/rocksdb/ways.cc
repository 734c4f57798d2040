// SPDX-License-Identifier: Apache-2.0 OR MIT
// Opens databases in every way that RocksDB offers: ways DIRECTORY
//
// A stock program that knows nothing of stores, for `furrow run --store`. DIRECTORY is an empty one
// of the host, which must be empty at the end; the store has its files.
#include <dirent.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "rocksdb/c.h"
#include "rocksdb/sst_file_reader.h"
#include "rocksdb/sst_file_writer.h"
#include "rocksdb/utilities/backup_engine.h"
#include "rocksdb/utilities/checkpoint.h"
#include "rocksdb/utilities/db_ttl.h"
#include "rocksdb/utilities/optimistic_transaction_db.h"
#include "rocksdb/utilities/options_util.h"
#include "rocksdb/utilities/transaction_db.h"

using namespace rocksdb;

namespace {

std::string directory;

std::string At(const std::string& name) { return directory + "/" + name; }

Options Made() {
  Options options;
  options.create_if_missing = true;
  return options;
}

void Fill(DB* db) {
  CHECK_OK(db->Put(WriteOptions(), "key", "value"));
  CHECK_OK(db->Flush(FlushOptions()));
}

void Has(DB* db) {
  std::string value;
  CHECK_OK(db->Get(ReadOptions(), "key", &value));
  CHECK(value == "value", value);
}

void Plain() {
  Fill(OpenDatabase(Made(), At("plain")).get());
  std::vector<ColumnFamilyDescriptor> families{{kDefaultColumnFamilyName, ColumnFamilyOptions()}};
  std::vector<ColumnFamilyHandle*> handles;
  auto db = OpenDatabase(Made(), At("plain"), families, &handles);
  Has(db.get());
  CHECK_OK(db->DestroyColumnFamilyHandle(handles[0]));
  furrow::Opened second{};
  CHECK_OK(DB::OpenAsSecondary(Made(), At("plain"), At("secondary"), &second));
  std::unique_ptr<DB> owned(std::move(second));
  Has(owned.get());
}

void ReadOnly() {
  furrow::Opened db{};
  CHECK_OK(DB::OpenForReadOnly(Options(), At("plain"), &db));
  std::unique_ptr<DB> first(std::move(db));
  Has(first.get());
  std::vector<ColumnFamilyDescriptor> families{{kDefaultColumnFamilyName, ColumnFamilyOptions()}};
  std::vector<ColumnFamilyHandle*> handles;
  furrow::Opened again{};
  CHECK_OK(DB::OpenForReadOnly(DBOptions(), At("plain"), families, &handles, &again));
  std::unique_ptr<DB> second(std::move(again));
  Has(second.get());
  CHECK_OK(second->DestroyColumnFamilyHandle(handles[0]));
}

void Transactions() {
  TransactionDB* db = nullptr;
  CHECK_OK(TransactionDB::Open(Made(), TransactionDBOptions(), At("transactions"), &db));
  Fill(db);
  delete db;
  std::vector<ColumnFamilyDescriptor> families{{kDefaultColumnFamilyName, ColumnFamilyOptions()}};
  std::vector<ColumnFamilyHandle*> handles;
  CHECK_OK(TransactionDB::Open(Made(), TransactionDBOptions(), At("transactions"), families,
                               &handles, &db));
  Has(db);
  CHECK_OK(db->DestroyColumnFamilyHandle(handles[0]));
  delete db;
  OptimisticTransactionDB* optimistic = nullptr;
  CHECK_OK(OptimisticTransactionDB::Open(Made(), At("optimistic"), &optimistic));
  Fill(optimistic);
  delete optimistic;
}

void WithTtl() {
  DBWithTTL* db = nullptr;
  CHECK_OK(DBWithTTL::Open(Made(), At("ttl"), &db, 1000));
  Fill(db);
  delete db;
}

void InC() {
  rocksdb_options_t* options = rocksdb_options_create();
  rocksdb_options_set_create_if_missing(options, 1);
  char* error = nullptr;
  rocksdb_close(rocksdb_open(options, At("c").c_str(), &error));
  CHECK(error == nullptr, error);
  rocksdb_transactiondb_options_t* transactions = rocksdb_transactiondb_options_create();
  rocksdb_transactiondb_close(rocksdb_transactiondb_open(
      options, transactions, At("c_transactions").c_str(), &error));
  CHECK(error == nullptr, error);
  rocksdb_optimistictransactiondb_close(
      rocksdb_optimistictransactiondb_open(options, At("c_optimistic").c_str(), &error));
  CHECK(error == nullptr, error);
  rocksdb_transactiondb_options_destroy(transactions);
  rocksdb_options_destroy(options);
}

void Copies() {
  auto db = OpenDatabase(Options(), At("plain"));
  Checkpoint* checkpoint = nullptr;
  CHECK_OK(Checkpoint::Create(db.get(), &checkpoint));
  CHECK_OK(checkpoint->CreateCheckpoint(At("checkpoint")));
  delete checkpoint;
  BackupEngine* backups = nullptr;
  CHECK_OK(BackupEngine::Open(BackupEngineOptions(At("backup")), Env::Default(), &backups));
  CHECK_OK(backups->CreateNewBackup(db.get()));
  CHECK_OK(backups->RestoreDBFromLatestBackup(At("restored"), At("restored")));
  delete backups;
  for (const char* copy : {"checkpoint", "restored"}) {
    Has(OpenDatabase(Options(), At(copy)).get());
  }
  SstFileWriter writer(EnvOptions(), (Options()));
  CHECK_OK(writer.Open(At("table.sst")));
  CHECK_OK(writer.Put("other", "value"));
  CHECK_OK(writer.Finish());
  SstFileReader reader((Options()));
  CHECK_OK(reader.Open(At("table.sst")));
  IngestExternalFileOptions move;
  move.move_files = true;
  CHECK_OK(db->IngestExternalFile({At("table.sst")}, move));
}

void Upkeep() {
  std::vector<std::string> names;
  CHECK_OK(DB::ListColumnFamilies(DBOptions(), At("plain"), &names));
  CHECK(names.size() == 1, "families");
  DBOptions options;
  std::vector<ColumnFamilyDescriptor> families;
  CHECK_OK(LoadLatestOptions(ConfigOptions(), At("plain"), &options, &families));
  // The directory of logs in other spellings is the database's own.
  for (const char* spelling : {"/", "//", "/.", "/../restored"}) {
    Options logs;
    logs.wal_dir = At("restored") + spelling;
    Options made = logs;
    made.create_if_missing = true;
    {
      auto db = OpenDatabase(made, At("restored"));
      CHECK_OK(db->Put(WriteOptions(), spelling, "value"));
      CHECK_OK(db->FlushWAL(true));
    }
    CHECK_OK(RepairDB(At("restored"), logs));
    auto db = OpenDatabase(Options(), At("restored"));
    std::string value;
    CHECK_OK(db->Get(ReadOptions(), spelling, &value));
    Has(db.get());
  }
  CHECK_OK(DestroyDB(At("optimistic"), Options()));
}

// Environments above the default one use the store, too; others are refused.
void OtherEnvironments() {
  EnvWrapper above(Env::Default());
  Options options = Made();
  options.env = &above;
  Fill(OpenDatabase(options, At("above")).get());
  std::unique_ptr<Env> composite = NewCompositeEnv(FileSystem::Default());
  options.env = composite.get();
  Fill(OpenDatabase(options, At("composite")).get());
  std::unique_ptr<Env> other(NewMemEnv(Env::Default()));
  options.env = other.get();
  furrow::Opened db{};
  Status status = DB::Open(options, At("other"), &db);
  CHECK(status.IsNotSupported() && status.ToString().find("furrow: ") != std::string::npos,
        status.ToString());
  TransactionDB* transactions = nullptr;
  status = TransactionDB::Open(options, TransactionDBOptions(), At("other"), &transactions);
  CHECK(status.IsNotSupported(), status.ToString());
}

// Maps are refused when a database is opened, new or not.
void Maps() {
  for (const char* name : {"mapped", "plain"}) {
    for (bool reads : {true, false}) {
      Options options = Made();
      (reads ? options.allow_mmap_reads : options.allow_mmap_writes) = true;
      furrow::Opened db{};
      Status status = DB::Open(options, At(name), &db);
      CHECK(!status.ok() && status.ToString().find("mapped: set") != std::string::npos,
            std::string(name) + ": " + status.ToString());
    }
  }
  Options options;
  options.allow_mmap_reads = true;
  furrow::Opened db{};
  CHECK(!DB::OpenForReadOnly(options, At("plain"), &db).ok(), "read only");
}

// A database of the host is not there for the program.
void NotTheHosts() {
  std::string host = directory + "/host";
  furrow::Opened db{};
  Status status = DB::OpenForReadOnly(Options(), host, &db);
  CHECK(!status.ok() && status.ToString().find("CURRENT") != std::string::npos, status.ToString());
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    fprintf(stderr, "usage: ways DIRECTORY [host]\n");
    return 2;
  }
  directory = arguments[1];
  // Makes a database of the host, without a store.
  if (count > 2 && strcmp(arguments[2], "host") == 0) {
    Fill(OpenDatabase(Made(), At("host")).get());
    return 0;
  }
  const std::pair<const char*, void (*)()> ways[] = {
      {"plain", Plain},         {"read_only", ReadOnly}, {"transactions", Transactions},
      {"with_ttl", WithTtl},    {"in_c", InC},           {"copies", Copies},
      {"upkeep", Upkeep},       {"maps", Maps},          {"other_environments", OtherEnvironments},
      {"not_the_hosts", NotTheHosts},
  };
  for (const auto& [name, way] : ways) {
    way();
    printf("%s ok\n", name);
    fflush(stdout);
  }
  DIR* host = opendir(directory.c_str());
  CHECK(host != nullptr, directory);
  while (dirent* entry = readdir(host)) {
    std::string name = entry->d_name;
    CHECK(name == "." || name == ".." || name == "host", name + " is on the host");
  }
  closedir(host);
  // With its databases the process has left the drive: another one can have it.
  if (const char* command = getenv("FURROW_TEST_COMMAND")) CHECK(system(command) == 0, command);
  return 0;
}
