// Which root of a store is believed, and what its copies on other drives have to be set right.
#pragma once

#include <string>
#include <vector>

#include "aio/store/store_parts.h"

namespace penstock::aio {

// Writes that make every copy of what a store says about itself the same again. Nothing is written before carry_out().
class Repairs {
 public:
  void add(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& what);
  // Adds those of the drives whose bytes at `offset_bytes` are not `expected`.
  Status compare_copies(IoEngine& engine, const StoreFiles& files, uint64_t offset_bytes,
                        std::span<const std::byte> expected, const std::string& what);

  // Everything but roots, then a flush, then the roots, then a flush: a root is never there before what it names. The
  // flushes happen even if nothing is to be repaired, because what a killed process wrote may not be durable yet.
  Status carry_out(IoEngine& engine, const StoreFiles& files) const;

  void add_root(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes);
  const std::vector<std::string>& notes() const { return notes_; }
  void note(std::string sentence) { notes_.push_back(std::move(sentence)); }

 private:
  struct Repair {
    uint32_t drive;
    uint64_t offset_bytes;
    std::vector<std::byte> bytes;
  };
  std::vector<Repair> repairs_;
  std::vector<Repair> roots_;
  std::vector<std::string> notes_;
};

// Takes the newest root that can be believed into `parts.root` and `parts.table`. If a copy of the newest or of a newer
// one has rotted or differs, every block is verified before an older one is believed. None is believed to run from
// while the newest may lie where a drive refuses to read and no other drive has it: it may be back at the next try.
Status recover_root(IoEngine& engine, StoreParts& parts, const OpenOptions& options, Repairs& repairs);

}  // namespace penstock::aio
