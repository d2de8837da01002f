#include "tiering/store/store_record.h"

#include <cstdio>

#include "tiering/arithmetic/checksum.h"

namespace penstock {
namespace {

constexpr uint64_t kChecksumAt = kRecordBytes - sizeof(uint64_t);

}  // namespace

std::string to_text(const StoreId& id) {
  char text[36];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(id[0]),
                static_cast<unsigned long long>(id[1]));
  return text;
}

void put(ByteWriter& out, const StoreId& id) {
  out.put(id[0]);
  out.put(id[1]);
}

StoreId get_store_id(ByteReader& in) {
  uint64_t first = in.get<uint64_t>();
  return {first, in.get<uint64_t>()};
}

ByteWriter begin_record(uint64_t magic) {
  ByteWriter record;
  record.put(magic);
  record.put(kStoreFormat);
  return record;
}

std::vector<std::byte> sealed_record(ByteWriter record, uint64_t magic) {
  record.pad_to(kChecksumAt);
  record.put(checksum(record.bytes(), magic));
  return record.take();
}

Result<ByteReader> open_record(std::span<const std::byte> bytes, uint64_t magic, const std::string& what) {
  CHECK(bytes.size() == kRecordBytes);
  ByteReader end(bytes.subspan(kChecksumAt));
  ByteReader fields(bytes.first(kChecksumAt));
  uint64_t found_magic = fields.get<uint64_t>();
  uint32_t format = fields.get<uint32_t>();
  if (end.get<uint64_t>() != checksum(bytes.first(kChecksumAt), magic)) {
    if (found_magic != magic) return Status(Code::kUsage, what + ": not a penstock store");
    return Status(Code::kCorrupt, what + ": its checksum does not match");
  }
  if (format != kStoreFormat) {
    return Status(Code::kUsage,
                  text(what, ": written in format ", format, ", this program reads format ", kStoreFormat),
                  "open it with the version of penstock that wrote it");
  }
  return fields;
}

}  // namespace penstock
