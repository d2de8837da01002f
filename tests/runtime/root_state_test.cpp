#include "runtime/engine/root_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace penstock::engine {
namespace {

Workload two_units() {
  Workload workload;
  workload.units.resize(2);
  workload.units[0].parameters.resize(2);
  return workload;
}

TEST(EngineState, ComesBackAsItWas) {
  EngineState of_a_course = engine_state(two_units(), 3);
  of_a_course.course = ~uint64_t{0};
  const EngineState states[] = {engine_state(two_units(), 3),
                                {3, {{2, {3, 1}}, {0, {}}}},
                                {0, {{7, {9, 0}}, {1, {}}}},
                                {3, {{2, {3, 1}}, {0, {}}}, 77},
                                of_a_course};
  for (const EngineState& state : states) {
    const Result<EngineState> back = parse_engine_state({.step = 4, .engine_state = encode(state)}, two_units());
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, state);
    EXPECT_EQ(course_of({.step = 4, .engine_state = encode(state)}), state.course);
  }
}

TEST(EngineState, IsShortWhereAllParametersWereAlwaysUpdated) {
  EngineState state = engine_state(two_units(), 3);
  EXPECT_EQ(encode(state).size(), 8u);
  state.counts[1].unnamed = 2;
  EXPECT_EQ(encode(state).size(), 8u + 4 * 8);
}

TEST(EngineState, HasAnotherCourseAfterAnotherStep) {
  const std::vector<Hyper> groups(2);
  std::vector<Hyper> others = groups;
  others[1].lr *= 2;
  const uint64_t course = course_after(5, 2.5, 1, groups);
  EXPECT_EQ(course_after(5, 2.5, 1, groups), course);
  EXPECT_NE(course_after(6, 2.5, 1, groups), course);
  EXPECT_NE(course_after(5, 2.5000000000000004, 1, groups), course);
  EXPECT_NE(course_after(5, 2.5, 2, groups), course);
  EXPECT_NE(course_after(5, 2.5, 1, others), course);
  EXPECT_EQ(course_after(5, std::nan("1"), 1, groups), course_after(5, -std::nan("2"), 1, groups));
  EXPECT_EQ(course_of(RootPayload()), 0u);
  const std::array<std::byte, 4> values{std::byte{1}}, none{};
  const std::array<uint64_t, 3> place{0, 1, 2}, other{0, 1, 3};
  const std::array all = {course_after_write(0, place, values), course_after_write(0, place, none),
                          course_after_write(0, other, values), course_after_write(1, place, values),
                          course_after_write(0, place, {}),     course};
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(std::count(all.begin(), all.end(), all[i]), 1) << i;
}

TEST(EngineState, IsEmptyBeforeTheFirstStepOnly) {
  EXPECT_EQ(parse_engine_state(RootPayload(), two_units()).value(), engine_state(two_units()));
  EXPECT_EQ(parse_engine_state({.step = 1}, two_units()).status().code(), Code::kCorrupt);
}

TEST(EngineState, RefusesMoreUpdatesThanSteps) {
  for (const auto& [updates, ok] : {std::pair<uint64_t, bool>{4, true}, {5, false}, {~uint64_t{0}, false}}) {
    const std::string encoded = encode(engine_state(two_units(), updates));
    EXPECT_EQ(parse_engine_state({.step = 4, .engine_state = encoded}, two_units()).ok(), ok) << updates;
  }
}

TEST(EngineState, RefusesACountThatNoUpdatesMake) {
  for (const auto& [count, ok] : {std::pair<uint64_t, bool>{kUpdateCountMax, true}, {kUpdateCountMax + 1, false}}) {
    EngineState state = engine_state(two_units(), 3);
    state.counts[0].parameters[1] = count;
    EXPECT_EQ(parse_engine_state({.step = 4, .engine_state = encode(state)}, two_units()).ok(), ok) << count;
  }
}

TEST(EngineState, RefusesStateThatIsNotTheEngines) {
  for (size_t size : {1u, 7u, 9u, 16u, 32u, 39u, 41u, 48u}) {
    const std::string state(size, '\0');
    EXPECT_EQ(parse_engine_state({.step = 4, .engine_state = state}, two_units()).status().code(), Code::kCorrupt)
        << size;
  }
}

TEST(EngineState, HasRoomForACountOfEveryParameter) {
  Workload workload;
  workload.units.resize(3);
  for (Unit& unit : workload.units) unit.parameters.resize(5000);
  EngineState state = engine_state(workload, 1);
  state.updates = 2;
  EXPECT_GE(state_capacity_of(workload).engine_bytes, encode(state).size());
  EXPECT_TRUE(state_capacity_of(workload).validate().ok());
}

// Ranks begin a step only with the same hyper-parameters, which a course names, too.
TEST(HashOfHyperParameters, HasEachOfThemAndTheirOrder) {
  const Hyper usual{};
  std::vector<uint64_t> hashes = {hash_of({usual}), hash_of({usual, usual}), hash_of({})};
  for (double Hyper::*field : {&Hyper::lr, &Hyper::beta1, &Hyper::beta2, &Hyper::eps, &Hyper::weight_decay,
                               &Hyper::momentum, &Hyper::dampening, &Hyper::lr_decay}) {
    Hyper other = usual;
    other.*field += 0.0625;
    hashes.push_back(hash_of({other}));
    hashes.push_back(hash_of({usual, other}));
    hashes.push_back(hash_of({other, usual}));
  }
  Hyper other = usual;
  other.nesterov = !other.nesterov;
  hashes.push_back(hash_of({other}));
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::adjacent_find(hashes.begin(), hashes.end()), hashes.end());
}

}  // namespace
}  // namespace penstock::engine
