// penstock.h: weights that are the program's own, in its memory or where the engine cannot look.
#include <gtest/gtest.h>

#include <utility>

#include "tests/runtime/penstock_program.h"

namespace penstock::engine {
namespace {

// Backward goes on using the weights while updates end behind it.
TEST(PenstockC, WritesNoWeightBeforeStep) {
  for (const auto& [publishes, elsewhere] : {std::pair(false, false), {true, false}, {true, true}}) {
    SCOPED_TRACE(testing::Message() << "seed 13, published in the middle: " << publishes << ", out: " << elsewhere);
    Program program(13);
    if (elsewhere) program.live_elsewhere();
    ASSERT_EQ(program.open(), 0) << penstock_message();
    ASSERT_EQ(program.step(1), 0) << penstock_message();
    const auto fp32 = program.fp32;
    const auto half = program.half;
    EXPECT_EQ(penstock_publish(program.engine), PENSTOCK_USAGE);
    EXPECT_STREQ(penstock_message(), "publish: called outside a step");
    const std::vector<float> ones(140'000, 1.0f);
    for (const bool discards : {true, false}) {
      const uint64_t written = program.written_bytes();
      ASSERT_EQ(program.begin(), 0) << penstock_message();
      for (uint32_t i = 0; i < program.models.size(); ++i) {
        if (publishes && i == 2) {
          ASSERT_EQ(penstock_publish(program.engine), 0) << penstock_message();
        }
        ASSERT_EQ(penstock_gradient(program.engine, i, 0, PENSTOCK_FP32, ones.data()), 0) << penstock_message();
      }
      // Of each tile its update has ended when its write begins: masters and moments, 12 B an element.
      ASSERT_TRUE(eventually([&] { return program.written_bytes() >= written + 12 * program.elements(); }));
      if (!publishes) {
        EXPECT_EQ(program.fp32, fp32);
        EXPECT_EQ(program.half, half);
      }
      if (!discards) continue;
      EXPECT_EQ(publishes, program.fp32 != fp32) << "an update has been published, which discard() is to take back";
      ASSERT_EQ(penstock_discard(program.engine), 0) << penstock_message();
      EXPECT_EQ(program.fp32, fp32);
      EXPECT_EQ(program.half, half);
      EXPECT_EQ(program.words_different(), 0u);
    }
    ASSERT_EQ(penstock_step(program.engine, nullptr, 0, nullptr), 0) << penstock_message();
    for (plain::Unit& model : program.models) {
      const std::vector<uint16_t> gradient(model.p.size(), rounded(1.0f));
      model.parts[0].absent = false;
      model.add_gradient(gradient.data(), true, true);
    }
    program.step_plain_loop();
    EXPECT_EQ(program.words_different(), 0u);
  }
}

TEST(PenstockC, TrainsWeightsThatItCannotAddressToTheSameBits) {
  for (const double clip : {0.0, 0.5}) {
    for (const uint32_t micro_batches : {1u, 3u}) {
      SCOPED_TRACE(testing::Message() << "seed 14, clip " << clip << ", " << micro_batches << " micro-batches");
      Program program(14);
      program.live_elsewhere();
      program.options.clip_norm = program.settings.clip = clip;
      program.options.micro_batches = program.micro_batches = micro_batches;
      ASSERT_EQ(program.open(), 0) << penstock_message();
      for (int step = 1; step <= 4; ++step) {
        ASSERT_EQ(program.step(step % 2 ? 1.0f : 0.125f), 0) << penstock_message();
        ASSERT_EQ(program.words_different(), 0u) << "step " << step;
        if (step == 2) {
          ASSERT_EQ(program.reopen(), 0) << penstock_message();
        }
      }
    }
  }
}

TEST(PenstockC, RefusesPiecesOutOfOrderAndGoesOn) {
  Program program(15);
  program.live_elsewhere();
  const auto weights_out = std::exchange(program.options.weights_out, nullptr);
  EXPECT_EQ(program.open(), PENSTOCK_USAGE);
  EXPECT_STREQ(penstock_message(), "parameter p0: PENSTOCK_WEIGHTS_OUT, and no function weights_out");
  program.options.weights_out = weights_out;
  ASSERT_EQ(program.open(), 0) << penstock_message();

  const std::vector<float> values(140'000, 1.0f);
  auto give = [&](uint32_t parameter, uint64_t first, uint64_t count) {
    return penstock_gradient_part(program.engine, parameter, 0, first, count, PENSTOCK_FP32, values.data());
  };
  auto expect_refused = [](int code, const std::string& message) {
    EXPECT_EQ(code, PENSTOCK_USAGE);
    EXPECT_EQ(penstock_message(), message);
  };
  expect_refused(give(6, 0, 10), "parameter p6: gradient: called outside a step");
  // Of a large parameter, which goes to the update as it comes, and of one that shares its unit with others.
  for (const uint32_t number : {6u, 4u}) {
    const uint64_t elements = program.parameters[number].elements;
    const std::string name = program.parameters[number].name, all = std::to_string(elements);
    ASSERT_EQ(program.begin(), 0) << penstock_message();
    expect_refused(give(number, 0, elements + 1), "gradient: " + std::to_string(elements + 1) +
                                                      " values from 0 on of parameter " + name + ", which has " + all);
    expect_refused(give(number, 2, UINT64_MAX),
                   "gradient: 18446744073709551615 values from 2 on of parameter " + name + ", which has " + all);
    expect_refused(give(number, elements + 1, 0), "gradient: 0 values from " + std::to_string(elements + 1) +
                                                      " on of parameter " + name + ", which has " + all);
    expect_refused(give(number, 0, 0), "gradient: parameter " + name + ": no values");
    expect_refused(penstock_gradient_part(program.engine, number, 0, 0, 1, PENSTOCK_FP32, nullptr),
                   "gradient: parameter " + name + ": NULL");
    expect_refused(give(number, 5, 1), "gradient: parameter " + name + ": values from 5 on, expected from 0 on");
    ASSERT_EQ(give(number, 0, 1000), 0) << penstock_message();
    const std::string come =
        ": of the gradient of parameter " + name + ", micro-batch 0, 1000 of " + all + " values have come";
    expect_refused(give(number, 0, 10), "gradient: parameter " + name + ", values from 0 on" + come);
    expect_refused(give(number, 1001, 10), "gradient: parameter " + name + ", values from 1001 on" + come);
    expect_refused(give(3, 0, 10), "gradient: parameter p3, values from 0 on" + come);
    expect_refused(penstock_gradient(program.engine, 3, 0, PENSTOCK_FP32, values.data()),
                   "gradient: parameter p3, values from 0 on" + come);
    expect_refused(penstock_absent(program.engine, 3), "absent" + come);
    expect_refused(penstock_step(program.engine, nullptr, 0, nullptr), "step" + come);
    ASSERT_EQ(give(number, 1000, 500), 0) << penstock_message();
    ASSERT_EQ(penstock_discard(program.engine), 0) << penstock_message();
    ASSERT_EQ(program.step(1), 0) << penstock_message();
    EXPECT_EQ(program.words_different(), 0u);
  }
  ASSERT_EQ(program.begin(), 0) << penstock_message();
  ASSERT_EQ(give(6, 0, 1000), 0) << penstock_message();
  ASSERT_EQ(program.reopen(), 0) << penstock_message();  // in the middle of it
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  EXPECT_EQ(program.words_different(), 0u);
}

TEST(PenstockC, FailsWhereTheCallerDoesNotTakeItsWeights) {
  Program program(16);
  program.live_elsewhere();
  ASSERT_EQ(program.open(), 0) << penstock_message();
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  auto expect_failed = [](int code) {
    EXPECT_EQ(code, PENSTOCK_ENVIRONMENT);
    EXPECT_NE(std::string(penstock_message()).find("on: the caller returned 7"), std::string::npos)
        << penstock_message();
  };
  program.pieces_to_take = 2;
  expect_failed(program.step(1));
  expect_failed(program.begin());
  expect_failed(penstock_discard(program.engine));
  program.pieces_to_take = -1;
  ASSERT_EQ(program.reopen(), 0) << penstock_message();
  uint64_t steps = 0;
  ASSERT_EQ(penstock_steps(program.engine, &steps), 0);
  EXPECT_EQ(steps, 2u);  // it was committed; the weights are read from the store
  for (uint32_t i = 0; i < program.parameters.size(); ++i) {
    const penstock_parameter& parameter = program.parameters[i];
    void* weights = parameter.dtype == PENSTOCK_FP32 ? static_cast<void*>(program.fp32[i].data())
                                                     : static_cast<void*>(program.half[i].data());
    ASSERT_EQ(penstock_read(program.engine, i, PENSTOCK_WEIGHT, 0, parameter.elements, parameter.dtype, weights), 0);
  }
  EXPECT_EQ(program.words_different(), 0u);
}

TEST(PenstockC, AdoptsWeightsThatSomebodyElseWroteAndKeepsOtherMasters) {
  Program program(5);
  ASSERT_EQ(program.open(), 0) << penstock_message();
  for (int step = 0; step < 3; ++step) ASSERT_EQ(program.step(1), 0) << penstock_message();
  std::vector<uint16_t>& weights = program.half[1];
  uint64_t changed = 9;
  ASSERT_EQ(penstock_adopt(program.engine, 1, 0, weights.size(), PENSTOCK_BF16, weights.data(), &changed), 0)
      << penstock_message();
  EXPECT_EQ(changed, 0u);
  for (size_t i : {size_t{0}, weights.size() - 1}) {
    weights[i] = rounded(0.75f);
    program.models[1].p[i] = 0.75f;
  }
  ASSERT_EQ(penstock_adopt(program.engine, 1, 0, weights.size(), PENSTOCK_BF16, weights.data(), &changed), 0)
      << penstock_message();
  EXPECT_EQ(changed, 2u);
  EXPECT_EQ(program.words_different(), 0u);
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  EXPECT_EQ(program.words_different(), 0u);
}

TEST(PenstockC, WritesManyTogetherOrNothing) {
  Program program(8);
  ASSERT_EQ(program.open(), 0) << penstock_message();
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  const std::vector<float> halves(140'000, 0.5f);
  for (const bool ends : {false, true}) {
    ASSERT_EQ(penstock_begin_writes(program.engine), 0) << penstock_message();
    for (const uint32_t parameter : {0u, 4u, 6u}) {
      const uint64_t elements = program.parameters[parameter].elements;
      for (int twice = 0; twice < 2; ++twice) {
        ASSERT_EQ(
            penstock_write(program.engine, parameter, PENSTOCK_VARIANCE, 0, elements, PENSTOCK_FP32, halves.data()), 0)
            << penstock_message();
      }
      ASSERT_EQ(penstock_set_count(program.engine, parameter, 30), 0) << penstock_message();
    }
    EXPECT_EQ(program.begin(), PENSTOCK_USAGE);
    EXPECT_STREQ(penstock_message(), "begin: writes have begun");
    if (ends) {
      ASSERT_EQ(penstock_end_writes(program.engine), 0) << penstock_message();
      for (const uint32_t parameter : {0u, 4u, 6u}) {
        std::fill(program.models[parameter].v.begin(), program.models[parameter].v.end(), 0.5f);
        program.models[parameter].parts[0].count = 30;
      }
    }
    ASSERT_EQ(program.reopen(), 0) << penstock_message();
    EXPECT_EQ(program.words_different(), 0u) << (ends ? "written" : "given up");
  }
  EXPECT_EQ(penstock_end_writes(program.engine), PENSTOCK_USAGE);
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  EXPECT_EQ(program.words_different(), 0u);
}

}  // namespace
}  // namespace penstock::engine
