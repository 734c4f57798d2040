// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "fs.h"

#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <utility>
#include <vector>

#include "rocksdb/env.h"
#include "versions.h"

namespace furrow {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

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

std::string BaseName(const std::string& path) {
  size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string DirName(const std::string& path) {
  size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

bool StartsWith(const std::string& text, const std::string& front) {
  return text.compare(0, front.size(), front) == 0;
}

// The writer of a file with this priority, as furrow_file_set_claim defines writers. RocksDB's
// priority of a file identifies the writer, except where writers are slowed down: flushes and
// compactions then have the same priority. There the name of the thread decides: threads are named
// for their pools, and those of sub-compactions inherit the name. The thread of DB::Open, which
// empties logs by flushes, is in no pool.
int Claim(rocksdb::Env::IOPriority priority) {
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
  explicit Handle(furrow_file* file) : file_(file) {}
  ~Handle() { Close(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  furrow_file* get() const { return file_; }

  IOStatus Close() {
    if (file_ == nullptr) return IOStatus::OK();
    return Try([this](furrow_error* error) {
      return furrow_file_close(std::exchange(file_, nullptr), error);
    });
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
};

class SequentialFile : public rocksdb::FSSequentialFile {
 public:
  SequentialFile(furrow_file* file, bool direct) : handle_(file), direct_(direct) {}

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
  RandomAccessFile(furrow_file* file, bool direct) : handle_(file), direct_(direct) {}

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
  WritableFile(furrow_file* file, const FileOptions& options)
      : FSWritableFile(options), handle_(file), direct_(options.use_direct_writes) {}

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
  explicit Directory(furrow_store* store) : store_(store) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return Try([&](furrow_error* error) { return furrow_store_sync(store_, error); });
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

 private:
  furrow_store* store_;
};

class Lock : public rocksdb::FileLock {
 public:
  explicit Lock(std::string path) : path(std::move(path)) {}
  const std::string path;
};

// Different paths of one file get the same text here.
std::string Normal(const std::string& path) {
  std::string normal;
  size_t at = 0;
  while (at < path.size()) {
    size_t end = path.find('/', at);
    if (end == std::string::npos) end = path.size();
    std::string part = path.substr(at, end - at);
    if (!part.empty() && part != ".") normal += "/" + part;
    at = end + 1;
  }
  return normal.empty() ? "/" : normal;
}

}  // namespace

IOStatus ToStatus(int kind, const furrow_error& error) {
  const char* message = error.message;
  switch (kind) {
    case FURROW_OK:
      return IOStatus::OK();
    case FURROW_NOT_FOUND:
      return IOStatus::PathNotFound(message);
    case FURROW_INVALID:
      return IOStatus::InvalidArgument(message);
    case FURROW_NO_SPACE:
      return IOStatus::NoSpace(message);
    case FURROW_CORRUPT:
      return IOStatus::Corruption(message);
    case FURROW_UNSUPPORTED:
      return IOStatus::NotSupported(message);
    case FURROW_BUSY:
      return IOStatus::Busy(message);
    default:
      return IOStatus::IOError(message);
  }
}

bool ParseUri(const std::string& text, Uri* uri, std::string* why) {
  const std::string scheme = "furrow://";
  if (!StartsWith(text, scheme)) {
    *why = text + ": expected furrow://DEVICE[?OPTION,...]";
    return false;
  }
  std::string rest = text.substr(scheme.size());
  size_t mark = rest.rfind('?');
  uri->device = rest.substr(0, mark);
  if (uri->device.empty()) {
    *why = text + ": no device: expected furrow://DEVICE, an image of 'furrow device create' or mem:";
    return false;
  }
  std::string options = mark == std::string::npos ? "" : rest.substr(mark + 1);
  size_t at = 0;
  while (at < options.size()) {
    size_t end = options.find(',', at);
    if (end == std::string::npos) end = options.size();
    std::string option = options.substr(at, end - at);
    if (StartsWith(option, "logs=")) {
      uri->logs = option.substr(5);
    } else if (!option.empty()) {
      uri->options += (uri->options.empty() ? "" : ",") + option;
    }
    at = end + 1;
  }
  return true;
}

std::unique_ptr<StoreFileSystem> StoreFileSystem::Open(const std::string& text,
                                                       std::string* why) {
  Uri uri;
  if (!ParseUri(text, &uri, why)) return nullptr;
  furrow_store* store = nullptr;
  furrow_error error;
  if (furrow_store_open(uri.device.c_str(), uri.options.c_str(), &store, &error) != FURROW_OK) {
    *why = error.message;
    return nullptr;
  }
  return std::unique_ptr<StoreFileSystem>(new StoreFileSystem(store, std::move(uri)));
}

StoreFileSystem::StoreFileSystem(furrow_store* store, Uri uri)
    : FileSystemWrapper(rocksdb::FileSystem::Default()), store_(store), uri_(std::move(uri)) {}

StoreFileSystem::~StoreFileSystem() {
  // Nobody can handle an error here.
  furrow_store_close(store_, nullptr);
}

bool StoreFileSystem::IsHostLog(const std::string& path, std::string* host) const {
  std::string base = BaseName(path);
  if (uri_.logs.empty() || (base != "LOG" && !StartsWith(base, "LOG.old"))) return false;
  *host = uri_.logs + Normal(path);
  return true;
}

IOStatus StoreFileSystem::Stat(const std::string& path, furrow_stat* stat) const {
  return Try([&](furrow_error* error) {
    return furrow_stat_path(store_, path.c_str(), stat, error);
  });
}

bool StoreFileSystem::IsHosts(const std::string& path) const {
  furrow_stat stat;
  std::string directory = DirName(path);
  // The store's root always exists: a name without a directory is on the host if only the host has
  // the name.
  bool known = directory.empty() ? Stat(path, &stat).ok() : Stat(directory, &stat).ok();
  if (known) return false;
  return target()->FileExists(path, IOOptions(), nullptr).ok();
}

IOStatus StoreFileSystem::NewSequentialFile(const std::string& path, const FileOptions& options,
                                            std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                            IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) return target()->NewSequentialFile(host, options, result, dbg);
  furrow_file* file = nullptr;
  IOStatus status = Try(
      [&](furrow_error* error) { return furrow_open(store_, path.c_str(), &file, error); });
  if (status.ok()) {
    result->reset(new SequentialFile(file, options.use_direct_reads));
  } else if (IsHosts(path)) {
    return target()->NewSequentialFile(path, options, result, dbg);
  }
  return status;
}

IOStatus StoreFileSystem::NewRandomAccessFile(
    const std::string& path, const FileOptions& options,
    std::unique_ptr<rocksdb::FSRandomAccessFile>* result, IODebugContext* dbg) {
  furrow_file* file = nullptr;
  IOStatus status = Try(
      [&](furrow_error* error) { return furrow_open(store_, path.c_str(), &file, error); });
  if (status.ok()) {
    result->reset(new RandomAccessFile(file, options.use_direct_reads));
  } else if (IsHosts(path)) {
    return target()->NewRandomAccessFile(path, options, result, dbg);
  }
  return status;
}

IOStatus StoreFileSystem::NewWritableFile(const std::string& path, const FileOptions& options,
                                          std::unique_ptr<rocksdb::FSWritableFile>* result,
                                          IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) return target()->NewWritableFile(host, options, result, dbg);
  furrow_file* file = nullptr;
  IOStatus status = Try(
      [&](furrow_error* error) { return furrow_create(store_, path.c_str(), 0, &file, error); });
  if (status.ok()) result->reset(new WritableFile(file, options));
  return status;
}

IOStatus StoreFileSystem::ReopenWritableFile(const std::string& path, const FileOptions& options,
                                             std::unique_ptr<rocksdb::FSWritableFile>* result,
                                             IODebugContext* dbg) {
  furrow_file* file = nullptr;
  int kind = furrow_open(store_, path.c_str(), &file, nullptr);
  if (kind != FURROW_OK) return NewWritableFile(path, options, result, dbg);
  result->reset(new WritableFile(file, options));
  return IOStatus::OK();
}

// Zones cannot be overwritten: the old file is removed, and the new one begins empty.
IOStatus StoreFileSystem::ReuseWritableFile(const std::string& path, const std::string& old_path,
                                            const FileOptions& options,
                                            std::unique_ptr<rocksdb::FSWritableFile>* result,
                                            IODebugContext* dbg) {
  IOStatus status = RenameFile(old_path, path, options.io_options, dbg);
  if (!status.ok()) return status;
  return NewWritableFile(path, options, result, dbg);
}

IOStatus StoreFileSystem::NewRandomRWFile(const std::string& path, const FileOptions&,
                                          std::unique_ptr<rocksdb::FSRandomRWFile>*,
                                          IODebugContext*) {
  return IOStatus::NotSupported(path, "files of a zoned drive are not written over");
}

IOStatus StoreFileSystem::NewMemoryMappedFileBuffer(
    const std::string& path, std::unique_ptr<rocksdb::MemoryMappedFileBuffer>*) {
  return IOStatus::NotSupported(path, "files of a store cannot be mapped");
}

IOStatus StoreFileSystem::NewDirectory(const std::string& path, const IOOptions&,
                                       std::unique_ptr<rocksdb::FSDirectory>* result,
                                       IODebugContext*) {
  furrow_stat stat;
  IOStatus status = Stat(path, &stat);
  if (!status.ok()) return status;
  if (!stat.is_directory) return IOStatus::IOError(path, "not a directory");
  result->reset(new Directory(store_));
  return status;
}

IOStatus StoreFileSystem::FileExists(const std::string& path, const IOOptions& options,
                                     IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) return target()->FileExists(host, options, dbg);
  furrow_stat stat;
  IOStatus status = Stat(path, &stat);
  return status.IsPathNotFound() ? IOStatus::NotFound(path) : status;
}

IOStatus StoreFileSystem::GetChildren(const std::string& path, const IOOptions& options,
                                      std::vector<std::string>* result, IODebugContext* dbg) {
  result->clear();
  auto add = [](void* names, const char* name, const furrow_stat*) {
    static_cast<std::vector<std::string>*>(names)->push_back(name);
  };
  IOStatus status = Try([&](furrow_error* error) {
    return furrow_list(store_, path.c_str(), add, result, error);
  });
  if (status.IsPathNotFound()) return IOStatus::NotFound(path);
  std::vector<std::string> logs;
  if (status.ok() && !uri_.logs.empty() &&
      target()->GetChildren(uri_.logs + Normal(path), options, &logs, dbg).ok()) {
    for (const std::string& name : logs) {
      if (StartsWith(name, "LOG")) result->push_back(name);
    }
  }
  return status;
}

IOStatus StoreFileSystem::GetChildrenFileAttributes(
    const std::string& path, const IOOptions&, std::vector<rocksdb::FileAttributes>* result,
    IODebugContext*) {
  result->clear();
  auto add = [](void* found, const char* name, const furrow_stat* stat) {
    rocksdb::FileAttributes attributes;
    attributes.name = name;
    attributes.size_bytes = stat->size;
    static_cast<std::vector<rocksdb::FileAttributes>*>(found)->push_back(attributes);
  };
  IOStatus status = Try([&](furrow_error* error) {
    return furrow_list(store_, path.c_str(), add, result, error);
  });
  return status.IsPathNotFound() ? IOStatus::NotFound(path) : status;
}

IOStatus StoreFileSystem::DeleteFile(const std::string& path, const IOOptions& options,
                                     IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) return target()->DeleteFile(host, options, dbg);
  return Try([&](furrow_error* error) { return furrow_remove(store_, path.c_str(), error); });
}

IOStatus StoreFileSystem::Truncate(const std::string& path, size_t size, const IOOptions&,
                                   IODebugContext*) {
  furrow_file* file = nullptr;
  IOStatus status = Try(
      [&](furrow_error* error) { return furrow_open(store_, path.c_str(), &file, error); });
  if (!status.ok()) return status;
  Handle handle(file);
  return Try([&](furrow_error* error) { return furrow_file_truncate(file, size, error); });
}

IOStatus StoreFileSystem::CreateDir(const std::string& path, const IOOptions& options,
                                    IODebugContext* dbg) {
  furrow_stat stat;
  if (Stat(path, &stat).ok()) return IOStatus::IOError(path, "is there already");
  return CreateDirIfMissing(path, options, dbg);
}

// Also makes the parents: the store begins without the host's directories.
IOStatus StoreFileSystem::CreateDirIfMissing(const std::string& path, const IOOptions& options,
                                             IODebugContext* dbg) {
  std::string normal = Normal(path);
  for (size_t at = 1; at <= normal.size(); at++) {
    if (at < normal.size() && normal[at] != '/') continue;
    std::string part = normal.substr(0, at);
    furrow_stat stat;
    IOStatus status = Stat(part, &stat);
    if (status.ok() && !stat.is_directory) return IOStatus::IOError(part, "not a directory");
    if (status.ok()) continue;
    if (!status.IsPathNotFound()) return status;
    status = Try([&](furrow_error* error) {
      int kind = furrow_make_directory(store_, part.c_str(), error);
      // Another thread was faster.
      return kind == FURROW_EXISTS ? FURROW_OK : kind;
    });
    if (!status.ok()) return status;
  }
  if (uri_.logs.empty()) return IOStatus::OK();
  std::string host = uri_.logs;
  IOStatus status = target()->CreateDirIfMissing(host, options, dbg);
  for (size_t at = 1; status.ok() && at <= normal.size(); at++) {
    if (at < normal.size() && normal[at] != '/') continue;
    status = target()->CreateDirIfMissing(host + normal.substr(0, at), options, dbg);
  }
  return status;
}

IOStatus StoreFileSystem::DeleteDir(const std::string& path, const IOOptions&,
                                    IODebugContext*) {
  return Try(
      [&](furrow_error* error) { return furrow_remove_directory(store_, path.c_str(), error); });
}

IOStatus StoreFileSystem::GetFileSize(const std::string& path, const IOOptions& options,
                                      uint64_t* size, IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) return target()->GetFileSize(host, options, size, dbg);
  furrow_stat stat;
  IOStatus status = Stat(path, &stat);
  *size = status.ok() ? stat.size : 0;
  if (!status.ok() && IsHosts(path)) return target()->GetFileSize(path, options, size, dbg);
  return status;
}

