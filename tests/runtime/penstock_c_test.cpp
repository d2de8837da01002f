// penstock.h as a program that embeds it sees it: the plain loop's bits, refusals that leave all as it was, a process
// that forks, steps that are kept.
#include "runtime/engine/penstock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "tiering/status.h"
#include "tools/update/plain_loop.h"

namespace penstock::engine {
namespace {

constexpr double kLr = 1e-2, kDecay = 0.1;

struct Folder {
  std::string path = "./penstock_c_XXXXXX";

  Folder() { CHECK(::mkdtemp(path.data()) != nullptr, "no folder ", path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

float bf16(uint16_t word) { return plain::real(uint32_t{word} << 16); }
// To nearest, ties to even.
uint16_t rounded(float x) {
  const uint32_t b = plain::bits(x);
  return static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return holds();
}

// A program's model: parameters of awkward sizes in two groups, with 16-bit or fp32 weights in memory of its own.
class Program {
 public:
  explicit Program(uint64_t seed) : random_(seed) {
    const uint64_t sizes[] = {100, 70'001, 1, 65'536, 3000, 255, 140'000, 17};
    for (uint64_t size : sizes) {
      const size_t number = models.size();
      std::vector<float> values(size);
      std::vector<uint16_t> words(size);
      for (size_t i = 0; i < size; ++i) {
        words[i] = rounded(static_cast<float>(random_() % 20'001) * 1e-5f - 0.1f);
        values[i] = bf16(words[i]);
      }
      models.emplace_back(values);
      models.back().parts = {{number % 2, size}};
      names_.push_back("p" + std::to_string(number));
      fp32.push_back(std::move(values));
      half.push_back(std::move(words));
    }
    for (size_t i = 0; i < models.size(); ++i) {
      const bool is_half = i % 3 == 1;
      void* weights = is_half ? static_cast<void*>(half[i].data()) : static_cast<void*>(fp32[i].data());
      parameters.push_back({.name = names_[i].c_str(),
                            .elements = models[i].p.size(),
                            .group = static_cast<uint32_t>(i % 2),
                            .dtype = is_half ? PENSTOCK_BF16 : PENSTOCK_FP32,
                            .initial = weights,
                            .weights_into = weights,
                            .unit = PENSTOCK_UNIT_AUTO});
    }
    folder_list_ = {folder.path.c_str()};
    options.size = sizeof(options);
    options.drives = folder_list_.data();
    options.drive_count = 1;
    options.host_bytes = 64 << 20;
    options.threads = 2;
    settings.groups = {{.lr = kLr, .decay = kDecay}, {.lr = kLr / 3, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6}};
  }
  ~Program() { EXPECT_EQ(penstock_close(engine), 0) << penstock_message(); }

  // The weights are where the engine cannot look: gradients come in pieces, and weights go out in pieces.
  void live_elsewhere() {
    for (penstock_parameter& parameter : parameters) {
      parameter.initial = nullptr;
      parameter.weights_into = PENSTOCK_WEIGHTS_OUT;
    }
    options.initial_context = options.weights_out_context = this;
    options.initial = [](void* context, uint32_t parameter, uint64_t first, uint64_t count, float* values) {
      const std::vector<float>& initial = static_cast<Program*>(context)->fp32[parameter];
      std::copy_n(initial.begin() + static_cast<ptrdiff_t>(first), count, values);
      return 0;
    };
    options.weights_out = [](void* context, uint32_t parameter, uint64_t first, uint64_t count, int dtype,
                             const void* values) {
      Program& program = *static_cast<Program*>(context);
      EXPECT_EQ(dtype, program.parameters[parameter].dtype);
      EXPECT_LE(first + count, program.parameters[parameter].elements);
      if (program.pieces_to_take-- == 0) return 7;
      if (dtype == PENSTOCK_FP32) {
        std::memcpy(program.fp32[parameter].data() + first, values, count * sizeof(float));
      } else {
        std::memcpy(program.half[parameter].data() + first, values, count * sizeof(uint16_t));
      }
      return 0;
    };
  }
  int gradient(uint32_t parameter, uint32_t micro_batch, const std::vector<uint16_t>& values) {
    if (parameters[parameter].weights_into != PENSTOCK_WEIGHTS_OUT) {
      return penstock_gradient(engine, parameter, micro_batch, PENSTOCK_BF16, values.data());
    }
    for (uint64_t first = 0; first < values.size();) {
      const uint64_t count = std::min<uint64_t>(values.size() - first, 1 + random_() % 50'000);
      if (const int refused = penstock_gradient_part(engine, parameter, micro_batch, first, count, PENSTOCK_BF16,
                                                     values.data() + first)) {
        return refused;
      }
      first += count;
    }
    return 0;
  }

  int open() { return penstock_open(&options, parameters.data(), static_cast<uint32_t>(parameters.size()), &engine); }
  int reopen() {
    EXPECT_EQ(penstock_close(engine), 0) << penstock_message();
    return open();
  }
  int begin() const {
    std::vector<penstock_rates> rates;
    for (const plain::Group& group : settings.groups) {
      penstock_rates rate = {};
      rate.lr = group.lr;
      rate.beta1 = group.beta1;
      rate.beta2 = group.beta2;
      rate.eps = group.eps;
      rate.weight_decay = group.decay;
      rates.push_back(rate);
    }
    return penstock_begin(engine, rates.data(), static_cast<uint32_t>(rates.size()), micro_batches,
                          settings.loss_scale);
  }
  // One step of the engine and one of the plain loop; some gradients are absent.
  int step(float size, penstock_report* report = nullptr) {
    if (const int refused = begin()) return refused;
    std::vector<uint32_t> order(models.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<bool> absent(models.size());
    for (size_t i = 0; i < absent.size(); ++i) absent[i] = random_() % 4 == 0;
    for (uint32_t mb = 0; mb < micro_batches; ++mb) {
      for (uint32_t i : order) {
        plain::Unit& model = models[i];
        if (absent[i]) {
          if (mb == 0 && penstock_absent(engine, i)) return -1;
          std::fill(model.g.begin(), model.g.end(), uint16_t{0});
          continue;
        }
        std::vector<uint16_t> gradient(model.p.size());
        // Of three bits, so that their sums are exact in bf16 too, which the plain loop rounds them to.
        for (uint16_t& word : gradient) {
          word = rounded(static_cast<float>(static_cast<int>(random_() % 7) - 3) * 0x1p-9f * size);
        }
        model.add_gradient(gradient.data(), mb == 0, mb + 1 == micro_batches);
        if (this->gradient(i, mb, gradient)) return -1;
      }
    }
    for (size_t i = 0; i < absent.size(); ++i) models[i].parts[0].absent = absent[i];
    step_plain_loop();
    return penstock_step(engine, "state", 5, report);
  }
  uint64_t elements() const {
    uint64_t sum = 0;
    for (const penstock_parameter& parameter : parameters) sum += parameter.elements;
    return sum;
  }
  void step_plain_loop() { plain::step(models, settings, updates_); }
  // By the drives, in all: updates write as they end.
  uint64_t written_bytes() const {
    penstock_statistics statistics = {};
    EXPECT_EQ(penstock_get_statistics(engine, &statistics), 0) << penstock_message();
    return statistics.written_bytes;
  }

  uint64_t words_different() const {
    uint64_t different = 0;
    for (uint32_t i = 0; i < models.size(); ++i) {
      std::vector<float> plane(models[i].p.size());
      auto compare = [&](int role, const std::vector<float>& expected) {
        EXPECT_EQ(penstock_read(engine, i, role, 0, plane.size(), PENSTOCK_FP32, plane.data()), 0)
            << penstock_message();
        for (size_t e = 0; e < plane.size(); ++e) different += plain::bits(plane[e]) != plain::bits(expected[e]);
      };
      compare(PENSTOCK_WEIGHT, models[i].p);
      compare(PENSTOCK_MOMENTUM, models[i].m);
      compare(PENSTOCK_VARIANCE, models[i].v);
      for (size_t e = 0; e < plane.size(); ++e) {
        const float master = models[i].p[e];
        different += parameters[i].dtype == PENSTOCK_FP32 ? plain::bits(fp32[i][e]) != plain::bits(master)
                                                          : half[i][e] != rounded(master);
      }
    }
    return different;
  }

  Folder folder;
  penstock_options options = {};
  std::vector<penstock_parameter> parameters;
  std::vector<plain::Unit> models;
  std::vector<std::vector<float>> fp32;
  std::vector<std::vector<uint16_t>> half;
  plain::Settings settings;
  uint32_t micro_batches = 1;
  penstock_engine* engine = nullptr;
  int pieces_to_take = -1;  // before weights_out is refused; less than 0: all

 private:
  std::mt19937_64 random_;
  std::vector<std::string> names_;
  std::vector<const char*> folder_list_;
  uint64_t updates_ = 0;
};

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
  Program program(3);
  ASSERT_EQ(program.open(), 0) << penstock_message();
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused =
        program.begin() == PENSTOCK_USAGE &&
        std::strcmp(penstock_message(), "this process was forked; the store belongs to its parent") == 0;
    ::_exit(refused && penstock_close(program.engine) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(program.step(1), 0) << penstock_message();
  EXPECT_EQ(program.words_different(), 0u);
}

// What its callbacks try, from whatever thread, while penstock_step() is running.
TEST(PenstockC, RefusesACallBesideAnother) {
  Folder folder;
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
  for (const bool written : {false, true}) {
    if (written) {
      ASSERT_EQ(penstock_set_count(program.engine, 0, 9), 0) << penstock_message();
      program.models[0].parts[0].count = 9;
    }
    ASSERT_EQ(penstock_keep(program.engine, nullptr), 0) << penstock_message();
    const std::vector<plain::Unit> second = program.models;
    ASSERT_EQ(program.step(1), 0) << penstock_message();
    roll_back_to(2, second);
  }
  uint64_t count = 0;
  ASSERT_EQ(penstock_count(program.engine, 0, &count), 0);
  EXPECT_EQ(count, 9u);
}

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

// One parameter each, in a unit of its own.
std::vector<penstock_parameter> layers(uint32_t count, uint64_t elements) {
  std::vector<penstock_parameter> all;
  for (uint32_t layer = 0; layer < count; ++layer) {
    all.push_back({.name = "w",
                   .elements = elements,
                   .group = 0,
                   .dtype = PENSTOCK_FP32,
                   .initial = nullptr,
                   .weights_into = nullptr,
                   .unit = layer});
  }
  return all;
}

// y = w * x, one unit a layer, with the weights in the tiers.
TEST(PenstockC, LendsTheWeightsOfWholeSteps) {
  Folder folder;
  constexpr uint64_t kElements = 70'000;
  constexpr uint32_t kLayers = 3;
  const char* drives[] = {folder.path.c_str()};
  std::vector<penstock_parameter> parameters = layers(kLayers, kElements);
  penstock_options options = {};
  options.size = sizeof(options);
  options.drives = drives;
  options.drive_count = 1;
  options.host_bytes = 64 << 20;
  options.whole_steps = 1;
  options.micro_batches = 2;
  options.initial = [](void*, uint32_t parameter, uint64_t first, uint64_t count, float* values) {
    for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(parameter + 1) + static_cast<float>(first + i);
    return 0;
  };
  penstock_engine* engine = nullptr;
  options.optimizer = PENSTOCK_SGD;
  ASSERT_EQ(penstock_open(&options, parameters.data(), kLayers, &engine), 0) << penstock_message();
  penstock_rates rates = {};
  rates.lr = 1;
  const std::vector<float> ones(kElements, 1.0f);
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(penstock_begin(engine, &rates, 1, 2, 1), 0) << penstock_message();
    penstock_pass passes[4 * kLayers];
    size_t count = 0;
    ASSERT_EQ(penstock_passes(engine, passes, 4 * kLayers, &count), 0);
    ASSERT_EQ(count, 4 * kLayers);
    for (const penstock_pass& pass : passes) {
      const float* values = nullptr;
      EXPECT_EQ(penstock_weight(engine, pass.unit, &values), PENSTOCK_USAGE);
      ASSERT_EQ(penstock_acquire(engine, &pass), 0) << penstock_message();
      ASSERT_EQ(penstock_weight(engine, pass.unit, &values), 0) << penstock_message();
      // Each step takes the two micro-batches' gradients of 1 from every weight.
      EXPECT_EQ(values[kElements - 1],
                static_cast<float>(pass.unit + 1 + kElements - 1) - 2.0f * static_cast<float>(step));
      if (pass.direction == PENSTOCK_BACKWARD) {
        ASSERT_EQ(penstock_gradient(engine, pass.unit, pass.micro_batch, PENSTOCK_FP32, ones.data()), 0)
            << penstock_message();
      }
      ASSERT_EQ(penstock_release(engine, &pass), 0) << penstock_message();
    }
    ASSERT_EQ(penstock_step(engine, nullptr, 0, nullptr), 0) << penstock_message();
    // Evaluation, in an order of its own.
    ASSERT_EQ(penstock_begin_forward(engine), 0) << penstock_message();
    EXPECT_EQ(penstock_begin(engine, &rates, 1, 2, 1), PENSTOCK_USAGE);
    for (const uint32_t unit : {2u, 0u, 2u, 1u}) {
      const penstock_pass pass = {unit, 0, PENSTOCK_FORWARD};
      const penstock_pass back = {unit, 0, PENSTOCK_BACKWARD};
      EXPECT_EQ(penstock_acquire(engine, &back), PENSTOCK_USAGE);
      ASSERT_EQ(penstock_acquire(engine, &pass), 0) << penstock_message();
      const float* values = nullptr;
      ASSERT_EQ(penstock_weight(engine, unit, &values), 0) << penstock_message();
      EXPECT_EQ(values[kElements - 1], static_cast<float>(unit + kElements) - 2.0f * static_cast<float>(step + 1));
      ASSERT_EQ(penstock_release(engine, &pass), 0) << penstock_message();
    }
    ASSERT_EQ(penstock_end_forward(engine), 0) << penstock_message();
    EXPECT_EQ(penstock_end_forward(engine), PENSTOCK_USAGE);
  }
  EXPECT_EQ(penstock_close(engine), 0) << penstock_message();
}

// Two layers whose weights every step lowers by one for each rank.
struct LoweredModel {
  static constexpr uint64_t kElements = 70'000;  // cut among the ranks
  static constexpr uint32_t kLayers = 2;

  explicit LoweredModel(std::string in) : folder(std::move(in)), drives{folder.c_str()} {
    options.size = sizeof(options);
    options.drives = drives;
    options.drive_count = 1;
    options.host_bytes = 64 << 20;
    options.threads = 1;
    options.whole_steps = 1;
    options.optimizer = PENSTOCK_SGD;
    options.ranks_of_environment = 1;
    options.initial = [](void*, uint32_t, uint64_t first, uint64_t count, float* values) {
      for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(first + i);
      return 0;
    };
  }
  int open() { return penstock_open(&options, parameters.data(), kLayers, &engine); }

  // Empty, or what is wrong.
  std::string step() const {
    penstock_rates rates = {};
    rates.lr = 1;
    const std::vector<float> ones(kElements, 1.0f);
    penstock_pass passes[2 * kLayers];
    size_t count = 0;
    uint64_t steps = 0;
    if (penstock_steps(engine, &steps) != 0 || penstock_begin(engine, &rates, 1, 1, 1) != 0 ||
        penstock_passes(engine, passes, 2 * kLayers, &count) != 0 || count != 2 * kLayers)
      return penstock_message();
    for (const penstock_pass& pass : passes) {
      const float* values = nullptr;
      if (penstock_acquire(engine, &pass) != 0 || penstock_weight(engine, pass.unit, &values) != 0)
        return penstock_message();
      if (const float last = values[kElements - 1]; last != expected(steps)) return text("lent ", last);
      if (pass.direction == PENSTOCK_BACKWARD &&
          penstock_gradient(engine, pass.unit, 0, PENSTOCK_FP32, ones.data()) != 0)
        return penstock_message();
      if (penstock_release(engine, &pass) != 0) return penstock_message();
    }
    return penstock_step(engine, nullptr, 0, nullptr) == 0 ? "" : penstock_message();
  }
  static float expected(uint64_t steps) { return static_cast<float>(kElements - 1) - 2.0f * static_cast<float>(steps); }
  std::string look_at(uint64_t steps) const {
    uint64_t found = 0;
    float last = 0;
    if (penstock_steps(engine, &found) != 0 || found != steps) return text("step ", found);
    if (penstock_read(engine, 1, PENSTOCK_WEIGHT, kElements - 1, 1, PENSTOCK_FP32, &last) != 0)
      return penstock_message();
    return last == expected(steps) ? "" : text("read ", last);
  }

  const std::string folder;
  const char* drives[1];
  std::vector<penstock_parameter> parameters = layers(kLayers, kElements);
  penstock_options options = {};
  penstock_engine* engine = nullptr;
};

std::string life_of_rank(LoweredModel& model, uint64_t begins_at) {
  uint32_t rank = 9, ranks = 9;
  uint64_t kept = 0, count = 0;
  if (model.open() != 0 || penstock_rank(model.engine, &rank, &ranks) != 0) return penstock_message();
  if (text(rank) != std::getenv("RANK") || ranks != 2) return text("rank ", rank, " of ", ranks);
  if (std::string wrong = model.look_at(begins_at); !wrong.empty()) return wrong;
  if (std::string wrong = model.step(); !wrong.empty()) return wrong;
  if (penstock_keep(model.engine, &kept) != 0 || kept != begins_at + 1) return text("kept ", kept, penstock_message());
  if (std::string wrong = model.step(); !wrong.empty()) return wrong;
  if (std::string wrong = model.look_at(begins_at + 2); !wrong.empty()) return wrong;
  if (penstock_count(model.engine, 0, &count) != PENSTOCK_USAGE) return "count is not refused";
  if (penstock_roll_back(model.engine, kept) != 0) return penstock_message();
  if (std::string wrong = model.look_at(kept); !wrong.empty()) return wrong;
  if (std::string wrong = model.step(); !wrong.empty()) return wrong;
  return penstock_close(model.engine) == 0 ? "" : penstock_message();
}

constexpr const char* kLives = "PenstockC.SharesWholeStepsAmongRanksThatKeepAndGoBackTogether";

// Each is this program anew, as torchrun starts it: what is forked alone has none of its parent's update threads.
void expect_lives_of_two_ranks(const Folder& folder, int sharing, uint64_t begins_at) {
  static int meetings = 0;
  ::setenv("LIFE_IN", folder.path.c_str(), 1);
  ::setenv("LIFE_SHARING", std::to_string(sharing).c_str(), 1);
  ::setenv("LIFE_BEGINS_AT", std::to_string(begins_at).c_str(), 1);
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(20'000 + (::getpid() + ++meetings) % 20'000).c_str(), 1);
  const std::string filter = text("--gtest_filter=", kLives);
  pid_t processes[2];
  for (int rank = 0; rank < 2; ++rank) {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    processes[rank] = ::fork();
    ASSERT_GE(processes[rank], 0);
    if (processes[rank] > 0) continue;
    ::execl("/proc/self/exe", "rank", filter.c_str(), "--gtest_brief=1", nullptr);
    ::_exit(127);
  }
  for (const char* variable :
       {"LIFE_IN", "LIFE_SHARING", "LIFE_BEGINS_AT", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK"})
    ::unsetenv(variable);
  for (pid_t process : processes) {
    int status = 0;
    EXPECT_EQ(::waitpid(process, &status, 0), process);
    EXPECT_EQ(status, 0);
  }
}

TEST(PenstockC, SharesWholeStepsAmongRanksThatKeepAndGoBackTogether) {
  if (const char* place = std::getenv("LIFE_IN")) {
    LoweredModel model(place);
    model.options.sharing = std::stoi(std::getenv("LIFE_SHARING"));
    EXPECT_EQ(life_of_rank(model, std::stoull(std::getenv("LIFE_BEGINS_AT"))), "") << "rank " << std::getenv("RANK");
    return;
  }
  for (const int sharing : {PENSTOCK_SHARE_WEIGHTS, PENSTOCK_SHARE_STATE, PENSTOCK_SHARE_NOTHING}) {
    SCOPED_TRACE(text("sharing ", sharing));
    Folder folder;
    expect_lives_of_two_ranks(folder, sharing, 0);
    // The two that share the state have the same shards.
    expect_lives_of_two_ranks(folder, sharing == PENSTOCK_SHARE_WEIGHTS ? PENSTOCK_SHARE_STATE : sharing, 2);
  }
}

TEST(PenstockC, RefusesWhatSeveralRanksCannotDoBeforeItWaitsForThem) {
  Folder folder;
  LoweredModel model(folder.path);
  const auto refused = [&](const std::string& words) {
    EXPECT_EQ(model.open(), PENSTOCK_USAGE);
    EXPECT_NE(std::string(penstock_message()).find(words), std::string::npos) << penstock_message();
  };
  ::setenv("RANK", "1", 1);
  refused("WORLD_SIZE is not set");
  ::setenv("WORLD_SIZE", "2", 1);
  refused("MASTER_PORT is not set");
  ::setenv("MASTER_PORT", "29500", 1);
  model.options.whole_steps = 0;
  model.parameters[0].unit = model.parameters[1].unit = PENSTOCK_UNIT_AUTO;
  refused("open: rank 1 of 2: several ranks need whole steps");
  model.options.whole_steps = 1;
  model.parameters[0].unit = 0;
  model.parameters[1].unit = 1;
  std::vector<float> weights(LoweredModel::kElements);
  model.parameters[1].weights_into = weights.data();
  refused("parameter w: weights_into");
  model.parameters[1].weights_into = nullptr;
  model.options.slots = 1;
  refused("ranks: one slot a tile");
  model.options.slots = 0;
  model.options.sharing = 3;
  refused("sharing: 3: from 0 to 2 expected");
  model.options.sharing = 0;
  model.options.hangs_after_s = -1;
  refused("hangs_after_s: -1: from 0 to 600 expected");
  model.options.hangs_after_s = 0;
  for (const char* variable : {"RANK", "WORLD_SIZE", "MASTER_PORT"}) ::unsetenv(variable);
  // Where nobody says that there are others, it is alone.
  ASSERT_EQ(model.open(), 0) << penstock_message();
  uint32_t rank = 9, ranks = 9;
  EXPECT_EQ(penstock_rank(model.engine, &rank, &ranks), 0);
  EXPECT_EQ(std::pair(rank, ranks), std::pair(0u, 1u));
  EXPECT_EQ(penstock_close(model.engine), 0) << penstock_message();
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
