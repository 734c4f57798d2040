// SPDX-License-Identifier: Apache-2.0 OR MIT
// Refuses Java virtual machines that a script starts. RocksDB for Java brings a RocksDB of its own,
// whose functions would be taken from the machine's library, which this one is built for: it aborts
// without a reason. They have a plugin of their own (java/loader.c).
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace furrow {
namespace {

// Whether a library of this process is Java's or brings Java's RocksDB. A program that is linked to
// this library knows what it does: only preloaded it is in processes that nobody thought of.
int IsJavas(dl_phdr_info* library, size_t, void*) {
  const char* slash = strrchr(library->dlpi_name, '/');
  const char* name = slash == nullptr ? library->dlpi_name : slash + 1;
  return strncmp(name, "libjli.so", 9) == 0 || strncmp(name, "libjvm.so", 9) == 0 ||
         strncmp(name, "librocksdbjni", 13) == 0;
}

__attribute__((constructor)) void RefuseJava() {
  static const char anchor = 0;
  Dl_info own;
  const char* preloaded = getenv("LD_PRELOAD");
  if (preloaded == nullptr || dladdr(&anchor, &own) == 0 ||
      strstr(preloaded, own.dli_fname) == nullptr || dl_iterate_phdr(IsJavas, nullptr) == 0) {
    return;
  }
  char program[4096] = "this program";
  ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (size > 0) program[size] = '\0';
  fprintf(stderr,
          "furrow: %s: a Java virtual machine, started by another program: give furrow run the "
          "option --java\n",
          program);
  _exit(1);
}

}  // namespace
}  // namespace furrow
