// SPDX-License-Identifier: Apache-2.0 OR MIT
// RocksDB's file system interface over a Furrow file store.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "furrow.h"
#include "rocksdb/file_system.h"

namespace furrow {

// The status for a result of the C interface.
rocksdb::IOStatus ToStatus(int kind, const furrow_error& error);

// The URI without its scheme: drive and options.
struct Uri {
  std::string device;
  // Options of the store, separated by commas, as furrow_store_open takes them.
  std::string options;
  // Directory on the host for LOG files; empty: in the store.
  std::string logs;
  // The store is only read, as it is at one moment.
  bool read_only = false;
};

// Parses `furrow://DEVICE[?OPTION,...]`. Returns false with a reason in `why` if it is invalid.
bool ParseUri(const std::string& text, Uri* uri, std::string* why);

// An open store (open_store.h).
class OpenStore;

// The host's file system. In a program that `furrow run` gave a store, RocksDB's default is another.
std::shared_ptr<rocksdb::FileSystem> HostFileSystem();

// A file system whose files lie in a store. Paths are the store's; a file that is only read, in a
// directory that the store does not have, is the host's (such as an options file).
class StoreFileSystem : public rocksdb::FileSystemWrapper {
 public:
  // Opens the store; returns null with a reason in `why` on failure.
  static std::unique_ptr<StoreFileSystem> Open(const std::string& uri, std::string* why);
  // A file system that opens the store when it is used, and closes it with the last file, directory
  // and lock that is open in it, so that another process can have it. It is never destroyed.
  static StoreFileSystem* WhileUsed(const std::string& uri);
  ~StoreFileSystem() override;

  // Whether the files of this environment are in a store, whatever wraps the file system.
  static bool Serves(rocksdb::Env* env);

  // Keeps the store open.
  using Pin = std::shared_ptr<OpenStore>;
  rocksdb::IOStatus Hold(Pin* pin) const;

  static const char* kClassName() { return "furrow"; }
  const char* Name() const override { return kClassName(); }

  // The store; null if it cannot be opened. While nothing holds it, it may be closed.
  furrow_store* store() const;

  rocksdb::FileOptions OptimizeForManifestWrite(
      const rocksdb::FileOptions& asked) const override;
  rocksdb::IOStatus NewSequentialFile(const std::string& path,
                                      const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* result,
                                        rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& path,
                                       const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* result,
                                       rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus ReuseWritableFile(const std::string& path, const std::string& old_path,
                                      const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSWritableFile>* result,
                                      rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewRandomRWFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSRandomRWFile>* result,
                                    rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewMemoryMappedFileBuffer(
      const std::string& path,
      std::unique_ptr<rocksdb::MemoryMappedFileBuffer>* result) override;
  rocksdb::IOStatus NewDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* result,
                                 rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus FileExists(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetChildren(const std::string& path, const rocksdb::IOOptions& options,
                                std::vector<std::string>* result,
                                rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetChildrenFileAttributes(
      const std::string& path, const rocksdb::IOOptions& options,
      std::vector<rocksdb::FileAttributes>* result, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Truncate(const std::string& path, size_t size,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus CreateDir(const std::string& path, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus CreateDirIfMissing(const std::string& path, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus DeleteDir(const std::string& path, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetFileSize(const std::string& path, const rocksdb::IOOptions& options,
                                uint64_t* size, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetFileModificationTime(const std::string& path,
                                            const rocksdb::IOOptions& options, uint64_t* time,
                                            rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus LinkFile(const std::string& from, const std::string& to,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NumFileLinks(const std::string& path, const rocksdb::IOOptions& options,
                                 uint64_t* count, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus AreFilesSame(const std::string& first, const std::string& second,
                                 const rocksdb::IOOptions& options, bool* same,
                                 rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus LockFile(const std::string& path, const rocksdb::IOOptions& options,
                             rocksdb::FileLock** lock, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus UnlockFile(rocksdb::FileLock* lock, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetTestDirectory(const rocksdb::IOOptions& options, std::string* path,
                                     rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus NewLogger(const std::string& path, const rocksdb::IOOptions& options,
                              std::shared_ptr<rocksdb::Logger>* result,
                              rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetAbsolutePath(const std::string& path, const rocksdb::IOOptions& options,
                                    std::string* result, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options,
                                 uint64_t* free, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus IsDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                bool* is_directory, rocksdb::IODebugContext* dbg) override;
  rocksdb::IOStatus Poll(std::vector<void*>& handles, size_t min_completions) override;
  rocksdb::IOStatus AbortIO(std::vector<void*>& handles) override;
  // Older versions of RocksDB lack these functions (8.6, 10.6), so they are declared without
  // `override`; in newer versions the host's file system would answer without them.
  virtual void SupportedOps(int64_t& operations);
  virtual rocksdb::IOStatus SyncFile(const std::string& path, const rocksdb::FileOptions& file,
                                     const rocksdb::IOOptions& options, bool use_fsync,
                                     rocksdb::IODebugContext* dbg);

 private:
  StoreFileSystem(Uri uri, bool while_used);

  // The store for one call.
  rocksdb::IOStatus Use(Pin* store) const;
  // The same, with the mutex held.
  rocksdb::IOStatus Opened(Pin* store) const;
  // Nothing is open in the store any more.
  void LetGo() const;
  // The result of `call` on the store.
  template <typename Call>
  rocksdb::IOStatus With(Call call) const;
  rocksdb::IOStatus OpenFile(const std::string& path, Pin* pin, furrow_file** file) const;
  // Whether `path` is a LOG file on the host, and where.
  bool IsHostLog(const std::string& path, std::string* host) const;
  // Whether the store has `path`; sets `stat` if it has.
  rocksdb::IOStatus Stat(const std::string& path, furrow_stat* stat) const;
  // Whether a file to be read is on the host: the store has neither it nor its directory.
  bool IsHosts(const std::string& path) const;
  // Whether the host has this directory. A program that made it by other means than RocksDB takes it
  // to be there: in the store it is empty until something is written into it.
  bool IsHostDirectory(const std::string& path) const;

  Uri uri_;
  // Why the URI is invalid.
  std::string wrong_;
  bool while_used_;
  mutable std::mutex mutex_;
  mutable Pin store_;
  // What is open in the store, if it is open only while used.
  mutable std::weak_ptr<OpenStore> held_;
};

}  // namespace furrow
