/* Furrow's file store for programs in C and C++.
 *
 * Made from crates/capi by its test `header`. Rules for all functions:
 * They return 0 or another furrow_kind, and describe the error in the furrow_error if one is given.
 * Strings end with a zero and are UTF-8. Buffers belong to the caller: none is kept or used after
 * the function has returned. A handle is closed once, and not used after that. Any thread may call
 * any function at any time. In the child of a fork every function fails with FURROW_FORKED and does
 * nothing. Appended and unsynced bytes are lost when the process ends, in whatever way.
 */

#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

// Bytes of a message, including the zero at its end.
#define FURROW_MESSAGE_BYTES 1020

// Kinds of errors. A number is never reused for another error.
typedef enum furrow_kind {
  // No error.
  FURROW_OK = 0,
  // There is no such file or directory.
  FURROW_NOT_FOUND = 1,
  // The name exists already.
  FURROW_EXISTS = 2,
  // A path component that must be a directory is not a directory.
  FURROW_NOT_DIRECTORY = 3,
  // A path that must not be a directory is a directory.
  FURROW_IS_DIRECTORY = 4,
  // The directory has entries.
  FURROW_NOT_EMPTY = 5,
  // An argument is invalid.
  FURROW_INVALID = 6,
  // There is no space, and cleaning can free none.
  FURROW_NO_SPACE = 7,
  // The drive failed; nothing more is written.
  FURROW_IO = 8,
  // Bytes on the drive differ from those that were written.
  FURROW_CORRUPT = 9,
  // In use by another program or caller.
  FURROW_BUSY = 10,
  // Not supported.
  FURROW_UNSUPPORTED = 11,
  // The drive holds no store, or one of a newer version.
  FURROW_WRONG_FORMAT = 12,
  // The process was forked; the store is the parent's.
  FURROW_FORKED = 13,
  // Nothing may be written.
  FURROW_READ_ONLY = 14,
  // A defect of this library; the store has stopped.
  FURROW_DEFECT = 15,
} furrow_kind;

// An open file. Any thread may read; threads that append take turns.
typedef struct furrow_file furrow_file;

// A read that was started.
typedef struct furrow_read furrow_read;

// An open store.
typedef struct furrow_store furrow_store;

// The error of a function that failed. The caller provides it; a function that succeeds does not
// change it.
typedef struct furrow_error {
  // A `furrow_kind`.
  int32_t kind;
  // The error, as a sentence.
  char message[FURROW_MESSAGE_BYTES];
} furrow_error;

// Space, in bytes unless stated otherwise.
typedef struct furrow_space {
  // Number of bytes that files can hold.
  uint64_t capacity;
  // Number of bytes that files hold.
  uint64_t used;
  // Number of further bytes that files can hold without removals. Excludes the reserves for
  // compactions and for the database's own state.
  uint64_t available;
  // Number of zones for content.
  uint64_t zones;
  // Number of zones for content that hold nothing.
  uint64_t free_zones;
  // Maximum number of zones for content in use at one time since the store was opened.
  uint64_t peak_zones;
  // Capacity of a zone.
  uint64_t zone_bytes;
} furrow_space;

// Calls that used the engine.
typedef struct furrow_calls {
  // Number of calls.
  uint64_t calls;
  // Number of calls that another thread carried out.
  uint64_t hops;
} furrow_calls;

// Counts of a store's work since it was opened.
typedef struct furrow_counters {
  // Bytes that were appended.
  uint64_t appended;
  // Bytes that were read.
  uint64_t read;
  // Number of syncs.
  uint64_t syncs;
  // Group commits, with one flush of the drive each.
  uint64_t rounds;
  // Number of times that the record ring turned.
  uint64_t turns;
  // Zones that cleaning emptied.
  uint64_t cleaned;
  // Bytes that cleaning copied.
  uint64_t copied;
  // Bytes of blob files that cleaning copied.
  uint64_t copied_blobs;
  // Bytes of sorted tables that cleaning copied.
  uint64_t copied_tables;
  // Zones that were reset.
  uint64_t resets;
  // Extents that were written elsewhere because their zone failed.
  uint64_t relocated;
  // Calls that used the engine.
  uint64_t calls;
  // Number of calls that another thread carried out.
  uint64_t hops;
  // Calls that append or truncate.
  struct furrow_calls append;
  // Calls that make files or names durable.
  struct furrow_calls sync;
  // Calls that read; reads that were started without waiting are not counted.
  struct furrow_calls read_calls;
  // Calls that open, create and close files.
  struct furrow_calls open;
  // Calls on names and directories.
  struct furrow_calls names;
  // Calls that low-priority threads handed to other threads.
  uint64_t handed;
  // Number of times that a writer waited for cleaning to free space.
  uint64_t waits;
  // Nanoseconds that writers waited for cleaning to free space.
  uint64_t waited;
  // Number of requests that were refused because there was no space.
  uint64_t refused;
} furrow_counters;

