#include "runtime/engine/root_state.h"

#include <gtest/gtest.h>

namespace penstock::engine {
namespace {

TEST(EngineState, ComesBackAsItWas) {
  const Result<EngineState> back = parse_engine_state({.step = 4, .engine_state = encode({.updates = 3})});
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->updates, 3u);
}

TEST(EngineState, IsEmptyBeforeTheFirstStepOnly) {
  EXPECT_EQ(parse_engine_state(RootPayload()).value().updates, 0u);
  EXPECT_EQ(parse_engine_state({.step = 1}).status().code(), Code::kCorrupt);
}

TEST(EngineState, RefusesMoreUpdatesThanSteps) {
  for (const auto& [updates, ok] : {std::pair<uint64_t, bool>{4, true}, {5, false}, {~uint64_t{0}, false}}) {
    const Result<EngineState> state = parse_engine_state({.step = 4, .engine_state = encode({.updates = updates})});
    EXPECT_EQ(state.ok(), ok) << updates;
  }
}

TEST(EngineState, RefusesStateThatIsNotTheEngines) {
  for (const std::string& state : {std::string("x"), std::string(7, '\0'), std::string(9, '\0')}) {
    EXPECT_EQ(parse_engine_state({.step = 4, .engine_state = state}).status().code(), Code::kCorrupt) << state.size();
  }
}

TEST(EngineState, HasRoomForACountOfEveryParameter) {
  Workload workload;
  workload.units.resize(3);
  for (Unit& unit : workload.units) unit.parameters.resize(5000);
  EXPECT_GE(state_capacity_of(workload).engine_bytes, 15000 * sizeof(uint64_t) + sizeof(uint64_t));
  EXPECT_TRUE(state_capacity_of(workload).validate().ok());
}

}  // namespace
}  // namespace penstock::engine
