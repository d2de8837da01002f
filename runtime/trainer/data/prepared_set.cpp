#include "runtime/trainer/data/prepared_set.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/trainer/batch.h"
#include "runtime/trainer/files/file_io.h"

namespace penstock::trainer {
namespace {

using json = nlohmann::json;

constexpr const char* kFormat = "penstock.data/1";
constexpr uint64_t kManifestMostBytes = uint64_t{16} << 20;
constexpr uint64_t kLengthMost = uint64_t{1} << 31;  // positions are 32 bits wide

Status refused(const std::string& why) {
  return Status(Code::kCorrupt, "manifest.json: " + why, "prepare the set again");
}

Result<uint64_t> number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return refused(text(key, ": a number expected"));
  return found->get<uint64_t>();
}

Result<std::string> string_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return refused(text(key, ": a string expected"));
  return found->get<std::string>();
}

Result<PreparedManifest::Rows> rows_of(const json& part, const char* key) {
  const auto found = part.find(key);
  if (found == part.end() || !found->is_object()) return refused(text("sets: ", key, ": an object expected"));
  PENSTOCK_TRY_ASSIGN(first, number_of(*found, "first_row"));
  PENSTOCK_TRY_ASSIGN(count, number_of(*found, "rows"));
  return PreparedManifest::Rows{first, count};
}

Result<PreparedManifest::Part> part_of(const json& value) {
  if (!value.is_object()) return refused("sets: objects expected");
  PreparedManifest::Part part;
  PENSTOCK_TRY_ASSIGN(name, string_of(value, "name"));
  part.name = std::move(name);
  const auto weight = value.find("weight");
  if (weight == value.end() || !weight->is_number()) return refused("sets: weight: a number expected");
  part.weight = weight->get<double>();
  if (!(part.weight > 0 && std::isfinite(part.weight)))
    return refused(text("sets: a weight of ", part.weight, ", more than 0 expected"));
  PENSTOCK_TRY_ASSIGN(training, rows_of(value, "train"));
  PENSTOCK_TRY_ASSIGN(held_out, rows_of(value, "validation"));
  part.training = training, part.held_out = held_out;
  return part;
}

Status read_sizes(const json& files, PreparedManifest& into) {
  const std::pair<const char*, uint64_t*> sizes[] = {{"tokens.u32", &into.tokens_bytes},
                                                     {"learnt.u8", &into.learnt_bytes},
                                                     {"documents.u64", &into.documents_bytes},
                                                     {"order.u64", &into.order_bytes},
                                                     {"rows.u64", &into.rows_bytes}};
  for (const auto& [name, size] : sizes) {
    const auto found = files.find(name);
    if (found == files.end() || !found->is_object()) return refused(text("files: ", name, ": an object expected"));
    PENSTOCK_TRY_ASSIGN(bytes, number_of(*found, "bytes"));
    *size = bytes;
  }
  return Status();
}

