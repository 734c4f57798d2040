// SPDX-License-Identifier: Apache-2.0 OR MIT
// Tests of the file system and of databases on it: test FURROW DIRECTORY
//
// Each test ends the program at the first failure.
#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fs.h"
#include "rocksdb/db.h"
#include "rocksdb/sst_file_writer.h"
#include "rocksdb/utilities/object_registry.h"
#include "same_victim.h"

using namespace rocksdb;

namespace {

std::string furrow_command;
std::string directory;
const char* kShape = "capacity=256MiB,zone-size=4MiB,max-active=14,max-open=14";

const IOOptions kIo;

std::unique_ptr<FSWritableFile> Create(FileSystem& fs, const std::string& path,
                                       const FileOptions& options = FileOptions()) {
  std::unique_ptr<FSWritableFile> file;
  CHECK_OK(fs.NewWritableFile(path, options, &file, nullptr));
  return file;
}

std::string ReadAll(FileSystem& fs, const std::string& path) {
  uint64_t size = 0;
  CHECK_OK(fs.GetFileSize(path, kIo, &size, nullptr));
  std::unique_ptr<FSSequentialFile> file;
  CHECK_OK(fs.NewSequentialFile(path, FileOptions(), &file, nullptr));
  std::string buffer(size + 1, '\0');
  Slice found;
  CHECK_OK(file->Read(buffer.size(), kIo, &found, &buffer[0], nullptr));
  return found.ToString();
}

// Runs `body` in a child. Returns the status from waitpid.
int InChild(const std::function<void()>& body) {
  pid_t child = fork();
  CHECK(child >= 0, "fork");
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child, "waitpid");
  return status;
}

// Runs this program again for one life of a process that uses `image`. A child that was only forked
// could not open a store.
int InProcess(const std::string& life, const std::string& image) {
  return InChild([&] {
    execl("/proc/self/exe", "test", furrow_command.c_str(), directory.c_str(), "--life",
          life.c_str(), image.c_str(), nullptr);
    CHECK(false, "exec");
  });
}

void NamesAndContent() {
  auto fs = OpenFileSystem("furrow://mem:capacity=256MiB,zone-size=4MiB");
  CHECK_OK(fs->CreateDirIfMissing("/a/b", kIo, nullptr));
  CHECK(fs->CreateDir("/a/b", kIo, nullptr).IsIOError(), "is there already");
  std::string content = Content(1, 300000);
  auto file = Create(*fs, "/a/b/000001.sst");
  CHECK_OK(file->Append(Slice(content.data(), 100000), kIo, nullptr));
  CHECK_OK(file->Append(Slice(content.data() + 100000, 200000), kIo, nullptr));
  CHECK(ReadAll(*fs, "/a/b/000001.sst") == content, "what is not synced can be read");
  CHECK(file->GetFileSize(kIo, nullptr) == 300000, "size");
  CHECK_OK(file->Sync(kIo, nullptr));

  // An open file keeps its content after its name is removed.
  std::unique_ptr<FSRandomAccessFile> random;
  CHECK_OK(fs->NewRandomAccessFile("a//b/./000001.sst", FileOptions(), &random, nullptr));
  auto over = Create(*fs, "/a/other");
  CHECK_OK(over->Append("short", kIo, nullptr));
  CHECK_OK(over->Close(kIo, nullptr));
  CHECK_OK(fs->RenameFile("/a/other", "/a/b/000001.sst", kIo, nullptr));
  CHECK(ReadAll(*fs, "/a/b/000001.sst") == "short", "renamed over");
  CHECK(fs->FileExists("/a/other", kIo, nullptr).IsNotFound(), "the old name");
  std::string scratch(300000, '\0');
  Slice found;
  CHECK_OK(random->Read(150000, 1000, kIo, &found, &scratch[0], nullptr));
  CHECK(found == Slice(content.data() + 150000, 1000), "content without a name");
  CHECK_OK(random->Read(299990, 1000, kIo, &found, &scratch[0], nullptr));
  CHECK(found == Slice(content.data() + 299990, 10), "at the end");
  CHECK_OK(random->Read(400000, 10, kIo, &found, &scratch[0], nullptr));
  CHECK(found.empty(), "behind the end");

  std::vector<std::string> children;
  CHECK_OK(fs->GetChildren("/a", kIo, &children, nullptr));
  CHECK(children == std::vector<std::string>{"b"}, "children");
  CHECK(fs->GetChildren("/nothing", kIo, &children, nullptr).IsNotFound(), "no directory");
  CHECK(!fs->DeleteDir("/a", kIo, nullptr).ok(), "not empty");
  bool is_directory = false;
  CHECK_OK(fs->IsDirectory("/a", kIo, &is_directory, nullptr));
  CHECK(is_directory, "a directory");
  CHECK(fs->DeleteFile("/a/nothing", kIo, nullptr).IsPathNotFound(), "no file");
  CHECK(fs->NewDirectory("/nothing", kIo, nullptr, nullptr).IsPathNotFound(), "no directory");
  std::unique_ptr<FSWritableFile> outside;
  CHECK(!fs->NewWritableFile("../etc/passwd", FileOptions(), &outside, nullptr).ok(), "outside");
  CHECK(fs->NewWritableFile("/no/such/x", FileOptions(), &outside, nullptr).IsPathNotFound(), "");

  CHECK_OK(fs->LinkFile("/a/b/000001.sst", "/a/linked", kIo, nullptr));
  bool same = false;
  CHECK_OK(fs->AreFilesSame("/a/linked", "/a/b/000001.sst", kIo, &same, nullptr));
  CHECK(same, "two names of a file");
  CHECK_OK(fs->DeleteFile("/a/b/000001.sst", kIo, nullptr));
  CHECK(ReadAll(*fs, "/a/linked") == "short", "the other name");

  // A path that is not in the store is read from the host.
  std::string host = directory + "/host.txt";
  FILE* text = fopen(host.c_str(), "w");
  CHECK(text != nullptr && fputs("of the host", text) >= 0 && fclose(text) == 0, host);
  CHECK(ReadAll(*fs, host) == "of the host", "the host's file");
}

