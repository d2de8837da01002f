// What a store keeps about itself, made up and set right again: for the tests of its formats.
#pragma once

#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tiering/store/root_record.h"
#include "tiering/store/store_hash.h"

namespace penstock {

// Makes the hash right that ends a record or a page: over all before it, seeded with the magic it begins
// with.
inline void seal(std::span<std::byte> record) {
  const uint64_t magic = ByteReader(record).get<uint64_t>();
  const uint64_t right = store_hash(record.first(record.size() - sizeof(uint64_t)), magic);
  std::memcpy(record.last(sizeof(uint64_t)).data(), &right, sizeof(uint64_t));
}

// The fields of a record, without what fills it up to its length and the checksum.
inline std::vector<std::byte> fields_of(std::vector<std::byte> record) {
  record.resize(record.size() - sizeof(uint64_t));
  while (!record.empty() && record.back() == std::byte{0}) record.pop_back();
  return record;
}

inline std::string random_string(std::mt19937_64& random, size_t size_max) {
  std::string characters(random() % (size_max + 1), ' ');
  for (char& character : characters) character = static_cast<char>(random());
  return characters;
}

inline RootRecord random_root(std::mt19937_64& random) {
  RootRecord root;
  root.store = {random(), random()};
  root.sequence = 1 + random() % 1000;
  root.state = random() % 2 ? RootRecord::State::whole : RootRecord::State::torn;
  root.shape_digest = random();
  root.pages_digest = random();
  for (uint64_t pages = random() % 50; pages > 0; --pages) root.page_slots.push_back(random() % 4);
  root.step = random() % (kStepMax + 1);
  root.loss_scale = static_cast<double>(random() % 65536);
  root.config_hash = random_string(random, kConfigHashBytesMax);
  return root;
}

}  // namespace penstock
