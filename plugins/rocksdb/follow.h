// SPDX-License-Identifier: Apache-2.0 OR MIT
// Databases that go with their directories on the host.
//
// Some programs remove a database by removing its directory by means of their own, which do not reach
// a store: Kafka Streams wipes the state of a task so, and then counts on a database that is empty.
// With FURROW_FOLLOW=1 a database belongs to the directory of the host that has its path, if the
// program made one: removed there, it is removed in the store when a database is opened next.
//
// What belongs together is known by an identity of 16 random bytes. It is in the file
// `.furrow-database` of the host's directory, and is the name of a file in the store's directory
// `/.followed`, which has the machine and both paths. The file in the store is durable before that on
// the host, and is removed after the database. So:
//
// - one in the store without one on the host: the directory was removed (or a crash came between the
//   two, and there is no database yet): the database is removed;
// - one on the host without one in the store: the database was in another store, or was lost with it.
//   What the program keeps beside it (offsets of Kafka's) would not fit: opening it is refused;
// - one of another machine, or a database without any: it belongs to somebody else: refused.
#pragma once

#include <string>

#include "fs.h"

namespace furrow {

// Removes what has lost its directory: before anybody looks into a database.
rocksdb::Status RemoveUnfollowed(StoreFileSystem* fs);

// The same, and then ties the database at `path`, which is about to be
// opened or made, to the host's directory. Without such a directory nothing is done with it.
rocksdb::Status Follow(StoreFileSystem* fs, const std::string& path);

}  // namespace furrow