void DirectWrites() {
  auto fs = OpenFileSystem("furrow://mem:capacity=256MiB,zone-size=4MiB,oob=0");
  FileOptions direct;
  direct.use_direct_writes = true;
  auto file = Create(*fs, "/direct", direct);
  CHECK(file->use_direct_io() && file->GetRequiredBufferAlignment() == 4096, "direct");
  std::string content = Content(2, 5 * 4096);
  // As RocksDB writes: the last page is padded, and later written again with more data.
  CHECK_OK(file->PositionedAppend(Slice(content.data(), 8192), 0, kIo, nullptr));
  CHECK_OK(file->PositionedAppend(Slice(content.data() + 4096, 16384), 4096, kIo, nullptr));
  CHECK_OK(file->Truncate(17000, kIo, nullptr));
  CHECK_OK(file->Fsync(kIo, nullptr));
  CHECK(!file->PositionedAppend("x", 20000, kIo, nullptr).ok(), "a hole");
  CHECK_OK(file->Close(kIo, nullptr));
  CHECK(ReadAll(*fs, "/direct") == content.substr(0, 17000), "positioned appends");
}

void ManyReads() {
  auto fs = OpenFileSystem("furrow://mem:capacity=256MiB,zone-size=8MiB");
  std::string content = Content(3, 1 << 20);
  auto file = Create(*fs, "/f");
  CHECK_OK(file->Append(content, kIo, nullptr));
  CHECK_OK(file->Sync(kIo, nullptr));
  std::unique_ptr<FSRandomAccessFile> random;
  CHECK_OK(fs->NewRandomAccessFile("/f", FileOptions(), &random, nullptr));
  std::vector<FSReadRequest> requests(8);
  std::vector<std::string> buffers(8, std::string(5000, '\0'));
  for (size_t i = 0; i < 8; i++) {
    requests[i].offset = i * 149000;
    requests[i].len = 5000;
    requests[i].scratch = &buffers[i][0];
  }
  CHECK_OK(random->MultiRead(requests.data(), 8, kIo, nullptr));
  for (size_t i = 0; i < 8; i++) {
    CHECK_OK(requests[i].status);
    CHECK(requests[i].result.ToString() == content.substr(i * 149000, 5000), "many reads");
  }
  // The test waits for the first read, and gives up the second.
  int called = 0;
  std::vector<void*> handles(2);
  std::vector<IOHandleDeleter> deleters(2);
  for (size_t i = 0; i < 2; i++) {
    CHECK_OK(random->ReadAsync(
        requests[i], kIo,
        [&](const FSReadRequest& done, void*) {
          CHECK_OK(done.status);
          CHECK(done.result.ToString() == content.substr(done.offset, 5000), "asynchronous");
          called++;
        },
        nullptr, &handles[i], &deleters[i], nullptr));
  }
  std::vector<void*> first{handles[0]}, second{handles[1]};
  CHECK_OK(fs->Poll(first, 1));
  CHECK(called == 1, "the callback comes before Poll returns");
  CHECK_OK(fs->AbortIO(second));
  CHECK_OK(fs->Poll(second, 1));
  CHECK(called == 1, "what was given up is not called back");
  for (size_t i = 0; i < 2; i++) deleters[i](handles[i]);
}

