// A residual multi-layer perceptron, x + tanh(W x + b) in every layer, whose weights and AdamW state are ten times as
// large as what the engine may take of host memory. Trained on made-up data; killed and started again, it goes on from
// its last step with the same numbers.
//
//   mlp FOLDER STEPS       the store is in FOLDER
//
// c++ -std=c++20 -O2 mlp.cpp $(pkg-config --cflags --libs penstock)
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <penstock/penstock.hpp>
#include <vector>

namespace {

constexpr uint32_t kWidth = 512, kLayers = 76, kSamples = 4;
constexpr uint64_t kHostBytes = 22 << 20;
constexpr uint64_t kMatrix = uint64_t{kWidth} * kWidth;
static_assert(kLayers * (kMatrix + kWidth) * 12 > 10 * kHostBytes);

using Vectors = std::vector<float>;  // kSamples of them, one after another

// From -1 to 1, a function of what it is for.
float made_up(uint64_t what, uint64_t i) {
  uint64_t x = what * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 30)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int64_t>(x ^ (x >> 31)) >> 40) * 0x1p-23f;
}

// The parameters of layer n are 2n and 2n + 1.
struct Layer {
  const float *matrix, *bias;
};

// Of W x + b; rows lie one after another.
Vectors forward(const Layer& layer, const Vectors& x) {
  Vectors y = x;
  for (uint32_t row = 0; row < kWidth; ++row) {
    const float* weights = layer.matrix + uint64_t{row} * kWidth;
    for (uint32_t sample = 0; sample < kSamples; ++sample) {
      const float* in = x.data() + sample * kWidth;
      float sums[8] = {};
      for (uint32_t i = 0; i < kWidth; i += 8) {
        for (uint32_t j = 0; j < 8; ++j) sums[j] += weights[i + j] * in[i + j];
      }
      float sum = layer.bias[row];
      for (float part : sums) sum += part;
      y[sample * kWidth + row] += std::tanh(sum);
    }
  }
  return y;
}

// `d`: the gradient of the output y, and then of the input x.
void backward(const Layer& layer, const Vectors& x, const Vectors& y, Vectors& d, Vectors& matrix, Vectors& bias) {
  std::fill(matrix.begin(), matrix.end(), 0.0f);
  std::fill(bias.begin(), bias.end(), 0.0f);
  const Vectors from_above = d;
  for (uint32_t row = 0; row < kWidth; ++row) {
    for (uint32_t sample = 0; sample < kSamples; ++sample) {
      const uint64_t at = sample * kWidth + row;
      const float t = y[at] - x[at], inner = from_above[at] * (1 - t * t);
      bias[row] += inner;
      for (uint32_t i = 0; i < kWidth; ++i) {
        matrix[uint64_t{row} * kWidth + i] += inner * x[sample * kWidth + i];
        d[sample * kWidth + i] += inner * layer.matrix[uint64_t{row} * kWidth + i];
      }
    }
  }
}

int failed(const char* what, const penstock::Status& status) {
  std::fprintf(stderr, "mlp: %s: %s\n", what, status.message.c_str());
  if (!status.remedy.empty()) std::fprintf(stderr, "try: %s\n", status.remedy.c_str());
  return 1;
}

// One step; its loss. The weights of a layer are in memory between acquire and release alone.
penstock::Result<double> train_step(penstock::Store& store, std::span<const penstock_rates> rates) {
  const uint64_t step = store.steps();
  if (penstock::Status begun = store.begin(rates); !begun) return begun;
  auto passes = store.passes();
  if (!passes) return passes.status();
  std::vector<Vectors> x(kLayers + 1, Vectors(kSamples * kWidth));
  for (size_t i = 0; i < x[0].size(); ++i) x[0][i] = made_up(step, i);
  Vectors d(kSamples * kWidth), matrix(kMatrix), bias(kWidth);
  double loss = 0;
  for (const penstock_pass& pass : *passes) {
    if (penstock::Status acquired = store.acquire(pass); !acquired) return acquired;
    const Layer layer{*store.weight(2 * pass.unit).operator->(), *store.weight(2 * pass.unit + 1).operator->()};
    if (pass.direction == PENSTOCK_FORWARD) {
      x[pass.unit + 1] = forward(layer, x[pass.unit]);
      if (pass.unit + 1 == kLayers) {  // the input's neighbour is wanted
        for (size_t i = 0; i < d.size(); ++i) {
          const size_t neighbour = i / kWidth * kWidth + (i + 1) % kWidth;
          d[i] = (x[kLayers][i] - 0.5f * x[0][neighbour]) / static_cast<float>(d.size());
          loss += 0.5 * static_cast<double>(d[i]) * static_cast<double>(d[i]) * static_cast<double>(d.size());
        }
      }
    } else {
      backward(layer, x[pass.unit], x[pass.unit + 1], d, matrix, bias);
      if (penstock::Status given = store.gradient(2 * pass.unit, matrix); !given) return given;
      if (penstock::Status given = store.gradient(2 * pass.unit + 1, bias); !given) return given;
    }
    if (penstock::Status released = store.release(pass); !released) return released;
  }
  auto report = store.step();
  if (!report) return report.status();
  return loss;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return std::fprintf(stderr, "mlp FOLDER STEPS\n"), 2;
  penstock::Options options;
  options.drives = {arguments[1]};
  options.host_bytes = kHostBytes;
  options.whole_steps = true;
  options.initial = [](uint32_t parameter, uint64_t first, std::span<float> values) {
    const float size = parameter % 2 == 0 ? 0.3f / std::sqrt(static_cast<float>(kWidth)) : 0.0f;
    for (size_t i = 0; i < values.size(); ++i) values[i] = size * made_up(1'000'000 + parameter, first + i);
  };
  std::vector<penstock::Parameter> parameters;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    parameters.push_back({.name = name + ".matrix", .elements = kMatrix, .group = 0, .unit = layer});
    parameters.push_back({.name = name + ".bias", .elements = kWidth, .group = 1, .unit = layer});
  }
  auto opened = penstock::Store::open(options, parameters);
  if (!opened) return failed("open", opened.status());
  penstock::Store store = std::move(*opened);
  const penstock_statistics sizes = store.statistics();
  std::fprintf(stderr, "%.1f MiB of weights and state, %.1f MiB of host memory planned of %.1f\n",
               static_cast<double>(sizes.elements) * 12 / 0x1p20, static_cast<double>(sizes.host_bytes) / 0x1p20,
               static_cast<double>(kHostBytes) / 0x1p20);

  std::vector<penstock_rates> rates(2);
  for (penstock_rates& rate : rates) {
    rate.lr = 1e-4;
    rate.beta1 = 0.9;
    rate.beta2 = 0.95;
    rate.eps = 1e-8;
  }
  rates[0].weight_decay = 0.1;
  while (store.steps() < std::strtoull(arguments[2], nullptr, 10)) {
    auto loss = train_step(store, rates);
    if (!loss) return failed("train", loss.status());
    std::printf("step %llu loss %.17g\n", static_cast<unsigned long long>(store.steps()), *loss);
    std::fflush(stdout);
  }
  if (penstock::Status closed = store.close(); !closed) return failed("close", closed);
  return 0;
}
