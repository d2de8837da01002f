#include "tiering/store/store_header.h"

#include <algorithm>

#include "tiering/store/slot_table.h"
#include "tiering/store/store_layout.h"

namespace penstock {
namespace {

constexpr uint64_t kHeaderMagic = 0x3144414548544b50;  // "PKTHEAD1"

bool makes_sense(const StoreHeader& header) {
  const bool shares = std::all_of(header.shares.begin(), header.shares.end(),
                                  [](uint32_t share) { return share >= 1 && share <= kShareWhole; });
  const bool has_shape = header.shape_bytes > 0 && header.shape_bytes <= kShapeBytesMax &&
                         StoreLayout::shape_offset(1, header.shape_bytes) + header.shape_bytes <= header.file_bytes;
  return header.drive < header.drives() && header.slots >= 1 && header.slots <= kSlotsMax && shares && has_shape &&
         header.state_capacity.validate().ok() && header.weights <= WeightPlacement::by_unit &&
         header.file_bytes % kRecordBytes == 0;
}

}  // namespace

std::vector<std::byte> StoreHeader::encode() const {
  ByteWriter out = begin_record(kHeaderMagic, format);
  put(out, store);
  out.put(static_cast<uint8_t>(state));
  out.put(drive);
  out.put(slots);
  out.put(state_capacity.engine_bytes);
  out.put(state_capacity.trainer_bytes);
  out.put(static_cast<uint8_t>(weights));
  out.put(shape_bytes);
  out.put(shape_digest);
  out.put(file_bytes);
  out.put(drives());
  for (uint32_t share : shares) out.put(share);
  return sealed_record(std::move(out), kHeaderMagic);
}

Result<StoreHeader> StoreHeader::decode(std::span<const std::byte> bytes, const std::string& what) {
  PENSTOCK_TRY_ASSIGN(in, open_record(bytes, kHeaderMagic, what, kStoreFormatWithCodes));
  StoreHeader header;
  header.format = format_of_record(bytes);
  header.store = get_store_id(in);
  uint8_t state = in.get<uint8_t>();
  header.state = static_cast<State>(state);
  header.drive = in.get<uint32_t>();
  header.slots = in.get<uint32_t>();
  header.state_capacity.engine_bytes = in.get<uint64_t>();
  header.state_capacity.trainer_bytes = in.get<uint64_t>();
  header.weights = static_cast<WeightPlacement>(in.get<uint8_t>());
  header.shape_bytes = in.get<uint64_t>();
  header.shape_digest = in.get<uint64_t>();
  header.file_bytes = in.get<uint64_t>();
  uint32_t drives = in.get<uint32_t>();
  if (drives <= kDrivesMax) {
    for (uint32_t drive = 0; drive < drives; ++drive) header.shares.push_back(in.get<uint32_t>());
  }
  if (!in.ok() || state > 1 || !makes_sense(header)) {
    return Status(Code::kCorrupt, what + ": a store header with invalid fields");
  }
  return header;
}

}  // namespace penstock
