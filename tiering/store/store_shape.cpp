#include "tiering/store/store_shape.h"

#include <algorithm>
#include <limits>

#include "tiering/store/byte_codec.h"
#include "tiering/store/store_hash.h"

namespace penstock {
namespace {

constexpr size_t kPlanesMax = 16;
// Of all tiles together, so that their bytes in every slot can be counted.
constexpr uint64_t kElementsMax = uint64_t{1} << 48;
constexpr uint64_t kShapeSeed = 0x3145504148534b50;  // "PKSHAPE1"
constexpr uint8_t kDtypes = 6;
constexpr uint8_t kRoles = 9;

void put_kind(ByteWriter& out, const StoreShape::Kind& kind) {
  out.put(static_cast<uint8_t>(kind.updated));
  out.put(static_cast<uint32_t>(kind.planes.size()));
  for (const Plane& plane : kind.planes) {
    out.put(static_cast<uint8_t>(plane.role));
    out.put(static_cast<uint8_t>(plane.dtype));
  }
}

// All zeros are invalid, and end the reading: a file with holes may have billions of them.
StoreShape::Kind get_kind(ByteReader& in) {
  StoreShape::Kind kind;
  const uint8_t updated = in.get<uint8_t>();
  kind.updated = updated != 0;
  uint32_t count = in.get<uint32_t>();
  if (updated > 1 || count == 0) in.fail();
  for (uint32_t i = 0; i < count && in.ok() && i <= kPlanesMax; ++i) {
    uint8_t role = in.get<uint8_t>();
    kind.planes.push_back({static_cast<Role>(role), static_cast<Dtype>(in.get<uint8_t>())});
  }
  return kind;
}

void put_unit(ByteWriter& out, const StoreShape::Unit& unit) {
  out.put_string(unit.name);
  out.put(static_cast<uint32_t>(unit.parameters.size()));
  for (const Parameter& parameter : unit.parameters) {
    out.put_string(parameter.name);
    out.put(parameter.first_element);
    out.put(parameter.elements);
  }
}

StoreShape::Unit get_unit(ByteReader& in) {
  StoreShape::Unit unit;
  unit.name = in.get_string();
  if (unit.name.empty()) in.fail();
  uint32_t count = in.get<uint32_t>();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    Parameter parameter;
    parameter.name = in.get_string();
    parameter.first_element = in.get<uint64_t>();
    parameter.elements = in.get<uint64_t>();
    if (parameter.elements == 0) in.fail();
    unit.parameters.push_back(std::move(parameter));
  }
  return unit;
}

void put_tile(ByteWriter& out, const StoreShape::Tile& tile) {
  out.put(tile.unit);
  out.put(tile.kind);
  out.put(tile.first_element);
  out.put(tile.elements);
}

StoreShape::Tile get_tile(ByteReader& in) {
  StoreShape::Tile tile;
  tile.unit = in.get<uint32_t>();
  tile.kind = in.get<uint32_t>();
  tile.first_element = in.get<uint64_t>();
  tile.elements = in.get<uint64_t>();
  if (tile.elements == 0) in.fail();
  return tile;
}

Status invalid(const std::string& what) { return Status(Code::kCorrupt, "store shape: invalid: " + what); }

bool is_known(const Plane& plane) {
  return static_cast<uint8_t>(plane.role) < kRoles && static_cast<uint8_t>(plane.dtype) < kDtypes;
}

bool is_run(uint64_t first_element, uint64_t elements) {
  return elements <= kElementsMax && first_element <= kElementsMax - elements;
}

// Elements of each unit. Its tiles cover all of them, so the furthest end of a tile is the unit's.
std::vector<uint64_t> unit_elements(const StoreShape& shape) {
  std::vector<uint64_t> elements(shape.units.size(), 0);
  for (const StoreShape::Tile& tile : shape.tiles) {
    elements[tile.unit] = std::max(elements[tile.unit], tile.first_element + tile.elements);
  }
  return elements;
}

// Of each unit, that of its first plane, which has the weights.
std::vector<Dtype> weight_dtypes(const StoreShape& shape) {
  std::vector<Dtype> dtypes(shape.units.size(), Dtype::fp32);
  for (const StoreShape::Tile& tile : shape.tiles) dtypes[tile.unit] = shape.kinds[tile.kind].planes.front().dtype;
  return dtypes;
}

}  // namespace

