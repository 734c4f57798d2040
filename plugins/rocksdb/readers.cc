// SPDX-License-Identifier: Apache-2.0 OR MIT
// A second process reads a store: readers FURROW DIRECTORY
//
// It reads the database of a first process, which goes on writing, and then a store that nobody has.
// The second process is this program again: readers FURROW DIRECTORY IMAGE
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"

using namespace rocksdb;

namespace {

constexpr int kKeys = 200;
constexpr int kVersions = 100;

std::string Value(int key, int version) { return Content(key * 1000 + version, 8000); }

// The second process: reads, and changes nothing.
void Read(const std::string& image) {
  auto fs = OpenFileSystem("furrow://" + image + "?ro");
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  Options options = BlobOptions(env.get());
  options.create_if_missing = false;
  // With all files open RocksDB opens a database of one level in a way that finds no blobs.
  options.max_open_files = 100;
  furrow::Opened opened{};
  CHECK_OK(DB::OpenForReadOnly(options, "/db", &opened));
  std::unique_ptr<DB> db(std::move(opened));
  std::vector<std::string> values(kKeys);
  for (int round = 0; round < 3; round++) {
    for (int key = 0; key < kKeys; key++) {
      std::string value;
      CHECK_OK(db->Get(ReadOptions(), KeyOf(key), &value));
      CHECK(round == 0 || value == values[key], "as of one moment");
      values[key] = value;
      bool known = false;
      for (int version = 0; version < kVersions && !known; version++) {
        known = value == Value(key, version);
      }
      CHECK(known, KeyOf(key));
    }
  }
  CHECK_OK(db->VerifyChecksum(ReadOptions()));
  const IOOptions io;
  std::unique_ptr<FSWritableFile> file;
  IOStatus refused = fs->NewWritableFile("/x", FileOptions(), &file, nullptr);
  CHECK(refused.ToString().find("to be read only (ro)") != std::string::npos, refused.ToString());
  CHECK(!fs->DeleteFile("/db/CURRENT", io, nullptr).ok(), "removed");
  CHECK(!fs->RenameFile("/db/CURRENT", "/x", io, nullptr).ok(), "renamed");
  CHECK(!fs->CreateDirIfMissing("/new", io, nullptr).ok(), "made");
  CHECK_OK(fs->FileExists("/db/CURRENT", io, nullptr));
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: readers FURROW DIRECTORY\n");
    return 2;
  }
  if (count == 4) {
    Read(arguments[3]);
    return 0;
  }
  std::string directory = arguments[2];
  CHECK(setenv("FURROW_RUN", (directory + "/run").c_str(), 1) == 0, "setenv");
  Image image(arguments[1], directory + "/read.zns",
              "capacity=256MiB,zone-size=4MiB,max-active=14,max-open=14");
  std::string reader =
      std::string(arguments[0]) + " " + arguments[1] + " " + directory + " " + image.path();
  {
    auto fs = OpenFileSystem(image.uri());
    std::unique_ptr<Env> env = NewCompositeEnv(fs);
    std::unique_ptr<DB> db = OpenDatabase(BlobOptions(env.get()), "/db");
    auto write = [&](int version) {
      for (int key = 0; key < kKeys; key++) {
        CHECK_OK(db->Put(WriteOptions(), KeyOf(key), Value(key, version)));
      }
    };
    write(0);
    std::atomic<bool> over{false};
    std::thread writer([&] {
      for (int version = 1; version < kVersions && !over; version++) {
        write(version);
        CHECK_OK(db->CompactRange(CompactRangeOptions(), nullptr, nullptr));
      }
    });
    CHECK(system(reader.c_str()) == 0, "a second process reads while this one writes");
    over = true;
    writer.join();
  }
  CHECK(system(reader.c_str()) == 0, "a store that nobody has is read");
  printf("a second process reads a store in use and one that nobody has\n");
  return 0;
}
