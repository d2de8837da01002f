// RootWriter carries out the protocol that makes a step durable, on all drives of a store at once:
//
//   pages of the table and of the state, flush, root, flush
//
// Each stage begins when every request of the one before has ended well on every drive; the first failure ends it all.
// It goes on inside engine.poll(); nothing blocks.
//
// Used by the engine's thread. REQUIRES: not busy when destroyed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "aio/store/commit_barriers.h"
#include "aio/store/store_io.h"
#include "tiering/io_engine.h"
#include "tiering/store/root_record.h"
#include "tiering/store/store_layout.h"
#include "tiering/store/table_page.h"

namespace penstock::aio {

class RootWriter {
 public:
  struct PlacedPage {
    uint32_t number = 0;
    uint32_t slot = 0;
    std::vector<std::byte> bytes;
  };
  struct Commit {
    std::vector<PlacedPage> pages;  // those that have changed
    RootRecord root;
  };

  // All outlive the writer.
  RootWriter(IoEngine& engine, const StoreFiles& files, const StoreLayout& layout)
      : engine_(engine), files_(files), layout_(layout) {}
  ~RootWriter();

  // REQUIRES: every write that the commit makes durable has ended; not busy.
  void write(const Commit& commit, CommitBarriers barriers, std::function<void(Status)> done);
  bool busy() const { return static_cast<bool>(done_); }

 private:
  using Stage = void (RootWriter::*)();

  void write_pages();
  void flush_data();
  void data_is_flushed();
  void write_root();
  void flush_root();
  void root_is_flushed();
  void finish();

  // One request on every drive; then `next`, or `refused` if one of them failed.
  template <typename Request>
  void on_every_drive(Request request, Stage next, Stage refused);
  // Other ranks wait at their barriers, so a failure goes through them too.
  void pass(const CommitBarriers::Barrier& barrier, Stage next);

  IoEngine& engine_;
  const StoreFiles& files_;
  const StoreLayout& layout_;

  Buffer bytes_;  // the pages, then the root
  std::vector<uint64_t> page_offsets_;
  uint64_t root_offset_ = 0;
  CommitBarriers barriers_;
  std::function<void(Status)> done_;
  size_t requests_left_ = 0;
  Status outcome_;
};

}  // namespace penstock::aio
