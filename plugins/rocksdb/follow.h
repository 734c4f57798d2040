// SPDX-License-Identifier: Apache-2.0 OR MIT
// Databases that follow directories of the host.
//
// Some programs remove a database's directory with system calls of their own, which do not reach a
// store. Kafka Streams wipes the state of a task in this way, and expects the next database there to
// be empty. With FURROW_FOLLOW=1 a database follows the directory of the same path on the host, if the
// program made one: once the directory is gone, the next opening of any database removes the database
// from the store.
//
// An identity of 16 random bytes ties the two together. The marker, the file `.furrow-database` in the
// host's directory, holds the identity. The entry, a file in the store's directory `/.followed`, has
// the identity as its name, and holds the machine, both paths and the host's file system. The entry is
// durable before the marker is written, and the database is removed before the entry. So:
//
// - An entry without its marker: the directory was removed, or a crash came before the marker was
//   written, and then there is no database yet. The database is removed.
// - A marker without its entry: the database was in another store, or was lost with its store. The
//   files that the program keeps on the host, such as Kafka's offsets, describe a database that is not
//   there: opening the database is refused.
// - An entry of another machine or of a file system that is not mounted, or a database without an
//   entry: the database is kept, and opening it is refused.
#pragma once

#include <string>

#include "fs.h"

namespace furrow {

// Removes the databases whose directories are gone. This comes before RocksDB looks into a database.
rocksdb::Status RemoveOrphans(StoreFileSystem* fs);

// Removes them too, and ties the database at `path`, which is about to be opened or made, to the
// host's directory of that path. If the host has no such directory, the database follows nothing.
rocksdb::Status Follow(StoreFileSystem* fs, const std::string& path);

}  // namespace furrow
