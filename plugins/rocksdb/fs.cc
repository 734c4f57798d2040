// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "fs.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "file.h"
#include "open_store.h"
#include "rocksdb/env.h"

namespace furrow {
namespace {

class Lock : public rocksdb::FileLock {
 public:
  Lock(std::string path, Pin pin) : path(std::move(path)), pin(std::move(pin)) {}
  const std::string path;
  const Pin pin;
};

// Different paths of one file get the same text here. A `..` that leads out of the root stays, and
// the store refuses it.
std::string Normal(const std::string& path) {
  std::string normal;
  size_t at = 0;
  while (at < path.size()) {
    size_t end = path.find('/', at);
    if (end == std::string::npos) end = path.size();
    std::string part = path.substr(at, end - at);
    if (part == ".." && !normal.empty() && BaseName(normal) != "..") {
      normal.resize(normal.find_last_of('/'));
    } else if (!part.empty() && part != ".") {
      normal += "/" + part;
    }
    at = end + 1;
  }
  return normal.empty() ? "/" : normal;
}

// Mapped files would be read and written behind the store's back: a database that asks for them is
// refused when its MANIFEST is opened, and so are single tables.
IOStatus Unmapped(const std::string& path, const FileOptions& options) {
  if (!options.use_mmap_reads && !options.use_mmap_writes) return IOStatus::OK();
  return IOStatus::NotSupported(
      path,
      "files of a store cannot be mapped: set allow_mmap_reads and allow_mmap_writes to false");
}

// A file of the host that something would be done to which needs it in the store. RocksDB then
// copies what it would link.
IOStatus IsOfHost(const std::string& path) {
  return IOStatus::NotSupported(path, "a file of the host: it can be copied into the store only");
}

// Whether FileExists was called in this thread, for Serves.
thread_local bool reached = false;

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
      uri->read_only |= option == "ro";
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
  std::unique_ptr<StoreFileSystem> fs(new StoreFileSystem(std::move(uri), false));
  std::shared_ptr<OpenStore> store;
  IOStatus status = fs->Use(&store);
  if (status.ok()) return fs;
  *why = status.getState() == nullptr ? status.ToString() : status.getState();
  return nullptr;
}

StoreFileSystem* StoreFileSystem::WhileUsed(const std::string& text) {
  Uri uri;
  std::string why;
  bool valid = ParseUri(text, &uri, &why);
  // What is only read has to stay as it is from one file of a database to the next.
  bool while_used = !uri.read_only;
  auto* fs = new StoreFileSystem(std::move(uri), while_used);
  if (!valid) fs->wrong_ = why;
  return fs;
}

StoreFileSystem::StoreFileSystem(Uri uri, bool while_used)
    : FileSystemWrapper(HostFileSystem()), uri_(std::move(uri)), while_used_(while_used) {}

// What is open in the store keeps it open.
StoreFileSystem::~StoreFileSystem() = default;

IOStatus StoreFileSystem::Use(Pin* store) const {
  std::lock_guard<std::mutex> guard(mutex_);
  return Opened(store);
}

IOStatus StoreFileSystem::Opened(Pin* store) const {
  if (!wrong_.empty()) return IOStatus::InvalidArgument(wrong_);
  if (store_ == nullptr) {
    IOStatus status =
        Try([&](furrow_error* error) { return OpenStore::Open(uri_, &store_, error); });
    if (!status.ok()) return status;
  }
  *store = store_;
  return IOStatus::OK();
}

IOStatus StoreFileSystem::Hold(Pin* pin) const {
  std::lock_guard<std::mutex> guard(mutex_);
  IOStatus status = Opened(pin);
  if (!status.ok() || !while_used_) return status;
  Pin held = held_.lock();
  if (held == nullptr) {
    held = Pin(pin->get(), [this, store = *pin](OpenStore*) mutable {
      LetGo();
      store.reset();
    });
    held_ = held;
  }
  *pin = std::move(held);
  return status;
}

void StoreFileSystem::LetGo() const {
  Pin last;
  std::lock_guard<std::mutex> guard(mutex_);
  if (held_.expired()) last = std::move(store_);
}

furrow_store* StoreFileSystem::store() const {
  Pin store;
  return Use(&store).ok() ? store->get() : nullptr;
}

bool StoreFileSystem::Serves(rocksdb::Env* env) {
  reached = false;
  env->FileExists("/");
  return reached;
}

bool StoreFileSystem::IsHostLog(const std::string& path, std::string* host) const {
  std::string base = BaseName(path);
  if (uri_.logs.empty() || (base != "LOG" && !StartsWith(base, "LOG.old"))) return false;
  *host = uri_.logs + Normal(path);
  return true;
}

template <typename Call>
IOStatus StoreFileSystem::With(Call call) const {
  Pin store;
  IOStatus status = Use(&store);
  if (!status.ok()) return status;
  return Try([&](furrow_error* error) { return call(store->get(), error); });
}

IOStatus StoreFileSystem::OpenFile(const std::string& path, Pin* pin, furrow_file** file) const {
  IOStatus status = Hold(pin);
  if (!status.ok()) return status;
  return Try([&](furrow_error* error) {
    return furrow_open((*pin)->get(), path.c_str(), file, error);
  });
}

IOStatus StoreFileSystem::Stat(const std::string& path, furrow_stat* stat) const {
  return With([&](furrow_store* store, furrow_error* error) {
    return furrow_stat_path(store, path.c_str(), stat, error);
  });
}

bool StoreFileSystem::IsHosts(const std::string& path) const {
  // A database of the host is not opened in place of the store's that is missing.
  if (BaseName(path) == "CURRENT") return false;
  furrow_stat stat;
  std::string directory = DirName(path);
  // The store's root always exists: a name without a directory is on the host if only the host has
  // the name.
  bool known = directory.empty() ? Stat(path, &stat).ok() : Stat(directory, &stat).ok();
  if (known) return false;
  return target()->FileExists(path, IOOptions(), nullptr).ok();
}

bool StoreFileSystem::IsHostDirectory(const std::string& path) const {
  bool is = false;
  return !path.empty() && target()->IsDirectory(path, IOOptions(), &is, nullptr).ok() && is;
}

// A new database is refused when its MANIFEST is made, too: the host's file system would drop the
// wish for maps here.
FileOptions StoreFileSystem::OptimizeForManifestWrite(const FileOptions& asked) const {
  FileOptions options = FileSystemWrapper::OptimizeForManifestWrite(asked);
  options.use_mmap_writes = asked.use_mmap_writes;
  return options;
}

IOStatus StoreFileSystem::NewSequentialFile(const std::string& path, const FileOptions& options,
                                            std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                            IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) return target()->NewSequentialFile(host, options, result, dbg);
  IOStatus status = Unmapped(path, options);
  if (!status.ok()) return status;
  Pin pin;
  furrow_file* file = nullptr;
  status = OpenFile(path, &pin, &file);
  if (status.ok()) {
    result->reset(new SequentialFile(file, std::move(pin), options.use_direct_reads));
  } else if (IsHosts(path)) {
    return target()->NewSequentialFile(path, options, result, dbg);
  }
  return status;
}

