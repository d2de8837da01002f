// Model: a transformer as units, which hold weights, and uses, which compute.
//
// A unit is one flat buffer of named parameters. A use is one place where forward passes; it names the units whose
// weights it reads. The embedding, each block, and the last norm with head and loss are uses; a tied head reads the
// embedding's unit besides its own, a block its adapters'.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/model_config.h"
#include "tiering/unit.h"

namespace penstock::trainer {

enum class Initial : uint8_t { zeros, ones, normal, uniform };

// What a parameter is to the computation. A use has each at most once.
enum class WeightRole : uint8_t {
  tokens,     // the embedding; a tied head's matrix too
  positions,  // learned
  norm1,
  norm1_bias,
  query_key_value,  // gpt2: one matrix, input by output, as Hugging Face's Conv1D has all of gpt2's
  query_key_value_bias,
  query,  // llama: output by input
  query_bias,
  key,
  key_bias,
  value,
  value_bias,
  query_norm,
  key_norm,
  out,
  out_bias,
  norm2,
  norm2_bias,
  gate,
  gate_bias,
  up,
  up_bias,
  down,
  down_bias,
  last_norm,
  last_norm_bias,
  head,
  // Dropout of adapters is drawn by a role's number, so that those of later models come last.
  out_norm,  // of what attention gives, before it is added
  down_norm,
};
constexpr uint32_t kWeightRoles = static_cast<uint32_t>(WeightRole::down_norm) + 1;

// A parameter is what its role says, or one of the two factors of what an adapter adds to that.
enum class Factor : uint8_t { none, a, b };

struct ModelParameter {
  std::string name;  // Hugging Face's
  WeightRole role = WeightRole::tokens;
  Factor factor = Factor::none;
  std::vector<uint64_t> shape;
  Initial initial = Initial::normal;
  double deviation = 0;  // of a normal distribution; the bound of a uniform one
  bool trainable = true;
  uint64_t first_element = 0;
  uint64_t elements = 0;
};

// "768 x 3072": for messages.
std::string shape_text(const std::vector<uint64_t>& shape);

struct ModelUnit {
  std::string name;
  std::vector<ModelParameter> parameters;  // in the order of their elements
  uint64_t elements = 0;                   // padded as each parameter is
  std::optional<BlockCode> code = {};      // of frozen weights: what they rest in, if not in the model's dtype

  bool trainable() const;
};

enum class UseKind : uint8_t { embedding, block, head };

struct ModelUse {
  std::string name;
  UseKind kind = UseKind::block;
  uint32_t layer = 0;           // of a block
  std::vector<uint32_t> units;  // its own first
};

// Of all of a model's adapters (config/adapters.h).
struct Adapters {
  double scale = 0;
  double dropout = 0;
};

struct Model {
  ModelConfig config;
  Dtype dtype = Dtype::bf16;
  std::vector<ModelUnit> units;
  std::vector<ModelUse> uses;  // in forward order
  std::optional<Adapters> adapters = {};

  // Without padding; a tied head counts once.
  uint64_t parameters() const;
  uint64_t trained_parameters() const;
};

// Parameters begin at multiples of `alignment_elements`, a multiple of kParameterAlignmentElements. Int8 moments want
// theirs in blocks of kMomentBlockElements with a scale each, which no two groups of parameters may share.
// REQUIRES: the config came from parse_model_config() or says as much as it would.
Model make_model(const ModelConfig& config, Dtype dtype, uint64_t alignment_elements = kParameterAlignmentElements);

}  // namespace penstock::trainer
