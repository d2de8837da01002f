// TrainConfig: what a training run is told, as numbers and names. It is read from JSON with comments, or from YAML
// (yaml.h); DeepSpeed's file is such a file, and each of its keys is honoured, has no effect here, or is refused with
// what replaces it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/config/schedule.h"
#include "runtime/trainer/left_out.h"
#include "runtime/trainer/loss_rules.h"
#include "runtime/trainer/patience.h"
#include "runtime/trainer/token_choice.h"
#include "tiering/hyper.h"
#include "tiering/state_layout.h"
#include "tiering/unit.h"

namespace penstock::trainer {

// fp16's loss scale, by DeepSpeed's rules and names.
struct LossScaling {
  double scale = 0;  // 0: dynamic
  uint32_t initial_scale_power = 16;
  uint64_t window = 1000;
  uint32_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double least = 1;
};

// What parameters whose name contains `pattern` get; the first rule that fits counts. '*' stands for anything.
struct ParameterRule {
  std::string pattern;
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  bool frozen = false;
};

struct DataFile {
  std::string path;
  double weight = 1;
  std::string hash = {};  // of a prepared set, that it must have; empty: any
};

// Low-rank adapters over frozen weights, in PEFT's words (config/adapters.h).
struct LoraConfig {
  uint32_t rank = 0;                 // 0: no adapters, all weights are trained
  std::optional<double> alpha = {};  // the rank, where it is not said
  double dropout = 0;
  bool rslora = false;  // scaled by alpha / sqrt(rank), else by alpha / rank
  // Modules that get adapters: by the ends of their names, or by an expression for whole names; neither: every matrix
  // of the blocks.
  std::vector<std::string> targets = {};
  std::string target_pattern = {};
  std::vector<std::string> modules_to_save = {};  // trained whole: embedding, head
  std::optional<BlockCode> base = {};             // what the blocks' frozen matrices rest in; empty: the precision
  std::string adapter = {};                       // a folder of PEFT's to begin with; empty: from scratch

  bool operator==(const LoraConfig&) const = default;
};

// What is asked while a run goes on.
struct SampleConfig {
  std::vector<std::string> prompts = {};  // JSON: a string, {"text": ...} or {"messages": ...}
  std::string file = {};                  // with more of them, one a line; a line without JSON is a string
  std::string tokenizer = {};             // a folder of Hugging Face's; empty: the model's
  uint64_t max_new_tokens = 64;
  std::optional<uint64_t> seed = {};  // of what is drawn; empty: the run's
  ChoiceRules rules = {};

  bool operator==(const SampleConfig&) const = default;
};

struct TrainConfig {
  std::string model;          // a folder of Hugging Face's, or a config.json to begin from scratch; empty: built in
  bool from_scratch = false;  // of a folder: its config.json alone
  std::vector<DataFile> data;
  uint32_t token_bytes = 0;  // of bare token files; 0: by their name
  uint64_t sequence_length = 512;
  double held_out_share = 0.01;
  LeftOut leave_out;          // of the batches that are still to come: those of steps that are done have been learnt
  uint64_t eval_every = 0;    // steps; 0: never
  uint64_t eval_batches = 0;  // micro-batches of each set at most; 0: all that is held out
  PatienceRules early_stopping;
  LossRules loss_rules;
  uint64_t sample_every = 0;  // steps; 0: never
  SampleConfig samples;

  // Snapshots of the store: of every so many steps, and of so many steps whose evaluation was best; 0: none.
  uint64_t keep_every = 0, keep_best = 0;

  uint64_t seed = 0;
  uint64_t max_steps = 0;  // 0: by epochs
  double epochs = 1;
  uint64_t steps_per_print = 1;

  // What each of several ranks keeps, by DeepSpeed's numbers; changes no bit. Empty: training chooses; else 3, its
  // shards of everything.
  std::optional<uint32_t> zero_stage = {};
  // In stages above 0: how many of them, neighbours, have all of the model together; 0: all.
  uint32_t shard_ranks = 0;
  // What several ranks send one another in fewer bits, which changes what is learnt.
  RankCodes codes;

