#include "tiering/store/root_record.h"

#include <cmath>

namespace penstock {
namespace {

constexpr uint64_t kRootMagic = 0x31544f4f524b5450;  // "PTKROOT1"

void put_page_slots(ByteWriter& out, const std::vector<uint8_t>& slots) {
  CHECK(slots.size() <= kPagesMax, "a root names at most ", kPagesMax, " pages, not ", slots.size());
  out.put(static_cast<uint32_t>(slots.size()));
  for (size_t first = 0; first < slots.size(); first += 4) {
    uint8_t four = 0;
    for (size_t i = 0; i < 4 && first + i < slots.size(); ++i) {
      CHECK(slots[first + i] < 4);
      four |= static_cast<uint8_t>(slots[first + i] << (2 * i));
    }
    out.put(four);
  }
}

bool get_page_slots(ByteReader& in, std::vector<uint8_t>& slots) {
  uint32_t count = in.get<uint32_t>();
  if (count > kPagesMax) return false;
  std::span<const std::byte> packed = in.get_bytes((count + 3) / 4);
  if (!in.ok()) return false;
  for (uint32_t page = 0; page < count; ++page) {
    slots.push_back((static_cast<uint8_t>(packed[page / 4]) >> (2 * (page % 4))) & 3);
  }
  return true;
}

bool makes_sense(const RootRecord& root) {
  return root.sequence > 0 && root.sequence <= kStepMax && root.step <= kStepMax && std::isfinite(root.loss_scale) &&
         root.config_hash.size() <= kConfigHashBytesMax;
}

}  // namespace

void RootRecord::set(const RootPayload& payload) {
  step = payload.step;
  loss_scale = payload.loss_scale;
  config_hash = payload.config_hash;
}

std::vector<std::byte> RootRecord::encode() const {
  CHECK(config_hash.size() <= kConfigHashBytesMax, "a configuration hash of ", config_hash.size(), " B");
  ByteWriter out = begin_record(kRootMagic);
  put(out, store);
  out.put(sequence);
  out.put(static_cast<uint8_t>(state));
  out.put(shape_digest);
  out.put(pages_digest);
  put_page_slots(out, page_slots);
  out.put(step);
  out.put(loss_scale);
  out.put_string(config_hash);
  return sealed_record(std::move(out), kRootMagic);
}

Result<RootRecord> RootRecord::decode(std::span<const std::byte> bytes, const std::string& what) {
  PENSTOCK_TRY_ASSIGN(in, open_record(bytes, kRootMagic, what));
  RootRecord root;
  root.store = get_store_id(in);
  root.sequence = in.get<uint64_t>();
  uint8_t state = in.get<uint8_t>();
  root.state = static_cast<State>(state);
  root.shape_digest = in.get<uint64_t>();
  root.pages_digest = in.get<uint64_t>();
  bool pages_fit = get_page_slots(in, root.page_slots);
  root.step = in.get<uint64_t>();
  root.loss_scale = in.get<double>();
  root.config_hash = in.get_string();
  if (!in.ok() || !pages_fit || state > 1 || !makes_sense(root)) {
    return Status(Code::kCorrupt, what + ": a root record with invalid fields");
  }
  return root;
}

}  // namespace penstock