void LocksAndRoom() {
  auto fs = OpenFileSystem("furrow://mem:capacity=64MiB,zone-size=2MiB");
  FileLock* lock = nullptr;
  FileLock* other = nullptr;
  CHECK_OK(fs->LockFile("/db/LOCK", kIo, &lock, nullptr));
  CHECK(fs->LockFile("db/LOCK", kIo, &other, nullptr).IsIOError(), "locked");
  CHECK_OK(fs->UnlockFile(lock, kIo, nullptr));
  CHECK_OK(fs->LockFile("db/LOCK", kIo, &lock, nullptr));
  CHECK_OK(fs->UnlockFile(lock, kIo, nullptr));
  uint64_t before = 0, free = 0;
  CHECK_OK(fs->GetFreeSpace("/", kIo, &before, nullptr));
  // The available space can be written; then there is a clean error, and removing files helps.
  auto file = Create(*fs, "/full");
  std::string piece = Content(4, 1 << 20);
  uint64_t written = 0;
  IOStatus status;
  while (status.ok() && written < before * 2) {
    status = file->Append(piece, kIo, nullptr);
    written += status.ok() ? piece.size() : 0;
  }
  CHECK(status.IsNoSpace(), status.ToString());
  CHECK(written + 2 * piece.size() >= before, std::to_string(written) + " of " +
                                                  std::to_string(before));
  // The rest of the last append has no place.
  status = file->Close(kIo, nullptr);
  CHECK(status.ok() || status.IsNoSpace(), status.ToString());
  CHECK_OK(fs->DeleteFile("/full", kIo, nullptr));
  std::unique_ptr<FSDirectory> root;
  CHECK_OK(fs->NewDirectory("/", kIo, &root, nullptr));
  CHECK_OK(root->Fsync(kIo, nullptr));
  CHECK_OK(fs->GetFreeSpace("/", kIo, &free, nullptr));
  CHECK(free == before, "free again");
  file = Create(*fs, "/again");
  CHECK_OK(file->Append(piece, kIo, nullptr));
}

void ForksGetErrors() {
  Image image(furrow_command, directory + "/fork.zns", kShape);
  const std::string recording = directory + "/fork.trace";
  auto fs = OpenFileSystem(image.uri() + "?record=" + recording);
  auto file = Create(*fs, "/f");
  CHECK_OK(file->Append("parent", kIo, nullptr));
  alarm(60);
  int status = InChild([&] {
    CHECK(!file->Append("child", kIo, nullptr).ok(), "append");
    CHECK(!file->Sync(kIo, nullptr).ok(), "sync");
    uint64_t size = 0;
    CHECK(!fs->GetFileSize("/f", kIo, &size, nullptr).ok(), "size");
    CHECK(!file->Close(kIo, nullptr).ok(), "close");
    furrow_store* store = fs->CheckedCast<furrow::StoreFileSystem>()->store();
    CHECK(furrow_store_sync_all(store, nullptr) == FURROW_FORKED, "sync of all");
    file.reset();
    fs.reset();
  });
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child hung or crashed");
  alarm(0);
  CHECK_OK(file->Append(" goes on", kIo, nullptr));
  CHECK_OK(file->Sync(kIo, nullptr));
  CHECK(ReadAll(*fs, "/f") == "parent goes on", "the parent's file");
  // Data gathered before the fork is written by the parent.
  struct stat found;
  CHECK(stat(recording.c_str(), &found) == 0 && found.st_size == 0, "the child wrote");
  furrow_store* store = fs->CheckedCast<furrow::StoreFileSystem>()->store();
  CHECK(furrow_store_sync_all(store, nullptr) == FURROW_OK, "sync of all");
  CHECK(stat(recording.c_str(), &found) == 0 && found.st_size > 0, "the parent wrote");
  unlink(recording.c_str());
}

// Syncs a file, appends more and is killed.
void SyncAndDie(const std::string& image) {
  auto fs = OpenFileSystem("furrow://" + image);
  auto file = Create(*fs, "/synced");
  CHECK_OK(file->Append(Content(5, 70000), kIo, nullptr));
  CHECK_OK(file->Sync(kIo, nullptr));
  CHECK_OK(file->Append("more", kIo, nullptr));
  CHECK_OK(file->Flush(kIo, nullptr));
  raise(SIGKILL);
}

// After a kill a process's synced data is there, and none of the rest.
void KilledProcessKeepsWhatItSynced() {
  Image image(furrow_command, directory + "/killed.zns", kShape);
  CHECK(WIFSIGNALED(InProcess("sync_and_die", image.path())), "killed");
  auto fs = OpenFileSystem(image.uri());
  CHECK(ReadAll(*fs, "/synced") == Content(5, 70000), "what was synced, and no more");
}