// Attributes of a path.
typedef struct furrow_stat {
  // 1 for a directory, 0 for a file.
  int32_t is_directory;
  // Size of a file in bytes.
  uint64_t size;
  // Time of a file's last write, seconds since 1970.
  int64_t modified;
} furrow_stat;

// Receives one entry of a directory: name, whether it is a directory, and a file's size.
typedef void (*furrow_each)(void *argument, const char *name, const struct furrow_stat *stat);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens the store on `device`: the image of an emulated drive, or `mem:...`, which begins empty. A
// store that this process has open already is shared, with the options it was opened with.
//
// `options` may be null, or options separated by commas: `clean-below=PERCENT` (20), the share of
// free zones below which cleaning begins; `policy=NAME` (baza; shared, liza-paper, liza-zenfs,
// generations), which files share zones; `record=FILE`, a file of the host in which all calls are
// recorded in the format of crates/kv/src/trace.rs (`furrow kv trace`). With `ro` alone the store
// is only read, in its present state: from its drive, which no program can then open for writing,
// or through the program that uses it, which keeps working. Functions that would change it fail
// with `FURROW_READ_ONLY`.
int32_t furrow_store_open(const char *device,
                          const char *options_text,
                          struct furrow_store **store,
                          struct furrow_error *error);

// Makes a store on an empty drive, an image of `furrow device create`. Fails with `FURROW_EXISTS`
// if the drive holds data. `label` may be null; it has at most 63 bytes.
int32_t furrow_store_format(const char *device, const char *label, struct furrow_error *error);

// Closes a store. When the last user closes it (open files count as users), it is made durable
// and ends.
int32_t furrow_store_close(struct furrow_store *store, struct furrow_error *error);

// Makes all names durable: everything created, renamed and removed until now.
int32_t furrow_store_sync(const struct furrow_store *store, struct furrow_error *error);

// Makes all names durable, and all files in their present state.
int32_t furrow_store_sync_all(const struct furrow_store *store, struct furrow_error *error);

// Returns the space of a store.
int32_t furrow_store_space(const struct furrow_store *store,
                           struct furrow_space *space,
                           struct furrow_error *error);

// Returns the counts of a store's work since it was opened.
int32_t furrow_store_counters(const struct furrow_store *store,
                              struct furrow_counters *counters,
                              struct furrow_error *error);

// Renames a file or a directory; a file that has the new name is removed.
int32_t furrow_rename(const struct furrow_store *store,
                      const char *from,
                      const char *to,
                      struct furrow_error *error);

// Gives a file another name.
int32_t furrow_link(const struct furrow_store *store,
                    const char *from,
                    const char *to,
                    struct furrow_error *error);

// Removes a file's name; the file itself is dropped once no handle has it open.
int32_t furrow_remove(const struct furrow_store *store,
                      const char *path,
                      struct furrow_error *error);

// Makes a directory.
int32_t furrow_make_directory(const struct furrow_store *store,
                              const char *path,
                              struct furrow_error *error);

// Removes an empty directory.
int32_t furrow_remove_directory(const struct furrow_store *store,
                                const char *path,
                                struct furrow_error *error);

// Information about a path.
int32_t furrow_stat_path(const struct furrow_store *store,
                         const char *path,
                         struct furrow_stat *stat,
                         struct furrow_error *error);

// Calls `each` for every entry of a directory, in order of names. `each` may use the store.
int32_t furrow_list(const struct furrow_store *store,
                    const char *path,
                    furrow_each each,
                    void *argument,
                    struct furrow_error *error);

// States the column family of the blob file with this name, or of the next file created with this
// name: blob files of one family are collected apart from those of others.
int32_t furrow_set_family(const struct furrow_store *store,
                          const char *path,
                          const char *family,
                          struct furrow_error *error);

// For the family of the database in `directory`: the smallest of the numbers of the youngest blob
// files, one for each full zone with blob files of the family (YBIZ). The file with that number
// may be gone while other files of the zone exist. `zones` is the number of such zones; if it is
// 0, so is `youngest`.
int32_t furrow_smallest_youngest(const struct furrow_store *store,
                                 const char *directory,
                                 const char *family,
                                 uint64_t *youngest,
                                 uint64_t *zones,
                                 struct furrow_error *error);

// States that these bytes of a file will not be read again. Until their zones are cleaned they
// read as they were written, then as zeros, and take no space. Offsets do not change. For a file
// with several names this does nothing. Fails with `FURROW_INVALID` if the range goes beyond the
// file's end.
int32_t furrow_forget(const struct furrow_store *store,
                      const char *path,
                      uint64_t offset,
                      uint64_t len,
                      struct furrow_error *error);

