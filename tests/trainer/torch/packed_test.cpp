// Several documents in one sequence: the same loss and gradients as one in each, padded.
#include "runtime/trainer/torch/autograd.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/trainer/torch/train_step.h"
#include "tests/trainer/torch/small_models.h"

namespace penstock::trainer {
namespace {

constexpr int64_t kLength = 24;
constexpr int32_t kPadding = 7;
constexpr uint64_t kSeed = 31;

using Document = std::vector<int32_t>;

// One sequence for each list of documents; what is left of it is a document of padding.
MicroBatch batch_of(const std::vector<std::vector<Document>>& sequences) {
  MicroBatch batch{.sequences = static_cast<int64_t>(sequences.size()), .length = kLength, .tokens = {}, .targets = {}};
  for (const std::vector<Document>& documents : sequences) {
    const size_t end = batch.tokens.size() + kLength;
    for (const Document& document : documents) {
      for (size_t i = 0; i < document.size(); ++i) {
        const bool is_learnt = i + 1 < document.size() && document[i] % 3 != 0;
        batch.tokens.push_back(document[i]);
        batch.targets.push_back(is_learnt ? document[i + 1] : kIgnored);
        batch.positions.push_back(static_cast<int32_t>(i));
      }
    }
    for (int32_t position = 0; batch.tokens.size() < end; ++position) {
      batch.tokens.push_back(kPadding);
      batch.targets.push_back(kIgnored);
      batch.positions.push_back(position);
    }
  }
  return batch;
}

std::vector<Document> documents_of(const std::vector<int>& lengths) {
  std::mt19937_64 random(kSeed);
  std::vector<Document> documents;
  for (int length : lengths) {
    documents.emplace_back();
    for (int i = 0; i < length; ++i) documents.back().push_back(static_cast<int32_t>(random() % 131));
  }
  return documents;
}

struct Outcome {
  StepLoss loss;
  std::map<MovingWeights::GradientKey, std::vector<float>> gradients;
};

class Packed : public ::testing::TestWithParam<SmallModel> {
 protected:
  Packed() { at::globalContext().setDeterministicAlgorithms(true, false); }

  Outcome outcome(const std::vector<MicroBatch>& batches, ActivationChoice choice = ActivationChoice::recompute) const {
    at::manual_seed(5);
    MovingWeights weights(model_);
    fill_with_noise(model_, weights);
    TrainStep step(model_, weights, {.seed = 11}, std::vector<ActivationChoice>(model_.uses.size(), choice));
    const auto count = static_cast<uint32_t>(batches.size());
    const auto loss = step.run(3, batches, step_order(model_, count, count));
    EXPECT_TRUE(loss.ok()) << loss.status().message();
    Outcome found{loss.ok() ? *loss : StepLoss(), {}};
    for (const auto& [key, bytes] : weights.gradients_) {
      found.gradients[key].resize(bytes.size() / sizeof(float));
      std::memcpy(found.gradients[key].data(), bytes.data(), bytes.size());
    }
    return found;
  }

  Result<StepLoss> evaluated(const MicroBatch& batch) const {
    at::manual_seed(5);
    MovingWeights weights(model_);
    fill_with_noise(model_, weights);
    TrainStep step(model_, weights, {}, std::vector<ActivationChoice>(model_.uses.size(), ActivationChoice::keep));
    PENSTOCK_TRY_ASSIGN(losses, step.evaluate(std::span(&batch, 1)));
    return losses.front();
  }

  const Model model_ = make_model(config_of(GetParam()), Dtype::fp32);
};

// Within 1e-6 of the largest value of each parameter's gradient; sums run over other places in another order.
void expect_close(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.loss.supervised, b.loss.supervised);
  EXPECT_NEAR(a.loss.mean() / b.loss.mean(), 1, 1e-6);
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [key, values] : a.gradients) {
    const std::vector<float>& other = b.gradients.at(key);
    ASSERT_EQ(values.size(), other.size());
    float most = 0, apart = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(other[i]));
      apart = std::max(apart, std::abs(values[i] - other[i]));
    }
    EXPECT_LE(apart, 1e-6f * most + 1e-9f) << "use " << std::get<0>(key) << ", element " << std::get<3>(key);
  }
}

bool drops(const SmallModel& model) { return model.name.find("Dropout") != std::string::npos; }

TEST_P(Packed, HasTheLossAndGradientsOfPadded) {
  if (drops(GetParam())) GTEST_SKIP() << "dropout draws other numbers for other places";
  const auto d = documents_of({9, 11, 2, 24, 3, 20, 5});
  const MicroBatch packed = batch_of({{d[0], d[1], d[2]}, {d[3]}, {d[4], d[5]}, {d[6]}});
  const MicroBatch padded = batch_of({{d[0]}, {d[1]}, {d[2]}, {d[3]}, {d[4]}, {d[5]}, {d[6]}});
  expect_close(outcome({packed}), outcome({padded}));
  const auto apart = evaluated(packed), alone = evaluated(padded);
  EXPECT_NEAR(apart->sum / alone->sum, 1, 1e-6);
}

TEST_P(Packed, PaddingChangesNothing) {
  if (drops(GetParam())) GTEST_SKIP() << "dropout draws other numbers for other places";
  const auto d = documents_of({kLength, kLength});
  MicroBatch with = batch_of({{d[0]}, {d[1]}}), without = with;
  without.positions.clear();
  expect_close(outcome({with}), outcome({without}));
}

TEST_P(Packed, KeepsOrRecomputesToTheSameBits) {
  const auto d = documents_of({9, 11, 2, 24});
  const std::vector<MicroBatch> batches = {batch_of({{d[0], d[1]}, {d[3]}}), batch_of({{d[1], d[2], d[0]}})};
  const Outcome kept = outcome(batches, ActivationChoice::keep), recomputed = outcome(batches);
  EXPECT_EQ(kept.loss.sum, recomputed.loss.sum);
  EXPECT_EQ(kept.gradients, recomputed.gradients);
}

TEST_P(Packed, RefusesPositionsThatAreNone) {
  const auto d = documents_of({9});
  auto refusal = [&](auto change) {
    MicroBatch batch = batch_of({{d[0]}, {d[0]}});
    change(batch.positions);
    return evaluated(batch).status().message();
  };
  EXPECT_NE(refusal([](auto& p) { p.pop_back(); }).find("47 positions of 48 tokens"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p[kLength] = 3; }).find("token 24 has position 3, 0 or 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p[4] = 3; }).find("token 4 has position 3, 0 or 4"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Models, Packed, ::testing::ValuesIn(small_models()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace penstock::trainer
