// SPDX-License-Identifier: Apache-2.0 OR MIT
// Tests of databases that follow directories of the host: followers DIRECTORY
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "check.h"
#include "follow.h"

using namespace rocksdb;

namespace {

const IOOptions kIo;

std::unique_ptr<furrow::StoreFileSystem> NewStore(const std::string& capacity) {
  std::string why;
  auto fs = furrow::StoreFileSystem::Open(
      "furrow://mem:zone-size=2MiB,capacity=" + capacity, &why);
  CHECK(fs != nullptr, why);
  return fs;
}

// A file stands for the database: CURRENT, by which RocksDB knows one.
void MakeDatabase(furrow::StoreFileSystem& fs, const std::string& path) {
  std::unique_ptr<FSWritableFile> file;
  CHECK_OK(fs.CreateDirIfMissing(path, kIo, nullptr));
  CHECK_OK(fs.NewWritableFile(path + "/CURRENT", FileOptions(), &file, nullptr));
  CHECK_OK(file->Close(kIo, nullptr));
}

bool Has(furrow::StoreFileSystem& fs, const std::string& path) {
  return fs.FileExists(path + "/CURRENT", kIo, nullptr).ok();
}

void Wipe(const std::string& directory) {
  CHECK(unlink((directory + "/.furrow-database").c_str()) == 0, directory);
  CHECK(rmdir(directory.c_str()) == 0, directory);
}

void Refused(furrow::StoreFileSystem& fs, const std::string& path, const char* why) {
  std::string said = furrow::Follow(&fs, path).ToString();
  CHECK(said.find(why) != std::string::npos, said);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    fprintf(stderr, "usage: followers DIRECTORY\n");
    return 2;
  }
  std::string made = std::string(arguments[1]) + "/followers-" + std::to_string(getpid());
  CHECK(mkdir(made.c_str(), 0700) == 0, made);
  char* full = realpath(made.c_str(), nullptr);
  const std::string root = full, first = root + "/first", second = root + "/second";
  free(full);
  auto fs = NewStore("64MiB");

  // Without a directory on the host nothing is followed.
  CHECK_OK(furrow::Follow(fs.get(), "/free"));
  MakeDatabase(*fs, "/free");
  CHECK_OK(furrow::Follow(fs.get(), "/free"));

  for (const std::string& path : {first, second}) {
    CHECK(mkdir(path.c_str(), 0755) == 0, path);
    CHECK_OK(furrow::Follow(fs.get(), path));
    MakeDatabase(*fs, path);
    CHECK_OK(furrow::Follow(fs.get(), path));
  }
  CHECK_OK(furrow::RemoveOrphans(fs.get()));
  CHECK(Has(*fs, first) && Has(*fs, second) && Has(*fs, "/free"), "removed though followed");

  // One that is open stays, and goes when it is closed.
  FileLock* lock = nullptr;
  CHECK_OK(fs->LockFile(first + "/LOCK", kIo, &lock, nullptr));
  Wipe(first);
  CHECK_OK(furrow::RemoveOrphans(fs.get()));
  CHECK(Has(*fs, first), "removed though open");
  CHECK_OK(fs->UnlockFile(lock, kIo, nullptr));
  CHECK_OK(furrow::RemoveOrphans(fs.get()));
  CHECK(!Has(*fs, first) && Has(*fs, second), "an orphan");

  // A directory that was made again is another one.
  Wipe(second);
  CHECK(mkdir(second.c_str(), 0755) == 0, second);
  CHECK_OK(furrow::Follow(fs.get(), second));
  CHECK(!Has(*fs, second), "the database of the directory before");

  // An empty store, a copy of the directory, and a database that was made without following.
  auto other = NewStore("128MiB");
  Refused(*other, second, "is not in this store");
  CHECK(mkdir(first.c_str(), 0755) == 0, first);
  CHECK(link((second + "/.furrow-database").c_str(), (first + "/.furrow-database").c_str()) == 0,
        first);
  Refused(*fs, first, "a copy of a directory");
  Wipe(first);
  CHECK(mkdir(first.c_str(), 0755) == 0, first);
  MakeDatabase(*fs, first);
  Refused(*fs, first, "made without --follow-directories");
  CHECK(Has(*fs, first) && Has(*fs, "/free"), "refused, and still there");

  // A file system that is not mounted has not lost its directories.
  const std::string third = root + "/third", inner = third + "/inner";
  CHECK(mkdir(third.c_str(), 0755) == 0, third);
  if (mount("none", third.c_str(), "tmpfs", 0, nullptr) == 0) {
    CHECK(mkdir(inner.c_str(), 0755) == 0, inner);
    CHECK_OK(furrow::Follow(fs.get(), inner));
    MakeDatabase(*fs, inner);
    CHECK(umount(third.c_str()) == 0, third);
    CHECK_OK(furrow::RemoveOrphans(fs.get()));
    CHECK(mkdir(inner.c_str(), 0755) == 0, inner);
    Refused(*fs, inner, "that is not mounted at");
    CHECK(Has(*fs, inner), "removed though not mounted");
    CHECK(rmdir(inner.c_str()) == 0, inner);
  } else {
    printf("skipped: a file system that is not mounted (it needs root)\n");
  }

  CHECK(rmdir(third.c_str()) == 0, third);
  CHECK(rmdir(first.c_str()) == 0, first);
  Wipe(second);
  CHECK(rmdir(root.c_str()) == 0, root);
  printf("databases follow directories of the host\n");
  return 0;
}