StoreShape StoreShape::of(const Workload& workload, const TileMap& map, uint32_t rank) {
  StoreShape shape;
  shape.rank = rank;
  shape.ranks = workload.ranks;
  Plane weight{Role::weight, workload.form.weight};
  std::vector<Plane> trainable{weight};
  for (const Plane& plane : resting_planes(workload.form)) trainable.push_back(plane);
  shape.kinds = {{trainable, true}, {{weight}, false}};
  for (const penstock::Unit& unit : workload.units) shape.units.push_back({unit.name, unit.parameters});
  const auto kind_of = [&](const penstock::Unit& unit) {
    if (!unit.code) return unit.trainable ? 0u : 1u;
    const Kind coded{coded_planes(*unit.code), false};
    const auto found = std::find(shape.kinds.begin(), shape.kinds.end(), coded);
    const auto number = static_cast<uint32_t>(found - shape.kinds.begin());
    if (found == shape.kinds.end()) shape.kinds.push_back(coded);
    return number;
  };
  std::vector<uint32_t> kind_of_unit;
  for (const penstock::Unit& unit : workload.units) kind_of_unit.push_back(kind_of(unit));
  for (const penstock::Tile& tile : map.tiles()) {
    shape.tiles.push_back({tile.unit, kind_of_unit[tile.unit], tile.first_element, tile.elements});
  }
  return shape;
}

uint64_t StoreShape::parameter_elements() const {
  uint64_t sum = 0;
  for (uint64_t elements : unit_elements(*this)) sum += elements;
  return sum;
}

Status StoreShape::validate() const {
  if (tiles.empty() || tiles.size() > std::numeric_limits<TileId>::max()) return invalid(text(tiles.size(), " tiles"));
  if (rank >= ranks) return invalid(text("rank ", rank, " of ", ranks));
  for (const auto& [planes, updated] : kinds) {
    if (planes.empty() || planes.size() > kPlanesMax) return invalid(text("a tile of ", planes.size(), " planes"));
    if (!std::all_of(planes.begin(), planes.end(), is_known)) return invalid("a plane of an unknown role or type");
  }
  uint64_t elements = 0;
  for (const Tile& tile : tiles) {
    if (tile.unit >= units.size() || tile.kind >= kinds.size()) return invalid("a tile of no known unit or kind");
    if (tile.elements == 0 || !is_run(tile.first_element, tile.elements)) {
      return invalid(text("a tile of ", tile.elements, " elements at ", tile.first_element));
    }
    elements += tile.elements;
    if (elements > kElementsMax) return invalid(text("more than ", kElementsMax, " elements"));
  }
  uint64_t of_units = 0;
  for (uint64_t of_unit : unit_elements(*this)) {
    of_units += of_unit;
    if (of_units > kElementsMax) return invalid(text("units of more than ", kElementsMax, " elements"));
  }
  for (const Unit& unit : units) {
    if (unit.name.empty()) return invalid("a unit without a name");
    for (const Parameter& parameter : unit.parameters) {
      if (parameter.elements > 0 && is_run(parameter.first_element, parameter.elements)) continue;
      return invalid(text("a parameter of ", parameter.elements, " elements at ", parameter.first_element));
    }
  }
  if (const size_t bytes = encode().size(); bytes > kShapeBytesMax) {
    return Status(Code::kUsage,
                  text("store shape: ", tiles.size(), " tiles and the names take ", bytes_text(bytes), ", at most ",
                       bytes_text(kShapeBytesMax)),
                  "larger tiles, or shorter names");
  }
  return Status();
}

uint64_t StoreShape::digest() const { return store_hash(encode(), kShapeSeed); }

std::string StoreShape::first_difference(const StoreShape& theirs, const Names& names) const {
  const std::string_view ours = names.ours, other = names.theirs;
  if (ranks != theirs.ranks || rank != theirs.rank) {
    return text(ours, " is of rank ", rank, " of ", ranks, ", ", other, " of rank ", theirs.rank, " of ", theirs.ranks);
  }
  if (units.size() != theirs.units.size()) {
    return text(ours, " has ", units.size(), " units, ", other, " ", theirs.units.size());
  }
  const std::vector<uint64_t> our_elements = unit_elements(*this), their_elements = unit_elements(theirs);
  for (size_t u = 0; u < units.size(); ++u) {
    const std::string &name = units[u].name, &their_name = theirs.units[u].name;
    if (name != their_name) return text("unit ", u, " is ", name, " in ", ours, ", ", their_name, " in ", other);
    if (our_elements[u] != their_elements[u]) {
      return text("unit ", name, " has ", our_elements[u], " elements in ", ours, ", ", their_elements[u], " in ",
                  other);
    }
    const auto &mine = units[u].parameters, &others = theirs.units[u].parameters;
    for (size_t i = 0; i < std::min(mine.size(), others.size()); ++i) {
      if (mine[i].name == others[i].name) continue;
      return text("parameter ", i, " of unit ", name, " is ", mine[i].name, " in ", ours, ", ", others[i].name, " in ",
                  other);
    }
  }
  const std::vector<Dtype> our_weights = weight_dtypes(*this), their_weights = weight_dtypes(theirs);
  for (size_t u = 0; u < units.size(); ++u) {
    if (our_weights[u] == their_weights[u]) continue;
    return text("the weights of unit ", units[u].name, " are ", name_of(our_weights[u]), " in ", ours, ", ",
                name_of(their_weights[u]), " in ", other);
  }
  if (kinds != theirs.kinds) return "the optimizer states in the tiles differ";
  if (tiles.size() != theirs.tiles.size()) {
    return text(ours, " has ", tiles.size(), " tiles, ", other, " ", theirs.tiles.size());
  }
  return encode() == theirs.encode() ? "" : "parameters or tiles are cut differently";
}

