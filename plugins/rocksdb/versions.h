// SPDX-License-Identifier: Apache-2.0 OR MIT
// Differences between the versions of RocksDB that the plugin is built for.
#pragma once

#include <memory>

#include "rocksdb/db.h"
#include "rocksdb/file_system.h"
#include "rocksdb/version.h"

// The newest version that the tests ran with (scripts/rocksdb.sh newer); docs/use/rocksdb.md lists all.
#define FURROW_TRIED_MAJOR 9
#define FURROW_TRIED_MINOR 11
#if ROCKSDB_MAJOR > FURROW_TRIED_MAJOR || \
    (ROCKSDB_MAJOR == FURROW_TRIED_MAJOR && ROCKSDB_MINOR > FURROW_TRIED_MINOR)
#define FURROW_UNTRIED 1
#endif

namespace furrow {

// The type in which DB::Open and its variants return a database.
#if ROCKSDB_MAJOR > 9 || (ROCKSDB_MAJOR == 9 && ROCKSDB_MINOR >= 11)
using Opened = std::unique_ptr<rocksdb::DB>;
#else
using Opened = rocksdb::DB*;
#endif

// The callback of FSRandomAccessFile::ReadAsync: since 9 it may change the request.
template <typename Method>
struct CallbackOf;
template <typename Callback>
struct CallbackOf<rocksdb::IOStatus (rocksdb::FSRandomAccessFile::*)(
    rocksdb::FSReadRequest&, const rocksdb::IOOptions&, Callback, void*, void**,
    rocksdb::IOHandleDeleter*, rocksdb::IODebugContext*)> {
  using type = Callback;
};
using ReadCallback = CallbackOf<decltype(&rocksdb::FSRandomAccessFile::ReadAsync)>::type;

}  // namespace furrow
