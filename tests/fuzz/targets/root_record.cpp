#include "tiering/store/root_record.h"

#include "tests/fuzz/target.h"
#include "tests/support/store_records.h"

namespace penstock::fuzz {
namespace {

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random(seed);
    all.push_back(fields_of(random_root(random).encode()));
  }
  RootRecord full;
  full.sequence = 1;
  full.page_slots.assign(kPagesMax, 3);
  full.config_hash.assign(kConfigHashBytesMax, 'x');
  all.push_back(fields_of(full.encode()));
  return all;
}

std::string run(std::span<const std::byte> input) {
  Bytes record(input.begin(), input.end());
  record.resize(kRecordBytes);
  seal(record);
  const Result<RootRecord> root = RootRecord::decode(record, "root");
  if (!root.ok()) return "";
  if (*root != *root) return "is not what it is";
  if (root->page_slots.size() > kPagesMax || root->config_hash.size() > kConfigHashBytesMax) return "is too long";
  // What the store does with the newest root: the next one has the next number.
  RootRecord next = *root;
  next.sequence += 1;
  for (const RootRecord& each : {*root, next}) {
    const Result<RootRecord> again = RootRecord::decode(each.encode(), "root");
    if (!again.ok()) return "written again it is refused: " + again.status().message();
    if (*again != each) return "written again it is another";
  }
  return next.sequence > root->sequence ? "" : "there is no next one";
}

}  // namespace

const Target root_record{.name = "root_record", .seeds = seeds, .run = run, .rounds = 40000};

}  // namespace penstock::fuzz
