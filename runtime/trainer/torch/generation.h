// Generation: several prompts are answered together, token by token. For each token the weights pass by once, however
// many prompts there are; of what came before, keys and values are remembered (key_values.h).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/trainer/engine_verbs.h"
#include "runtime/trainer/model.h"
#include "runtime/trainer/prompts.h"
#include "runtime/trainer/token_choice.h"

namespace penstock::trainer {

struct Question {
  std::span<const Prompt> prompts;
  std::span<const int32_t> ends;  // an answer is over with one of these
  uint64_t new_tokens = 0;        // of an answer, at most
  ChoiceRules rules = {};
  uint64_t key = 0;              // of the draws
  uint64_t tokens_together = 0;  // of prompts, that are computed at once; one that is longer stands alone
  // Of several ranks, which all compute all answers: makes the tokens of a pass those that one of them has chosen.
  std::function<Status(std::span<int32_t> chosen)> agree = {};
};

struct Continuation {
  std::vector<int32_t> tokens;  // without the one that ended it
  bool ended = false;           // by such a token
};

// What tensors take besides those of a step: keys and values, and what is between two units.
struct GenerationBytes {
  uint64_t key_values = 0;
  uint64_t all = 0;
};
GenerationBytes generation_bytes(const Model& model, std::span<const Prompt> prompts, uint64_t new_tokens);

// By prompt. Between begin_forward() and end_forward(), or over any weights that do not change. REQUIRES: prompts have
// tokens, all of the vocabulary; with learned positions, there are as many as prompt and answer have tokens.
Result<std::vector<Continuation>> generate(const Model& model, EngineVerbs& engine, const Question& question);

}  // namespace penstock::trainer