IOStatus StoreFileSystem::GetFileModificationTime(const std::string& path,
                                                  const IOOptions& options, uint64_t* time,
                                                  IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) {
    return target()->GetFileModificationTime(host, options, time, dbg);
  }
  furrow_stat stat;
  IOStatus status = Stat(path, &stat);
  *time = status.ok() && stat.modified > 0 ? static_cast<uint64_t>(stat.modified) : 0;
  return status;
}

IOStatus StoreFileSystem::RenameFile(const std::string& from, const std::string& to,
                                     const IOOptions& options, IODebugContext* dbg) {
  std::string host_from;
  std::string host_to;
  if (IsHostLog(from, &host_from) && IsHostLog(to, &host_to)) {
    return target()->RenameFile(host_from, host_to, options, dbg);
  }
  return Try([&](furrow_error* error) {
    return furrow_rename(store_, from.c_str(), to.c_str(), error);
  });
}

IOStatus StoreFileSystem::LinkFile(const std::string& from, const std::string& to,
                                   const IOOptions&, IODebugContext*) {
  return Try(
      [&](furrow_error* error) { return furrow_link(store_, from.c_str(), to.c_str(), error); });
}

IOStatus StoreFileSystem::NumFileLinks(const std::string&, const IOOptions&, uint64_t*,
                                       IODebugContext*) {
  return IOStatus::NotSupported("the store does not count a file's names");
}