// Writes and ends by exit(), without destructors, as RocksDB's tools do.
void WriteAndExit(const std::string& image) {
  auto* fs = new std::shared_ptr<FileSystem>(OpenFileSystem("furrow://" + image));
  auto* file = Create(**fs, "/written").release();
  CHECK_OK(file->Append(Content(6, 123456), kIo, nullptr));
  exit(0);
}

// exit() and returning from main lose nothing that was written.
void ExitLosesNothing() {
  Image image(furrow_command, directory + "/exit.zns", kShape);
  int status = InProcess("write_and_exit", image.path());
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "exit");
  auto fs = OpenFileSystem(image.uri());
  CHECK(ReadAll(*fs, "/written") == Content(6, 123456), "what was written before exit()");
}

// The error of opening `uri`.
std::string Refusal(const std::string& uri) {
  std::shared_ptr<FileSystem> fs;
  Status status = FileSystem::CreateFromString(ConfigOptions(), uri, &fs);
  CHECK(!status.ok(), uri);
  return status.ToString();
}

// Expects that the store is refused, with the name of its user.
void BeRefused(const std::string& image) {
  std::string holder = "in use by process " + std::to_string(getppid()) + " (";
  std::string said = Refusal("furrow://" + image);
  CHECK(said.find(holder) != std::string::npos, said);
  exit(0);
}

// One process at a time; several databases of one process share a store.
void WhoMayHaveAStore() {
  Image image(furrow_command, directory + "/shared.zns", kShape);
  auto first = OpenFileSystem(image.uri());
  auto second = OpenFileSystem("furrow://" + directory + "/./shared.zns");
  auto file = Create(*first, "/f");
  CHECK_OK(file->Append("one store", kIo, nullptr));
  CHECK(ReadAll(*second, "/f") == "one store", "the same store");
  furrow_error error;
  CHECK(furrow_store_format(image.path().c_str(), nullptr, &error) == FURROW_BUSY, error.message);
  int status = InProcess("be_refused", image.path());
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "another process is refused");
  file.reset();
  first.reset();
  CHECK(ReadAll(*second, "/f") == "one store", "kept by the second");
}

void WrongUris() {
  const std::string memory = "furrow://mem:capacity=64MiB,zone-size=2MiB";
  const std::pair<std::string, const char*> wrong[] = {
      {"furrow://", "no device"},
      {"furrow", "expected furrow://DEVICE"},
      {"furrow:/db.zns", "expected furrow://DEVICE"},
      {"furrow:///nosuch/file.zns", "nosuch"},
      {"furrow://\xff\xfe", "not UTF-8"},
      {"furrow://" + std::string(100000, 'x'), "x"},
      {"furrow:///", "directory"},
      {"furrow:///dev/null", "no drive: Furrow needs zones"},
      {"furrow:///etc/passwd", "not an emulated drive's image"},
      {memory + "?nonsense=1", "nonsense"},
      {memory + "?\xff", "not UTF-8"},
      {memory + "?policy=none", "liza-zenfs"},
      {memory + "?clean-below=200", "0 to 90"},
      {memory + "?clean-below=99999999999999999999", "0 to 90"},
      {"furrow://mem:capacity=8MiB,zone-size=4MiB", "zones"},
      {"furrow://mem:capacity=99999999TiB", "too large"},
  };
  for (const auto& [uri, expected] : wrong) {
    CHECK(Refusal(uri).find(expected) != std::string::npos, Refusal(uri));
  }
  // A drive without a store, with something else on it, and a damaged one.
  std::string path = directory + "/other.zns";
  std::string make = furrow_command + " device create " + path + " --option " +
                     "zones=64,zone-size=16MiB >/dev/null";
  CHECK(system(make.c_str()) == 0, make);
  CHECK(Refusal("furrow://" + path).find("furrow kv mkfs") != std::string::npos, "empty");
  make = furrow_command + " mkfs " + path + " >/dev/null";
  CHECK(system(make.c_str()) == 0, make);
  CHECK(Refusal("furrow://" + path).find("furrow kv ls") != std::string::npos, "a file system");
  FILE* image = fopen(path.c_str(), "r+");
  CHECK(image != nullptr && fseek(image, 65536, SEEK_SET) == 0, path);
  std::string noise = Content(9, 100000);
  CHECK(fwrite(noise.data(), noise.size(), 1, image) == 1 && fclose(image) == 0, path);
  CHECK(Refusal("furrow://" + path).find("damaged") != std::string::npos, "damaged");
  CHECK(truncate(path.c_str(), 5000) == 0, path);
  CHECK(Refusal("furrow://" + path).find("truncated") != std::string::npos, "truncated");
  unlink(path.c_str());
}

