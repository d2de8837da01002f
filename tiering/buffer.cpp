#include "tiering/buffer.h"

#include <algorithm>
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
      release_(std::move(other.release_)) {
  CHECK(other.leases_ == 0, "a buffer of ", size_bytes_, " B moves away under ", other.leases_, " leases");
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  CHECK(leases_ == 0 && other.leases_ == 0, "a buffer of ", size_bytes_, " B is replaced under ",
        leases_ + other.leases_, " leases");
  std::swap(tier_, other.tier_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(release_, other.release_);
  return *this;
}

Buffer::~Buffer() {
  CHECK(leases_ == 0, leases_, " leases outlive a buffer of ", size_bytes_, " B");
  if (data_ != nullptr && release_) release_(data_, size_bytes_);
}

Lease Buffer::lend(uint64_t offset_bytes, uint64_t length_bytes) {
  CHECK(offset_bytes <= size_bytes_ && length_bytes <= size_bytes_ - offset_bytes, length_bytes, " B from ",
        offset_bytes, " of a buffer of ", size_bytes_);
  ++leases_;
  return Lease(this, tier_, bytes().subspan(offset_bytes, length_bytes));
}

Buffer Buffer::on_heap(uint64_t size_bytes, uint64_t alignment_bytes) {
  uint64_t padded_bytes = round_up(size_bytes == 0 ? 1 : size_bytes, alignment_bytes);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, padded_bytes));
  CHECK(data != nullptr, "no memory for ", padded_bytes, " B");
  return Buffer(Tier::host, data, size_bytes, [](std::byte* bytes, uint64_t) { std::free(bytes); });
}

Lease Lease::over(Tier tier, std::span<std::byte> bytes) { return Lease(nullptr, tier, bytes); }

Lease Lease::also(uint64_t offset_bytes, uint64_t length_bytes) const {
  CHECK(offset_bytes <= size_bytes_ && length_bytes <= size_bytes_ - offset_bytes, length_bytes, " B from ",
        offset_bytes, " of a lease of ", size_bytes_);
  const std::span<std::byte> part = bytes().subspan(offset_bytes, length_bytes);
  if (lender_ != nullptr) lender_->lend_again(part, id_);
  return Lease(lender_, tier_, part, id_);
}

BufferPool::BufferPool(Tier tier, std::span<std::byte> memory, uint64_t piece_bytes)
    : tier_(tier),
      memory_(memory),
      piece_bytes_(piece_bytes),
      pieces_(piece_bytes == 0 ? 0 : memory.size() / piece_bytes),
      leases_(pieces_, 0) {
  CHECK(piece_bytes > 0 && piece_bytes % kAlignmentBytes == 0, "pieces of ", piece_bytes, " B");
  CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kAlignmentBytes == 0);
  free_.reserve(pieces_);
  // The lowest address is leased first, so that a small run touches few pages.
  for (uint64_t i = pieces_; i-- > 0;) free_.push_back(memory_.data() + i * piece_bytes_);
}

BufferPool::~BufferPool() { CHECK(free_.size() == pieces_, pieces_ - free_.size(), " leases outlive their pool"); }

std::optional<Lease> BufferPool::try_lease() {
  if (free_.empty()) return std::nullopt;
  const std::span<std::byte> piece(free_.back(), piece_bytes_);
  free_.pop_back();
  leases_[number_of(piece)] = 1;
  return Lease(this, tier_, piece);
}

void BufferPool::lend_again(std::span<std::byte> bytes, uint32_t) { ++leases_[number_of(bytes)]; }

void BufferPool::take_back(std::span<std::byte> bytes, uint32_t) {
  const uint64_t number = number_of(bytes);
  if (--leases_[number] == 0) free_.push_back(memory_.data() + number * piece_bytes_);
}

BufferArea::BufferArea(Tier tier, std::string name, std::span<std::byte> memory)
    : tier_(tier), name_(std::move(name)), memory_(memory) {}

BufferArea::~BufferArea() { CHECK(lent_.empty(), lent_.size(), " leases outlive ", name_); }

Lease BufferArea::lend(uint64_t offset_bytes, uint64_t length_bytes) {
  return lend(offset_bytes, length_bytes, Right::writes);
}

Lease BufferArea::share(uint64_t offset_bytes, uint64_t length_bytes) {
  return lend(offset_bytes, length_bytes, Right::reads);
}

Lease BufferArea::lend(uint64_t offset_bytes, uint64_t length_bytes, Right right) {
  CHECK(length_bytes > 0 && offset_bytes <= memory_.size() && length_bytes <= memory_.size() - offset_bytes,
        length_bytes, " B from ", offset_bytes, " of ", name_, ", which has ", memory_.size());
  const uint64_t end_bytes = offset_bytes + length_bytes;
  for (const Lent& lent : lent_) {
    const bool apart = lent.end_bytes <= offset_bytes || lent.begin_bytes >= end_bytes;
    const bool both_read = lent.right == Right::reads && right == Right::reads;
    CHECK(apart || both_read || lent.right == Right::passed_on, length_bytes, " B from ", offset_bytes, " of ", name_,
          " are asked for while ", lent.begin_bytes, " to ", lent.end_bytes, " are lent");
  }
  lent_.push_back({offset_bytes, end_bytes, next_id_, 1, right});
  return Lease(this, tier_, memory_.subspan(offset_bytes, length_bytes), next_id_++);
}

void BufferArea::pass_on(Lease place) {
  CHECK(place.lender_ == this, "a lease of others is passed on in ", name_);
  find(place.id_)->right = Right::passed_on;
}

std::vector<BufferArea::Lent>::iterator BufferArea::find(uint32_t id) {
  const auto found = std::find_if(lent_.begin(), lent_.end(), [id](const Lent& lent) { return lent.id == id; });
  CHECK(found != lent_.end(), "a lease of ", name_, " ends twice");
  return found;
}

void BufferArea::lend_again(std::span<std::byte>, uint32_t id) { ++find(id)->leases; }

void BufferArea::take_back(std::span<std::byte>, uint32_t id) {
  const auto found = find(id);
  if (--found->leases > 0) return;
  *found = lent_.back();
  lent_.pop_back();
}

}  // namespace penstock
