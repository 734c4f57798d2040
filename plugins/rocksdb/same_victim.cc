// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "same_victim.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>

#include "furrow.h"
#include "rocksdb/metadata.h"

namespace furrow {

using rocksdb::ColumnFamilyHandle;

namespace {

// Zones also fill between events of RocksDB.
constexpr auto kInterval = std::chrono::milliseconds(50);

}  // namespace

double Cutoff::Share() const {
  if (n == 0) return 0;
  return std::min(1.0, (static_cast<double>(k) + 0.5) / static_cast<double>(n));
}

uint64_t Cutoff::Files(uint64_t of) const {
  return static_cast<uint64_t>(Share() * static_cast<double>(of));
}

SameVictim::SameVictim(furrow_store* store, SameVictimOptions options)
    : store_(store), options_(std::move(options)) {}

SameVictim::~SameVictim() { Detach(); }

void SameVictim::Attach(rocksdb::DB* db, const std::vector<ColumnFamilyHandle*>& families) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    db_ = db;
    ending_ = false;
  }
  for (ColumnFamilyHandle* family : families) Add(family);
  thread_ = std::thread([this] { Run(); });
}

void SameVictim::Add(ColumnFamilyHandle* family) {
  // The handle of the default family is the database's own: callers may drop theirs at any time.
  if (family->GetID() == 0) family = db_->DefaultColumnFamily();
  // The store learns the family of earlier files only here.
  rocksdb::ColumnFamilyMetaData data;
  db_->GetColumnFamilyMetaData(family, &data);
  for (const rocksdb::BlobMetaData& file : data.blob_files) {
    std::string path = file.blob_file_path + file.blob_file_name;
    furrow_set_family(store_, path.c_str(), family->GetName().c_str(), nullptr);
  }
  std::lock_guard<std::mutex> guard(mutex_);
  families_.emplace(family, Cutoff());
}

void SameVictim::Forget(ColumnFamilyHandle* family) {
  std::lock_guard<std::mutex> guard(mutex_);
  families_.erase(family);
}

void SameVictim::Detach() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  std::lock_guard<std::mutex> guard(mutex_);
  families_.clear();
  db_ = nullptr;
}

// Called by RocksDB, where this must not wait for the lock: the thread holds it in SetOptions,
// which waits for what this callback blocks. A missed call costs one interval.
void SameVictim::Nudge() {
  nudged_ = true;
  changed_.notify_all();
}

bool SameVictim::Ideal(ColumnFamilyHandle* family, Cutoff* cutoff) const {
  uint64_t youngest = 0;
  uint64_t zones = 0;
  if (furrow_smallest_youngest(store_, db_->GetName().c_str(), family->GetName().c_str(),
                               &youngest, &zones, nullptr) != FURROW_OK) {
    return false;
  }
  // Files being written are in the store but not in RocksDB's metadata: the database is asked for
  // both.
  rocksdb::ColumnFamilyMetaData data;
  db_->GetColumnFamilyMetaData(family, &data);
  cutoff->n = data.blob_files.size();
  cutoff->k = 0;
  for (const rocksdb::BlobMetaData& file : data.blob_files) {
    if (zones > 0 && file.blob_file_number <= youngest) cutoff->k++;
  }
  if (options_.as_printed && cutoff->k > 0) cutoff->k--;
  furrow_space space;
  if (options_.short_below > 0 && furrow_store_space(store_, &space, nullptr) == FURROW_OK &&
      space.free_zones * 100 >= options_.short_below * space.zones) {
    cutoff->k = 0;
  }
  return true;
}

void SameVictim::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ending_) {
    nudged_ = false;
    // Held throughout: Forget waits until nothing uses the column family.
    for (auto& [family, last] : families_) {
      Cutoff now;
      if (!Ideal(family, &now) || now == last) continue;
      char share[32];
      snprintf(share, sizeof(share), "%.17g", now.Share());
      if (db_->SetOptions(family, {{"blob_garbage_collection_age_cutoff", share}}).ok()) {
        last = now;
        sets_++;
      }
    }
    changed_.wait_for(lock, kInterval, [this] { return ending_ || nudged_.load(); });
  }
}

void SameVictim::OnBlobFileCreationStarted(const rocksdb::BlobFileCreationBriefInfo& info) {
  // A file of unknown family counts for none; its placement is the same.
  furrow_set_family(store_, info.file_path.c_str(), info.cf_name.c_str(), nullptr);
}

void SameVictim::OnColumnFamilyHandleDeletionStarted(ColumnFamilyHandle* handle) {
  Forget(handle);
}

void SameVictim::OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo&) { Nudge(); }

void SameVictim::OnCompactionCompleted(rocksdb::DB*, const rocksdb::CompactionJobInfo&) {
  Nudge();
}

void SameVictim::OnCompactionBegin(rocksdb::DB*, const rocksdb::CompactionJobInfo& info) {
  // The thread may be in SetOptions, which waits for what this callback blocks: if the lock is not
  // free, skip.
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || ending_ || db_ == nullptr) return;
  for (const auto& [family, used] : families_) {
    if (family->GetID() != info.cf_id) continue;
    Cutoff ideal;
    if (!Ideal(family, &ideal)) return;
    compactions_++;
    if (used.Files(ideal.n) != ideal.k) stale_++;
    if (options_.log.empty()) return;
    FILE* log = fopen(options_.log.c_str(), "a");
    if (log == nullptr) return;
    fprintf(log, "%s,%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", info.cf_name.c_str(),
            info.job_id, used.k, used.n, ideal.k, ideal.n);
    fclose(log);
    return;
  }
}

}  // namespace furrow
