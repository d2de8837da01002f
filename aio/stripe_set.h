// StripeSet presents several files, one for each drive, as one sequence of bytes. Each drive holds a share, chosen so
// that all drives move their shares in the same time. Pure arithmetic: it moves nothing itself.
//
// The bytes are laid out in rows. A row has one part for each drive, as long as the drive's share, and the parts of a
// drive follow one another in its file. So any range as long as a row, wherever it begins, has exactly that share on
// every drive, and each drive's part of a row is one extent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tiering/io_engine.h"

namespace penstock::aio {

class StripeSet {
 public:
  static constexpr uint64_t kRowBytes = 4 * 1024 * 1024;

  // Divides rows of `row_bytes` by the shares, rounded to kAlignmentBytes. Every drive gets a part.
  // REQUIRES: shares are positive, and a row has at least one aligned part for each.
  explicit StripeSet(std::span<const double> shares, uint64_t row_bytes = kRowBytes);

  size_t drives() const { return part_begins_.size() - 1; }
  uint64_t row_bytes() const { return part_begins_.back(); }
  uint64_t part_bytes(size_t drive) const { return part_begins_[drive + 1] - part_begins_[drive]; }

  // How long the file of `drive` must be for a set of `bytes`.
  uint64_t file_bytes(size_t drive, uint64_t bytes) const;

  // Appends the extents of [offset, offset + length) to `extents`. In the lease they begin at `lease_offset_bytes`.
  // `files` has one file for each drive, in order. REQUIRES: offset and length are multiples of kAlignmentBytes.
  void map(std::span<const File* const> files, uint64_t offset_bytes, uint64_t length_bytes,
           uint64_t lease_offset_bytes, std::vector<Extent>& extents) const;

 private:
  std::vector<uint64_t> part_begins_;  // within the row; the last is its end
};

}  // namespace penstock::aio
