#include "tiering/store/root_payload.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/store_records.h"
#include "tests/support/store_shapes.h"
#include "tiering/store/table_page.h"

namespace penstock {
namespace {

RootPayload payload_of(std::string engine_state, std::string trainer_state) {
  return {.step = 3, .engine_state = std::move(engine_state), .trainer_state = std::move(trainer_state)};
}

TEST(RootPayload, StateComesBackAsItWas) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const StateCapacity capacity{random() % 9000, random() % 9000};
    const RootPayload payload =
        payload_of(random_string(random, capacity.engine_bytes), random_string(random, capacity.trainer_bytes));
    const std::vector<uint64_t> words = encode_state(payload, capacity);
    ASSERT_EQ(words.size(), state_word_count(capacity));
    RootPayload back{.step = 3};
    ASSERT_TRUE(decode_state(words, capacity, back).ok()) << "seed " << seed;
    ASSERT_EQ(back, payload) << "seed " << seed;
  }
}

TEST(RootPayload, SaysHowMuchIsNeededAndHowMuchThereIs) {
  const StateCapacity capacity{100, 200};
  EXPECT_TRUE(payload_of(std::string(100, 'e'), std::string(200, 't')).validate(capacity).ok());
  const Status engine = payload_of(std::string(101, 'e'), "").validate(capacity);
  EXPECT_EQ(engine.code(), Code::kUsage);
  EXPECT_EQ(engine.message(), "engine state: 101 B needed, 100 B available in the store");
  const Status trainer = payload_of("", std::string(201, 't')).validate(capacity);
  EXPECT_EQ(trainer.message(), "trainer state: 201 B needed, 200 B available in the store");
  EXPECT_EQ((StateCapacity{0, kTrainerStateBytesMax + 1}.validate().message()),
            "room for the trainer's state: 65537 B needed, 65536 B available in the store");
}

TEST(RootPayload, RefusesWordsThatNobodyWrote) {
  const StateCapacity capacity{16, 16};
  const std::vector<uint64_t> good = encode_state(payload_of("engine", "trainer"), capacity);
  RootPayload into;
  for (const auto& [word, value] : std::vector<std::pair<size_t, uint64_t>>{
           {0, 17}, {1, 17}, {0, ~uint64_t{0}}, {3, 1}, {5, 1}, {2, good[2] | uint64_t{1} << 63}}) {
    std::vector<uint64_t> bad = good;
    bad[word] = value;
    EXPECT_EQ(decode_state(bad, capacity, into).code(), Code::kCorrupt) << "word " << word << " = " << value;
  }
}

// What the pages beside the table cost: a change of one string writes its own pages.
TEST(TileTable, NamesThePagesOfTheStateThatHaveChanged) {
  const StateCapacity capacity{80000, kTrainerStateBytesMax};
  const StoreShape shape = small_shape(2, 3000, kBlockElements);
  const auto geometry = std::make_shared<TableGeometry>(shape, capacity);
  TileTable table(geometry);
  RootPayload payload = payload_of(std::string(80000, 'e'), std::string(1000, 't'));
  const uint32_t first = geometry->table_pages();
  EXPECT_EQ(table.set_state(encode_state(payload, capacity)).size(), 21u) << "20 of the engine's, one of the trainer's";
  EXPECT_TRUE(table.set_state(encode_state(payload, capacity)).empty());
  payload.engine_state[40000] = 'x';  // at byte 40016, in pages of 4024
  EXPECT_EQ(table.set_state(encode_state(payload, capacity)), std::vector<uint32_t>{first + 9});
  payload.trainer_state += "longer";  // with its length, in the first page
  EXPECT_EQ(table.set_state(encode_state(payload, capacity)), (std::vector<uint32_t>{first, first + 20}));
  EXPECT_EQ(geometry->page_name(first + 20), "state page 20");
  EXPECT_EQ(geometry->page_name(0), "table page 0");
}

}  // namespace
}  // namespace penstock
