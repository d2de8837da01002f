#include "tiering/store/store_record.h"

#include <cstdio>

#include "tiering/arithmetic/checksum.h"
#include "tiering/store/store_hash.h"

namespace penstock {
namespace {

constexpr const char* kNoRecord = "not a penstock store record";
constexpr uint64_t kHashAt = kRecordBytes - sizeof(uint64_t);

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

ByteWriter begin_record(uint64_t magic, uint32_t format) {
  ByteWriter record;
  record.put(magic);
  record.put(format);
  return record;
}

std::vector<std::byte> sealed_record(ByteWriter record, uint64_t magic) {
  record.pad_to(kHashAt);
  record.put(store_hash(record.bytes(), magic));
  return record.take();
}

uint32_t format_of_record(std::span<const std::byte> bytes) {
  return ByteReader(bytes.subspan(sizeof(uint64_t))).get<uint32_t>();
}

Result<ByteReader> open_record(std::span<const std::byte> bytes, uint64_t magic, const std::string& what,
                               uint32_t newest) {
  CHECK(bytes.size() == kRecordBytes);
  const std::span<const std::byte> content = bytes.first(kHashAt);
  const uint64_t hash = ByteReader(bytes.subspan(kHashAt)).get<uint64_t>();
  ByteReader fields(content);
  if (fields.get<uint64_t>() != magic) return Status(Code::kUsage, text(what, ": ", kNoRecord));
  const uint32_t format = fields.get<uint32_t>();
  // Format 1 ended with the checksum that tiles have.
  const bool whole = hash == store_hash(content, magic) || (format == 1 && hash == checksum(content, magic));
  if (!whole) return Status(Code::kCorrupt, what + ": its checksum does not match");
  if (format >= kStoreFormat && format <= newest) return fields;
  return Status(Code::kUsage,
                text(what, ": written in store format ", format, ", this program reads format ", kStoreFormat,
                     newest > kStoreFormat ? text(" to ", newest) : std::string()),
                "open it with the version of penstock that wrote it, or make a new store with --force");
}

bool is_no_record(const Status& status) {
  return status.code() == Code::kUsage && status.message().find(kNoRecord) != std::string::npos;
}

}  // namespace penstock
