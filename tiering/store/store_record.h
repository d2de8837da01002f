// Store records are the 4 KiB blocks that a tile store keeps about itself: the header of each drive and the roots.
//
// In every version of the format a record begins with an eight-byte magic and the version, and ends with a hash of
// all before it, seeded with the magic. So a record of another version can be told from a damaged one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiering/status.h"
#include "tiering/store/byte_codec.h"

namespace penstock {

constexpr uint64_t kRecordBytes = 4096;
// 2: state pages, two copies of the shape, XXH3.
constexpr uint32_t kStoreFormat = 2;
// Of the header of a store whose weights rest in codes in part: its shape has planes that format 2 does not know.
constexpr uint32_t kStoreFormatWithCodes = 3;

// Chosen at random when a store is made; every record and page carries it.
using StoreId = std::array<uint64_t, 2>;
std::string to_text(const StoreId& id);

void put(ByteWriter& out, const StoreId& id);
StoreId get_store_id(ByteReader& in);

// Puts magic and version. Append the fields, then call sealed_record().
ByteWriter begin_record(uint64_t magic, uint32_t format = kStoreFormat);
std::vector<std::byte> sealed_record(ByteWriter record, uint64_t magic);

// Returns a reader at the first field. Refuses bytes that are no such record or of a version outside of kStoreFormat to
// `newest` (kUsage), and damaged ones (kCorrupt). REQUIRES: kRecordBytes bytes.
Result<ByteReader> open_record(std::span<const std::byte> bytes, uint64_t magic, const std::string& what,
                               uint32_t newest = kStoreFormat);
// Whether open_record() has refused bytes that are no record at all, wherever its refusal was seen.
bool is_no_record(const Status& status);
// REQUIRES: open_record() accepts it.
uint32_t format_of_record(std::span<const std::byte> bytes);

}  // namespace penstock
