// Buffer, BufferPool and Lease: who owns bytes, and who may touch them.
//
// A Buffer owns one aligned allocation in one tier. A BufferPool cuts a Buffer into equal pieces once, at start. A
// Lease is the only right to touch a piece; the piece goes back to its pool when the Lease is destroyed.
//
// A pool and the making and ending of its leases belong to one thread. A Lease may visit another thread inside a
// request and comes back with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiering/tier.h"

namespace penstock {

class Buffer {
 public:
  using Release = std::function<void(std::byte* data, uint64_t size_bytes)>;

  Buffer() = default;
  // Takes ownership of `size_bytes` at `data`; `release` is called once with both.
  Buffer(Tier tier, std::byte* data, uint64_t size_bytes, Release release);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // An ordinary host allocation, for tests and small things; the engine's bytes come from an arena.
  static Buffer on_heap(uint64_t size_bytes, uint64_t alignment_bytes = kSegmentAlignmentBytes);

  Tier tier() const { return tier_; }
  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Tier tier_ = Tier::host;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  Release release_;
};

class BufferPool;

class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        tier_(other.tier_),
        data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Lease& operator=(Lease&& other) noexcept {
    Lease taken(std::move(other));
    std::swap(pool_, taken.pool_);
    std::swap(tier_, taken.tier_);
    std::swap(data_, taken.data_);
    std::swap(size_bytes_, taken.size_bytes_);
    return *this;
  }
  ~Lease() {
    if (pool_ != nullptr) give_back();
  }

  // A lease on bytes that no pool counts: the caller keeps them alive until the lease has ended.
  static Lease over(Tier tier, std::span<std::byte> bytes);

  Tier tier() const { return tier_; }
  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
  explicit operator bool() const { return data_ != nullptr; }

  template <typename T>
  T* as(uint64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(data_ + offset_bytes);
  }

 private:
  friend class BufferPool;
  Lease(BufferPool* pool, Tier tier, std::span<std::byte> bytes)
      : pool_(pool), tier_(tier), data_(bytes.data()), size_bytes_(bytes.size()) {}
  void give_back();

  BufferPool* pool_ = nullptr;
  Tier tier_ = Tier::host;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

class BufferPool {
 public:
  // Cuts `memory` into as many pieces of `piece_bytes` as fit. REQUIRES: piece_bytes is a multiple of
  // kSegmentAlignmentBytes and so is the address of `memory`; `memory` outlives the pool.
  BufferPool(Tier tier, std::span<std::byte> memory, uint64_t piece_bytes);
  // REQUIRES: every lease has ended.
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Nothing when every piece is out.
  std::optional<Lease> try_lease();

  uint64_t piece_bytes() const { return piece_bytes_; }
  uint64_t pieces() const { return pieces_; }
  uint64_t pieces_free() const { return free_.size(); }

 private:
  friend class Lease;

  const Tier tier_;
  const std::span<std::byte> memory_;
  const uint64_t piece_bytes_;
  const uint64_t pieces_;
  std::vector<std::byte*> free_;
};

}  // namespace penstock