// The path of the plugin's library.
std::string Library() {
  Dl_info info;
  CHECK(dladdr(reinterpret_cast<void*>(&furrow_store_open), &info) != 0, "the library");
  return info.dli_fname;
}

// With its last database and Env a process leaves the drive, and another can have it. A memory
// drive stays.
void TheLastOneLetsGo() {
  Image image(furrow_command, directory + "/left.zns", kShape);
  std::string list = furrow_command + " kv ls " + image.path() + " >/dev/null 2>&1";
  for (int life = 0; life < 3; life++) {
    auto fs = OpenFileSystem(image.uri());
    std::unique_ptr<Env> env = NewCompositeEnv(fs);
    Options options = BlobOptions(env.get());
    std::unique_ptr<DB> db = OpenDatabase(options, "/db");
    fs.reset();
    CHECK_OK(db->Put(WriteOptions(), "life", std::to_string(life)));
    CHECK(InProcess("open_and_close", image.path()) != 0, "in use");
    db.reset();
    env.reset();
    CHECK(InProcess("open_and_close", image.path()) == 0, "free for others");
    CHECK(system(list.c_str()) == 0, list);
  }
  const std::string memory = "furrow://mem:capacity=64MiB,zone-size=2MiB,max-active=9";
  Create(*OpenFileSystem(memory), "/stays");
  CHECK_OK(OpenFileSystem(memory)->FileExists("/stays", kIo, nullptr));
}

// A database of another process's store, opened and closed.
void OpenAndClose(const std::string& image) {
  std::shared_ptr<FileSystem> fs;
  if (!FileSystem::CreateFromString(ConfigOptions(), "furrow://" + image, &fs).ok()) _exit(1);
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  std::unique_ptr<DB> db = OpenDatabase(BlobOptions(env.get()), "/db");
  std::string value;
  CHECK_OK(db->Get(ReadOptions(), "life", &value));
  db.reset();
  exit(0);
}

// What RocksDB would move from the host is refused in the way that makes it copy.
void FilesOfTheHost() {
  auto fs = OpenFileSystem("furrow://mem:capacity=256MiB,zone-size=4MiB,max-active=10");
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  std::string made = directory + "/of_the_host";
  CHECK(mkdir(made.c_str(), 0777) == 0 || errno == EEXIST, made);
  std::string table = made + "/in.sst", link = made + "/link.sst";
  SstFileWriter writer(EnvOptions(), (Options()));
  CHECK_OK(writer.Open(table));
  CHECK_OK(writer.Put("key", "value"));
  CHECK_OK(writer.Finish());
  unlink(link.c_str());
  CHECK(::link(table.c_str(), link.c_str()) == 0, link);
  std::unique_ptr<DB> db = OpenDatabase(BlobOptions(env.get()), "/db");
  IngestExternalFileOptions move;
  move.move_files = true;
  CHECK_OK(db->IngestExternalFile({table}, move));
  std::string value;
  CHECK_OK(db->Get(ReadOptions(), "key", &value));
  CHECK(fs->LinkFile(table, "/db/x", kIo, nullptr).IsNotSupported(), "link");
  CHECK(fs->RenameFile(table, "/db/x", kIo, nullptr).IsNotSupported(), "rename");
  std::unique_ptr<FSWritableFile> reused;
  IOStatus status = fs->ReuseWritableFile("/db/x", table, FileOptions(), &reused, nullptr);
  CHECK(status.IsNotSupported(), status.ToString());
  CHECK(fs->LinkFile("/db/nothing", "/db/x", kIo, nullptr).IsPathNotFound(), "no such file");
  uint64_t count = 0;
  CHECK_OK(fs->NumFileLinks(table, kIo, &count, nullptr));
  CHECK(count == 2, "names on the host");
  bool same = false;
  CHECK_OK(fs->AreFilesSame(table, link, kIo, &same, nullptr));
  CHECK(same, "two names on the host");
  CHECK_OK(fs->AreFilesSame(table, "/db/CURRENT", kIo, &same, nullptr));
  CHECK(!same, "host and store");
  CHECK_OK(fs->AreFilesSame("/db", "db/./x/../", kIo, &same, nullptr));
  CHECK(same, "spellings of a directory");
  CHECK_OK(fs->AreFilesSame("/db", "/", kIo, &same, nullptr));
  CHECK(!same, "two directories");
}

