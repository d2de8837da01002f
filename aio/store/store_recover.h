// Which root of a store is believed, and which of its copies on the drives have to be restored.
#pragma once

#include <string>
#include <vector>

#include "aio/store/store_parts.h"

namespace penstock::aio {

// Writes that make every copy of what a store says about itself the same again. Nothing is written before carry_out().
class Repairs {
 public:
  // `what` names the copy, which is bad: it is counted and noted.
  void add(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& what);
  // Of a copy that is older as a crash leaves it: not worth a note.
  void complete(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes);
  // Adds those of the drives whose bytes at `offset_bytes` are not `expected`.
  void compare_copies(IoEngine& engine, const StoreFiles& files, uint64_t offset_bytes,
                      std::span<const std::byte> expected, const std::string& what);

  // Everything but roots, then a flush, then the roots, then a flush: a root is never there before what it names. The
  // flushes happen even if nothing is to be repaired, because what a killed process wrote may not be durable yet.
  Status carry_out(IoEngine& engine, const StoreFiles& files) const;

  // `why` says what is wrong with the copy there; empty: nothing, it is older.
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

// Takes the newest root that can be believed into `parts.root`, `parts.payload` and `parts.table`.
//
// Where a crash alone cannot explain what is found (a copy has rotted or differs, a drive lacks pages that were flushed
// before the root that names them was written), every block is verified before a root is believed, and the next older
// one is tried. None is believed to run from while the newest may lie where a drive refuses to read and no other drive
// has it: it may be back at the next try.
Status recover_root(IoEngine& engine, StoreParts& parts, const OpenOptions& options, Repairs& repairs);

}  // namespace penstock::aio
