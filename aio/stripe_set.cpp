#include "aio/stripe_set.h"

#include <algorithm>
#include <numeric>

#include "tiering/check.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kUnit = kAlignmentBytes;

// Divides `units` by the shares: whole units, at least one for each share. Rounds down, and gives the rest to the
// shares that lost most by rounding.
std::vector<uint64_t> apportion(std::span<const double> shares, uint64_t units) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<uint64_t> parts;
  uint64_t given = 0;
  for (double share : shares) {
    CHECK(share > 0, "share ", share, ", a positive number expected");
    parts.push_back(std::max<uint64_t>(1, static_cast<uint64_t>(share / sum * static_cast<double>(units))));
    given += parts.back();
  }
  const auto missing = [&](size_t i) {
    return shares[i] / sum * static_cast<double>(units) - static_cast<double>(parts[i]);
  };
  const auto most_missing = [&] {
    size_t most = 0;
    for (size_t i = 1; i < parts.size(); ++i) {
      if (missing(i) > missing(most)) most = i;
    }
    return most;
  };
  for (; given < units; ++given) ++parts[most_missing()];
  for (; given > units; --given) --*std::max_element(parts.begin(), parts.end());
  return parts;
}

}  // namespace

StripeSet::StripeSet(std::span<const double> shares, uint64_t row_bytes) : part_begins_{0} {
  CHECK(row_bytes % kUnit == 0 && !shares.empty() && row_bytes / kUnit >= shares.size(), shares.size(),
        " drives in rows of ", row_bytes, " B");
  for (uint64_t part : apportion(shares, row_bytes / kUnit)) part_begins_.push_back(part_begins_.back() + part * kUnit);
}

uint64_t StripeSet::file_bytes(size_t drive, uint64_t bytes) const {
  return ceil_div(bytes, row_bytes()) * part_bytes(drive);
}

void StripeSet::map(std::span<const File* const> files, uint64_t offset_bytes, uint64_t length_bytes,
                    uint64_t lease_offset_bytes, std::vector<Extent>& extents) const {
  CHECK(files.size() == drives(), files.size(), " files for ", drives(), " drives");
  CHECK(offset_bytes % kUnit == 0 && length_bytes % kUnit == 0, length_bytes, " B at ", offset_bytes,
        " of a stripe set");
  while (length_bytes > 0) {
    const uint64_t row = offset_bytes / row_bytes();
    const uint64_t in_row = offset_bytes % row_bytes();
    const auto end = std::upper_bound(part_begins_.begin(), part_begins_.end(), in_row);
    const auto drive = static_cast<size_t>(end - part_begins_.begin()) - 1;
    const uint64_t in_part = in_row - part_begins_[drive];
    const uint64_t run = std::min(length_bytes, *end - in_row);
    extents.push_back({files[drive], row * part_bytes(drive) + in_part, lease_offset_bytes, run});
    offset_bytes += run;
    lease_offset_bytes += run;
    length_bytes -= run;
  }
}

}  // namespace penstock::aio