// A stock program under `furrow run --store` has all its databases in the store, however it opens
// them, and leaves the drive with the last of them.
void EveryWayToOpen() {
  Image image(furrow_command, directory + "/ways.zns", kShape);
  std::string program = Library();
  program = program.substr(0, program.find_last_of('/')) + "/rocksdb-plugin/ways";
  std::string at = directory + "/ways";
  CHECK(system(("rm -rf " + at).c_str()) == 0 && mkdir(at.c_str(), 0777) == 0, at);
  char* whole = realpath(at.c_str(), nullptr);
  CHECK(whole != nullptr, at);
  at = whole;
  free(whole);
  std::string other = "env -u LD_PRELOAD " + furrow_command + " kv ls " + image.path() + " >/dev/null";
  CHECK(setenv("FURROW_ROCKSDB", Library().c_str(), 1) == 0 &&
            setenv("FURROW_TEST_COMMAND", other.c_str(), 1) == 0, "setenv");
  std::string host = program + " " + at + " host";
  CHECK(system(host.c_str()) == 0, host);
  std::string run = furrow_command + " run --store " + image.path() + " -- " + program + " " + at;
  CHECK(system(run.c_str()) == 0, run);
  auto fs = OpenFileSystem(image.uri());
  for (const char* name : {"plain", "transactions", "ttl", "c", "c_transactions", "c_optimistic",
                           "checkpoint", "restored", "above", "composite"}) {
    CHECK_OK(fs->FileExists(at + "/" + name + "/CURRENT", kIo, nullptr));
  }
  CHECK(fs->FileExists(at + "/optimistic/CURRENT", kIo, nullptr).IsNotFound(), "destroyed");
  CHECK(unsetenv("FURROW_TEST_COMMAND") == 0 && unsetenv("FURROW_ROCKSDB") == 0, "unsetenv");
}

// Invalid paths are errors that give the reason.
void WrongPaths() {
  auto fs = OpenFileSystem("furrow://mem:capacity=64MiB,zone-size=2MiB");
  Create(*fs, "/file");
  const std::pair<std::string, const char*> wrong[] = {
      {"../x", "leads out"}, {"/a/../../x", "leads out"},       {"/\xff\xfe", "not UTF-8"},
      {"", "root"},          {"/" + std::string(2000, 'x'), "bytes"}, {"/file/x", "not a directory"},
      {"/", "root"},         {"/no/such/directory/x", "no such"},
  };
  for (const auto& [path, expected] : wrong) {
    std::unique_ptr<FSWritableFile> file;
    IOStatus status = fs->NewWritableFile(path, FileOptions(), &file, nullptr);
    CHECK(!status.ok() && status.ToString().find(expected) != std::string::npos,
          path.substr(0, 40) + ": " + status.ToString());
    std::unique_ptr<FSRandomAccessFile> random;
    CHECK(!fs->NewRandomAccessFile(path, FileOptions(), &random, nullptr).ok(), path);
    CHECK(!fs->DeleteFile(path, kIo, nullptr).ok(), path);
    CHECK(!fs->RenameFile("/file", path, kIo, nullptr).ok(), path);
    CHECK(!fs->LinkFile(path, "/link", kIo, nullptr).ok(), path);
  }
}

// Databases with blob files: overwritten, flushed, compacted, closed, opened and compared, two on
// one store, with buffered and with direct reads and writes.
void Databases() {
  for (bool direct : {false, true}) {
    Image image(furrow_command, directory + "/db.zns", kShape);
    std::vector<int> versions(400, 0);
    for (int life = 0; life < 3; life++) {
      auto fs = OpenFileSystem(image.uri());
      std::unique_ptr<Env> env = NewCompositeEnv(fs);
      Options options = BlobOptions(env.get());
      options.use_direct_reads = direct;
      options.use_direct_io_for_flush_and_compaction = direct;
      std::unique_ptr<DB> dbs[2];
      for (int i = 0; i < 2; i++) dbs[i] = OpenDatabase(options, "/dbs/" + std::to_string(i));
      for (int key = 0; key < 400 && life > 0; key++) {
        for (auto& db : dbs) {
          std::string value;
          CHECK_OK(db->Get(ReadOptions(), KeyOf(key), &value));
          CHECK(value == Content(key * 1000 + versions[key], 8000), KeyOf(key));
        }
      }
      for (int write = 0; write < 1200; write++) {
        int key = (write * 7919 + life) % 400;
        versions[key]++;
        for (auto& db : dbs) {
          CHECK_OK(db->Put(WriteOptions(), KeyOf(key), Content(key * 1000 + versions[key], 8000)));
        }
      }
      for (auto& db : dbs) {
        CHECK_OK(db->CompactRange(CompactRangeOptions(), nullptr, nullptr));
        db.reset();
      }
    }
  }
}