template <typename Number>
Number number_at(const std::byte* at) {
  Number value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

Result<PreparedManifest> parse_prepared_manifest(const std::string& words) {
  const json whole = json::parse(words, nullptr, /*allow_exceptions=*/false);
  if (!whole.is_object()) return refused("not a JSON object");
  PENSTOCK_TRY_ASSIGN(format, string_of(whole, "format"));
  if (format != kFormat) return refused(text("format '", format, "', '", kFormat, "' expected"));
  PreparedManifest manifest;
  PENSTOCK_TRY_ASSIGN(hash, string_of(whole, "hash"));
  PENSTOCK_TRY_ASSIGN(length, number_of(whole, "length"));
  PENSTOCK_TRY_ASSIGN(padding, number_of(whole, "padding"));
  if (length < 2 || length > kLengthMost) return refused(text("length: ", length, ", 2 to ", kLengthMost, " expected"));
  if (padding > INT32_MAX) return refused(text("padding: token ", padding));
  manifest.hash = std::move(hash), manifest.length = length, manifest.padding = static_cast<int32_t>(padding);
  const auto files = whole.find("files"), sets = whole.find("sets");
  if (files == whole.end() || !files->is_object()) return refused("files: an object expected");
  PENSTOCK_TRY(read_sizes(*files, manifest));
  if (sets == whole.end() || !sets->is_array() || sets->empty()) return refused("sets: an array expected");
  for (const json& value : *sets) {
    PENSTOCK_TRY_ASSIGN(part, part_of(value));
    manifest.parts.push_back(std::move(part));
  }
  return manifest;
}

uint64_t PreparedSet::Mapped::number(uint64_t index) const { return number_at<uint64_t>(data + 8 * index); }

int32_t PreparedSet::token(uint64_t at) const {
  return static_cast<int32_t>(number_at<uint32_t>(tokens_.data + 4 * at));
}

bool PreparedSet::is_at(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Result<std::unique_ptr<PreparedSet>> PreparedSet::open(const std::string& folder) {
  std::unique_ptr<PreparedSet> set(new PreparedSet(folder));
  if (::access((folder + "/manifest.json").c_str(), F_OK) != 0)
    return Status(Code::kUsage, text("open ", folder, ": not a prepared set: it has no manifest.json"),
                  "`penstock data FILE... --model FOLDER --out FOLDER` makes one");
  PENSTOCK_TRY_ASSIGN(words, read_small_file(folder + "/manifest.json", kManifestMostBytes));
  auto manifest = parse_prepared_manifest(words);
  if (!manifest.ok()) return manifest.status().within(folder);
  set->manifest_ = std::move(*manifest);
  PENSTOCK_TRY(set->map_all());
  PENSTOCK_TRY(set->check_tables().within(folder));
  return set;
}

Status PreparedSet::map(const char* name, uint64_t bytes_expected, Mapped& into) {
  const std::string file = path_ + "/" + name;
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return errno_status(text("open ", file), errno);
  struct stat info {};
  int error = ::fstat(descriptor, &info) == 0 ? 0 : errno;
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (error == 0 && bytes == bytes_expected && bytes > 0) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED)
      error = errno;
    else
      into = {static_cast<const std::byte*>(memory), bytes};
  }
  ::close(descriptor);
  if (error != 0) return errno_status(text("map ", bytes, " B of ", file), error);
  if (bytes != bytes_expected)
    return Status(Code::kCorrupt, text("open ", file, ": ", bytes, " B, its manifest says ", bytes_expected),
                  "prepare the set again");
  return into.data != nullptr ? Status() : Status(Code::kCorrupt, text("open ", file, ": is empty"));
}

Status PreparedSet::map_all() {
  PENSTOCK_TRY(map("tokens.u32", manifest_.tokens_bytes, tokens_));
  PENSTOCK_TRY(map("learnt.u8", manifest_.learnt_bytes, learnt_));
  PENSTOCK_TRY(map("documents.u64", manifest_.documents_bytes, documents_));
  PENSTOCK_TRY(map("order.u64", manifest_.order_bytes, order_));
  return map("rows.u64", manifest_.rows_bytes, rows_);
}

PreparedSet::~PreparedSet() {
  for (const Mapped* mapped : {&tokens_, &learnt_, &documents_, &order_, &rows_})
    if (mapped->data != nullptr) ::munmap(const_cast<std::byte*>(mapped->data), mapped->bytes);
}

