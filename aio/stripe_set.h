// StripeSet: several files as one run of bytes, of which each drive holds the share that it can move in the same time
// as the others theirs. Pure arithmetic; moves nothing itself.
//
// The bytes are laid out in rows. A row has one part for each drive, as long as its share, and the parts of a drive lie
// one after another in its file. So every run as long as a row, wherever it begins, has exactly its share on every
// drive (it is the row, turned), and each drive's part of a row is one extent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tiering/io_engine.h"

namespace penstock::aio {

// What a drive was measured to do alone.
struct DriveRate {
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
};

// Shares, adding up to one, with which all drives are done at the same time with a work of which `read_share` is
// reading: share ~ 1 / (read_share / read rate + write share / write rate).
std::vector<double> shares_by_rate(std::span<const DriveRate> rates, double read_share);

class StripeSet {
 public:
  static constexpr uint64_t kRowBytes = 4 * 1024 * 1024;

  // Cuts rows of `row_bytes` by the shares, to kSegmentAlignmentBytes; no drive is left without a part.
  // REQUIRES: shares are positive, and there are not more of them than a row has aligned parts.
  explicit StripeSet(std::span<const double> shares, uint64_t row_bytes = kRowBytes);

  size_t drives() const { return part_begins_.size() - 1; }
  uint64_t row_bytes() const { return part_begins_.back(); }
  uint64_t part_bytes(size_t drive) const { return part_begins_[drive + 1] - part_begins_[drive]; }

  // How long the file of `drive` must be for a set of `bytes`.
  uint64_t file_bytes(size_t drive, uint64_t bytes) const;

  // Appends the extents of [offset, offset + length) to `extents`, lying in the lease from `lease_offset_bytes` on. One
  // file for each drive, in order. REQUIRES: offset and length are multiples of kSegmentAlignmentBytes.
  void map(std::span<const File* const> files, uint64_t offset_bytes, uint64_t length_bytes,
           uint64_t lease_offset_bytes, std::vector<Extent>& extents) const;

 private:
  std::vector<uint64_t> part_begins_;  // in the row; the last one is its end
};

}  // namespace penstock::aio