// A database fills its store: acknowledged data is there, even after it was opened again while it
// was full; it continues once it has freed space.
void FullStore() {
  Image image(furrow_command, directory + "/full.zns",
              "capacity=192MiB,zone-size=4MiB,max-active=14,max-open=14");
  auto fs = OpenFileSystem(image.uri());
  std::unique_ptr<Env> env = NewCompositeEnv(fs);
  Options options = BlobOptions(env.get());
  // Each table has few keys, so that whole ones can be deleted.
  options.target_file_size_base = 2 << 10;
  DB* db = nullptr;
  CHECK_OK(DB::Open(options, "/db", &db));
  int filled = 0;
  auto put = [&](int key) { return db->Put(WriteOptions(), KeyOf(key), Content(key, 8000)); };
  auto holds = [&](int from, int to) {
    for (int key = from; key < to; key++) {
      std::string value;
      CHECK_OK(db->Get(ReadOptions(), KeyOf(key), &value));
      CHECK(value == Content(key, 8000), KeyOf(key));
    }
  };
  Status status;
  while (filled < 40000 && (status = put(filled)).ok()) filled++;
  CHECK(status.IsNoSpace(), status.ToString());
  holds(0, filled);
  uint64_t free = 1;
  CHECK_OK(fs->GetFreeSpace("/", kIo, &free, nullptr));
  CHECK(free < (8 << 20), "nearly nothing is free: " + std::to_string(free));
  for (int life = 0; life < 2; life++) {
    // The second time, the database that was opened meanwhile frees space: flushing its logs needs
    // space.
    if (life == 1) {
      while (filled < 40000 && (status = put(filled)).ok()) filled++;
      CHECK(status.IsNoSpace(), status.ToString());
      delete db;
      CHECK_OK(DB::Open(options, "/db", &db));
      holds(filled / 2, filled);
    }
    // This writes only a record of the manifest: flushes have no space, the manifest has.
    int gone = filled * (life + 1) / 4;
    std::string first = KeyOf(0), last = KeyOf(gone);
    Slice from(first), to(last);
    CHECK_OK(DeleteFilesInRange(db, db->DefaultColumnFamily(), &from, &to));
    // RocksDB checks the free space every five seconds, and resumes without a call; during that it
    // is busy.
    for (int tries = 0; tries < 300 && !(status = db->Resume()).ok(); tries++) usleep(100000);
    CHECK_OK(status);
    for (int key = 0; key < 500; key++) CHECK_OK(put(filled++));
    CHECK_OK(db->CompactRange(CompactRangeOptions(), nullptr, nullptr));
    holds(gone + 1, filled);
  }
  delete db;
  CHECK_OK(DB::Open(options, "/db", &db));
  holds(filled / 2 + 1, filled);
  delete db;
}

// The figures that another program gets of a store in use.
void RunningStoresSayHowTheyAre() {
  std::string run = directory + "/run";
  CHECK(setenv("FURROW_RUN", run.c_str(), 1) == 0, "setenv");
  Image image(furrow_command, directory + "/running.zns", kShape);
  auto fs = OpenFileSystem(image.uri());
  auto file = Create(*fs, "/000001.sst");
  CHECK_OK(file->Append(Content(1, 300000), kIo, nullptr));
  CHECK_OK(file->Sync(kIo, nullptr));
  auto shown = [&](const std::string& what) {
    std::string command = furrow_command + " kv " + what + " 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    CHECK(pipe != nullptr, command);
    std::string text;
    char buffer[4096];
    size_t got = 0;
    while ((got = fread(buffer, 1, sizeof(buffer), pipe)) > 0) text.append(buffer, got);
    CHECK(pclose(pipe) == 0, command + ": " + text);
    return text;
  };
  auto has = [&](const std::string& what, const std::string& words) {
    std::string text = shown(what);
    CHECK(text.find(words) != std::string::npos, what + ": no '" + words + "' in: " + text);
  };
  std::string path = image.path();
  has("stat " + path, "process " + std::to_string(getpid()));
  has("stat " + path, "by another thread");
  has("stat --json " + path, "\"appended_bytes\": 300000");
  has("stat --json " + path, "\"running\": true");
  has("stat --prometheus " + path, "furrow_kv_appended_bytes_total{device=");
  has("df " + path, "sst");
}

