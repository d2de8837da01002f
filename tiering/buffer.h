// Buffer, BufferPool, BufferArea and Lease: who owns bytes, and who may touch them.
//
// A Buffer owns one aligned allocation in one tier. A BufferPool cuts memory into equal pieces once, at start. A
// BufferArea lends any run of its memory that a plan names: to one who writes it, or to several who only read. A Lease
// is the only right to touch what was lent; it ends when it is destroyed.
//
// A lender and the making and ending of its leases belong to one thread. A Lease may visit another thread inside a
// request and comes back with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
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
  static Buffer on_heap(uint64_t size_bytes, uint64_t alignment_bytes = kAlignmentBytes);

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

// Notified when a lease ends.
class Lender {
 public:
  virtual void take_back(std::span<std::byte> bytes) = 0;

 protected:
  ~Lender() = default;
};

class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept
      : lender_(std::exchange(other.lender_, nullptr)),
        tier_(other.tier_),
        data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Lease& operator=(Lease&& other) noexcept {
    Lease taken(std::move(other));
    std::swap(lender_, taken.lender_);
    std::swap(tier_, taken.tier_);
    std::swap(data_, taken.data_);
    std::swap(size_bytes_, taken.size_bytes_);
    return *this;
  }
  ~Lease() {
    if (lender_ != nullptr) lender_->take_back(bytes());
  }

  // An untracked lease: the caller keeps the bytes alive until it has ended.
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
  friend class BufferArea;
  Lease(Lender* lender, Tier tier, std::span<std::byte> bytes)
      : lender_(lender), tier_(tier), data_(bytes.data()), size_bytes_(bytes.size()) {}

  Lender* lender_ = nullptr;
  Tier tier_ = Tier::host;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

class BufferPool final : private Lender {
 public:
  // Cuts `memory` into as many pieces of `piece_bytes` as fit. REQUIRES: piece_bytes is a multiple of
  // kAlignmentBytes and so is the address of `memory`; `memory` outlives the pool.
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
  void take_back(std::span<std::byte> bytes) override { free_.push_back(bytes.data()); }

  const Tier tier_;
  const std::span<std::byte> memory_;
  const uint64_t piece_bytes_;
  const uint64_t pieces_;
  std::vector<std::byte*> free_;
};

class BufferArea final : private Lender {
 public:
  // `memory` outlives the area; `name` is for messages.
  BufferArea(Tier tier, std::string name, std::span<std::byte> memory);
  // REQUIRES: every lease has ended.
  ~BufferArea();
  BufferArea(const BufferArea&) = delete;
  BufferArea& operator=(const BufferArea&) = delete;

  // REQUIRES of lend(): no byte of the run is lent. REQUIRES of share(): none is lent but by share().
  Lease lend(uint64_t offset_bytes, uint64_t length_bytes);
  Lease share(uint64_t offset_bytes, uint64_t length_bytes);

  std::span<std::byte> memory() const { return memory_; }

 private:
  struct Lent {
    uint64_t end_bytes = 0;
    uint32_t readers = 0;  // 0: one who writes
  };

  void take_back(std::span<std::byte> bytes) override;
  Lease lease(uint64_t offset_bytes, uint64_t length_bytes) {
    return Lease(this, tier_, memory_.subspan(offset_bytes, length_bytes));
  }
  void refuse_overlap(uint64_t offset_bytes, uint64_t length_bytes, bool reads) const;

  const Tier tier_;
  const std::string name_;
  const std::span<std::byte> memory_;
  std::multimap<uint64_t, Lent> lent_;  // by offset; few at a time
};

}  // namespace penstock
