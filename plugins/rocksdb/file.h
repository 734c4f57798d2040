// SPDX-License-Identifier: Apache-2.0 OR MIT
// Open files and directories of a store, as RocksDB uses them. Each keeps the store open.
#pragma once

#include <pthread.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fs.h"
#include "open_store.h"
#include "rocksdb/env.h"
#include "versions.h"

namespace furrow {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;
using Pin = StoreFileSystem::Pin;

// Pages of the drive; buffers of direct reads and writes are multiples of them.
constexpr size_t kPage = 4096;

// Converts the result of `call` to a status; `call` gets a pointer for the error.
template <typename Call>
IOStatus Try(Call call) {
  furrow_error error;
  error.kind = FURROW_OK;
  error.message[0] = '\0';
  return ToStatus(call(&error), error);
}

inline std::string BaseName(const std::string& path) {
  size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

inline std::string DirName(const std::string& path) {
  size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

inline bool StartsWith(const std::string& text, const std::string& front) {
  return text.compare(0, front.size(), front) == 0;
}

// The writer of a file with this priority, as furrow_file_set_claim defines writers. RocksDB's
// priority of a file identifies the writer, except where writers are slowed down: flushes and
// compactions then have the same priority. There the name of the thread decides: threads are named
// for their pools, and those of sub-compactions inherit the name. The thread of DB::Open, which
// empties logs by flushes, is in no pool.
inline int Claim(rocksdb::Env::IOPriority priority) {
  constexpr int kNone = 0, kCompaction = 1, kFlush = 2;
  char thread[16] = "";
  pthread_getname_np(pthread_self(), thread, sizeof(thread));
  std::string name = thread;
  switch (priority) {
    case rocksdb::Env::IO_LOW:
      return kCompaction;
    case rocksdb::Env::IO_HIGH:
      return kFlush;
    case rocksdb::Env::IO_USER:
      if (StartsWith(name, "rocksdb:high")) return kFlush;
      return StartsWith(name, "rocksdb:low") || StartsWith(name, "rocksdb:bottom") ? kCompaction : kNone;
    default:
      return kNone;
  }
}

// An open file, closed with the last reference to it.
class Handle {
 public:
  Handle(furrow_file* file, Pin pin) : file_(file), pin_(std::move(pin)) {}
  ~Handle() { Close(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  furrow_file* get() const { return file_; }

  IOStatus Close() {
    if (file_ == nullptr) return IOStatus::OK();
    IOStatus status = Try([this](furrow_error* error) {
      return furrow_file_close(std::exchange(file_, nullptr), error);
    });
    pin_.reset();
    return status;
  }

  IOStatus Read(uint64_t offset, size_t n, Slice* result, char* scratch) const {
    size_t got = 0;
    IOStatus status = Try([&](furrow_error* error) {
      return furrow_file_read(file_, offset, scratch, n, &got, error);
    });
    *result = Slice(scratch, status.ok() ? got : 0);
    return status;
  }

  // An identity with the lifetime of the file, for RocksDB's block cache.
  size_t UniqueId(char* id, size_t max_size) const {
    uint64_t number = 0;
    IOStatus status =
        Try([&](furrow_error* error) { return furrow_file_id(file_, &number, error); });
    if (!status.ok() || max_size < sizeof(number)) return 0;
    memcpy(id, &number, sizeof(number));
    return sizeof(number);
  }

 private:
  furrow_file* file_;
  // Keeps the store open.
  Pin pin_;
};

class SequentialFile : public rocksdb::FSSequentialFile {
 public:
  SequentialFile(furrow_file* file, Pin pin, bool direct)
      : handle_(file, std::move(pin)), direct_(direct) {}

  IOStatus Read(size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) override {
    IOStatus status = handle_.Read(at_, n, result, scratch);
    if (status.ok()) at_ += result->size();
    return status;
  }

  IOStatus Skip(uint64_t n) override {
    uint64_t size = 0;
    IOStatus status =
        Try([&](furrow_error* error) { return furrow_file_size(handle_.get(), &size, error); });
    if (status.ok()) at_ = n > size - std::min(at_, size) ? size : at_ + n;
    return status;
  }

  IOStatus PositionedRead(uint64_t offset, size_t n, const IOOptions&, Slice* result,
                          char* scratch, IODebugContext*) override {
    return handle_.Read(offset, n, result, scratch);
  }

  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }
  bool use_direct_io() const override { return direct_; }
  size_t GetRequiredBufferAlignment() const override { return kPage; }

 private:
  Handle handle_;
  bool direct_;
  uint64_t at_ = 0;
};

// A read that was started, from ReadAsync to its deleter.
struct AsyncRead {
  furrow_read* read;
  rocksdb::FSReadRequest request;
  ReadCallback callback;
  void* argument;

  void End() { furrow_read_end(std::exchange(read, nullptr)); }

  // Waits, copies to the caller's buffer and calls back. Runs once.
  void Finish() {
    if (read == nullptr) return;
    size_t got = 0;
    request.status = Try([&](furrow_error* error) {
      return furrow_read_wait(read, request.scratch, request.len, &got, error);
    });
    request.result = Slice(request.scratch, request.status.ok() ? got : 0);
    End();
    callback(request, argument);
  }
};

class RandomAccessFile : public rocksdb::FSRandomAccessFile {
 public:
  RandomAccessFile(furrow_file* file, Pin pin, bool direct)
      : handle_(file, std::move(pin)), direct_(direct) {}

  IOStatus Read(uint64_t offset, size_t n, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    return handle_.Read(offset, n, result, scratch);
  }

  // All reads are started before the first is waited for.
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const IOOptions&,
                     IODebugContext*) override {
    std::vector<furrow_read*> reads(count, nullptr);
    for (size_t i = 0; i < count; i++) {
      requests[i].status = Begin(requests[i], &reads[i]);
    }
    for (size_t i = 0; i < count; i++) {
      size_t got = 0;
      if (requests[i].status.ok()) {
        requests[i].status = Try([&](furrow_error* error) {
          return furrow_read_wait(reads[i], requests[i].scratch, requests[i].len, &got, error);
        });
      }
      requests[i].result = Slice(requests[i].scratch, requests[i].status.ok() ? got : 0);
      furrow_read_end(reads[i]);
    }
    return IOStatus::OK();
  }

  IOStatus ReadAsync(rocksdb::FSReadRequest& request, const IOOptions&, ReadCallback callback,
                     void* argument, void** io_handle, rocksdb::IOHandleDeleter* deleter,
                     IODebugContext*) override {
    furrow_read* read = nullptr;
    IOStatus status = Begin(request, &read);
    if (!status.ok()) return status;
    rocksdb::FSReadRequest copy;
    copy.offset = request.offset;
    copy.len = request.len;
    copy.scratch = request.scratch;
    *io_handle = new AsyncRead{read, std::move(copy), std::move(callback), argument};
    *deleter = [](void* handle) {
      auto* async = static_cast<AsyncRead*>(handle);
      async->End();
      delete async;
    };
    return IOStatus::OK();
  }

  IOStatus Prefetch(uint64_t, size_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::NotSupported("Prefetch: the store has no cache of content");
  }
  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }
  size_t GetUniqueId(char* id, size_t max_size) const override {
    return handle_.UniqueId(id, max_size);
  }
  bool use_direct_io() const override { return direct_; }
  size_t GetRequiredBufferAlignment() const override { return kPage; }

 private:
  IOStatus Begin(const rocksdb::FSReadRequest& request, furrow_read** read) const {
    return Try([&](furrow_error* error) {
      return furrow_read_begin(handle_.get(), request.offset, request.len, read, error);
    });
  }

  Handle handle_;
  bool direct_;
};

class WritableFile : public rocksdb::FSWritableFile {
 public:
  WritableFile(furrow_file* file, Pin pin, const FileOptions& options)
      : FSWritableFile(options),
        handle_(file, std::move(pin)),
        direct_(options.use_direct_writes) {}

  using FSWritableFile::Append;
  using FSWritableFile::PositionedAppend;

  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    return Try([&](furrow_error* error) {
      return furrow_file_append(handle_.get(), data.data(), data.size(), error);
    });
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions&,
                            IODebugContext*) override {
    return Try([&](furrow_error* error) {
      return furrow_file_append_at(handle_.get(), offset, data.data(), data.size(), error);
    });
  }
  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    return Try(
        [&](furrow_error* error) { return furrow_file_truncate(handle_.get(), size, error); });
  }
  // Appended data can be read already; it is durable only after Sync.
  IOStatus Flush(const IOOptions&, IODebugContext*) override {
    return Try([&](furrow_error* error) { return furrow_file_flush(handle_.get(), error); });
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    return Try([&](furrow_error* error) { return furrow_file_sync(handle_.get(), error); });
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* dbg) override {
    return Sync(options, dbg);
  }
  IOStatus RangeSync(uint64_t offset, uint64_t n, const IOOptions&, IODebugContext*) override {
    return Try([&](furrow_error* error) {
      return furrow_file_range_sync(handle_.get(), offset, n, error);
    });
  }
  IOStatus Allocate(uint64_t, uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus InvalidateCache(size_t, size_t) override { return IOStatus::OK(); }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return handle_.Close(); }
  bool IsSyncThreadSafe() const override { return true; }
  bool use_direct_io() const override { return direct_; }
  size_t GetRequiredBufferAlignment() const override { return kPage; }

  void SetWriteLifeTimeHint(rocksdb::Env::WriteLifeTimeHint hint) override {
    FSWritableFile::SetWriteLifeTimeHint(hint);
    // A hint that cannot be set affects only placement.
    furrow_file_set_lifetime(handle_.get(), static_cast<int>(hint), nullptr);
  }
  void SetIOPriority(rocksdb::Env::IOPriority priority) override {
    FSWritableFile::SetIOPriority(priority);
    // A claim that cannot be set affects only the use of reserved space.
    if (int claim = Claim(priority)) furrow_file_set_claim(handle_.get(), claim, nullptr);
  }
  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override {
    uint64_t size = 0;
    furrow_file_size(handle_.get(), &size, nullptr);
    return size;
  }
  size_t GetUniqueId(char* id, size_t max_size) const override {
    return handle_.UniqueId(id, max_size);
  }

 private:
  Handle handle_;
  bool direct_;
};

class Directory : public rocksdb::FSDirectory {
 public:
  explicit Directory(Pin pin) : pin_(std::move(pin)) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return Try([&](furrow_error* error) { return furrow_store_sync(pin_->get(), error); });
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  Pin pin_;
};

}  // namespace furrow
