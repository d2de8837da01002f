// Repairs restore the copies of what a store says about itself that differ from the good one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "aio/store/store_io.h"
#include "aio/store/tile_store.h"

namespace penstock::aio {

// Writes that make every copy of what a store says about itself the same again. Nothing is written before carry_out().
class Repairs {
 public:
  // Of a bad copy, which `what` names: it is counted and noted.
  void add(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& what);
  // Of a copy that is merely older, as a crash leaves it: not noted.
  void complete(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes);
  // Adds those of the drives whose bytes at `offset_bytes` are not `expected`.
  void compare_copies(IoEngine& engine, const StoreFiles& files, uint64_t offset_bytes,
                      std::span<const std::byte> expected, const std::string& what);

  // Writes everything but the roots, flushes, writes the roots, flushes: no root is there before what it names. Flushes
  // even if there is nothing to repair, because what a killed process wrote may not be durable yet.
  Status carry_out(IoEngine& engine, const StoreFiles& files) const;

  // `why` says what is wrong with the copy there; empty if it is merely older.
  void add_root(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& why);
  void note(std::string sentence) { report_.notes.push_back(std::move(sentence)); }
  const OpenReport& report() const { return report_; }

 private:
  struct Repair {
    uint32_t drive;
    uint64_t offset_bytes;
    std::vector<std::byte> bytes;
  };
  std::vector<Repair> repairs_;
  std::vector<Repair> roots_;
  OpenReport report_;
};

}  // namespace penstock::aio
