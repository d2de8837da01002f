// The opening of a store as a whole, from files in which anything may stand, under checksums that are right.
#include <cstring>

#include "aio/store/store_parts.h"
#include "tests/fuzz/target.h"
#include "tests/support/store_records.h"
#include "tests/support/store_world.h"

namespace penstock::fuzz {
namespace {

using namespace aio;

constexpr uint32_t kDrives = 2;
constexpr uint64_t kFileBytesMost = 8 * kMiB;

// Two drives with a store after two steps, made once.
struct World {
  StoreShape shape = small_shape(6, 3000, kBlockElements);
  StoreWorld store{kDrives};
  std::vector<MemoryFile::Bytes> image;

  World() {
    CHECK(store.create(shape).ok());
    Result<std::unique_ptr<TileStore>> opened = store.open();
    StoreTrainer trainer(store.engine(), **opened);
    CHECK(trainer.step().ok() && trainer.step().ok() && trainer.settle().ok());
    image = store.image();
  }
  StoreLayout layout() const { return StoreLayout(shape, 2, shares_of({}, kDrives)); }
};

World& world() {
  static World only;
  return only;
}

// An input is a list of changes to the files: where, how far into it, how many bytes, the bytes.
enum class Area : uint8_t { header, root, shape, page, tile, length, state };
constexpr uint8_t kAreas = 7, kSecondCopy = 0x10, kBothCopies = 0x20, kSecondDrive = 0x40, kAllDrives = 0x80;

uint64_t offset_of(Area area, uint32_t copy) {
  switch (area) {
    case Area::header:
      return StoreLayout::header_offset(copy);
    case Area::root:
      return StoreLayout::root_offset(copy);
    case Area::page:
      return world().layout().page_offset(0, copy);
    case Area::state:
      return world().layout().page_offset(world().layout().table().table_pages(), copy);
    case Area::tile:
      return world().layout().file_ranges(copy, 0, 0, kAlignmentBytes).front().file_offset_bytes;
    default:
      return StoreLayout::shape_offset();
  }
}

void change(std::vector<MemoryFile::Bytes>& image, uint8_t where, uint16_t into, std::span<const std::byte> bytes) {
  const Area area = static_cast<Area>(where % 16 % kAreas);
  for (uint32_t drive = 0; drive < kDrives; ++drive) {
    if (!(where & kAllDrives) && drive != ((where & kSecondDrive) ? 1u : 0u)) continue;
    MemoryFile::Bytes& file = image[drive];
    if (area == Area::length) {
      file.resize(std::min<uint64_t>(kFileBytesMost, uint64_t{into} * 128));
      continue;
    }
    for (uint32_t copy = 0; copy < 2; ++copy) {
      if (!(where & kBothCopies) && copy != ((where & kSecondCopy) ? 1u : 0u)) continue;
      const uint64_t at = offset_of(area, copy) + into % kRecordBytes;
      if (at + bytes.size() <= file.size())
        std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<ptrdiff_t>(at));
    }
  }
}

std::span<std::byte> part(MemoryFile::Bytes& file, uint64_t offset_bytes, uint64_t length_bytes) {
  if (offset_bytes > file.size() || length_bytes > file.size() - offset_bytes) return {};
  return std::span(file).subspan(offset_bytes, length_bytes);
}

// Header and root name the shape that is there, the root the table page.
void set_digests(MemoryFile::Bytes& file) {
  uint64_t shape_digest = 0;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const std::span<std::byte> place = part(file, StoreLayout::header_offset(copy), kRecordBytes);
    if (place.empty()) continue;
    Result<StoreHeader> header = StoreHeader::decode(place, "header");
    if (!header.ok()) continue;
    const Result<StoreShape> shape = StoreShape::decode(part(file, StoreLayout::shape_offset(), header->shape_bytes));
    if (!shape.ok()) continue;
    shape_digest = header->shape_digest = shape->digest();
    const Bytes bytes = header->encode();
    std::copy(bytes.begin(), bytes.end(), place.begin());
  }
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const std::span<std::byte> place = part(file, StoreLayout::root_offset(copy), kRecordBytes);
    if (place.empty()) continue;
    Result<RootRecord> root = RootRecord::decode(place, "root");
    if (!root.ok()) continue;
    if (shape_digest != 0) root->shape_digest = shape_digest;
    const StoreLayout layout = world().layout();
    std::vector<uint64_t> hashes;
    for (uint32_t number = 0; number < root->page_slots.size() && number < layout.table().pages(); ++number) {
      if (root->page_slots[number] > 1) break;
      const uint64_t offset = layout.page_offset(number, root->page_slots[number]);
      const std::span<std::byte> page = part(file, offset, kAlignmentBytes);
      if (!page.empty()) hashes.push_back(TablePage::hash_of(page));
    }
    root->pages_digest = pages_digest(hashes);
    const Bytes bytes = root->encode();
    std::copy(bytes.begin(), bytes.end(), place.begin());
  }
}

void set_right(MemoryFile::Bytes& file) {
  for (uint32_t copy = 0; copy < 2; ++copy) {
    for (const Area area : {Area::header, Area::root, Area::page, Area::state}) {
      const std::span<std::byte> record = part(file, offset_of(area, copy), kRecordBytes);
      if (!record.empty()) seal(record);
    }
  }
  set_digests(file);
}

Bytes change_of(Area area, uint8_t which, uint16_t into, std::span<const std::byte> bytes) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(static_cast<uint8_t>(area) | which));
  out.put(into);
  out.put(static_cast<uint8_t>(bytes.size()));
  out.put_bytes(bytes);
  return out.take();
}

