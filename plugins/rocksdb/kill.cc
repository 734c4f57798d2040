// SPDX-License-Identifier: Apache-2.0 OR MIT
// Kills a database under load, again and again: kill FURROW DIRECTORY ROUNDS SEED [power [DEFECT]]
//
// Two threads of a child write, some writes synced and some not. The child reports through a pipe
// when each write begins and when it is acknowledged, and is killed at a random moment. Another
// child opens the database and reports its content: each key must have the version of its last
// write that was durable, or of a write that began later. A write is durable once it is
// acknowledged as synced, or once a synced write that began after its return is acknowledged.
//
// With `power` the drive loses power instead, at a random command, which may be one of RocksDB's
// recovery. Commands in flight are done, torn or not started, and any part of the unflushed data is
// lost. DEFECT is a defect built into the store, which must be found.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "rocksdb/db.h"

using namespace rocksdb;

// Exists only in the library for built-in defects (crates/capi/examples/defective.rs).
extern "C" int furrow_build_in_defect(const char* name) __attribute__((weak));

namespace {

constexpr int kThreads = 2;
constexpr int kKeys = 300;  // of each thread
const char* kShape =
    "capacity=192MiB,zone-size=4MiB,max-active=14,max-open=14,volatile-cache=on";
// Exit status of a child whose drive failed.
constexpr int kDriveFailed = 3;
// A child that takes longer than this number of seconds hangs.
constexpr unsigned kHangs = 120;

// A message of a child, written to the pipe in one piece.
struct Event {
  enum Kind : uint32_t {
    kBegin = 1,    // a write begins
    kReturned = 2, // the write was acknowledged, unsynced
    kSynced = 3,   // the write was acknowledged, synced
    kHeld = 4,     // the database holds this version
    kEnd = 5,      // end of the report
  };
  uint32_t kind;
  uint32_t key;
  uint64_t version;
};

uint64_t Next(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

// A value of 100 bytes to 40 KB that begins with its version.
std::string ValueOf(uint32_t key, uint64_t version) {
  uint64_t state = key * 1000003 + version * 7919 + 1;
  size_t size = 100 + Next(&state) % (version % 3 == 0 ? 40000 : 3000);
  std::string value = Content(state, size);
  memcpy(&value[0], &version, sizeof(version));
  return value;
}

void Say(int to, const Event& event) {
  CHECK(write(to, &event, sizeof(event)) == sizeof(event), "pipe");
}

// A child whose drive may fail ends there; its earlier messages count.
void CheckDrive(const Status& status, bool may_fail) {
  if (!status.ok() && may_fail) _exit(kDriveFailed);
  CHECK_OK(status);
}

// A database that flushes and compacts constantly; it lives as long as `env`.
std::unique_ptr<DB> OpenSmall(const std::string& uri, bool may_fail, std::unique_ptr<Env>* env) {
  std::shared_ptr<FileSystem> fs;
  CheckDrive(FileSystem::CreateFromString(ConfigOptions(), uri, &fs), may_fail);
  *env = NewCompositeEnv(fs);
  Options options = BlobOptions(env->get());
  options.write_buffer_size = 512 << 10;
  options.target_file_size_base = 256 << 10;
  options.max_bytes_for_level_base = 1 << 20;
  options.max_background_jobs = 4;
  furrow::Opened db = nullptr;
  CheckDrive(DB::Open(options, "/db", &db), may_fail);
  return std::unique_ptr<DB>(std::move(db));
}

// Writes until it is killed, or until the drive fails if it may.
void Load(const std::string& uri, uint64_t seed, bool mixed, bool may_fail, int to) {
  alarm(kHangs);
  if (may_fail) {
    // RocksDB may assert that a drive does not fail; when the drive loses power, the program has no
    // power either.
    signal(SIGABRT, [](int) { _exit(kDriveFailed); });
    CHECK(freopen("/dev/null", "w", stderr) != nullptr, "/dev/null");
  }
  std::unique_ptr<Env> env;
  std::unique_ptr<DB> owned = OpenSmall(uri, may_fail, &env);
  DB* db = owned.get();
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < kThreads; number++) {
    threads.emplace_back([=] {
      uint64_t state = seed * 31 + number + 1;
      for (uint64_t count = 1;; count++) {
        uint32_t key = number * kKeys + Next(&state) % kKeys;
        // Rounds have increasing numbers, so that versions increase.
        uint64_t version = (seed << 32) + count;
        WriteOptions options;
        options.sync = !mixed || Next(&state) % 8 == 0;
        Say(to, {Event::kBegin, key, version});
        Status status = db->Put(options, KeyOf(key), ValueOf(key, version));
        CheckDrive(status, may_fail);
        Say(to, {options.sync ? Event::kSynced : Event::kReturned, key, version});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Reports what the database holds.
void Hold(const std::string& uri, int to) {
  alarm(kHangs);
  std::unique_ptr<Env> env;
  std::unique_ptr<DB> db = OpenSmall(uri, false, &env);
  CHECK_OK(db->VerifyChecksum());
  std::unique_ptr<Iterator> each(db->NewIterator(ReadOptions()));
  for (each->SeekToFirst(); each->Valid(); each->Next()) {
    uint32_t key = static_cast<uint32_t>(std::stoul(each->key().ToString()));
    uint64_t version = 0;
    CHECK(each->value().size() >= sizeof(version), "a value cut short");
    memcpy(&version, each->value().data(), sizeof(version));
    CHECK(each->value() == ValueOf(key, version), each->key().ToString() + ": not what was put");
    Say(to, {Event::kHeld, key, version});
  }
  CHECK_OK(each->status());
  Say(to, {Event::kEnd, 0, 0});
}

// The allowed versions of a key.
struct Known {
  uint64_t durable = 0;  // the least version allowed
  uint64_t begun = 0;    // the greatest version allowed
};

struct Child {
  pid_t pid;
  int from;
};

Child Start(const std::vector<std::string>& arguments) {
  int ends[2];
  CHECK(pipe(ends) == 0, "pipe");
  pid_t pid = fork();
  CHECK(pid >= 0, "fork");
  if (pid == 0) {
    close(ends[0]);
    std::vector<std::string> all{"kill"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    all.push_back(std::to_string(ends[1]));
    std::vector<char*> raw;
    for (std::string& argument : all) raw.push_back(&argument[0]);
    raw.push_back(nullptr);
    execv("/proc/self/exe", raw.data());
    _exit(127);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

// The next event; false at the end of the pipe.
bool Hear(int from, Event* event) {
  size_t got = 0;
  while (got < sizeof(*event)) {
    ssize_t more = read(from, reinterpret_cast<char*>(event) + got, sizeof(*event) - got);
    if (more <= 0) return false;
    got += more;
  }
  return true;
}

class Judge {
 public:
  void Hear(const Event& event) {
    Known& known = known_[event.key];
    std::pair<uint32_t, uint64_t> write{event.key, event.version};
    switch (event.kind) {
      case Event::kBegin:
        known.begun = std::max(known.begun, event.version);
        // A synced write also makes durable all writes that had returned when it began.
        begun_at_[write] = returned_.size();
        break;
      case Event::kReturned:
        returned_.push_back(write);
        break;
      case Event::kSynced:
        Durable(write);
        for (size_t i = durable_; i < begun_at_[write]; i++) Durable(returned_[i]);
        durable_ = std::max(durable_, begun_at_[write]);
        acknowledged++;
        break;
    }
  }

  // A process has ended: its unsynced writes may be lost.
  void Over() {
    returned_.clear();
    begun_at_.clear();
    durable_ = 0;
  }

  // Compares the content of the database with what is allowed. From then on that content is
  // expected.
  void Compare(const std::map<uint32_t, uint64_t>& held, const std::string& when) {
    for (auto& [key, known] : known_) {
      auto found = held.find(key);
      uint64_t version = found == held.end() ? 0 : found->second;
      CHECK(version >= known.durable && version <= known.begun,
            when + ": " + KeyOf(key) + ": version " + std::to_string(version) + ", acknowledged " +
                std::to_string(known.durable) + ", begun " + std::to_string(known.begun));
      // A version that is found after a kill is durable: the store read it from the drive.
      known = {version, version};
    }
    for (const auto& [key, version] : held) {
      CHECK(known_.count(key) != 0, KeyOf(key) + ": never written, version " +
                                        std::to_string(version));
    }
  }

  uint64_t acknowledged = 0;

 private:
  void Durable(const std::pair<uint32_t, uint64_t>& write) {
    Known& known = known_[write.first];
    known.durable = std::max(known.durable, write.second);
  }

  std::map<uint32_t, Known> known_;
  std::vector<std::pair<uint32_t, uint64_t>> returned_;
  std::map<std::pair<uint32_t, uint64_t>, size_t> begun_at_;
  size_t durable_ = 0;
};

// Cuts the drive's power at its `command`th command from now on.
void CutAt(const std::string& furrow, const std::string& image, uint64_t command) {
  std::string add = furrow + " device fault " + image + " add power-cut --nth " +
                    std::to_string(command) + " >/dev/null";
  CHECK(system(add.c_str()) == 0, add);
}

// Whether the power was cut since then: the fault is used up.
bool WasCut(const std::string& furrow, const std::string& image) {
  std::string list = furrow + " device fault " + image + " list | grep -q power-cut";
  return system(list.c_str()) != 0;
}

// Checks that a crash left an undamaged store.
void Check(const std::string& furrow, const std::string& image) {
  std::string check = furrow + " kv fsck " + image + " >/dev/null";
  CHECK(system(check.c_str()) == 0, check);
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 6 && strcmp(arguments[1], "--load") == 0) {
    uint64_t seed = strtoull(arguments[3], nullptr, 10);
    std::string how = arguments[4];
    size_t colon = how.find(':');
    std::string defect = how.substr(colon + 1);
    how.resize(colon);
    CHECK(defect.empty() || (furrow_build_in_defect && furrow_build_in_defect(defect.c_str()) == 0),
          defect + ": no defect of this library");
    Load(arguments[2], seed, how[0] == 'm', how.back() == 'p', atoi(arguments[5]));
    return 1;
  }
  if (count == 4 && strcmp(arguments[1], "--hold") == 0) {
    Hold(arguments[2], atoi(arguments[3]));
    return 0;
  }
  bool power = count >= 6 && strcmp(arguments[5], "power") == 0;
  if (count < 5 || count > 7 || (count > 5 && !power)) {
    fprintf(stderr, "usage: kill FURROW DIRECTORY ROUNDS SEED [power [DEFECT]]\n");
    return 2;
  }
  const std::string furrow = arguments[1];
  // Writing children get the defect, reading ones do not.
  const std::string defect = count > 6 ? arguments[6] : "";
  uint64_t rounds = strtoull(arguments[3], nullptr, 10);
  uint64_t state = strtoull(arguments[4], nullptr, 10) * 2654435761u + 1;
  Image image(furrow, std::string(arguments[2]) + (power ? "/power.zns" : "/kill.zns"), kShape);
  Judge judge;
  size_t keys = 0;
  uint64_t early = 0;
  for (uint64_t round = 1; round <= rounds; round++) {
    bool mixed = Next(&state) % 2 == 0;
    std::string how = mixed ? "mixed" : "sync";
    // The commands from the opening of the database to some seconds of load.
    useconds_t moment = Next(&state) % (Next(&state) % 4 == 0 ? 30000 : 700000);
    if (power) {
      // The same range: most of the first hundred commands belong to opening.
      CutAt(furrow, image.path(), 1 + Next(&state) % (Next(&state) % 3 == 0 ? 100 : 1500));
      how += "-p";
    }
    Child child = Start({"--load", image.uri(), std::to_string(round), how + ":" + defect});
    std::thread killer([&] {
      if (power) return;
      usleep(moment);
      kill(child.pid, SIGKILL);
    });
    Event event;
    uint64_t events = 0;
    for (; Hear(child.from, &event); events++) judge.Hear(event);
    killer.join();
    early += events == 0;
    int status = 0;
    CHECK(waitpid(child.pid, &status, 0) == child.pid, "waitpid");
    bool as_meant = power ? WIFEXITED(status) && WEXITSTATUS(status) == kDriveFailed
                          : WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    CHECK(as_meant, "the load ended otherwise, in round " + std::to_string(round) + ": status " +
                        std::to_string(status));
    close(child.from);
    judge.Over();
    CHECK(!power || WasCut(furrow, image.path()),
          "the load ended before its drive, in round " + std::to_string(round));
    if (round % 8 == 0) Check(furrow, image.path());

    Child reader = Start({"--hold", image.uri()});
    std::map<uint32_t, uint64_t> held;
    bool all = false;
    while (Hear(reader.from, &event)) {
      all = event.kind == Event::kEnd;
      if (event.kind == Event::kHeld) held[event.key] = event.version;
    }
    CHECK(waitpid(reader.pid, &status, 0) == reader.pid, "waitpid");
    CHECK(all && WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "the database cannot be read after round " + std::to_string(round));
    close(reader.from);
    judge.Compare(held, "round " + std::to_string(round));
    keys = held.size();
  }
  printf("%llu %s, %llu of them before the database was open: %llu synced writes acknowledged, "
         "none lost; %zu keys\n",
         static_cast<unsigned long long>(rounds), power ? "power cuts" : "kills",
         static_cast<unsigned long long>(early),
         static_cast<unsigned long long>(judge.acknowledged), keys);
  return 0;
}
