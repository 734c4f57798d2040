/* Furrow's file store for programs in C and C++.
 *
 * Made from crates/capi by its test `header`; what holds for all functions:
 * they answer 0 or a furrow_kind that is not 0, and say why in the furrow_error if one is given.
 * Strings end with a zero and are UTF-8. Buffers are the caller's: none is kept or touched after
 * the function has returned. A handle is closed once, and not used after that. Any thread may call
 * anything at any time. In the child of a fork every function fails with FURROW_FORKED and does
 * nothing. What was appended and not synced is gone when the process ends, however it ends.
 */

#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

// Bytes of a message, its zero at the end included.
#define FURROW_MESSAGE_BYTES 1020

// What went wrong. Numbers are never used again for something else.
typedef enum furrow_kind {
  // Nothing.
  FURROW_OK = 0,
  // There is no such file or directory.
  FURROW_NOT_FOUND = 1,
  // The name exists already.
  FURROW_EXISTS = 2,
  // What must be a directory is none.
  FURROW_NOT_DIRECTORY = 3,
  // What must not be a directory is one.
  FURROW_IS_DIRECTORY = 4,
  // The directory has entries.
  FURROW_NOT_EMPTY = 5,
  // An argument makes no sense.
  FURROW_INVALID = 6,
  // No room, and cleaning makes none.
  FURROW_NO_SPACE = 7,
  // The drive failed; nothing more is written.
  FURROW_IO = 8,
  // Bytes on the drive are not what was written.
  FURROW_CORRUPT = 9,
  // Somebody else uses it.
  FURROW_BUSY = 10,
  // Not offered.
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

// A file that is open. Any thread may read; those that append take turns.
typedef struct furrow_file furrow_file;

// A read that was begun.
typedef struct furrow_read furrow_read;

// A store that is open.
typedef struct furrow_store furrow_store;

// Why a function failed. The caller provides it; a function that succeeds leaves it alone.
typedef struct furrow_error {
  // A `furrow_kind`.
  int32_t kind;
  // A sentence for people.
  char message[FURROW_MESSAGE_BYTES];
} furrow_error;

// Room, in bytes unless said otherwise.
typedef struct furrow_space {
  // What files can hold.
  uint64_t capacity;
  // What they hold.
  uint64_t used;
  // What files can hold besides, by cleaning alone: without what is kept for the output of
  // compactions and for what a database is made of.
  uint64_t available;
  // Zones for content, a number.
  uint64_t zones;
  // Those of them that hold nothing, a number.
  uint64_t free_zones;
  // The most of them that were in use at once since the store was opened, a number.
  uint64_t peak_zones;
  // What a zone holds.
  uint64_t zone_bytes;
} furrow_space;

// Calls that took the engine.
typedef struct furrow_calls {
  // How many.
  uint64_t calls;
  // Those of them that another thread carried out.
  uint64_t hops;
} furrow_calls;

// What a store did since it was opened.
typedef struct furrow_counters {
  // Bytes that were appended.
  uint64_t appended;
  // Bytes that were read.
  uint64_t read;
  // Syncs that were asked for.
  uint64_t syncs;
  // Rounds that made them durable: one flush of the drive each.
  uint64_t rounds;
  // Times the record ring turned.
  uint64_t turns;
  // Zones that cleaning emptied.
  uint64_t cleaned;
  // Bytes that cleaning copied.
  uint64_t copied;
  // Those of them of blob files.
  uint64_t copied_blobs;
  // Those of them of sorted tables.
  uint64_t copied_tables;
  // Zones that were reset.
  uint64_t resets;
  // Extents that were written again because their zone failed.
  uint64_t relocated;
  // Calls that took the engine.
  uint64_t calls;
  // Those of them that another thread carried out.
  uint64_t hops;
  // Those that append or cut.
  struct furrow_calls append;
  // Those that make something durable.
  struct furrow_calls sync;
  // Those that read; reads that were only begun are not counted.
  struct furrow_calls read_calls;
  // Those that open, make and close files.
  struct furrow_calls open;
  // Those of names and directories.
  struct furrow_calls names;
  // Those of threads of low priority, which leave them to others.
  uint64_t handed;
  // Times a writer waited for cleaning to make room.
  uint64_t waits;
  // Nanoseconds of these.
  uint64_t waited;
  // Times there was no room.
  uint64_t refused;
} furrow_counters;

// What is known of a path.
typedef struct furrow_stat {
  // 1 of a directory, 0 of a file.
  int32_t is_directory;
  // Bytes of a file.
  uint64_t size;
  // When a file was written last, seconds since 1970.
  int64_t modified;
} furrow_stat;

// Gets one entry of a directory: its name, whether it is a directory, and a file's bytes.
typedef void (*furrow_each)(void *argument, const char *name, const struct furrow_stat *stat);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens the store on `device`: an emulated drive's image, or `mem:...`, which begins empty. A
// store that this process has open already is shared, with the options it was opened with.
//
// `options` may be null; else options separated by commas: `clean-below=PERCENT` (20), below
// which share of free zones cleaning begins; `policy=NAME` (shared; liza-paper, liza-zenfs, baza,
// generations), which files share zones; `record=FILE`, a file of the host to which all calls are
// recorded, as crates/kv/src/trace.rs describes it (`furrow kv trace`).
int32_t furrow_store_open(const char *device,
                          const char *options_text,
                          struct furrow_store **store,
                          struct furrow_error *error);

// Makes a store on an empty drive, an image of `furrow device create`. Fails with `FURROW_EXISTS`
// if the drive holds something. `label` may be null; at most 63 bytes.
int32_t furrow_store_format(const char *device, const char *label, struct furrow_error *error);

// Leaves a store. The last one to leave it, files included, makes all of it durable and ends it.
int32_t furrow_store_close(struct furrow_store *store, struct furrow_error *error);

// Makes all names durable: what was created, renamed and removed until now.
int32_t furrow_store_sync(const struct furrow_store *store, struct furrow_error *error);

// Makes all names durable, and all files as they are now.
int32_t furrow_store_sync_all(const struct furrow_store *store, struct furrow_error *error);

// Its room.
int32_t furrow_store_space(const struct furrow_store *store,
                           struct furrow_space *space,
                           struct furrow_error *error);

// What it did since it was opened.
int32_t furrow_store_counters(const struct furrow_store *store,
                              struct furrow_counters *counters,
                              struct furrow_error *error);

// Renames a file or a directory; a file that has the new name is removed.
int32_t furrow_rename(const struct furrow_store *store,
                      const char *from,
                      const char *to,
                      struct furrow_error *error);

// Gives a file another name besides.
int32_t furrow_link(const struct furrow_store *store,
                    const char *from,
                    const char *to,
                    struct furrow_error *error);

// Removes a file's name, and the file once nobody has it open.
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

// What is known of a path.
int32_t furrow_stat_path(const struct furrow_store *store,
                         const char *path,
                         struct furrow_stat *stat,
                         struct furrow_error *error);

// Calls `each` for every entry of a directory, names ascending. The store may be used from there.
int32_t furrow_list(const struct furrow_store *store,
                    const char *path,
                    furrow_each each,
                    void *argument,
                    struct furrow_error *error);

// Says to which column family the blob file with this name belongs, or the one that is made by
// this name next: blob files of one family are collected apart from those of others.
int32_t furrow_set_family(const struct furrow_store *store,
                          const char *path,
                          const char *family,
                          struct furrow_error *error);

// The smallest of the numbers of the youngest blob files of the full zones (YBIZ): of the zones
// that have blob files of this family of the database in `directory`. The file with that number
// may be gone, others of the zone are there. `zones` says how many such zones there are; if none,
// `youngest` is 0.
int32_t furrow_smallest_youngest(const struct furrow_store *store,
                                 const char *directory,
                                 const char *family,
                                 uint64_t *youngest,
                                 uint64_t *zones,
                                 struct furrow_error *error);

// Says that nobody reads these bytes of a file again. Until the zones that they are in are cleaned
// they read as they were written, then as zeros, and take no room. Offsets stay. Of a file with
// several names nothing is forgotten. Fails with `FURROW_INVALID` if the file ends before that.
int32_t furrow_forget(const struct furrow_store *store,
                      const char *path,
                      uint64_t offset,
                      uint64_t len,
                      struct furrow_error *error);

// Locks a name against all others in this process that lock it; the drive is locked against other
// processes as long as the store is open. Fails with `FURROW_BUSY` if it is locked.
int32_t furrow_lock(const struct furrow_store *store, const char *path, struct furrow_error *error);

// Gives a lock back.
int32_t furrow_unlock(const struct furrow_store *store,
                      const char *path,
                      struct furrow_error *error);

// Makes an empty file and opens it; a file that has the name is removed. `lifetime` is how long
// it is expected to live, as RocksDB counts: 0 nobody said, 1 no hint, 2 short to 5 extreme.
int32_t furrow_create(const struct furrow_store *store,
                      const char *path,
                      int32_t lifetime,
                      struct furrow_file **file,
                      struct furrow_error *error);

// Opens a file. Its content stays as long as it is open, also when its names are removed.
int32_t furrow_open(const struct furrow_store *store,
                    const char *path,
                    struct furrow_file **file,
                    struct furrow_error *error);

// Appends bytes. They can be read at once, through any handle; they are durable after
// `furrow_file_sync`. With `FURROW_NO_SPACE` none of them was appended.
int32_t furrow_file_append(const struct furrow_file *to,
                           const void *bytes,
                           uintptr_t len,
                           struct furrow_error *error);

// Writes bytes at `offset`, which ends the file there first if it goes on. Fails with
// `FURROW_INVALID` if the file ends before `offset`.
int32_t furrow_file_append_at(const struct furrow_file *to,
                              uint64_t offset,
                              const void *bytes,
                              uintptr_t len,
                              struct furrow_error *error);

// Cuts a file off. Fails with `FURROW_INVALID` if it is not so long.
int32_t furrow_file_truncate(const struct furrow_file *of,
                             uint64_t size,
                             struct furrow_error *error);

// Makes a file durable as it is now, and all names.
int32_t furrow_file_sync(const struct furrow_file *of, struct furrow_error *error);

// Tells a recording of the store that a buffer was handed on (RocksDB's `Flush`), and does nothing
// else: what was appended can be read already, and is durable after `furrow_file_sync` only.
int32_t furrow_file_flush(const struct furrow_file *of, struct furrow_error *error);

// Tells a recording of the store that a part of the file was to be written out soon (RocksDB's
// `RangeSync`), and does nothing else: a store writes out what is appended without being asked.
int32_t furrow_file_range_sync(const struct furrow_file *of,
                               uint64_t offset,
                               uint64_t len,
                               struct furrow_error *error);

// Bytes of a file.
int32_t furrow_file_size(const struct furrow_file *of, uint64_t *size, struct furrow_error *error);

// A number that no other file of the store ever has.
int32_t furrow_file_id(const struct furrow_file *of, uint64_t *id, struct furrow_error *error);

// Says how long a file is expected to live, as `furrow_create`. What was placed already stays.
int32_t furrow_file_set_lifetime(const struct furrow_file *of,
                                 int32_t lifetime,
                                 struct furrow_error *error);

// Says who writes a file: `claim` is 0 for anyone, 1 for a compaction, 2 for a flush of a log. The
// last two may have room that is kept for them, so that they can end, and what they took the place
// of can be removed, when others find none.
int32_t furrow_file_set_claim(const struct furrow_file *of,
                              int32_t claim,
                              struct furrow_error *error);

// Reads up to `len` bytes from `offset` on; `got` says how many: fewer only at the file's end.
int32_t furrow_file_read(const struct furrow_file *of,
                         uint64_t offset,
                         void *buffer,
                         uintptr_t len,
                         uintptr_t *got,
                         struct furrow_error *error);

// Begins to read. The answer is fetched by `furrow_read_wait`; the read, fetched or not, is ended
// by `furrow_read_end`. Neither the file nor a buffer is used after this returned, so that both
// may be gone by then.
int32_t furrow_read_begin(const struct furrow_file *of,
                          uint64_t offset,
                          uintptr_t len,
                          struct furrow_read **read,
                          struct furrow_error *error);

// Waits for a read and copies what it got, `len` bytes at most, to `buffer`. Once only.
int32_t furrow_read_wait(const struct furrow_read *read,
                         void *buffer,
                         uintptr_t len,
                         uintptr_t *got,
                         struct furrow_error *error);

// Ends a read, also one that was not waited for.
void furrow_read_end(struct furrow_read *read);

// Closes a file. What of it was not synced goes on its way to the drive, but is not durable.
int32_t furrow_file_close(struct furrow_file *closed, struct furrow_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus
