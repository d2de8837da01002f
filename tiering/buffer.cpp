#include "tiering/buffer.h"

#include <cstdlib>
#include <utility>

#include "tiering/check.h"

namespace penstock {

Buffer::Buffer(Tier tier, std::byte* data, uint64_t size_bytes, Release release)
    : tier_(tier), data_(data), size_bytes_(size_bytes), release_(std::move(release)) {}

Buffer::Buffer(Buffer&& other) noexcept
    : tier_(other.tier_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      release_(std::move(other.release_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(tier_, other.tier_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(release_, other.release_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr && release_) release_(data_, size_bytes_);
}

Buffer Buffer::on_heap(uint64_t size_bytes, uint64_t alignment_bytes) {
  uint64_t padded_bytes = round_up(size_bytes == 0 ? 1 : size_bytes, alignment_bytes);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, padded_bytes));
  CHECK(data != nullptr, "no memory for ", padded_bytes, " B");
  return Buffer(Tier::host, data, size_bytes, [](std::byte* bytes, uint64_t) { std::free(bytes); });
}

Lease Lease::over(Tier tier, std::span<std::byte> bytes) { return Lease(nullptr, tier, bytes); }

BufferPool::BufferPool(Tier tier, std::span<std::byte> memory, uint64_t piece_bytes)
    : tier_(tier),
      memory_(memory),
      piece_bytes_(piece_bytes),
      pieces_(piece_bytes == 0 ? 0 : memory.size() / piece_bytes) {
  CHECK(piece_bytes > 0 && piece_bytes % kAlignmentBytes == 0, "pieces of ", piece_bytes, " B");
  CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kAlignmentBytes == 0);
  free_.reserve(pieces_);
  // The lowest address is leased first, so that a small run touches few pages.
  for (uint64_t i = pieces_; i-- > 0;) free_.push_back(memory_.data() + i * piece_bytes_);
}

BufferPool::~BufferPool() { CHECK(free_.size() == pieces_, pieces_ - free_.size(), " leases outlive their pool"); }

std::optional<Lease> BufferPool::try_lease() {
  if (free_.empty()) return std::nullopt;
  std::byte* data = free_.back();
  free_.pop_back();
  return Lease(this, tier_, {data, piece_bytes_});
}

BufferArea::BufferArea(Tier tier, std::string name, std::span<std::byte> memory)
    : tier_(tier), name_(std::move(name)), memory_(memory) {}

BufferArea::~BufferArea() { CHECK(lent_.empty(), lent_.size(), " leases outlive ", name_); }

void BufferArea::refuse_overlap(uint64_t offset_bytes, uint64_t length_bytes, bool reads) const {
  CHECK(length_bytes > 0 && offset_bytes <= memory_.size() && length_bytes <= memory_.size() - offset_bytes,
        length_bytes, " B from ", offset_bytes, " of ", name_, ", which has ", memory_.size());
  for (const auto& [offset, lent] : lent_) {
    if (offset >= offset_bytes + length_bytes) break;
    const bool apart = lent.end_bytes <= offset_bytes || (reads && lent.readers > 0);
    CHECK(apart, length_bytes, " B from ", offset_bytes, " of ", name_, " are asked for while ", offset, " to ",
          lent.end_bytes, " are lent");
  }
}

Lease BufferArea::lend(uint64_t offset_bytes, uint64_t length_bytes) {
  refuse_overlap(offset_bytes, length_bytes, false);
  lent_.insert({offset_bytes, {offset_bytes + length_bytes, 0}});
  return lease(offset_bytes, length_bytes);
}

Lease BufferArea::share(uint64_t offset_bytes, uint64_t length_bytes) {
  refuse_overlap(offset_bytes, length_bytes, true);
  auto [first, last] = lent_.equal_range(offset_bytes);
  for (; first != last; ++first) {
    if (first->second.end_bytes != offset_bytes + length_bytes) continue;
    ++first->second.readers;
    return lease(offset_bytes, length_bytes);
  }
  lent_.insert({offset_bytes, {offset_bytes + length_bytes, 1}});
  return lease(offset_bytes, length_bytes);
}

void BufferArea::take_back(std::span<std::byte> bytes) {
  const auto offset_bytes = static_cast<uint64_t>(bytes.data() - memory_.data());
  auto [first, last] = lent_.equal_range(offset_bytes);
  for (; first != last; ++first) {
    if (first->second.end_bytes != offset_bytes + bytes.size()) continue;
    if (first->second.readers > 1) {
      --first->second.readers;
    } else {
      lent_.erase(first);
    }
    return;
  }
  CHECK(false, "a lease of ", name_, " ends twice");
}

}  // namespace penstock
