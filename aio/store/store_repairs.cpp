#include "aio/store/store_repairs.h"

#include <algorithm>
#include <utility>

namespace penstock::aio {

void Repairs::add(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& what) {
  complete(drive, offset_bytes, std::move(bytes));
  note(what + ": damaged or old; another copy is good");
  ++report_.bad_copies;
}

void Repairs::complete(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes) {
  repairs_.push_back({drive, offset_bytes, std::move(bytes)});
}

void Repairs::add_root(uint32_t drive, uint64_t offset_bytes, std::vector<std::byte> bytes, const std::string& why) {
  roots_.push_back({drive, offset_bytes, std::move(bytes)});
  if (why.empty()) return;
  note(why + "; another copy is good");
  ++report_.bad_copies;
}

void Repairs::compare_copies(IoEngine& engine, const StoreFiles& files, uint64_t offset_bytes,
                             std::span<const std::byte> expected, const std::string& what) {
  for (uint32_t drive = 0; drive < files.size(); ++drive) {
    Result<Buffer> bytes = read_bytes(engine, *files[drive], offset_bytes, expected.size());
    bool same = bytes.ok() && std::equal(expected.begin(), expected.end(), bytes->bytes().begin());
    if (!same) add(drive, offset_bytes, {expected.begin(), expected.end()}, files[drive]->path() + ": " + what);
  }
}

Status Repairs::carry_out(IoEngine& engine, const StoreFiles& files) const {
  for (const std::vector<Repair>* stage : {&repairs_, &roots_}) {
    for (const Repair& repair : *stage) {
      PENSTOCK_TRY(write_bytes(engine, *files[repair.drive], repair.offset_bytes, repair.bytes));
    }
    PENSTOCK_TRY(flush_all(engine, files));
  }
  return Status();
}

}  // namespace penstock::aio