  // train_batch = micro_batch x accumulation x ranks; 0 where it follows from the others.
  uint64_t train_batch = 0, micro_batch = 0, accumulation = 0;

  Dtype precision = Dtype::bf16;
  bool tf32 = false;
  bool deterministic = true;
  LossScaling loss_scaling;
  double gradient_clipping = 1;  // 0: none
  // A step whose gradients are not finite changes nothing. Empty: with fp16, and where gradients wait for the clip
  // anyway.
  std::optional<bool> skip_overflow = {};
  bool skips_overflow() const { return skip_overflow.value_or(precision == Dtype::fp16 || gradient_clipping > 0); }
  OptimizerKind optimizer = OptimizerKind::adamw;
  MomentForm moments = MomentForm::fp32;
  Hyper hyper;
  Schedule schedule;
  std::vector<ParameterRule> rules;
  LoraConfig lora;
  uint64_t head_tokens = 0, head_rows = 0;  // how much of the two largest matrices is in memory at once; 0: all

  // Section "penstock". Sizes as written, "24GiB"; empty: all there is.
  std::string run;              // folder of log and config; empty: none
  std::string device = "auto";  // that computes: cpu, host, cuda or cuda:N
  std::string device_budget, host_budget, nvme_budget;
  std::vector<std::string> stores;  // one folder a drive
  std::string durability = "auto";
  std::string space = "double";
  std::string activations = "auto";       // keep, recompute, offload or recompute_offload
  std::optional<double> keep_share = {};  // of the uses, that keep theirs where the others do not; empty: the planner's
  uint64_t micro_batch_group = 0;  // that pass through a unit before the next is fetched; 0: the planner's choice
  std::string weights = "auto";    // where they rest: host or nvme
  std::optional<double> host_state_share = {};  // of the state, that rests in host memory; empty: the planner's choice
  std::optional<double> device_share = {};      // of the units, that rest on the device; empty: the planner's choice
  uint32_t threads = 0;                         // that update; 0: one for each processor
  std::string io_engine = "auto";
  double hangs_after_s = 20;  // without a sign of a rank, that it is taken for one that hangs
  std::string machine;        // a profile's path; empty: drives are measured at start
};

enum class KeyFate : uint8_t { honoured, no_effect, refused, unknown };

// One key of a file, with what becomes of it.
struct CheckedKey {
  std::string key;  // "fp16.loss_scale"
  KeyFate fate = KeyFate::honoured;
  std::string note = {};  // why without effect, what replaces it, what is wrong with its value, the nearest known key
};

struct CheckedConfig {
  TrainConfig config;
  std::vector<CheckedKey> keys;  // in the file's order

  // The first key that is refused or unknown.
  Status status() const;
};

// A key that counts instead of the file's, as a flag gives it.
struct ConfigOverride {
  std::string key;    // "optimizer.params.lr"
  std::string value;  // JSON
};

// Refuses only what is neither JSON nor YAML; see status().
Result<CheckedConfig> check_config(const std::string& file, const std::vector<ConfigOverride>& overrides = {});
// The config, if every key of it can be followed.
Result<TrainConfig> parse_config(const std::string& file, const std::vector<ConfigOverride>& overrides = {});

// A schedule that ends, and says not when, ends with the run. Refuses a schedule without meaning.
// REQUIRES: max_steps is known.
Status resolve_schedule(TrainConfig& config);

// Fills in what follows of the batch triangle, and micro_batch 1 where nothing is said. Refuses what does not agree.
Status resolve_batches(TrainConfig& config, uint32_t ranks);

// Every key that is known, with its verdict and note: the manual's table.
std::vector<CheckedKey> known_keys();

}  // namespace penstock::trainer
