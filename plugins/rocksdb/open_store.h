// SPDX-License-Identifier: Apache-2.0 OR MIT
// A store that this process has open. When the process ends by exit(), its writes are made durable;
// its figures go to the file that FURROW_REPORT names.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "fs.h"
#include "furrow.h"

namespace furrow {

class OpenStore {
 public:
  // Opens the store of the URI; returns a `furrow_kind`. A drive in memory stays until the process
  // ends.
  static int Open(const Uri& uri, std::shared_ptr<OpenStore>* result, furrow_error* error);
  // Closes it: if nothing else in this process uses the store, another process can have the drive.
  ~OpenStore();
  OpenStore(const OpenStore&) = delete;
  OpenStore& operator=(const OpenStore&) = delete;

  furrow_store* get() const { return store_; }

  // Makes everything durable and reports, with what was done the earlier times it was open;
  // `closes`: this time is one of these from now on.
  void End(bool closes) const;

 private:
  OpenStore(furrow_store* store, std::string uri) : store_(store), uri_(std::move(uri)) {}

  furrow_store* store_;
  std::string uri_;
};

}  // namespace furrow