// Two families of a database, and another database on the same store; the store is closed and
// opened in the middle. At each moment the share covers the family's own files up to the youngest
// file of its oldest full zone.
void SameVictims() {
  Image image(furrow_command, directory + "/victims.zns", kShape);
  for (int life = 0; life < 2; life++) {
    auto fs = OpenFileSystem(image.uri() + "?policy=baza");
    auto* store = fs->CheckedCast<furrow::StoreFileSystem>()->store();
    std::unique_ptr<Env> env = NewCompositeEnv(fs);
    for (const char* name : {"/one", "/two"}) {
      Options options = BlobOptions(env.get());
      // Nothing is collected, so that the expected values can be computed.
      options.disable_auto_compactions = true;
      auto watch = std::make_shared<furrow::SameVictim>(store);
      options.listeners.push_back(watch);
      std::vector<ColumnFamilyDescriptor> families{{kDefaultColumnFamilyName, options},
                                                   {"second", options}};
      std::vector<ColumnFamilyHandle*> handles;
      std::unique_ptr<DB> db = OpenDatabase(options, name, families, &handles);
      watch->Attach(db.get(), handles);
      for (int key = 0; key < 900; key++) {
        // The second family gets a third of the keys.
        ColumnFamilyHandle* family = handles[key % 3 == 2];
        CHECK_OK(db->Put(WriteOptions(), family, KeyOf(life * 1000 + key), Content(key, 16000)));
      }
      for (ColumnFamilyHandle* family : handles) CHECK_OK(db->Flush(FlushOptions(), family));
      for (ColumnFamilyHandle* family : handles) {
        uint64_t youngest = 0, zones = 0;
        furrow_error error;
        CHECK(furrow_smallest_youngest(store, name, family->GetName().c_str(), &youngest, &zones,
                                       &error) == FURROW_OK, error.message);
        ColumnFamilyMetaData data;
        db->GetColumnFamilyMetaData(family, &data);
        uint64_t k = 0;
        for (const auto& file : data.blob_files) k += file.blob_file_number <= youngest;
        CHECK(zones > 0 && k > 0 && k < data.blob_files.size(), family->GetName());
        furrow::Cutoff expected{k, data.blob_files.size()};
        CHECK(static_cast<uint64_t>(expected.Share() * expected.n) == k, "the half survives");
        // Another thread sets it a moment later.
        double found = 0;
        for (int tries = 0; tries < 200; tries++) {
          found = db->GetOptions(family).blob_garbage_collection_age_cutoff;
          if (found == expected.Share()) break;
          usleep(10000);
        }
        CHECK(found == expected.Share(),
              std::string(name) + " " + family->GetName() + ": " + std::to_string(found) +
                  ", expected " + std::to_string(k) + " of " + std::to_string(expected.n));
      }
      // The count is updated a moment later.
      usleep(100000);
      uint64_t sets = watch->sets();
      CHECK(sets >= 2, "set");
      usleep(200000);
      CHECK(watch->sets() == sets, "not set again while nothing changes");
      // A family may be closed at any time.
      CHECK_OK(db->DestroyColumnFamilyHandle(handles[1]));
      CHECK_OK(db->DestroyColumnFamilyHandle(handles[0]));
      watch->Detach();
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: test FURROW DIRECTORY [NAME]\n");
    return 2;
  }
  furrow_command = arguments[1];
  directory = arguments[2];
  if (count == 6 && std::string(arguments[3]) == "--life") {
    std::string life = arguments[4];
    if (life == "sync_and_die") SyncAndDie(arguments[5]);
    if (life == "write_and_exit") WriteAndExit(arguments[5]);
    if (life == "be_refused") BeRefused(arguments[5]);
    if (life == "open_and_close") OpenAndClose(arguments[5]);
    return 1;
  }
  const std::pair<const char*, void (*)()> tests[] = {
      {"names_and_content", NamesAndContent},
      {"direct_writes", DirectWrites},
      {"many_reads", ManyReads},
      {"locks_and_room", LocksAndRoom},
      {"forks_get_errors", ForksGetErrors},
      {"killed_process_keeps_what_it_synced", KilledProcessKeepsWhatItSynced},
      {"exit_loses_nothing", ExitLosesNothing},
      {"who_may_have_a_store", WhoMayHaveAStore},
      {"wrong_uris", WrongUris},
      {"the_last_one_lets_go", TheLastOneLetsGo},
      {"files_of_the_host", FilesOfTheHost},
      {"every_way_to_open", EveryWayToOpen},
      {"wrong_paths", WrongPaths},
      {"databases", Databases},
      {"full_store", FullStore},
      {"running_stores_say_how_they_are", RunningStoresSayHowTheyAre},
      {"same_victims", SameVictims},
  };
  for (const auto& [name, test] : tests) {
    if (count > 3 && std::string(arguments[3]) != name) continue;
    test();
    printf("%s ok\n", name);
    fflush(stdout);
  }
  return 0;
}
