#include "runtime/engine/root_state.h"

#include <gtest/gtest.h>

namespace penstock::engine {
namespace {

TEST(RootState, ComesBackAsItWas) {
  const RootState state{3, {.rng = "r", .data_position = "d", .schedule = "cosine\n\nof 100"}};
  const Result<RootState> back = parse_root_state(root_payload(state, 4, 1, "hash"));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->updates, 3u);
  EXPECT_EQ(back->state.rng, "r");
  EXPECT_EQ(back->state.data_position, "d");
  EXPECT_EQ(back->state.schedule, "cosine\n\nof 100");
}

// The next update's number would be 0, which no optimizer takes.
TEST(RootState, RefusesMoreUpdatesThanSteps) {
  for (uint64_t updates : {uint64_t{5}, ~uint64_t{0}}) {
    const Result<RootState> state = parse_root_state(root_payload({updates, {}}, 4, 1, "hash"));
    EXPECT_EQ(state.status().code(), Code::kCorrupt) << updates;
  }
}

TEST(RootState, RefusesAScheduleThatIsNotTheEngines) {
  RootPayload payload;
  payload.step = 4;
  for (const char* schedule :
       {"", "cosine", "updates ", "updates 3", "updates -1\n", "updates 99999999999999999999\n"}) {
    payload.schedule = schedule;
    EXPECT_EQ(parse_root_state(payload).status().code(), Code::kCorrupt) << schedule;
  }
}

}  // namespace
}  // namespace penstock::engine
