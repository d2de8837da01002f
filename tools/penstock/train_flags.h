// The flags of `penstock train`, known to the command that starts it and to the program that trains.
#pragma once

#include <optional>
#include <string>

#include "tools/penstock/verb.h"

namespace penstock::tools {

struct TrainFlags {
  std::string run;    // folder of the log
  std::string model;  // a Hugging Face config.json; empty: the built-in small GPT
  std::string data;   // a file of tokens, or a text; empty: the shipped one
  std::string stores;
  std::string budget = "host=1GiB";
  std::string machine;
  std::optional<Durability> durability;
  uint64_t steps = 100;
  uint64_t sequence = 128;
  uint64_t sequences = 4;  // of a micro-batch
  uint64_t micro_batches = 4;
  uint64_t group = 0;  // 0: the planner chooses
  std::string activations = "recompute";
  double learning_rate = 1e-3;
  double weight_decay = 0.1;
  double clip = 1;
  std::string schedule = "constant";
  uint64_t warm_up = 10;  // steps
  uint64_t seed = 1;
  uint64_t threads = 0;
  std::string engine = "auto";
  bool force = false;
};

// The verb, whose work is `train`.
Verb train_verb_with(std::function<Result<Answer>(Session&, const TrainFlags&)> train);

}  // namespace penstock::tools
