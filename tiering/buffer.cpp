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

void Lease::give_back() {
  pool_->free_.push_back(data_);
  pool_ = nullptr;
}

BufferPool::BufferPool(Tier tier, std::span<std::byte> memory, uint64_t piece_bytes)
    : tier_(tier),
      memory_(memory),
      piece_bytes_(piece_bytes),
      pieces_(piece_bytes == 0 ? 0 : memory.size() / piece_bytes) {
  CHECK(piece_bytes > 0 && piece_bytes % kSegmentAlignmentBytes == 0, "pieces of ", piece_bytes, " B");
  CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kSegmentAlignmentBytes == 0);
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

}  // namespace penstock
