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
};

// Parses `furrow://DEVICE[?OPTION,...]`. Returns false with a reason in `why` if it is invalid.
bool ParseUri(const std::string& text, Uri* uri, std::string* why);

// A file system whose files lie in a store. Paths are the store's; a file that is only read, in a
// directory that the store does not have, is the host's (such as an options file).
class StoreFileSystem : public rocksdb::FileSystemWrapper {
 public:
  // Opens the store; returns null with a reason in `why` on failure.
  static std::unique_ptr<StoreFileSystem> Open(const std::string& uri, std::string* why);
  ~StoreFileSystem() override;

  static const char* kClassName() { return "furrow"; }
  const char* Name() const override { return kClassName(); }

  furrow_store* store() const { return store_; }

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
  StoreFileSystem(furrow_store* store, Uri uri);

  // Whether `path` is a LOG file on the host, and where.
  bool IsHostLog(const std::string& path, std::string* host) const;
  // Whether the store has `path`; sets `stat` if it has.
  rocksdb::IOStatus Stat(const std::string& path, furrow_stat* stat) const;
  // Whether a file to be read is on the host: the store has neither it nor its directory.
  bool IsHosts(const std::string& path) const;

  furrow_store* store_;
  Uri uri_;
};

}  // namespace furrow
