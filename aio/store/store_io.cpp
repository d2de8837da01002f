#include "aio/store/store_io.h"

#include <cstring>
#include <utility>

namespace penstock::aio {

Result<Buffer> read_bytes(IoEngine& engine, const File& file, uint64_t offset_bytes, uint64_t length_bytes) {
  Buffer buffer = Buffer::on_heap(round_up(length_bytes, kAlignmentBytes));
  PENSTOCK_TRY(engine.read(file, offset_bytes, buffer.lend()).wait().status());
  return buffer;
}

Status write_bytes(IoEngine& engine, const File& file, uint64_t offset_bytes, std::span<const std::byte> bytes) {
  Buffer buffer = Buffer::on_heap(round_up(bytes.size(), kAlignmentBytes));
  std::memset(buffer.data(), 0, buffer.size_bytes());
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  return engine.write(file, offset_bytes, buffer.lend()).wait().status();
}

Status write_on_all(IoEngine& engine, const StoreFiles& files, uint64_t offset_bytes,
                    std::span<const std::byte> bytes) {
  for (const std::unique_ptr<File>& file : files) PENSTOCK_TRY(write_bytes(engine, *file, offset_bytes, bytes));
  return Status();
}

Status flush_all(IoEngine& engine, const StoreFiles& files) {
  std::vector<Transfer> flushes;
  for (const std::unique_ptr<File>& file : files) flushes.push_back(engine.flush(*file));
  Status first;
  for (Transfer& flush : flushes) {
    Result<Lease> ended = std::move(flush).wait();
    if (!ended.ok() && first.ok()) first = ended.status();
  }
  return first;
}

}  // namespace penstock::aio
