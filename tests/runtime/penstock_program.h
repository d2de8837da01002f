// A program that embeds the engine by penstock.h, and the plain loop that it is held against.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/penstock.h"
#include "tiering/status.h"
#include "tools/update/plain_loop.h"

namespace penstock::engine {

constexpr double kLr = 1e-2, kDecay = 0.1;

struct ProgramFolder {
  std::string path = "./penstock_c_XXXXXX";

  ProgramFolder() { CHECK(::mkdtemp(path.data()) != nullptr, "no folder ", path); }
  ~ProgramFolder() { std::filesystem::remove_all(path); }
};

inline float bf16(uint16_t word) { return plain::real(uint32_t{word} << 16); }
// To nearest, ties to even.
inline uint16_t rounded(float x) {
  const uint32_t b = plain::bits(x);
  return static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

inline bool eventually(const std::function<bool()>& holds) {
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
    return penstock_step(engine, trainer_state.data(), trainer_state.size(), report);
  }
  std::string trainer_state = "state";
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

  ProgramFolder folder;
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

}  // namespace penstock::engine
