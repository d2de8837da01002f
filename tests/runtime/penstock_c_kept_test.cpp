// penstock.h: steps that a program keeps, and goes back to.
#include <gtest/gtest.h>

#include <set>

#include "tests/runtime/penstock_program.h"

namespace penstock::engine {
namespace {

TEST(PenstockC, RollsBackToAStepThatItKept) {
  Program program(4);
  ASSERT_EQ(program.open(), 0) << penstock_message();
  for (int step = 0; step < 2; ++step) ASSERT_EQ(program.step(1), 0) << penstock_message();
  uint64_t kept = 0;
  ASSERT_EQ(penstock_keep(program.engine, &kept), 0) << penstock_message();
  EXPECT_EQ(kept, 2u);
  const std::vector<plain::Unit> then = program.models;
  for (int step = 0; step < 3; ++step) ASSERT_EQ(program.step(1), 0) << penstock_message();
  EXPECT_EQ(penstock_roll_back(program.engine, 4), PENSTOCK_USAGE);
  EXPECT_STREQ(penstock_message(), "kept steps: step 4 is not among them: 2");
  for (int again = 0; again < 2; ++again) {
    ASSERT_EQ(penstock_roll_back(program.engine, 2), 0) << penstock_message();
    program.models = then;
    for (uint32_t i = 0; i < then.size(); ++i) {
      const penstock_parameter& parameter = program.parameters[i];
      ASSERT_EQ(penstock_read(program.engine, i, PENSTOCK_WEIGHT, 0, parameter.elements, parameter.dtype,
                              parameter.weights_into),
                0);
    }
    EXPECT_EQ(program.words_different(), 0u);
    penstock_report report = {};
    ASSERT_EQ(program.step(1, &report), 0) << penstock_message();
    EXPECT_EQ(report.written_bytes, program.written_bytes()) << "of the store as it was opened again";
    EXPECT_EQ(program.words_different(), 0u);
  }
  uint64_t steps[4];
  size_t count = 0;
  ASSERT_EQ(penstock_drop(program.engine, 2), 0) << penstock_message();
  ASSERT_EQ(penstock_kept(program.engine, steps, 4, &count), 0);
  EXPECT_EQ(count, 0u);
}

TEST(PenstockC, GivesTheStateOfTheStepThatItWentBackTo) {
  Program program(14);
  ASSERT_EQ(program.open(), 0) << penstock_message();
  auto expect_restored = [&](const std::string& expected) {
    const void* state = nullptr;
    size_t bytes = 0;
    ASSERT_EQ(penstock_restored_state(program.engine, &state, &bytes), 0) << penstock_message();
    EXPECT_EQ(std::string(static_cast<const char*>(state), bytes), expected);
  };
  for (const char* state : {"first", "another, and longer"}) {
    program.trainer_state = state;
    ASSERT_EQ(program.step(1), 0) << penstock_message();
    ASSERT_EQ(penstock_keep(program.engine, nullptr), 0) << penstock_message();
  }
  expect_restored("");  // as it was opened
  ASSERT_EQ(penstock_roll_back(program.engine, 2), 0) << penstock_message();
  expect_restored("another, and longer");  // although nothing had to be brought back
  ASSERT_EQ(penstock_roll_back(program.engine, 1), 0) << penstock_message();
  expect_restored("first");
  program.trainer_state = "";
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  ASSERT_EQ(penstock_keep(program.engine, nullptr), 0) << penstock_message();
  ASSERT_EQ(penstock_roll_back(program.engine, 2), 0) << penstock_message();
  expect_restored("");
}

TEST(PenstockC, KeepsTheStepOfTheRunThatWentOnAfterARollback) {
  Program program(12);
  ASSERT_EQ(program.open(), 0) << penstock_message();
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  ASSERT_EQ(penstock_keep(program.engine, nullptr), 0) << penstock_message();
  const std::vector<plain::Unit> first = program.models;
  auto roll_back_to = [&](uint64_t step, const std::vector<plain::Unit>& models) {
    ASSERT_EQ(penstock_roll_back(program.engine, step), 0) << penstock_message();
    program.models = models;
    for (uint32_t i = 0; i < models.size(); ++i) {
      const penstock_parameter& parameter = program.parameters[i];
      ASSERT_EQ(penstock_read(program.engine, i, PENSTOCK_WEIGHT, 0, parameter.elements, parameter.dtype,
                              parameter.weights_into),
                0);
    }
    EXPECT_EQ(program.words_different(), 0u);
  };
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  ASSERT_EQ(penstock_keep(program.engine, nullptr), 0) << penstock_message();
  roll_back_to(1, first);
  ASSERT_EQ(program.step(1), 0) << penstock_message();  // of other gradients
  std::set<uint64_t> marks;
  auto note_mark_of = [&](uint64_t step) {
    uint64_t mark = 0;
    ASSERT_EQ(penstock_mark(program.engine, step, &mark), 0) << penstock_message();
    marks.insert(mark);
  };
  note_mark_of(1);
  note_mark_of(2);  // of the first run, which is kept
  uint64_t none = 0;
  EXPECT_EQ(penstock_mark(program.engine, 3, &none), PENSTOCK_USAGE);
  for (const bool written : {false, true}) {
    if (written) {
      ASSERT_EQ(penstock_set_count(program.engine, 0, 9), 0) << penstock_message();
      program.models[0].parts[0].count = 9;
    }
    ASSERT_EQ(penstock_keep(program.engine, nullptr), 0) << penstock_message();
    const std::vector<plain::Unit> second = program.models;
    note_mark_of(2);
    EXPECT_EQ(marks.size(), written ? 4u : 3u);
    roll_back_to(2, second);  // where it is
    ASSERT_EQ(program.step(1), 0) << penstock_message();
    roll_back_to(2, second);
    note_mark_of(2);
    EXPECT_EQ(marks.size(), written ? 4u : 3u);
    ASSERT_EQ(penstock_drop(program.engine, 2), 0) << penstock_message();
    note_mark_of(2);
    EXPECT_EQ(marks.size(), written ? 4u : 3u);
    ASSERT_EQ(penstock_keep(program.engine, nullptr), 0) << penstock_message();
    note_mark_of(2);
    EXPECT_EQ(marks.size(), written ? 4u : 3u);
  }
  uint64_t count = 0;
  ASSERT_EQ(penstock_count(program.engine, 0, &count), 0);
  EXPECT_EQ(count, 9u);
}

}  // namespace
}  // namespace penstock::engine