IOStatus StoreFileSystem::NewRandomAccessFile(
    const std::string& path, const FileOptions& options,
    std::unique_ptr<rocksdb::FSRandomAccessFile>* result, IODebugContext* dbg) {
  IOStatus status = Unmapped(path, options);
  if (!status.ok()) return status;
  Pin pin;
  furrow_file* file = nullptr;
  status = OpenFile(path, &pin, &file);
  if (status.ok()) {
    result->reset(new RandomAccessFile(file, std::move(pin), options.use_direct_reads));
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
  IOStatus status = Unmapped(path, options);
  if (!status.ok()) return status;
  Pin pin;
  status = Hold(&pin);
  if (!status.ok()) return status;
  furrow_file* file = nullptr;
  auto create = [&] {
    return Try([&](furrow_error* error) {
      return furrow_create(pin->get(), path.c_str(), 0, &file, error);
    });
  };
  status = create();
  if (status.IsPathNotFound() && IsHostDirectory(DirName(path))) {
    status = CreateDirIfMissing(DirName(path), IOOptions(), dbg);
    if (status.ok()) status = create();
  }
  if (status.ok()) result->reset(new WritableFile(file, std::move(pin), options));
  return status;
}

IOStatus StoreFileSystem::ReopenWritableFile(const std::string& path, const FileOptions& options,
                                             std::unique_ptr<rocksdb::FSWritableFile>* result,
                                             IODebugContext* dbg) {
  IOStatus status = Unmapped(path, options);
  if (!status.ok()) return status;
  Pin pin;
  furrow_file* file = nullptr;
  status = OpenFile(path, &pin, &file);
  // Only a missing file is made: any other reason would cost the one that is there.
  if (status.IsPathNotFound()) return NewWritableFile(path, options, result, dbg);
  if (status.ok()) result->reset(new WritableFile(file, std::move(pin), options));
  return status;
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
  Pin pin;
  IOStatus status = Hold(&pin);
  if (!status.ok()) return status;
  furrow_stat stat;
  status = Stat(path, &stat);
  if (!status.ok()) return status;
  if (!stat.is_directory) return IOStatus::IOError(path, "not a directory");
  result->reset(new Directory(std::move(pin)));
  return status;
}

IOStatus StoreFileSystem::FileExists(const std::string& path, const IOOptions& options,
                                     IODebugContext* dbg) {
  reached = true;
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
  IOStatus status = With([&](furrow_store* store, furrow_error* error) {
    return furrow_list(store, path.c_str(), add, result, error);
  });
  if (status.IsPathNotFound()) {
    return IsHostDirectory(path) ? IOStatus::OK() : IOStatus::NotFound(path);
  }
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
  IOStatus status = With([&](furrow_store* store, furrow_error* error) {
    return furrow_list(store, path.c_str(), add, result, error);
  });
  return status.IsPathNotFound() ? IOStatus::NotFound(path) : status;
}

IOStatus StoreFileSystem::DeleteFile(const std::string& path, const IOOptions& options,
                                     IODebugContext* dbg) {
  std::string host;
  if (IsHostLog(path, &host)) return target()->DeleteFile(host, options, dbg);
  return With([&](furrow_store* store, furrow_error* error) {
    return furrow_remove(store, path.c_str(), error);
  });
}

IOStatus StoreFileSystem::Truncate(const std::string& path, size_t size, const IOOptions&,
                                   IODebugContext*) {
  Pin pin;
  furrow_file* file = nullptr;
  IOStatus status = OpenFile(path, &pin, &file);
  if (!status.ok()) return status;
  Handle handle(file, std::move(pin));
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
    status = With([&](furrow_store* store, furrow_error* error) {
      int kind = furrow_make_directory(store, part.c_str(), error);
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
  return With([&](furrow_store* store, furrow_error* error) {
    return furrow_remove_directory(store, path.c_str(), error);
  });
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
  if (!status.ok() && IsHosts(path)) {
    return target()->GetFileModificationTime(path, options, time, dbg);
  }
  return status;
}

IOStatus StoreFileSystem::RenameFile(const std::string& from, const std::string& to,
                                     const IOOptions& options, IODebugContext* dbg) {
  std::string host_from;
  std::string host_to;
  if (IsHostLog(from, &host_from) && IsHostLog(to, &host_to)) {
    return target()->RenameFile(host_from, host_to, options, dbg);
  }
  IOStatus status = With([&](furrow_store* store, furrow_error* error) {
    return furrow_rename(store, from.c_str(), to.c_str(), error);
  });
  return status.IsPathNotFound() && IsHosts(from) ? IsOfHost(from) : status;
}

IOStatus StoreFileSystem::LinkFile(const std::string& from, const std::string& to,
                                   const IOOptions&, IODebugContext*) {
  IOStatus status = With([&](furrow_store* store, furrow_error* error) {
    return furrow_link(store, from.c_str(), to.c_str(), error);
  });
  return status.IsPathNotFound() && IsHosts(from) ? IsOfHost(from) : status;
}

IOStatus StoreFileSystem::NumFileLinks(const std::string& path, const IOOptions& options,
                                       uint64_t* count, IODebugContext* dbg) {
  if (IsHosts(path)) return target()->NumFileLinks(path, options, count, dbg);
  return IOStatus::NotSupported("the store does not count a file's names");
}

// RocksDB asks this of directories, too: whether the logs have one of their own, and before the
// directories are made.
IOStatus StoreFileSystem::AreFilesSame(const std::string& first, const std::string& second,
                                       const IOOptions& options, bool* same,
                                       IODebugContext* dbg) {
  *same = Normal(first) == Normal(second);
  if (*same) return IOStatus::OK();
  bool hosts[2] = {IsHosts(first), IsHosts(second)};
  if (hosts[0] && hosts[1]) return target()->AreFilesSame(first, second, options, same, dbg);
  if (hosts[0] || hosts[1]) return IOStatus::OK();
  uint64_t ids[2] = {0, 0};
  const std::string* paths[2] = {&first, &second};
  for (int i = 0; i < 2; i++) {
    furrow_stat stat;
    IOStatus status = Stat(*paths[i], &stat);
    if (!status.ok()) return status;
    // A directory has one path.
    if (stat.is_directory) return IOStatus::OK();
    Pin pin;
    furrow_file* file = nullptr;
    status = OpenFile(*paths[i], &pin, &file);
    if (!status.ok()) return status;
    Handle handle(file, std::move(pin));
    status = Try([&](furrow_error* error) { return furrow_file_id(file, &ids[i], error); });
    if (!status.ok()) return status;
  }
  *same = ids[0] == ids[1];
  return IOStatus::OK();
}

IOStatus StoreFileSystem::LockFile(const std::string& path, const IOOptions&,
                                   rocksdb::FileLock** lock, IODebugContext*) {
  *lock = nullptr;
  Pin pin;
  IOStatus status = Hold(&pin);
  if (!status.ok()) return status;
  std::string normal = Normal(path);
  status = Try([&](furrow_error* error) { return furrow_lock(pin->get(), normal.c_str(), error); });
  if (status.ok()) *lock = new Lock(normal, std::move(pin));
  // As RocksDB's own file systems say it.
  return status.IsBusy() ? IOStatus::IOError("lock held by this process", normal) : status;
}

IOStatus StoreFileSystem::UnlockFile(rocksdb::FileLock* lock, const IOOptions&,
                                     IODebugContext*) {
  std::unique_ptr<Lock> held(static_cast<Lock*>(lock));
  return Try([&](furrow_error* error) {
    return furrow_unlock(held->pin->get(), held->path.c_str(), error);
  });
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
      With([&](furrow_store* store, furrow_error* error) {
        return furrow_store_space(store, &space, error);
      });
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
  Pin pin;
  furrow_file* file = nullptr;
  IOStatus status = OpenFile(path, &pin, &file);
  if (!status.ok()) return status;
  Handle handle(file, std::move(pin));
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
