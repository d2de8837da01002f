// A Target is a parser of outside bytes, and what must hold of it whatever the bytes are.
//
// The same targets run in two ways: with seeded damage to valid inputs, as one of the tests (fuzz_test.cpp), and for as
// long as one likes under libFuzzer, which looks for inputs that reach new branches (libfuzzer_entry.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tiering/tier.h"

namespace penstock::fuzz {

using Bytes = std::vector<std::byte>;

struct Target {
  std::string_view name;

  // What to begin with: valid inputs of several kinds, and what has once been found.
  std::vector<Bytes> (*seeds)();

  // Gives `input` to the parser and uses what it accepts as the program does. What is wrong then; empty if all is well.
  // Checksums that guard the bytes are set right first: chance would never lead past them.
  std::string (*run)(std::span<const std::byte> input);

  // What the input is made of, where it is text: keys, units, brackets.
  std::span<const std::string_view> words = {};

  // Inputs that the test tries.
  uint64_t rounds = 10000;

  // How much memory and processor time one input may take, besides kBytesPerByte for each of its bytes.
  uint64_t memory_bytes = 4 * kMiB;
  double seconds = 2;
};

constexpr uint64_t kBytesPerByte = 256;

extern const Target adapter_config, command_line, drive_files, fio_output, machine_profile, model_config, profile_file,
    quantity, root_record, root_state, shape_solver, store_header, store_open, store_shape, system_files, table_page;

constexpr const Target* kTargets[] = {&adapter_config,  &command_line, &drive_files,  &fio_output,
                                      &machine_profile, &model_config, &profile_file, &quantity,
                                      &root_record,     &root_state,   &shape_solver, &store_header,
                                      &store_open,      &store_shape,  &system_files, &table_page};

// Runs the input under the target's limits. What is wrong, a thrown exception included; empty if all is well.
std::string try_input(const Target& target, std::span<const std::byte> input);

// One to four accidents to `bytes`: those of tests/support/damage.h, extreme numbers in place of others, parts of other
// seeds, words in place of words.
Bytes mutated(const Target& target, std::span<const Bytes> seeds, Bytes bytes, uint64_t seed);

inline Bytes bytes_of(std::string_view text) {
  std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace penstock::fuzz
