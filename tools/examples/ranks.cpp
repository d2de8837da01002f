// A step's micro-batches among processes that train one model: y = x + W x in every layer, on made-up data. Each
// process keeps its part of the weights and of AdamW's state, computes its part of the micro-batches, and lends out and
// takes back the rest; as one process or as several, killed and started again or not, the numbers are the same.
//
//   ranks FOLDER STEPS                                             one process has all
//   torchrun --no-python --nproc-per-node 2 ranks FOLDER STEPS     two share it
//
// c++ -std=c++20 -O2 ranks.cpp $(pkg-config --cflags --libs penstock)
#include <cstdio>
#include <cstdlib>
#include <penstock/penstock.hpp>
#include <vector>

namespace {

constexpr uint32_t kWidth = 384, kLayers = 3, kSamples = 2, kMicroBatches = 2;
constexpr uint64_t kMatrix = uint64_t{kWidth} * kWidth;

using Vectors = std::vector<float>;  // kSamples of them, one after another

// From -1 to 1, a function of what it is for.
float made_up(uint64_t what, uint64_t i) {
  uint64_t x = what * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 30)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int64_t>(x ^ (x >> 31)) >> 40) * 0x1p-23f;
}

Vectors forward(const float* matrix, const Vectors& x) {
  Vectors y = x;
  for (uint32_t sample = 0; sample < kSamples; ++sample) {
    for (uint32_t row = 0; row < kWidth; ++row) {
      for (uint32_t i = 0; i < kWidth; ++i)
        y[sample * kWidth + row] += matrix[uint64_t{row} * kWidth + i] * x[sample * kWidth + i];
    }
  }
  return y;
}

// `d`: the gradient of the output, and then of the input. That of the matrix is returned.
Vectors backward(const float* matrix, const Vectors& x, Vectors& d) {
  Vectors of_matrix(kMatrix);
  const Vectors from_above = d;
  for (uint32_t sample = 0; sample < kSamples; ++sample) {
    for (uint32_t row = 0; row < kWidth; ++row) {
      const float above = from_above[sample * kWidth + row];
      for (uint32_t i = 0; i < kWidth; ++i) {
        of_matrix[uint64_t{row} * kWidth + i] += above * x[sample * kWidth + i];
        d[sample * kWidth + i] += above * matrix[uint64_t{row} * kWidth + i];
      }
    }
  }
  return of_matrix;
}

int failed(const char* what, const penstock::Status& status) {
  std::fprintf(stderr, "ranks: %s: %s\n", what, status.message.c_str());
  if (!status.remedy.empty()) std::fprintf(stderr, "try: %s\n", status.remedy.c_str());
  return 1;
}

// What one of this rank's micro-batches has brought forth.
struct MicroBatch {
  std::vector<Vectors> x;  // by layer, and of the output
  Vectors d;
  double loss = 0;
};

penstock::Status compute(penstock::Store& store, const penstock_pass& pass, MicroBatch& batch) {
  if (penstock::Status acquired = store.acquire(pass); !acquired) return acquired;
  auto matrix = store.weight(pass.unit);
  if (!matrix) return matrix.status();
  if (pass.direction == PENSTOCK_FORWARD) {
    batch.x[pass.unit + 1] = forward(*matrix, batch.x[pass.unit]);
    for (size_t i = 0; pass.unit + 1 == kLayers && i < batch.d.size(); ++i) {  // the input's other half is wanted
      const float apart = batch.x[kLayers][i] - 0.5f * batch.x[0][i];
      batch.d[i] = apart / static_cast<float>(batch.d.size() * kMicroBatches);
      batch.loss += 0.5 * static_cast<double>(apart) * static_cast<double>(batch.d[i]);
    }
  } else {
    const Vectors of_matrix = backward(*matrix, batch.x[pass.unit], batch.d);
    if (penstock::Status given = store.gradient(pass.unit, of_matrix, pass.micro_batch); !given) return given;
  }
  return store.release(pass);
}

// Prints the loss of each of this rank's micro-batches.
penstock::Status train_step(penstock::Store& store, uint32_t first_micro_batch, uint32_t micro_batches) {
  penstock_rates rates{};
  rates.lr = 1e-3;
  rates.beta1 = 0.9;
  rates.beta2 = 0.95;
  rates.eps = 1e-8;
  const uint64_t step = store.steps();
  if (penstock::Status begun = store.begin({&rates, 1}, micro_batches); !begun) return begun;
  std::vector<MicroBatch> batches(micro_batches);
  for (uint32_t i = 0; i < micro_batches; ++i) {
    batches[i].x.resize(kLayers + 1);
    batches[i].d.resize(kSamples * kWidth);
    const uint64_t number = step * kMicroBatches + first_micro_batch + i;
    for (size_t at = 0; at < batches[i].d.size(); ++at) batches[i].x[0].push_back(made_up(number, at));
  }
  auto passes = store.passes();
  if (!passes) return passes.status();
  for (const penstock_pass& pass : *passes) {
    if (penstock::Status computed = compute(store, pass, batches[pass.micro_batch]); !computed) return computed;
  }
  auto report = store.step();
  if (!report) return report.status();
  for (uint32_t i = 0; i < micro_batches; ++i) {
    std::printf("step %llu micro-batch %u loss %.17g norm %.17g\n", static_cast<unsigned long long>(report->step),
                first_micro_batch + i, batches[i].loss, report->gradient_norm);
  }
  std::fflush(stdout);
  return {};
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return std::fprintf(stderr, "ranks FOLDER STEPS\n"), 2;
  penstock::Options options;
  options.drives = {arguments[1]};
  options.host_bytes = 64 << 20;
  options.whole_steps = true;
  options.ranks_of_environment = true;
  // Of this rank, at most; a step may have fewer.
  options.micro_batches = kMicroBatches;
  options.initial = [](uint32_t parameter, uint64_t first, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * made_up(1'000'000 + parameter, first + i);
  };
  std::vector<penstock::Parameter> parameters;
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    parameters.push_back({.name = "layer" + std::to_string(layer), .elements = kMatrix, .unit = layer});
  auto opened = penstock::Store::open(options, parameters);
  if (!opened) return failed("open", opened.status());
  penstock::Store store = std::move(*opened);

  const auto [rank, ranks] = store.place();
  if (kMicroBatches % ranks != 0) return std::fprintf(stderr, "ranks: %u ranks, 1 or 2 expected\n", ranks), 2;
  const uint32_t micro_batches = kMicroBatches / ranks;
  while (store.steps() < std::strtoull(arguments[2], nullptr, 10)) {
    if (penstock::Status trained = train_step(store, rank * micro_batches, micro_batches); !trained)
      return failed("train", trained);
  }
  if (penstock::Status closed = store.close(); !closed) return failed("close", closed);
  return 0;
}
