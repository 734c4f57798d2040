// SPDX-License-Identifier: Apache-2.0 OR MIT
// Gives RocksDB for Java (the jar rocksdbjni) a store: preloaded into a Java virtual machine, this
// library loads the plugin in the place of the jar's own library.
//
// The jar brings a whole RocksDB in one library, unpacks it into a temporary file and has the
// virtual machine load that. The plugin for Java (scripts/rocksdb-jni.sh) is linked to a copy of the
// same library: loaded in its place, it comes before the copy where functions are looked up, so
// RocksDB's own calls of FileSystem::Default and DB::Open reach the plugin (open.cc), and the
// virtual machine finds its functions in the copy. Nothing here needs RocksDB: whatever else the
// program starts has this library too.
//
// FURROW_JAVA=DIRECTORY   has a directory for each build of the plugin, ARTIFACT-VERSION, with
//                         librocksdbjni.so (the plugin) and jar.so (the jar's library)
//
// The loader refuses any other library that contains a RocksDB, because that RocksDB would put its
// databases on the host.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef void* Open(const char* file, int flags);

static Open* Host(void) {
  static Open* host;
  if (host == NULL) host = (Open*)dlsym(RTLD_NEXT, "dlopen");
  return host;
}

static const char* Setting(const char* name) {
  const char* value = getenv(name);
  return value != NULL && *value != '\0' ? value : NULL;
}

static const char* LastPart(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash == NULL ? path : slash + 1;
}

// A file in memory; `bytes` is NULL if it cannot be read.
struct File {
  void* bytes;
  size_t size;
};

static struct File Map(const char* path) {
  struct File file = {NULL, 0};
  struct stat found;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return file;
  if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0) {
    void* bytes = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes != MAP_FAILED) file = (struct File){bytes, (size_t)found.st_size};
  }
  close(fd);
  return file;
}

static void Unmap(struct File file) {
  if (file.bytes != NULL) munmap(file.bytes, file.size);
}

// Whether the plugin in `directory` was built for the library `wanted`; -1 if there is no plugin.
static int IsFor(const char* directory, struct File wanted) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s/jar.so", directory) >= (int)sizeof path) return -1;
  struct File jar = Map(path);
  if (jar.bytes == NULL) return -1;
  int same = wanted.bytes != NULL && jar.size == wanted.size &&
             memcmp(jar.bytes, wanted.bytes, jar.size) == 0;
  Unmap(jar);
  return same;
}

// Finds the plugin for the library in `file`: its path in `plugin`. If there is none, `built` has the
// names of those there are.
static int Find(const char* file, char* plugin, char* built, size_t room) {
  const char* all = Setting("FURROW_JAVA");
  DIR* list = all == NULL ? NULL : opendir(all);
  struct File wanted = Map(file);
  int found = 0;
  built[0] = '\0';
  for (struct dirent* each; !found && list != NULL && (each = readdir(list)) != NULL;) {
    char directory[PATH_MAX];
    if (each->d_name[0] == '.' ||
        snprintf(directory, sizeof directory, "%s/%s", all, each->d_name) >=
            (int)sizeof directory) {
      continue;
    }
    int is = IsFor(directory, wanted);
    if (is == 1) {
      found = snprintf(plugin, PATH_MAX, "%s/librocksdbjni.so", directory) < PATH_MAX;
    } else if (is == 0 && strlen(built) + strlen(each->d_name) + 3 < room) {
      if (built[0] != '\0') strcat(built, ", ");
      strcat(built, each->d_name);
    }
  }
  Unmap(wanted);
  if (list != NULL) closedir(list);
  return found;
}

// The version of RocksDB in a loaded library, as its function RocksDB.version tells it.
static const char* Version(void* library, char* text, size_t room) {
  int (*version)(void*, void*);
  *(void**)&version = library == NULL ? NULL : dlsym(library, "Java_org_rocksdb_RocksDB_version");
  if (version == NULL) return "of an unknown version";
  int number = version(NULL, NULL);
  snprintf(text, room, "%d.%d.%d", number >> 16, number >> 8 & 0xff, number & 0xff);
  return text;
}

// Says why `file` is not loaded, and makes loading fail.
static void* Refuse(const char* file, void* library, const char* built) {
  char version[64];
  fprintf(stderr,
          "furrow: %s: RocksDB for Java %s: the plugin is not built for this library (built: %s): "
          "make rocksdb-jni VERSION=... builds it, with the version in the name of the program's "
          "rocksdbjni jar\n",
          file, Version(library, version, sizeof version), built[0] == '\0' ? "for none" : built);
  if (library != NULL) dlclose(library);
  // The reason is in the name, so that it is in the error of the virtual machine too.
  return Host()("/furrow: the RocksDB plugin is not built for this program's rocksdbjni: make "
                "rocksdb-jni",
                RTLD_LAZY);
}

// Whether a library that was loaded from `file` has a RocksDB that files of the host serve.
static int HasOther(void* library, const char* file) {
  void* theirs = dlsym(library, "_ZN7rocksdb10FileSystem7DefaultEv");
  Dl_info where;
  if (theirs == NULL || dladdr(theirs, &where) == 0) return 0;
  // Looked up from the library, its own function comes first: the plugin's is another.
  char real[PATH_MAX], loaded[PATH_MAX];
  return realpath(where.dli_fname, loaded) != NULL && realpath(file, real) != NULL &&
         strcmp(loaded, real) == 0;
}

// Loads the library in `file`, or the plugin in its place.
__attribute__((noinline)) static void* Load(const char* file, int flags) {
  char plugin[PATH_MAX], built[1024];
  if (strncmp(LastPart(file), "librocksdbjni", 13) == 0) {
    const char* ours = Setting("FURROW_JAVA");
    size_t size = ours == NULL ? 0 : strlen(ours);
    if (size > 0 && strncmp(file, ours, size) == 0 && file[size] == '/') return Host()(file, flags);
    if (Find(file, plugin, built, sizeof built)) return Host()(plugin, flags);
    return Refuse(file, Host()(file, RTLD_LAZY), built);
  }
  void* library = Host()(file, flags);
  if (library == NULL || !HasOther(library, file)) return library;
  Find(file, plugin, built, sizeof built);
  return Refuse(file, library, built);
}

void* dlopen(const char* file, int flags) {
  Open* host = Host();
  // Names without a slash are looked up by the caller's own rules: as the last call of this
  // function it has the same caller.
  if (file == NULL || strchr(file, '/') == NULL || Setting("FURROW_URI") == NULL) {
    return host(file, flags);
  }
  return Load(file, flags);
}

static int IsRocksDb(struct dl_phdr_info* library, size_t size, void* unused) {
  (void)size, (void)unused;
  return strncmp(LastPart(library->dlpi_name), "librocksdb.so", 13) == 0;
}

// Refuses a program that is linked to RocksDB and that the virtual machine started, or a script that
// also starts the virtual machine: the program would put its databases on the host.
__attribute__((constructor)) static void RefuseOthers(void) {
  if (Setting("FURROW_URI") == NULL || dl_iterate_phdr(IsRocksDb, NULL) == 0) return;
  char program[PATH_MAX] = "this program";
  ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
  if (size > 0) program[size] = '\0';
  fprintf(stderr,
          "furrow: %s: linked to librocksdb, and started by a program whose Java virtual machine "
          "uses the store: run it by a furrow run of its own\n",
          program);
  _exit(1);
}
