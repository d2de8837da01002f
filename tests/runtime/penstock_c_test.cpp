// penstock.h as a program that embeds it sees it: the plain loop's bits, refusals that leave all as it was, a process
// that forks.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>

#include "tests/runtime/penstock_program.h"

namespace penstock::engine {
namespace {

TEST(PenstockC, TrainsToTheBitsOfAPlainLoop) {
  for (const double clip : {0.0, 0.5}) {
    for (const uint32_t micro_batches : {1u, 3u}) {
      SCOPED_TRACE(testing::Message() << "seed 7, clip " << clip << ", " << micro_batches << " micro-batches");
      Program program(7);
      program.options.clip_norm = program.settings.clip = clip;
      program.options.skip_overflow = 1;
      program.settings.skip_overflow = true;
      program.options.micro_batches = program.micro_batches = micro_batches;
      ASSERT_EQ(program.open(), 0) << penstock_message();
      int clipped = 0;
      for (int step = 1; step <= 8; ++step) {
        const float size = step == 4 ? std::numeric_limits<float>::infinity() : step % 2 ? 1.0f : 0.125f;
        penstock_report report;
        ASSERT_EQ(program.step(size, &report), 0) << penstock_message();
        EXPECT_EQ(report.verdict == PENSTOCK_SKIPPED, step == 4);
        clipped += report.verdict == PENSTOCK_CLIPPED;
        ASSERT_EQ(program.words_different(), 0u) << "step " << step;
        if (step == 5) {
          ASSERT_EQ(program.reopen(), 0) << penstock_message();
        }
      }
      EXPECT_EQ(clipped > 0, clip > 0);
      uint64_t steps = 0;
      ASSERT_EQ(penstock_steps(program.engine, &steps), 0);
      EXPECT_EQ(steps, 8u);
    }
  }
}

TEST(PenstockC, GivesBackTheStateOfTheStepThatItWasOpenedAt) {
  Program program(1);
  ASSERT_EQ(program.open(), 0) << penstock_message();
  const std::string id = penstock_store_id(program.engine);
  EXPECT_EQ(id.size(), 32u);
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  ASSERT_EQ(program.reopen(), 0) << penstock_message();
  const void* state = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(penstock_restored_state(program.engine, &state, &bytes), 0);
  EXPECT_EQ(std::string(static_cast<const char*>(state), bytes), "state");
  EXPECT_EQ(id, penstock_store_id(program.engine));
}

TEST(PenstockC, CountsStepsFromTheOneThatANewStoreBeginsAt) {
  Program program(11);
  program.options.initial_step = 7;
  ASSERT_EQ(program.open(), 0) << penstock_message();
  auto expect_steps = [&](uint64_t expected) {
    uint64_t steps = 0, updates = 0;
    ASSERT_EQ(penstock_steps(program.engine, &steps), 0) << penstock_message();
    ASSERT_EQ(penstock_count(program.engine, 0, &updates), 0) << penstock_message();
    EXPECT_EQ(steps, expected);
    EXPECT_LE(updates, expected - 7);
  };
  expect_steps(7);
  EXPECT_EQ(program.words_different(), 0u);
  for (uint64_t step = 8; step < 12; ++step) {
    penstock_report report = {};
    ASSERT_EQ(program.step(1, &report), 0) << penstock_message();
    EXPECT_EQ(report.step, step);
    EXPECT_EQ(program.words_different(), 0u);
    ASSERT_EQ(program.reopen(), 0) << penstock_message();
    expect_steps(step);
  }
}

TEST(PenstockC, GoesOnAfterARefusal) {
  Program program(2);
  program.options.size = 8;
  EXPECT_EQ(program.open(), PENSTOCK_USAGE);
  EXPECT_EQ(program.engine, nullptr);
  program.options.size = sizeof(program.options);
  program.options.host_bytes = 1 << 20;
  EXPECT_EQ(program.open(), PENSTOCK_DOES_NOT_FIT);
  EXPECT_NE(std::string(penstock_message()).find("B are free"), std::string::npos) << penstock_message();
  program.options.host_bytes = 64 << 20;
  program.options.existing = PENSTOCK_OPEN;
  EXPECT_EQ(program.open(), PENSTOCK_USAGE);
  program.options.existing = PENSTOCK_OPEN_OR_CREATE;
  ASSERT_EQ(program.open(), 0) << penstock_message();

  const std::vector<float> values(100);
  auto expect_refused = [](int code, const std::string& message) {
    EXPECT_EQ(code, PENSTOCK_USAGE);
    EXPECT_EQ(penstock_message(), message);
  };
  expect_refused(penstock_step(program.engine, nullptr, 0, nullptr), "step: called outside a step");
  expect_refused(penstock_begin_forward(program.engine),
                 "begin_forward: the plan has no passes through the model, only updates");
  expect_refused(penstock_begin(program.engine, nullptr, 0, 1, 1),
                 "begin: parameter p0 of unit from p0 is in group 0 of 0");
  ASSERT_EQ(program.begin(), 0);
  expect_refused(penstock_gradient(program.engine, 99, 0, PENSTOCK_FP32, values.data()), "gradient: parameter 99 of 8");
  expect_refused(penstock_gradient(program.engine, 0, 0, 7, values.data()),
                 "dtype: 7: PENSTOCK_FP32, PENSTOCK_BF16 or PENSTOCK_FP16 expected");
  expect_refused(penstock_gradient(program.engine, 0, 0, PENSTOCK_FP32, nullptr), "gradient: parameter p0: NULL");
  ASSERT_EQ(penstock_gradient(program.engine, 0, 0, PENSTOCK_FP32, values.data()), 0) << penstock_message();
  expect_refused(penstock_absent(program.engine, 0), "absent gradient: parameter p0 of unit from p0 has one");
  expect_refused(penstock_step(program.engine, nullptr, 0, nullptr), "step: parameter p1 has no gradient");
  expect_refused(penstock_keep(program.engine, nullptr), "settle: called inside a step");
  ASSERT_EQ(penstock_discard(program.engine), 0) << penstock_message();
  float value = 0;
  expect_refused(penstock_read(program.engine, 0, PENSTOCK_WEIGHT, 90, 11, PENSTOCK_FP32, &value),
                 "read: 11 values from 90 on of parameter p0, which has 100");
  expect_refused(penstock_read(program.engine, 0, 9, 0, 1, PENSTOCK_FP32, &value),
                 "role: 9: PENSTOCK_WEIGHT, PENSTOCK_MOMENTUM or PENSTOCK_VARIANCE expected");
  EXPECT_EQ(program.words_different(), 0u);
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  EXPECT_EQ(program.words_different(), 0u);
}

TEST(PenstockC, RefusesEveryVerbInAForkedChildAndGoesOnInTheParent) {
  Program program(3), other(3);
  ASSERT_EQ(program.open(), 0) << penstock_message();
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused =
        program.begin() == PENSTOCK_USAGE &&
        std::strcmp(penstock_message(), "this process was forked; the store belongs to its parent") == 0;
    bool lacks_threads = true;
    for (int time = 0; time < 2; ++time) {
      lacks_threads = lacks_threads && other.open() == PENSTOCK_USAGE &&
                      std::strstr(penstock_message(), "forked while its parent had an engine open") != nullptr;
    }
    ::_exit(refused && lacks_threads && penstock_close(program.engine) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  EXPECT_EQ(program.words_different(), 0u);
}

// What its callbacks try, from whatever thread, while penstock_step() is running.
TEST(PenstockC, RefusesACallBesideAnother) {
  ProgramFolder folder;
  struct Caller {
    penstock_engine* engine = nullptr;
    std::vector<std::string> told;
  } caller;
  const char* drives[] = {folder.path.c_str()};
  penstock_options options{};
  options.size = sizeof(options);
  options.drives = drives;
  options.drive_count = 1;
  options.host_bytes = 64 << 20;
  options.weights_out_context = &caller;
  options.weights_out = [](void* context, uint32_t, uint64_t, uint64_t, int, const void*) {
    auto& me = *static_cast<Caller*>(context);
    uint64_t steps = 0;
    EXPECT_EQ(penstock_steps(me.engine, &steps), PENSTOCK_USAGE);
    me.told.emplace_back(penstock_message());
    EXPECT_EQ(penstock_close(me.engine), PENSTOCK_USAGE);
    me.told.emplace_back(penstock_message());
    return 0;
  };
  const penstock_parameter parameter{.name = "p",
                                     .elements = 100,
                                     .group = 0,
                                     .dtype = PENSTOCK_FP32,
                                     .initial = nullptr,
                                     .weights_into = PENSTOCK_WEIGHTS_OUT,
                                     .unit = PENSTOCK_UNIT_AUTO};
  ASSERT_EQ(penstock_open(&options, &parameter, 1, &caller.engine), 0) << penstock_message();
  const penstock_rates rates{.lr = 0.1,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .weight_decay = 0,
                             .momentum = 0,
                             .dampening = 0,
                             .lr_decay = 0,
                             .nesterov = 0};
  const std::vector<float> ones(100, 1);
  ASSERT_EQ(penstock_begin(caller.engine, &rates, 1, 1, 1), 0) << penstock_message();
  ASSERT_EQ(penstock_gradient(caller.engine, 0, 0, PENSTOCK_FP32, ones.data()), 0) << penstock_message();
  ASSERT_EQ(penstock_step(caller.engine, nullptr, 0, nullptr), 0) << penstock_message();
  ASSERT_EQ(caller.told.size(), 2u);
  EXPECT_EQ(caller.told[0], "another call of this engine is running");
  EXPECT_EQ(caller.told[1], "close: another call of this engine is running");
  uint64_t steps = 0;
  ASSERT_EQ(penstock_steps(caller.engine, &steps), 0) << penstock_message();
  EXPECT_EQ(steps, 1u);
  EXPECT_EQ(penstock_close(caller.engine), 0) << penstock_message();
}

TEST(PenstockC, SaysWhatItDecidedToWhoeverListens) {
  Program program(6);
  std::string heard;
  program.options.log_context = &heard;
  program.options.log = [](void* context, int, const char* line) {
    *static_cast<std::string*>(context) += std::string(line) + "\n";
  };
  ASSERT_EQ(program.open(), 0) << penstock_message();
  EXPECT_NE(heard.find("durable step"), std::string::npos) << heard;
  penstock_statistics statistics;
  ASSERT_EQ(penstock_get_statistics(program.engine, &statistics), 0);
  EXPECT_EQ(statistics.parameters, 8u);
  EXPECT_EQ(statistics.elements, 100u + 70'001 + 1 + 65'536 + 3000 + 255 + 140'000 + 17);
  EXPECT_LE(statistics.host_bytes, program.options.host_bytes);
  EXPECT_GT(statistics.host_bytes, 0u);
}

}  // namespace
}  // namespace penstock::engine
