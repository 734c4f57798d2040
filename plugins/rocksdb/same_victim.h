// SPDX-License-Identifier: Apache-2.0 OR MIT
// Same-Victim garbage collection: RocksDB's collection of blob files takes the files whose zones
// cleaning would take.
//
// RocksDB collects the oldest blob files, a share of them. This keeps the share of each column
// family at the files up to and including the smallest of the youngest blob files of the full
// zones (YBIZ), so that a collection empties the oldest zone and no other (Same-Victim GC paper,
// §IV-C, Z_Cutoff).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rocksdb/db.h"
#include "rocksdb/listener.h"

struct furrow_store;

namespace furrow {

// The share as files: k of n.
struct Cutoff {
  uint64_t k = 0;
  uint64_t n = 0;
  bool operator==(const Cutoff& other) const { return k == other.k && n == other.n; }
  // The share for RocksDB, which rounds k' = share * n down; adding a half makes the result k.
  double Share() const;
  // The number of files that the share selects of `of` files: it differs from k once files were
  // added or deleted.
  uint64_t Files(uint64_t of) const;
};

struct SameVictimOptions {
  // Equation 1 of the paper as printed: one file less than in the paper's own examples.
  bool as_printed = false;
  // Collects only while less than this share of the zones is free, in percent; 0: always.
  uint32_t short_below = 0;
  // File on the host that gets a line for each compaction that begins: the share it used, and the
  // right share at that moment. Empty: none.
  std::string log;
};

// One for each database. Before DB::Open it goes into the listeners of the options; after that
// Attach starts it; before the database is closed Detach stops it.
//
// A separate thread sets the option: in a callback RocksDB would wait for itself.
class SameVictim : public rocksdb::EventListener {
 public:
  explicit SameVictim(furrow_store* store, SameVictimOptions options = {});
  ~SameVictim() override;

  // Begins to set the share of these column families, until Detach or until they are closed.
  void Attach(rocksdb::DB* db, const std::vector<rocksdb::ColumnFamilyHandle*>& families);
  // Adds a column family.
  void Add(rocksdb::ColumnFamilyHandle* family);
  // Must be called before a column family is closed or dropped.
  void Forget(rocksdb::ColumnFamilyHandle* family);
  // Ends the thread; returns when nothing uses the database any more. May be called twice.
  void Detach();

  // How often the option was set, and how many compactions began with a share that selected other
  // files than the right ones at that moment.
  uint64_t sets() const { return sets_; }
  uint64_t compactions() const { return compactions_; }
  uint64_t stale() const { return stale_; }

  const char* Name() const override { return "furrow.SameVictim"; }
  void OnBlobFileCreationStarted(const rocksdb::BlobFileCreationBriefInfo& info) override;
  void OnColumnFamilyHandleDeletionStarted(rocksdb::ColumnFamilyHandle* handle) override;
  void OnFlushCompleted(rocksdb::DB* db, const rocksdb::FlushJobInfo& info) override;
  void OnCompactionBegin(rocksdb::DB* db, const rocksdb::CompactionJobInfo& info) override;
  void OnCompactionCompleted(rocksdb::DB* db, const rocksdb::CompactionJobInfo& info) override;

 private:
  void Run();
  void Nudge();
  // The right share at present.
  bool Ideal(rocksdb::ColumnFamilyHandle* family, Cutoff* cutoff) const;

  furrow_store* store_;
  SameVictimOptions options_;
  rocksdb::DB* db_ = nullptr;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::atomic<bool> nudged_{false};
  // The share set last, by column family.
  std::map<rocksdb::ColumnFamilyHandle*, Cutoff> families_;
  std::atomic<uint64_t> sets_{0};
  std::atomic<uint64_t> compactions_{0};
  std::atomic<uint64_t> stale_{0};
};

}  // namespace furrow