// Locks a name against other callers in this process. Other processes cannot open the drive as
// long as the store is open. Fails with `FURROW_BUSY` if the name is locked.
int32_t furrow_lock(const struct furrow_store *store, const char *path, struct furrow_error *error);

// Releases a lock.
int32_t furrow_unlock(const struct furrow_store *store,
                      const char *path,
                      struct furrow_error *error);

// Creates an empty file and opens it; a file with that name is removed. `lifetime` is the expected
// lifetime in RocksDB's numbers: 0 not set, 1 no hint, 2 short to 5 extreme.
int32_t furrow_create(const struct furrow_store *store,
                      const char *path,
                      int32_t lifetime,
                      struct furrow_file **file,
                      struct furrow_error *error);

// Opens a file. Its content stays as long as it is open, even if its names are removed.
int32_t furrow_open(const struct furrow_store *store,
                    const char *path,
                    struct furrow_file **file,
                    struct furrow_error *error);

// Appends bytes. They can be read at once, through any handle; they are durable after
// `furrow_file_sync`. If it fails with `FURROW_NO_SPACE`, no byte was appended.
int32_t furrow_file_append(const struct furrow_file *to,
                           const void *bytes,
                           uintptr_t len,
                           struct furrow_error *error);

// Writes bytes at `offset`; if the file is longer, it is truncated there first. Fails with
// `FURROW_INVALID` if the file ends before `offset`.
int32_t furrow_file_append_at(const struct furrow_file *to,
                              uint64_t offset,
                              const void *bytes,
                              uintptr_t len,
                              struct furrow_error *error);

// Truncates a file. Fails with `FURROW_INVALID` if it is shorter.
int32_t furrow_file_truncate(const struct furrow_file *of,
                             uint64_t size,
                             struct furrow_error *error);

// Makes a file in its present state and all names durable.
int32_t furrow_file_sync(const struct furrow_file *of, struct furrow_error *error);

// Adds to a recording of the store that a buffer was flushed (RocksDB's `Flush`), and does nothing
// else: appended bytes can be read already, and are durable only after `furrow_file_sync`.
int32_t furrow_file_flush(const struct furrow_file *of, struct furrow_error *error);

// Adds to a recording of the store that writeback of a part of the file was requested (RocksDB's
// `RangeSync`), and does nothing else: a store begins to write appended bytes without being asked.
int32_t furrow_file_range_sync(const struct furrow_file *of,
                               uint64_t offset,
                               uint64_t len,
                               struct furrow_error *error);

// The size of a file in bytes.
int32_t furrow_file_size(const struct furrow_file *of, uint64_t *size, struct furrow_error *error);

// A number that no other file of the store ever has.
int32_t furrow_file_id(const struct furrow_file *of, uint64_t *id, struct furrow_error *error);

// Sets the expected lifetime of a file, as in `furrow_create`. Placed blocks stay where they are.
int32_t furrow_file_set_lifetime(const struct furrow_file *of,
                                 int32_t lifetime,
                                 struct furrow_error *error);

// States who writes a file: `claim` is 0 for anyone, 1 for a compaction, 2 for a flush of a log.
// The last two may use reserved space, so that they can complete, and the files they replace can
// be removed, when others find no space.
int32_t furrow_file_set_claim(const struct furrow_file *of,
                              int32_t claim,
                              struct furrow_error *error);

// Reads `len` bytes from `offset` on; `got` gets the number of bytes read, which is less only at
// the file's end.
int32_t furrow_file_read(const struct furrow_file *of,
                         uint64_t offset,
                         void *buffer,
                         uintptr_t len,
                         uintptr_t *got,
                         struct furrow_error *error);

// Starts a read. `furrow_read_wait` returns its result; `furrow_read_end` ends the read, whether
// it was waited for or not. The file and buffers are not used after this returns, so they may be
// closed or freed.
int32_t furrow_read_begin(const struct furrow_file *of,
                          uint64_t offset,
                          uintptr_t len,
                          struct furrow_read **read,
                          struct furrow_error *error);

// Waits for a read and copies its bytes, at most `len`, to `buffer`. May be called once.
int32_t furrow_read_wait(const struct furrow_read *read,
                         void *buffer,
                         uintptr_t len,
                         uintptr_t *got,
                         struct furrow_error *error);

// Ends a read, even one that was not waited for.
void furrow_read_end(struct furrow_read *read);

// Closes a file. Unsynced content is sent to the drive, but is not durable.
int32_t furrow_file_close(struct furrow_file *closed, struct furrow_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
