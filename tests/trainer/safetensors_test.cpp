#include "runtime/trainer/files/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "tests/support/damage.h"
#include "tests/trainer/scratch_folder.h"

namespace penstock::trainer {
namespace {

TEST(Safetensors, GivesBackInPiecesWhatWasWrittenInPieces) {
  const ScratchFolder folder;
  for (FileDtype dtype : {FileDtype::f32, FileDtype::bf16, FileDtype::f16, FileDtype::f64}) {
    const std::string path = folder.path() + "/" + name_of(dtype);
    auto writer =
        *SafetensorsWriter::create(path, {{"b", {3, 5}}, {"a", {1000}}, {"none", {0, 4}}, {"scalar", {}}}, dtype);
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 256) * 0.125f;  // exact in all dtypes
    ASSERT_TRUE(writer->write("a", 600, std::span(values).subspan(600)).ok());
    ASSERT_TRUE(writer->write("a", 0, std::span(values).first(600)).ok());
    ASSERT_TRUE(writer->write("b", 0, std::span(values).first(15)).ok());
    ASSERT_TRUE(writer->write("scalar", 0, std::span(values).subspan(7, 1)).ok());
    ASSERT_TRUE(writer->finish().ok());

    const auto file = *SafetensorsFile::open(path);
    ASSERT_EQ(file->header().tensors.size(), 4u);
    const StoredTensor& a = file->header().tensors.at("a");
    EXPECT_EQ(a.dtype, dtype);
    std::vector<float> read(300);
    ASSERT_TRUE(file->read(a, 500, read).ok());
    EXPECT_TRUE(std::equal(read.begin(), read.end(), values.begin() + 500));
    EXPECT_EQ(file->header().tensors.at("b").shape, (std::vector<uint64_t>{3, 5}));
    float scalar = 0;
    ASSERT_TRUE(file->read(file->header().tensors.at("scalar"), 0, std::span(&scalar, 1)).ok());
    EXPECT_EQ(scalar, values[7]);
  }
}

// As the format's own library writes them, for readers that map the file.
TEST(Safetensors, ValuesBeginAtAMultipleOf8Bytes) {
  const ScratchFolder folder;
  for (const char* name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"}) {
    const std::string path = folder.path() + "/" + name;
    ASSERT_TRUE((*SafetensorsWriter::create(path, {{name, {16}}}, FileDtype::f32))->finish().ok());
    uint64_t header_bytes = 1;
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    EXPECT_EQ(header_bytes % 8, 0u) << name;
    EXPECT_EQ(std::filesystem::file_size(path), 8 + header_bytes + 64) << name;
  }
}

TEST(Safetensors, RefusesToReplaceAFile) {
  const ScratchFolder folder;
  std::ofstream(folder.path() + "/there") << "something";
  EXPECT_FALSE(SafetensorsWriter::create(folder.path() + "/there", {{"a", {1}}}, FileDtype::f32).ok());
}

TEST(Safetensors, RefusesHeadersThatDoNotDescribeTheFile) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([1])", "not a JSON object"},
      {R"({"a": 1})", "'a'"},
      {R"({"a": {"shape": [1], "data_offsets": [0, 4]}})", "no dtype"},
      {R"({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}})", "'F33'"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", "4 B for 2 elements"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", "-1"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", "data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", "4 to 0"},
      {R"({"a": {"dtype": "F32", "shape": [8], "data_offsets": [80, 112]}})", "the file has 100 B"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 4], "data_offsets": [0, 0]}})", "room"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "I32", "shape": [2], "data_offsets": [4, 12]}})",
       "overlaps"},
  };
  for (const auto& [header, word] : cases) {
    const auto parsed = parse_safetensors_header(header, 100);
    ASSERT_FALSE(parsed.ok()) << header;
    EXPECT_NE(parsed.status().message().find(word), std::string::npos) << parsed.status().message();
  }
  EXPECT_TRUE(parse_safetensors_header(R"({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}})", 100).ok());
}

// Whatever the bytes are: accepted tensors lie in the file, and reading them gives values or a refusal.
TEST(Safetensors, EndsWellOnDamagedFiles) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/model.safetensors";
  auto writer = *SafetensorsWriter::create(path, {{"model.a.weight", {3, 5}}, {"b", {64}}}, FileDtype::bf16);
  ASSERT_TRUE(writer->finish().ok());
  writer.reset();
  std::ifstream in(path, std::ios::binary);
  const std::string words((std::istreambuf_iterator<char>(in)), {});
  const auto* data = reinterpret_cast<const std::byte*>(words.data());
  const std::vector<std::byte> whole(data, data + words.size());
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<std::byte> bytes = damaged(whole, random);
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    const auto file = SafetensorsFile::open(path);
    if (!file.ok()) continue;
    ++accepted;
    for (const auto& [name, tensor] : (*file)->header().tensors) {
      ASSERT_LE(tensor.offset_bytes + tensor.elements * bytes_of(tensor.dtype), bytes.size()) << "seed " << seed;
      std::vector<float> values(tensor.elements);
      EXPECT_TRUE((*file)->read(tensor, 0, values).ok()) << "seed " << seed;
    }
  }
  EXPECT_GT(accepted, 100u);   // damage to values alone
  EXPECT_LT(accepted, 2900u);  // damage to the header
}

}  // namespace
}  // namespace penstock::trainer
