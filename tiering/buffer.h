// Buffer, BufferPool, BufferArea and Lease: who owns bytes, and who may touch them.
//
// A Buffer owns one aligned allocation in one tier. A BufferPool cuts memory into equal pieces once, at start. A
// BufferArea lends any run of its memory that a plan names: to one who writes it, or to several who only read. A Lease
// is the right to touch what was lent; it ends when it is destroyed. A request takes one along, and so may an owner
// share its own with requests: Lease::also().
//
// A lender and the making and ending of its leases belong to one thread. A Lease may visit another thread inside a
// request and comes back with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiering/tier.h"

namespace penstock {

// Told of the leases on its memory.
class Lender {
 public:
  // `id`: of the lease, as its lender has named it.
  virtual void take_back(std::span<std::byte> bytes, uint32_t id) = 0;
  // One more lease on those bytes, or on a part of them.
  virtual void lend_again(std::span<std::byte> bytes, uint32_t id) = 0;

 protected:
  ~Lender() = default;
};

class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept
      : lender_(std::exchange(other.lender_, nullptr)),
        id_(other.id_),
        tier_(other.tier_),
        data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Lease& operator=(Lease&& other) noexcept {
    Lease taken(std::move(other));
    std::swap(lender_, taken.lender_);
    std::swap(id_, taken.id_);
    std::swap(tier_, taken.tier_);
    std::swap(data_, taken.data_);
    std::swap(size_bytes_, taken.size_bytes_);
    return *this;
  }
  ~Lease() {
    if (lender_ != nullptr) lender_->take_back(bytes(), id_);
  }

  // A lease that nobody counts, on memory that its owner keeps until every request on it has ended: for measurements
  // and tests.
  static Lease over(Tier tier, std::span<std::byte> bytes);
  // Another lease on these bytes, or on a part of them: they are lent until all have ended. Whoever asks for it orders
  // what the holders do.
  Lease also() const { return also(0, size_bytes_); }
  Lease also(uint64_t offset_bytes, uint64_t length_bytes) const;

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
  friend class Buffer;
  friend class BufferPool;
  friend class BufferArea;
  Lease(Lender* lender, Tier tier, std::span<std::byte> bytes, uint32_t id = 0)
      : lender_(lender), id_(id), tier_(tier), data_(bytes.data()), size_bytes_(bytes.size()) {}

  Lender* lender_ = nullptr;
  uint32_t id_ = 0;
  Tier tier_ = Tier::host;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

class Buffer final : private Lender {
 public:
  using Release = std::function<void(std::byte* data, uint64_t size_bytes)>;

  Buffer() = default;
  // Takes ownership of `size_bytes` at `data`; `release` is called once with both.
  Buffer(Tier tier, std::byte* data, uint64_t size_bytes, Release release);
  // REQUIRES: nothing of either is lent.
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  // REQUIRES: every lease has ended.
  ~Buffer();

  // Memory of another owner, who keeps it longer than this: lent and counted here, not released.
  static Buffer borrowed(Tier tier, std::span<std::byte> memory) { return {tier, memory.data(), memory.size(), {}}; }
  // An ordinary host allocation, for tests and small things; the engine's bytes come from an arena.
  static Buffer on_heap(uint64_t size_bytes, uint64_t alignment_bytes = kAlignmentBytes);

  // Of a buffer whose owner orders what is done with it: any number of leases, on any part.
  Lease lend() { return lend(0, size_bytes_); }
  Lease lend(uint64_t offset_bytes, uint64_t length_bytes);
  // REQUIRES: `part` lies in it.
  Lease lend(std::span<const std::byte> part) { return lend(static_cast<uint64_t>(part.data() - data_), part.size()); }

  Tier tier() const { return tier_; }
  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void take_back(std::span<std::byte>, uint32_t) override { --leases_; }
  void lend_again(std::span<std::byte>, uint32_t) override { ++leases_; }

  Tier tier_ = Tier::host;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  Release release_;
  uint32_t leases_ = 0;
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
  uint64_t number_of(std::span<std::byte> bytes) const {
    return static_cast<uint64_t>(bytes.data() - memory_.data()) / piece_bytes_;
  }
  void take_back(std::span<std::byte> bytes, uint32_t id) override;
  void lend_again(std::span<std::byte> bytes, uint32_t id) override;

  const Tier tier_;
  const std::span<std::byte> memory_;
  const uint64_t piece_bytes_;
  const uint64_t pieces_;
  std::vector<std::byte*> free_;
  std::vector<uint32_t> leases_;  // by piece
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
  // Ends the lease, and lets others have its bytes although requests on a device's streams may still hold leases on
  // them. REQUIRES: whoever has them next does on those streams what it does, behind those requests.
  void pass_on(Lease place);

  std::span<std::byte> memory() const { return memory_; }

 private:
  enum class Right : uint8_t { writes, reads, passed_on };
  struct Lent {
    uint64_t begin_bytes = 0;
    uint64_t end_bytes = 0;
    uint32_t id = 0;
    uint32_t leases = 0;
    Right right = Right::writes;
  };

  Lease lend(uint64_t offset_bytes, uint64_t length_bytes, Right right);
  std::vector<Lent>::iterator find(uint32_t id);
  void take_back(std::span<std::byte> bytes, uint32_t id) override;
  void lend_again(std::span<std::byte> bytes, uint32_t id) override;

  const Tier tier_;
  const std::string name_;
  const std::span<std::byte> memory_;
  std::vector<Lent> lent_;  // few at a time
  uint32_t next_id_ = 0;
};

}  // namespace penstock
