#include "runtime/trainer/files/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/trainer/files/file_io.h"
#include "tiering/arithmetic/convert.h"

namespace penstock::trainer {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian, and so are our buffers");

constexpr uint64_t kHeaderMostBytes = 100'000'000;  // as the format's own library has it
constexpr uint64_t kLengthBytes = 8;
constexpr size_t kPieceElements = size_t{1} << 18;

struct DtypeName {
  const char* name;
  FileDtype dtype;
};
constexpr DtypeName kDtypes[] = {
    {"F32", FileDtype::f32}, {"BF16", FileDtype::bf16}, {"F16", FileDtype::f16}, {"F64", FileDtype::f64}};
// Whose values are never weights of ours; their bits are counted all the same.
constexpr std::pair<const char*, uint64_t> kOtherDtypes[] = {{"BOOL", 8}, {"U8", 8},      {"I8", 8},     {"U16", 16},
                                                             {"I16", 16}, {"U32", 32},    {"I32", 32},   {"U64", 64},
                                                             {"I64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}};

Status corrupt(const std::string& what) { return Status(Code::kCorrupt, "safetensors header: " + what); }

struct Run {
  uint64_t begin, end;
  std::string name;
};

Result<std::pair<uint64_t, uint64_t>> offsets_of(const std::string& name, const json& tensor) {
  const auto offsets = tensor.find("data_offsets");
  if (offsets == tensor.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned())
    return corrupt(text("'", name, "': data_offsets are not two offsets"));
  return std::pair((*offsets)[0].get<uint64_t>(), (*offsets)[1].get<uint64_t>());
}

Result<std::vector<uint64_t>> shape_of(const std::string& name, const json& tensor, uint64_t most_elements) {
  const auto sizes = tensor.find("shape");
  if (sizes == tensor.end() || !sizes->is_array()) return corrupt(text("'", name, "': has no shape"));
  std::vector<uint64_t> shape;
  uint64_t elements = 1;
  for (const json& size : *sizes) {
    if (!size.is_number_unsigned()) return corrupt(text("'", name, "': its shape has a size of ", size.dump()));
    shape.push_back(size.get<uint64_t>());
    if (shape.back() != 0 && elements > most_elements / shape.back())
      return corrupt(text("'", name, "': its shape ", sizes->dump(), " has more elements than the file has room for"));
    elements *= shape.back();
  }
  return shape;
}

uint64_t product(const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (uint64_t size : shape) elements *= size;
  return elements;
}

float value_of(FileDtype dtype, const std::byte* at) {
  uint16_t half = 0;
  switch (dtype) {
    case FileDtype::f32: {
      float value = 0;
      std::memcpy(&value, at, 4);
      return value;
    }
    case FileDtype::f64: {
      double value = 0;
      std::memcpy(&value, at, 8);
      return static_cast<float>(value);
    }
    case FileDtype::bf16:
      std::memcpy(&half, at, 2);
      return arithmetic::float_of_bf16(half);
    case FileDtype::f16:
      std::memcpy(&half, at, 2);
      return arithmetic::float_of_fp16(half);
  }
  return 0;
}

void store_value(FileDtype dtype, float value, std::byte* at) {
  if (dtype == FileDtype::f32) {
    std::memcpy(at, &value, 4);
  } else if (dtype == FileDtype::f64) {
    const double wide = value;
    std::memcpy(at, &wide, 8);
  } else {
    const uint16_t half =
        dtype == FileDtype::bf16 ? arithmetic::bf16_of_float(value) : arithmetic::fp16_of_float(value);
    std::memcpy(at, &half, 2);
  }
}

}  // namespace

const char* name_of(FileDtype dtype) {
  for (const DtypeName& known : kDtypes)
    if (known.dtype == dtype) return known.name;
  return "";
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view text_of_header, uint64_t data_bytes) {
  const json all = json::parse(text_of_header, nullptr, false);
  if (!all.is_object()) return corrupt("is not a JSON object");
  SafetensorsHeader header;
  std::vector<Run> runs;
  for (const auto& [name, tensor] : all.items()) {
    if (name == "__metadata__") continue;
    if (!tensor.is_object()) return corrupt(text("'", name, "': is not an object"));
    const auto dtype = tensor.find("dtype");
    if (dtype == tensor.end() || !dtype->is_string()) return corrupt(text("'", name, "': has no dtype"));
    PENSTOCK_TRY_ASSIGN(offsets, offsets_of(name, tensor));
    const auto [begin, end] = offsets;
    if (begin > end || end > data_bytes)
      return corrupt(text("'", name, "': lies at ", begin, " to ", end, ", the file has ", data_bytes, " B of data"));
    PENSTOCK_TRY_ASSIGN(shape, shape_of(name, tensor, data_bytes));
    const auto word = dtype->get<std::string>();
    uint64_t bits = 0;
    for (const DtypeName& known : kDtypes)
      if (word == known.name) bits = bytes_of(known.dtype) * 8;
    const bool values = bits > 0;
    for (const auto& [known, its_bits] : kOtherDtypes)
      if (word == known) bits = its_bits;
    if (bits == 0) return corrupt(text("'", name, "': unknown dtype '", word, "'"));
    if (product(shape) > data_bytes || product(shape) * bits / 8 != end - begin)
      return corrupt(text("'", name, "': ", end - begin, " B for ", product(shape), " elements of ", word));
    if (begin < end) runs.push_back({begin, end, name});
    if (!values) {
      header.other_dtypes.emplace(name, word);
      continue;
    }
    StoredTensor stored{.shape = shape, .elements = product(shape), .offset_bytes = begin};
    for (const DtypeName& known : kDtypes)
      if (word == known.name) stored.dtype = known.dtype;
    header.tensors.emplace(name, std::move(stored));
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < runs.size(); ++i)
    if (runs[i].begin < runs[i - 1].end) return corrupt(text("'", runs[i].name, "' overlaps '", runs[i - 1].name, "'"));
  return header;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path));
  file->descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file->descriptor_ < 0) return errno_status(text("open ", path), errno);
  struct stat info {};
  if (::fstat(file->descriptor_, &info) != 0) return errno_status(text("stat ", path), errno);
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (!S_ISREG(info.st_mode) || bytes < kLengthBytes)
    return Status(Code::kCorrupt, text("open ", path, ": is not a safetensors file: ", bytes, " B"));
  uint64_t length = 0;
  PENSTOCK_TRY(read_all(file->descriptor_, path, 0, std::as_writable_bytes(std::span(&length, 1))));
  if (length > kHeaderMostBytes || length > bytes - kLengthBytes)
    return Status(Code::kCorrupt, text("open ", path, ": is not a safetensors file: a header of ", length,
                                       " B in a file of ", bytes, " B"));
  std::string header(length, '\0');
  PENSTOCK_TRY(read_all(file->descriptor_, path, kLengthBytes, std::as_writable_bytes(std::span(header))));
  file->data_offset_bytes_ = kLengthBytes + length;
  auto parsed = parse_safetensors_header(header, bytes - file->data_offset_bytes_);
  if (!parsed.ok()) return parsed.status().within(path);
  file->header_ = std::move(*parsed);
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status SafetensorsFile::read(const StoredTensor& tensor, uint64_t first, std::span<float> values) const {
  CHECK(first + values.size() <= tensor.elements, "elements ", first, " to ", first + values.size(), " of ",
        tensor.elements);
  const uint64_t each = bytes_of(tensor.dtype);
  std::vector<std::byte> piece(std::min(values.size(), kPieceElements) * each);
  for (size_t done = 0; done < values.size();) {
    const size_t count = std::min(values.size() - done, kPieceElements);
    const uint64_t offset = data_offset_bytes_ + tensor.offset_bytes + (first + done) * each;
    PENSTOCK_TRY(read_all(descriptor_, path_, offset, std::span(piece).first(count * each)));
    for (size_t i = 0; i < count; ++i) values[done + i] = value_of(tensor.dtype, piece.data() + i * each);
    done += count;
  }
  return Status();
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(const std::string& path,
                                                                     const std::vector<Entry>& entries,
                                                                     FileDtype dtype) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(path, dtype));
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  for (const Entry& entry : entries) {
    const uint64_t elements = product(entry.shape), end = writer->data_bytes_ + elements * bytes_of(dtype);
    header[entry.name] = {
        {"dtype", name_of(dtype)}, {"shape", entry.shape}, {"data_offsets", {writer->data_bytes_, end}}};
    writer->tensors_[entry.name] = {dtype, entry.shape, elements, writer->data_bytes_};
    writer->data_bytes_ = end;
  }
  std::string words = header.dump();
  words.resize((words.size() + 7) / 8 * 8, ' ');  // values begin at a multiple of 8 B
  const uint64_t length = words.size();
  writer->data_offset_bytes_ = kLengthBytes + length;

  writer->descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (writer->descriptor_ < 0) return errno_status(text("create ", path), errno);
  const uint64_t bytes = writer->data_offset_bytes_ + writer->data_bytes_;
  if (const int error = ::posix_fallocate(writer->descriptor_, 0, static_cast<off_t>(bytes)); error != 0)
    return errno_status(text("reserve ", bytes, " B for ", path), error);
  PENSTOCK_TRY(write_all(writer->descriptor_, path, 0, std::as_bytes(std::span(&length, 1))));
  PENSTOCK_TRY(write_all(writer->descriptor_, path, kLengthBytes, std::as_bytes(std::span(words))));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status SafetensorsWriter::write(const std::string& name, uint64_t first, std::span<const float> values) {
  const StoredTensor& tensor = tensors_.at(name);
  CHECK(first + values.size() <= tensor.elements, "'", name, "': elements ", first, " to ", first + values.size(),
        " of ", tensor.elements);
  const uint64_t each = bytes_of(dtype_);
  std::vector<std::byte> piece(std::min(values.size(), kPieceElements) * each);
  for (size_t done = 0; done < values.size();) {
    const size_t count = std::min(values.size() - done, kPieceElements);
    for (size_t i = 0; i < count; ++i) store_value(dtype_, values[done + i], piece.data() + i * each);
    const uint64_t offset = data_offset_bytes_ + tensor.offset_bytes + (first + done) * each;
    PENSTOCK_TRY(write_all(descriptor_, path_, offset, std::span(piece).first(count * each)));
    done += count;
  }
  return Status();
}

Status SafetensorsWriter::finish() {
  return ::fsync(descriptor_) == 0 ? Status() : errno_status(text("flush ", path_), errno);
}

}  // namespace penstock::trainer