bool StoreShape::has_codes() const {
  return std::any_of(kinds.begin(), kinds.end(), [](const Kind& kind) {
    return std::any_of(kind.planes.begin(), kind.planes.end(),
                       [](const Plane& plane) { return plane.role == Role::weight_scale; });
  });
}

std::vector<std::byte> StoreShape::encode() const {
  ByteWriter out;
  out.put(rank);
  out.put(ranks);
  out.put(static_cast<uint32_t>(units.size()));
  for (const Unit& unit : units) put_unit(out, unit);
  out.put(static_cast<uint32_t>(kinds.size()));
  for (const Kind& kind : kinds) put_kind(out, kind);
  out.put(static_cast<uint32_t>(tiles.size()));
  for (const Tile& tile : tiles) put_tile(out, tile);
  return out.take();
}

Result<StoreShape> StoreShape::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  StoreShape shape;
  shape.rank = in.get<uint32_t>();
  shape.ranks = in.get<uint32_t>();
  uint32_t units = in.get<uint32_t>();
  for (uint32_t i = 0; i < units && in.ok(); ++i) shape.units.push_back(get_unit(in));
  uint32_t kinds = in.get<uint32_t>();
  for (uint32_t i = 0; i < kinds && in.ok(); ++i) shape.kinds.push_back(get_kind(in));
  uint32_t tiles = in.get<uint32_t>();
  for (uint32_t i = 0; i < tiles && in.ok(); ++i) shape.tiles.push_back(get_tile(in));
  if (!in.ok() || in.left() > 0) {
    return invalid(text("its ", bytes.size(), " B end too early, too late or in the middle of a field"));
  }
  PENSTOCK_TRY(shape.validate());
  return shape;
}

uint64_t checksum_count(const StoreShape& shape, TileId tile) {
  const StoreShape::Tile& of = shape.tiles[tile];
  return ceil_div(of.elements, kBlockElements) * shape.kind(tile).planes.size();
}

TileBlock block_of(const TileLayout& layout, uint64_t elements, uint64_t number) {
  const uint64_t planes = layout.places.size();
  const TileLayout::Place& place = layout.places[number % planes];
  TileBlock block;
  block.plane = static_cast<uint32_t>(number % planes);
  block.first_element = number / planes * kBlockElements;
  CHECK(block.first_element < elements, "checksum ", number, " of a tile of ", elements, " elements");
  block.elements = std::min(kBlockElements, elements - block.first_element);
  block.offset_bytes = place.offset_bytes + place.plane.bytes(block.first_element);
  block.length_bytes = place.plane.bytes(block.elements);
  return block;
}

std::string describe_tile(const StoreShape& shape, TileId tile) {
  const StoreShape::Tile& of = shape.tiles[tile];
  const StoreShape::Unit& unit = shape.units[of.unit];
  std::string first, last;
  for (const Parameter& parameter : unit.parameters) {
    const bool within = parameter.first_element < of.first_element + of.elements &&
                        of.first_element < parameter.first_element + parameter.elements;
    if (!within) continue;
    if (first.empty()) first = parameter.name;
    last = parameter.name;
  }
  if (first.empty()) first = last = unit.name;
  return text("tile ", tile, " (", first, first == last ? "" : " to " + last, ")");
}

std::string describe_block(const StoreShape& shape, TileId tile, const TileBlock& block) {
  const StoreShape::Tile& of = shape.tiles[tile];
  const StoreShape::Unit& unit = shape.units[of.unit];
  const uint64_t first = of.first_element + block.first_element, end = first + block.elements;
  std::string names;
  for (const Parameter& parameter : unit.parameters) {
    uint64_t from = std::max(first, parameter.first_element);
    uint64_t to = std::min(end, parameter.first_element + parameter.elements);
    if (from >= to) continue;
    if (!names.empty()) names += ", ";
    names += text(parameter.name, "[", from - parameter.first_element, "..", to - parameter.first_element, ")");
  }
  if (names.empty()) names = text(unit.name, "[", first, "..", end, ")");
  return names + " " + name_of(shape.kind(tile).planes[block.plane].role);
}

}  // namespace penstock
