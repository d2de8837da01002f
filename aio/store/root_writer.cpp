#include "aio/store/root_writer.h"

#include <cstring>
#include <utility>

#include "tiering/check.h"

namespace penstock::aio {

RootWriter::~RootWriter() { CHECK(!busy(), "a commit is under way"); }

void RootWriter::write(const Commit& commit, CommitBarriers barriers, std::function<void(Status)> done) {
  CHECK(!busy(), "one commit at a time");
  done_ = std::move(done);
  barriers_ = std::move(barriers);
  outcome_ = Status();

  const uint64_t page_bytes = layout_.table().page_bytes();
  bytes_ = Buffer::on_heap(commit.pages.size() * page_bytes + kRecordBytes);
  page_offsets_.clear();
  for (size_t i = 0; i < commit.pages.size(); ++i) {
    const PlacedPage& placed = commit.pages[i];
    std::memcpy(bytes_.data() + i * page_bytes, placed.bytes.data(), page_bytes);
    page_offsets_.push_back(layout_.page_offset(placed.number, placed.slot));
  }
  std::vector<std::byte> root = commit.root.encode();
  std::memcpy(bytes_.bytes().last(kRecordBytes).data(), root.data(), kRecordBytes);
  root_offset_ = StoreLayout::root_offset(commit.root.sequence % 2);
  write_pages();
}

template <typename Request>
void RootWriter::on_every_drive(Request request, Stage next, Stage refused) {
  requests_left_ = files_.size();
  for (const std::unique_ptr<File>& file : files_) {
    request(*file).then([this, next, refused](Result<Lease> ended) {
      if (!ended.ok() && outcome_.ok()) outcome_ = ended.status();
      if (--requests_left_ == 0) (this->*(outcome_.ok() ? next : refused))();
    });
  }
}

void RootWriter::write_pages() {
  if (page_offsets_.empty()) return flush_data();
  const uint64_t page_bytes = layout_.table().page_bytes();
  auto write_to = [&](const File& file) {
    std::vector<Extent> extents;
    for (size_t i = 0; i < page_offsets_.size(); ++i) {
      bool goes_on = i > 0 && page_offsets_[i] == page_offsets_[i - 1] + page_bytes;
      if (goes_on) {
        extents.back().length_bytes += page_bytes;
      } else {
        extents.push_back({&file, page_offsets_[i], i * page_bytes, page_bytes});
      }
    }
    return engine_.write(extents, bytes_.lend(), IoEngine::Deadline{0});
  };
  on_every_drive(write_to, &RootWriter::flush_data, &RootWriter::data_is_flushed);
}

void RootWriter::flush_data() {
  on_every_drive([&](const File& file) { return engine_.flush(file); }, &RootWriter::data_is_flushed,
                 &RootWriter::data_is_flushed);
}

void RootWriter::data_is_flushed() { pass(barriers_.data_flushed, &RootWriter::write_root); }

void RootWriter::write_root() {
  auto write_to = [&](const File& file) {
    return engine_.write(file, root_offset_, bytes_.lend(bytes_.size_bytes() - kRecordBytes, kRecordBytes),
                         IoEngine::Deadline{0});
  };
  on_every_drive(write_to, &RootWriter::flush_root, &RootWriter::root_is_flushed);
}

void RootWriter::flush_root() {
  on_every_drive([&](const File& file) { return engine_.flush(file); }, &RootWriter::root_is_flushed,
                 &RootWriter::root_is_flushed);
}

void RootWriter::root_is_flushed() { pass(barriers_.root_flushed, &RootWriter::finish); }

void RootWriter::pass(const CommitBarriers::Barrier& barrier, Stage next) {
  auto go_on = [this, next](Status verdict) {
    outcome_ = std::move(verdict);
    (this->*(outcome_.ok() ? next : &RootWriter::finish))();
  };
  if (barrier) {
    barrier(outcome_, go_on);
  } else {
    go_on(outcome_);
  }
}

void RootWriter::finish() {
  // The next commit may begin inside `done`.
  std::exchange(done_, nullptr)(outcome_);
}

}  // namespace penstock::aio