IOStatus StoreFileSystem::AreFilesSame(const std::string& first, const std::string& second,
                                       const IOOptions&, bool* same, IODebugContext*) {
  uint64_t ids[2] = {0, 0};
  const std::string* paths[2] = {&first, &second};
  for (int i = 0; i < 2; i++) {
    furrow_file* file = nullptr;
    IOStatus status = Try([&](furrow_error* error) {
      return furrow_open(store_, paths[i]->c_str(), &file, error);
    });
    if (!status.ok()) return status;
    Handle handle(file);
    status = Try([&](furrow_error* error) { return furrow_file_id(file, &ids[i], error); });
    if (!status.ok()) return status;
  }
  *same = ids[0] == ids[1];
  return IOStatus::OK();
}

IOStatus StoreFileSystem::LockFile(const std::string& path, const IOOptions&,
                                   rocksdb::FileLock** lock, IODebugContext*) {
  *lock = nullptr;
  std::string normal = Normal(path);
  IOStatus status = Try(
      [&](furrow_error* error) { return furrow_lock(store_, normal.c_str(), error); });
  if (status.ok()) *lock = new Lock(std::move(normal));
  return status;
}

IOStatus StoreFileSystem::UnlockFile(rocksdb::FileLock* lock, const IOOptions&,
                                     IODebugContext*) {
  std::unique_ptr<Lock> held(static_cast<Lock*>(lock));
  return Try(
      [&](furrow_error* error) { return furrow_unlock(store_, held->path.c_str(), error); });
}

