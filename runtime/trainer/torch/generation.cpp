#include "runtime/trainer/torch/generation.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "runtime/trainer/counter_random.h"
#include "runtime/trainer/torch/embedding.h"
#include "runtime/trainer/torch/head.h"
#include "runtime/trainer/torch/key_values.h"
#include "runtime/trainer/torch/refusals.h"

namespace penstock::trainer {
namespace {

// The last token of an answer is never looked back at.
std::vector<uint64_t> room_of(std::span<const Prompt> prompts, uint64_t new_tokens) {
  std::vector<uint64_t> most;
  for (const Prompt& prompt : prompts) most.push_back(prompt.tokens.size() + new_tokens - 1);
  return most;
}

class Generation {
 public:
  Generation(const Model& model, EngineVerbs& engine, const Question& question)
      : model_(model), engine_(engine), question_(question), device_(engine.accelerator().device()) {
    const std::vector<uint64_t> most = room_of(question.prompts, question.new_tokens);
    for (uint32_t layer = 0; layer < model.config.layers; ++layer) remembered_.emplace_back(model, most, device_);
    for (const Prompt& prompt : question.prompts) answers_.push_back({.next = prompt.tokens});
  }

  bool goes_on() const {
    return std::any_of(answers_.begin(), answers_.end(), [](const Answer& answer) { return !answer.next.empty(); });
  }

  // One token more for each answer that is not over.
  Status pass() {
    std::vector<Group> groups = groups_of_next();
    for (uint32_t use = 0; use < model_.uses.size(); ++use) {
      const ComputePass pass{Direction::forward, use, 0};
      PENSTOCK_TRY_ASSIGN(weights, engine_.acquire(pass));
      const Status computed = without_exceptions(nullptr, [&] {
        c10::AutoGradMode not_recorded(false);
        const WeightTensors views = views_of(model_, weights, device_);
        for (Group& group : groups) compute(model_.uses[use], views, group);
        return Status();
      });
      const Status released = engine_.release(pass);
      PENSTOCK_TRY(computed.within(model_.uses[use].name));
      PENSTOCK_TRY(released);
    }
    std::vector<int32_t> chosen;
    for (const Group& group : groups) choose_tokens(group, chosen);
    if (question_.agree) PENSTOCK_TRY(question_.agree(chosen));
    auto next = chosen.begin();
    for (const Group& group : groups)
      for (const TokenRun& run : group.runs) take_token(run.sequence, *next++);
    return Status();
  }

  std::vector<Continuation> take() {
    std::vector<Continuation> found;
    for (Answer& answer : answers_) found.push_back(std::move(answer.found));
    return found;
  }

 private:
  struct Answer {
    std::vector<int32_t> next = {};  // tokens that have not passed yet; none: it is over
    int64_t passed = 0;
    Continuation found = {};
  };
  // Tokens that are computed at once.
  struct Group {
    std::vector<TokenRun> runs = {};
    std::vector<int64_t> tokens = {};
    Positions positions = {};
    at::Tensor hidden = {};  // in the end, logits of each run's last token
  };

  std::vector<Group> groups_of_next() {
    std::vector<Group> groups(1);
    for (size_t sequence = 0; sequence < answers_.size(); ++sequence) {
      Answer& answer = answers_[sequence];
      if (answer.next.empty()) continue;
      const auto count = static_cast<int64_t>(answer.next.size());
      const bool fits = groups.back().tokens.size() + answer.next.size() <= question_.tokens_together;
      if (!fits && !groups.back().tokens.empty()) groups.emplace_back();
      Group& group = groups.back();
      group.runs.push_back({.sequence = sequence, .first = answer.passed, .count = count});
      group.tokens.insert(group.tokens.end(), answer.next.begin(), answer.next.end());
      answer.passed += count;
      answer.next.clear();
    }
    for (Group& group : groups) group.positions = make_positions(model_.config, group.runs, device_);
    return groups;
  }

  void compute(const ModelUse& use, const WeightTensors& views, Group& group) {
    const DropoutKeys keys;
    switch (use.kind) {
      case UseKind::embedding:
        group.hidden = embedding_forward(model_.config, views, placed(group.tokens, at::kCPU).unsqueeze(0),
                                         group.positions.places, keys);
        return;
      case UseKind::block:
        group.hidden = block_forward(model_.config, use.layer, views, group.hidden, group.positions, keys,
                                     &remembered_[use.layer]);
        return;
      case UseKind::head: {
        std::vector<int64_t> last;
        for (size_t i = 0; i < group.runs.size(); ++i)
          last.push_back(group.positions.documents[i] + group.runs[i].count - 1);
        const at::Tensor rows = group.hidden.index_select(1, placed(last, device_));
        group.hidden = head_logits(model_.config, views, rows).to(at::kFloat).contiguous();
        return;
      }
    }
  }

  void choose_tokens(const Group& group, std::vector<int32_t>& chosen) const {
    const auto vocabulary = static_cast<size_t>(group.hidden.size(1));
    const at::Tensor all = group.hidden.to(at::kCPU);
    const std::span<const float> logits(all.const_data_ptr<float>(), group.runs.size() * vocabulary);
    for (size_t row = 0; row < group.runs.size(); ++row) {
      const size_t sequence = group.runs[row].sequence;
      chosen.push_back(choose_token(logits.subspan(row * vocabulary, vocabulary), question_.rules,
                                    stream_key(question_.key, sequence), answers_[sequence].found.tokens.size()));
    }
  }

  void take_token(size_t sequence, int32_t token) {
    Answer& answer = answers_[sequence];
    answer.found.ended = std::find(question_.ends.begin(), question_.ends.end(), token) != question_.ends.end();
    if (answer.found.ended) return;
    answer.found.tokens.push_back(token);
    if (answer.found.tokens.size() < question_.new_tokens) answer.next = {token};
  }

  const Model& model_;
  EngineVerbs& engine_;
  const Question& question_;
  const at::Device device_;
  std::vector<KeyValues> remembered_;  // by layer
  std::vector<Answer> answers_;
};

}  // namespace

GenerationBytes generation_bytes(const Model& model, std::span<const Prompt> prompts, uint64_t new_tokens) {
  if (prompts.empty()) return {};
  const uint64_t key_values = key_values_bytes(model, room_of(prompts, new_tokens));
  uint64_t tokens = 0;
  for (const Prompt& prompt : prompts) tokens += prompt.tokens.size();
  const uint64_t between = tokens * model.config.hidden * bytes_of(model.dtype);
  const uint64_t logits = prompts.size() * model.config.vocab * (bytes_of(model.dtype) + sizeof(float));
  return {.key_values = key_values, .all = key_values + between + logits};
}

Result<std::vector<Continuation>> generate(const Model& model, EngineVerbs& engine, const Question& question) {
  CHECK(question.new_tokens > 0, "answers of no tokens");
  return without_exceptions(nullptr, [&]() -> Result<std::vector<Continuation>> {
    Generation generation(model, engine, question);
    while (generation.goes_on()) PENSTOCK_TRY(generation.pass());
    return generation.take();
  });
}

}  // namespace penstock::trainer