// Changes that change nothing: what stands there is put there, for accidents to hit.
std::vector<Bytes> seeds() {
  std::vector<Bytes> all{Bytes()};
  struct Fields {
    Area area;
    uint16_t into;
    uint64_t length;
  };
  const auto tiles_bytes = static_cast<uint16_t>(24 * world().shape.tiles.size());  // which its encoding ends with
  const auto tiles_at = static_cast<uint16_t>(world().shape.encode().size() - tiles_bytes);
  const Fields fields[] = {{Area::header, 12, 70},
                           {Area::root, 12, 60},
                           {Area::root, 70, 120},
                           {Area::shape, 0, 250},
                           {Area::shape, tiles_at, tiles_bytes},
                           {Area::page, 0, 200},
                           {Area::state, 52, 100},
                           {Area::tile, 0, 40}};
  for (const auto& [area, into, length] : fields) {
    for (const uint8_t which : {uint8_t{0}, kBothCopies, uint8_t{kBothCopies | kSecondDrive},
                                uint8_t{kBothCopies | kAllDrives}, uint8_t{kSecondCopy | kAllDrives}}) {
      const uint32_t drive = which & kSecondDrive ? 1 : 0, copy = which & kSecondCopy ? 1 : 0;
      const std::span<std::byte> there = part(world().image[drive], offset_of(area, copy) + into, length);
      const bool alike = area != Area::page && area != Area::tile && area != Area::state;
      if (alike || !(which & kBothCopies)) all.push_back(change_of(area, which, into, there));
    }
  }
  // What was found once: a tile of more than can be laid out, and a header of more drives than the other's.
  const uint64_t vast = uint64_t{1} << 44;
  all.push_back(
      change_of(Area::shape, kAllDrives, static_cast<uint16_t>(tiles_at + 16), std::as_bytes(std::span(&vast, 1))));
  StoreHeader of_five = *StoreHeader::decode(part(world().image[1], 0, kRecordBytes), "header");
  of_five.shares.assign(5, 2000);
  of_five.drive = 4;
  const Bytes header = fields_of(of_five.encode());
  all.push_back(change_of(Area::header, kBothCopies | kSecondDrive, 12, std::span(header).subspan(12)));
  all.push_back(change_of(Area::length, kAllDrives, static_cast<uint16_t>(world().image[0].size() / 128), {}));
  return all;
}

std::string outside_of_its_file(TileStore& store) {
  for (TileId tile = 0; tile < store.shape().tiles.size(); ++tile) {
    const std::optional<TileStore::Reading> reading = store.begin_read(tile);
    if (!reading) return "a tile that cannot be read";
    uint64_t bytes = 0;
    for (const Extent& extent : reading->extents) {
      bytes += extent.length_bytes;
      if (extent.offset_bytes + extent.length_bytes > extent.file->size_bytes())
        return "a tile past the end of its file";
    }
    store.end_read(reading->place);
    if (bytes != store.layout().tile_bytes(tile)) return "a tile without all of its bytes";
  }
  return "";
}

// Reads everything, makes the next root, and finds it again.
std::string go_on(StoreWorld& drives) {
  Result<std::unique_ptr<TileStore>> store = drives.open();
  if (!store.ok()) return "opened and then refused: " + store.status().message();
  RootPayload payload = (*store)->payload();
  payload.trainer_state = "next";
  const Result<ScrubReport> report = (*store)->scrub(drives.memory());
  if (!report.ok()) return "scrubbing: " + report.status().message();
  if (std::string wrong = outside_of_its_file(**store); !wrong.empty()) return wrong;
  if (!(*store)->commit_and_wait(payload).ok()) return "";
  store->reset();
  store = drives.open();
  if (!store.ok()) return "its next root is refused: " + store.status().message();
  return (*store)->payload() == payload ? "" : "its next root is not found";
}

// Byte by byte, instrumented, would take most of the time.
bool still_has(StoreWorld& drives, const std::vector<MemoryFile::Bytes>& image) {
  for (uint32_t drive = 0; drive < kDrives; ++drive) {
    const MemoryFile::Bytes& now = drives.bytes(drive);
    if (now.size() != image[drive].size()) return false;
    if (!now.empty() && std::memcmp(now.data(), image[drive].data(), now.size()) != 0) return false;
  }
  return true;
}

std::string run(std::span<const std::byte> input) {
  std::vector<MemoryFile::Bytes> image = world().image;
  for (ByteReader in(input); in.left() > 0;) {
    const uint8_t where = in.get<uint8_t>();
    const uint16_t into = in.get<uint16_t>();
    const size_t length = in.get<uint8_t>();
    if (!in.ok()) break;
    change(image, where, into, in.get_bytes(std::min(length, in.left())));
  }
  for (MemoryFile::Bytes& file : image) set_right(file);
  StoreWorld& drives = world().store;
  drives.put_image(image);
  (void)drives.open({.purpose = OpenOptions::Purpose::inspect});
  if (!still_has(drives, image)) return "inspecting has written";
  Result<std::unique_ptr<TileStore>> store = drives.open();
  if (!store.ok()) {
    if (!still_has(drives, image)) return "refused, and has written";
    return store.status().remedy().empty() ? "refused without a way out: " + store.status().message() : "";
  }
  store->reset();
  return go_on(drives);
}

}  // namespace

const Target store_open{.name = "store_open", .seeds = seeds, .run = run, .rounds = 2000, .memory_bytes = 128 * kMiB};

}  // namespace penstock::fuzz
