// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "follow.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "file.h"

namespace furrow {
namespace {

using rocksdb::FileLock;
using rocksdb::FileOptions;
using rocksdb::FSSequentialFile;
using rocksdb::FSWritableFile;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;
using rocksdb::Status;

const IOOptions kIo;
const char kFollowed[] = "/.followed";
const char kMarker[] = "/.furrow-database";
constexpr size_t kIdentity = 32;
// Longer than any path that the store takes.
constexpr size_t kEntryMax = 16384;

struct Entry {
  std::string identity;
  std::string machine;
  // In the store.
  std::string path;
  // Of the directory on the host, absolute there too.
  std::string host;
  // The file system that the directory is on.
  std::string filesystem;
};

// The first line of a file of the host; empty if there is none.
std::string FirstLine(const std::string& path) {
  FILE* file = fopen(path.c_str(), "re");
  if (file == nullptr) return "";
  char line[256];
  std::string found = fgets(line, sizeof line, file) == nullptr ? "" : line;
  fclose(file);
  size_t end = found.find('\n');
  return end == std::string::npos ? "" : found.substr(0, end);
}

std::string Machine() {
  std::string machine = FirstLine("/etc/machine-id");
  if (!machine.empty()) return machine;
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return std::string("host ") + name;
}

// The identity of the file system that `path` is on or, if it is gone, would be made on.
std::string FileSystemOf(std::string path) {
  struct statfs found;
  while (statfs(path.empty() ? "/" : path.c_str(), &found) != 0) {
    if (path.empty()) return "";
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  int id[2];
  static_assert(sizeof id == sizeof found.f_fsid, "an identity of two words");
  memcpy(id, &found.f_fsid, sizeof id);
  char text[32];
  snprintf(text, sizeof text, "%08x%08x", static_cast<unsigned>(id[0]),
           static_cast<unsigned>(id[1]));
  return text;
}

std::string Marker(const std::string& path) { return FirstLine(path + kMarker); }

bool IsDirectory(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

IOStatus Read(StoreFileSystem* fs, const std::string& identity, Entry* entry) {
  std::unique_ptr<FSSequentialFile> file;
  IOStatus status = fs->NewSequentialFile(std::string(kFollowed) + "/" + identity, FileOptions(),
                                          &file, nullptr);
  if (!status.ok()) return status;
  std::string buffer(kEntryMax, '\0');
  Slice text;
  status = file->Read(buffer.size(), kIo, &text, &buffer[0], nullptr);
  if (!status.ok()) return status;
  std::vector<std::string> lines(1);
  for (char each : text.ToString()) {
    if (each == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += each;
    }
  }
  // One that a crash cut off has no directory on the host yet: nothing is known of it but its name.
  *entry = lines.size() == 5 ? Entry{identity, lines[0], lines[1], lines[2], lines[3]}
                             : Entry{identity, "", "", "", ""};
  return status;
}

IOStatus Entries(StoreFileSystem* fs, std::vector<Entry>* entries) {
  std::vector<std::string> names;
  IOStatus status = fs->GetChildren(kFollowed, kIo, &names, nullptr);
  if (status.IsNotFound()) return IOStatus::OK();
  for (size_t at = 0; status.ok() && at < names.size(); at++) {
    Entry entry;
    status = Read(fs, names[at], &entry);
    if (status.ok()) entries->push_back(std::move(entry));
  }
  return status;
}

// Removes a directory of the store with all that is in it.
IOStatus RemoveTree(StoreFileSystem* fs, const std::string& path) {
  std::vector<std::string> names;
  IOStatus status = fs->GetChildren(path, kIo, &names, nullptr);
  if (status.IsNotFound()) return IOStatus::OK();
  for (size_t at = 0; status.ok() && at < names.size(); at++) {
    std::string child = path + "/" + names[at];
    bool directory = false;
    status = fs->IsDirectory(child, kIo, &directory, nullptr);
    if (!status.ok()) break;
    status = directory ? RemoveTree(fs, child) : fs->DeleteFile(child, kIo, nullptr);
  }
  if (status.ok() && fs->FileExists(path, kIo, nullptr).ok()) {
    status = fs->DeleteDir(path, kIo, nullptr);
  }
  return status;
}

// Removes the database of `entry`, unless it is open.
IOStatus RemoveDatabase(StoreFileSystem* fs, const Entry& entry) {
  IOStatus status;
  if (!entry.path.empty()) {
    FileLock* lock = nullptr;
    std::string name = entry.path + "/LOCK";
    status = fs->LockFile(name, kIo, &lock, nullptr);
    if (!status.ok()) return IOStatus::OK();
    status = RemoveTree(fs, entry.path);
    IOStatus unlocked = fs->UnlockFile(lock, kIo, nullptr);
    if (status.ok()) status = unlocked;
  }
  if (!status.ok()) return status;
  return fs->DeleteFile(std::string(kFollowed) + "/" + entry.identity, kIo, nullptr);
}

std::string NewIdentity() {
  unsigned char bytes[kIdentity / 2];
  for (size_t got = 0; got < sizeof bytes;) {
    ssize_t more = getrandom(bytes + got, sizeof bytes - got, 0);
    if (more > 0) got += static_cast<size_t>(more);
  }
  std::string text;
  for (unsigned char byte : bytes) {
    char two[3];
    snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

// Makes the entry in the store durable.
IOStatus WriteEntry(StoreFileSystem* fs, const Entry& entry) {
  IOStatus status = fs->CreateDirIfMissing(kFollowed, kIo, nullptr);
  if (!status.ok()) return status;
  std::unique_ptr<FSWritableFile> file;
  status = fs->NewWritableFile(std::string(kFollowed) + "/" + entry.identity, FileOptions(), &file,
                               nullptr);
  std::string text = entry.machine + "\n" + entry.path + "\n" + entry.host + "\n" +
                     entry.filesystem + "\n";
  if (status.ok()) status = file->Append(text, kIo, nullptr);
  if (status.ok()) status = file->Fsync(kIo, nullptr);
  if (status.ok()) status = file->Close(kIo, nullptr);
  return status;
}

// Makes the marker on the host durable.
IOStatus WriteMarker(const std::string& directory, const std::string& identity) {
  std::string to = directory + kMarker, made = to + ".new", text = identity + "\n";
  int fd = open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  bool good = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
              fsync(fd) == 0;
  if (fd >= 0) close(fd);
  good = good && rename(made.c_str(), to.c_str()) == 0;
  int at = good ? open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  good = at >= 0 && fsync(at) == 0;
  if (at >= 0) close(at);
  return good ? IOStatus::OK() : IOStatus::IOError(to, "cannot be written on the host");
}

Status Refused(const std::string& path, const std::string& why) {
  return Status::InvalidArgument(path, "furrow: " + why);
}

}  // namespace

namespace {

// Databases of one process are followed one after another.
std::mutex& Following() {
  static std::mutex mutex;
  return mutex;
}

// Removes what has lost its directory; the rest is in `left`.
IOStatus Sweep(StoreFileSystem* fs, const std::string& machine, std::vector<Entry>* left) {
  std::vector<Entry> entries;
  IOStatus status = Entries(fs, &entries);
  if (!status.ok()) return status;
  for (const Entry& entry : entries) {
    // A file system that is not mounted has not lost its directories.
    bool ours = entry.path.empty() ||
                (entry.machine == machine && FileSystemOf(entry.host) == entry.filesystem);
    if (!ours || (!entry.path.empty() && Marker(entry.host) == entry.identity)) {
      left->push_back(entry);
      continue;
    }
    status = RemoveDatabase(fs, entry);
    if (!status.ok()) return status;
  }
  return status;
}

}  // namespace

Status RemoveOrphans(StoreFileSystem* fs) {
  std::lock_guard<std::mutex> guard(Following());
  StoreFileSystem::Pin pin;
  std::vector<Entry> left;
  Status status = fs->Hold(&pin);
  return status.ok() ? Status(Sweep(fs, Machine(), &left)) : status;
}

Status Follow(StoreFileSystem* fs, const std::string& asked) {
  std::lock_guard<std::mutex> guard(Following());
  StoreFileSystem::Pin pin;
  Status status = fs->Hold(&pin);
  std::string path, machine = Machine();
  std::vector<Entry> left;
  if (status.ok()) status = fs->GetAbsolutePath(asked, kIo, &path, nullptr);
  if (status.ok()) status = Sweep(fs, machine, &left);
  if (!status.ok()) return status;
  char host[PATH_MAX];
  if (realpath(asked.c_str(), host) == nullptr || !IsDirectory(host)) return status;

  std::string identity = Marker(host);
  for (const Entry& entry : left) {
    bool same = entry.identity == identity;
    if (same && entry.path == path) return status;
    if (same) {
      return Refused(path, "its directory on the host is that of the database " + entry.path +
                               ": a copy of a directory has no database: remove it to begin anew");
    }
    if (entry.path == path) {
      std::string where = entry.machine == machine
                              ? "on a file system that is not mounted at " + entry.host
                              : "of another machine (" + entry.machine + ")";
      return Refused(path, "it follows a directory " + where + ": furrow kv rm -r removes it");
    }
  }
  if (!identity.empty()) {
    return Refused(path, "the database of this directory of the host is not in this store: it is in "
                         "another, or was lost with it. Remove the directory, with what the program "
                         "keeps beside it, to begin anew");
  }
  if (fs->FileExists(path + "/CURRENT", kIo, nullptr).ok()) {
    return Refused(path, "it was made without --follow-directories: furrow kv rm -r removes it");
  }
  if ((path + host).find('\n') != std::string::npos) return Refused(path, "a path with a line break");
  Entry entry{NewIdentity(), machine, path, host, FileSystemOf(host)};
  status = WriteEntry(fs, entry);
  if (status.ok()) status = WriteMarker(host, entry.identity);
  return status;
}

}  // namespace furrow