IOStatus StoreFileSystem::GetTestDirectory(const IOOptions& options, std::string* path,
                                           IODebugContext* dbg) {
  *path = "/rocksdbtest-" + std::to_string(geteuid());
  return CreateDirIfMissing(*path, options, dbg);
}

IOStatus StoreFileSystem::NewLogger(const std::string& path, const IOOptions& options,
                                    std::shared_ptr<rocksdb::Logger>* result,
                                    IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) return target()->NewLogger(host, options, result, dbg);
  // Through NewWritableFile of this file system.
  return FileSystem::NewLogger(path, options, result, dbg);
}

IOStatus StoreFileSystem::GetAbsolutePath(const std::string& path, const IOOptions&,
                                          std::string* result, IODebugContext*) {
  *result = Normal(path);
  return IOStatus::OK();
}

IOStatus StoreFileSystem::GetFreeSpace(const std::string&, const IOOptions&, uint64_t* free,
                                       IODebugContext*) {
  furrow_space space;
  IOStatus status =
      Try([&](furrow_error* error) { return furrow_store_space(store_, &space, error); });
  *free = status.ok() ? space.available : 0;
  return status;
}

IOStatus StoreFileSystem::IsDirectory(const std::string& path, const IOOptions&,
                                      bool* is_directory, IODebugContext*) {
  furrow_stat stat;
  IOStatus status = Stat(path, &stat);
  *is_directory = status.ok() && stat.is_directory;
  return status;
}

void StoreFileSystem::SupportedOps(int64_t& operations) {
  operations = 0;
#if ROCKSDB_MAJOR >= 9
  operations |= 1 << rocksdb::FSSupportedOps::kAsyncIO;
#endif
}

IOStatus StoreFileSystem::SyncFile(const std::string& path, const FileOptions&, const IOOptions&,
                                   bool, IODebugContext*) {
  furrow_file* file = nullptr;
  IOStatus status = Try(
      [&](furrow_error* error) { return furrow_open(store_, path.c_str(), &file, error); });
  if (!status.ok()) return status;
  Handle handle(file);
  return Try([&](furrow_error* error) { return furrow_file_sync(file, error); });
}

// Waits for every read: RocksDB requests at least as many as there are.
IOStatus StoreFileSystem::Poll(std::vector<void*>& handles, size_t) {
  for (void* handle : handles) {
    if (handle != nullptr) static_cast<AsyncRead*>(handle)->Finish();
  }
  return IOStatus::OK();
}

IOStatus StoreFileSystem::AbortIO(std::vector<void*>& handles) {
  for (void* handle : handles) {
    if (handle != nullptr) static_cast<AsyncRead*>(handle)->End();
  }
  return IOStatus::OK();
}

}  // namespace furrow
