// The flags of the verbs that train, known to the command that starts them and to the program that trains. A flag
// changes a key of the config; those that are not given leave it alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/config/train_config.h"
#include "tools/penstock/verb.h"

namespace penstock::tools {

struct TrainFlags {
  std::optional<std::string> config;  // a file
  std::optional<std::string> device, run, model, data, stores, budget, machine, activations, schedule, io_engine;
  std::optional<std::string> durability;
  std::optional<uint64_t> ranks;
  std::optional<uint64_t> steps, sequence, sequences, micro_batches, group, warm_up, seed, threads, eval_every,
      keep_every, keep_best, sample_every;
  std::optional<double> learning_rate, weight_decay, clip;
  bool from_scratch = false;
  bool force = false;
  bool dry_run = false;
  bool grid = false;
};

// What the flags change. Refuses a budget that is none.
Result<std::vector<trainer::ConfigOverride>> overrides_of(const TrainFlags& flags);

// Declares the flags; a verb may leave out those that are of `train` alone.
enum class TrainOptions { all, of_steps };
void train_options(Options& options, TrainFlags& flags, TrainOptions which);

// The verb, whose work is `train`.
Verb train_verb_with(std::function<Result<Answer>(Session&, const TrainFlags&)> train);

// Of `generate`.
struct GenerateFlags {
  std::string source;  // a run's folder, or its config
  std::vector<std::string> prompts;
  std::optional<std::string> tokenizer;
  std::optional<uint64_t> new_tokens, top_k, seed;
  std::optional<double> temperature;
};
Verb generate_verb_with(std::function<Result<Answer>(Session&, const GenerateFlags&)> generate);

}  // namespace penstock::tools