Status PreparedSet::check_tables() const {
  auto wrong = [](const std::string& why) { return Status(Code::kCorrupt, why, "prepare the set again"); };
  for (const Mapped* table : {&documents_, &order_, &rows_})
    if (table->bytes % 8 != 0) return wrong(text("a table of ", table->bytes, " B, numbers of 8 B expected"));
  const uint64_t tokens = tokens_.bytes / 4, documents = documents_.numbers() - 1, rows = rows_.numbers() - 1;
  if (tokens_.bytes % 4 != 0 || learnt_.bytes != tokens)
    return wrong(text("tokens.u32 has ", tokens_.bytes, " B, learnt.u8 ", learnt_.bytes));
  if (documents_.number(0) != 0 || documents_.number(documents) != tokens)
    return wrong(text("documents.u64 does not go from 0 to ", tokens));
  for (uint64_t d = 0; d < documents; ++d) {
    const uint64_t first = documents_.number(d), end = documents_.number(d + 1);
    if (end > tokens || end < first + 2 || end - first > manifest_.length)
      return wrong(text("document ", d, " is tokens ", first, " to ", end, " of ", tokens, ", 2 to ", manifest_.length,
                        " of them expected"));
  }
  if (order_.numbers() != documents || rows_.number(0) != 0 || rows_.number(rows) != documents)
    return wrong(text("rows.u64 and order.u64 do not have all of the ", documents, " documents"));
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t first = rows_.number(row), end = rows_.number(row + 1);
    if (end > documents || end <= first) return wrong(text("row ", row, " is documents ", first, " to ", end));
    uint64_t together = 0;
    for (uint64_t place = first; place < end; ++place) {
      const uint64_t d = order_.number(place);
      if (d >= documents) return wrong(text("row ", row, " has document ", d, " of ", documents));
      together += documents_.number(d + 1) - documents_.number(d);
    }
    if (together > manifest_.length)
      return wrong(text("row ", row, " has ", together, " tokens, at most ", manifest_.length, " expected"));
  }
  for (const PreparedManifest::Part& part : manifest_.parts)
    for (const PreparedManifest::Rows& own : {part.training, part.held_out})
      if (own.first > rows || own.count > rows - own.first)
        return wrong(text("set '", part.name, "' has rows ", own.first, " and ", own.count, " on, of ", rows));
  return Status();
}

void PreparedSet::read_row(uint64_t row, const RowPlaces& into) const {
  CHECK(row + 1 < rows_.numbers(), "row ", row, " of ", rows_.numbers() - 1, " in ", path_);
  CHECK(into.tokens.size() >= manifest_.length && into.targets.size() == into.tokens.size() &&
            into.positions.size() == into.tokens.size(),
        into.tokens.size(), " places for a row of ", manifest_.length);
  size_t at = 0;
  for (uint64_t place = rows_.number(row); place < rows_.number(row + 1); ++place) {
    const uint64_t document = order_.number(place);
    const uint64_t first = documents_.number(document), count = documents_.number(document + 1) - first;
    for (uint64_t i = 0; i < count; ++i, ++at) {
      into.tokens[at] = token(first + i);
      const bool leads_on = i + 1 < count && learnt_.data[first + i + 1] != std::byte{0};
      into.targets[at] = leads_on ? token(first + i + 1) : kIgnored;
      into.positions[at] = static_cast<int32_t>(i);
    }
  }
  for (int32_t position = 0; at < into.tokens.size(); ++at, ++position)
    into.tokens[at] = manifest_.padding, into.targets[at] = kIgnored, into.positions[at] = position;
}

Status PreparedSet::check(uint32_t vocabulary) const {
  auto refused_token = [&](uint32_t found, const std::string& where) {
    return Status(Code::kUsage, text("check ", path_, ": ", where, " is ", found, ", the vocabulary has ", vocabulary),
                  "prepare the set for this model: `penstock data FILE... --model FOLDER`");
  };
  for (uint64_t at = 0; at < tokens_.bytes / 4; ++at)
    if (const auto found = static_cast<uint32_t>(token(at)); found >= vocabulary)
      return refused_token(found, text("token ", at));
  const auto padding = static_cast<uint32_t>(manifest_.padding);
  return padding < vocabulary ? Status() : refused_token(padding, "the padding");
}

}  // namespace penstock::trainer
