#include "runtime/trainer/config/adapters.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <utility>

#include "tiering/tier.h"

namespace penstock::trainer {
namespace {

// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string last_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

bool names(const std::string& target, const std::string& module) {
  return module == target || module.ends_with("." + target);
}

bool is_matrix(const ModelParameter& parameter) { return parameter.shape.size() == 2; }

// Which matrices of blocks get adapters.
class Targets {
 public:
  static Result<Targets> make(const LoraConfig& lora) {
    Targets targets(lora);
    if (lora.target_pattern.empty()) return targets;
    try {
      targets.pattern_ = std::regex(lora.target_pattern, std::regex::ECMAScript);
    } catch (const std::regex_error& error) {
      return Status(
          Code::kUsage,
          text("config: lora.targets: '", lora.target_pattern, "' is not a regular expression: ", error.what()),
          "\"all-linear\", a list of names, or an expression for whole names of modules");
    }
    return targets;
  }

  bool fit(const std::string& module) {
    if (!lora_.target_pattern.empty()) return std::regex_match(module, pattern_);
    bool fits = lora_.targets.empty();
    for (size_t i = 0; i < lora_.targets.size(); ++i) {
      if (!names(lora_.targets[i], module)) continue;
      fits = used_[i] = true;
    }
    return fits;
  }

  // The first target that fitted nothing; empty if there is none.
  std::string unused() const {
    const auto found = std::find(used_.begin(), used_.end(), false);
    return found == used_.end() ? "" : lora_.targets[static_cast<size_t>(found - used_.begin())];
  }

 private:
  explicit Targets(const LoraConfig& lora) : lora_(lora), used_(lora.targets.size(), false) {}

  LoraConfig lora_;
  std::regex pattern_;
  std::vector<bool> used_;
};

ModelParameter factor_of(const ModelParameter& matrix, Factor factor, uint64_t in, uint64_t out, uint32_t rank) {
  const bool is_a = factor == Factor::a;
  ModelParameter parameter{.name = module_of(matrix) + (is_a ? ".lora_A.weight" : ".lora_B.weight"),
                           .role = matrix.role,
                           .factor = factor,
                           .shape = is_a ? std::vector<uint64_t>{rank, in} : std::vector<uint64_t>{out, rank},
                           // Kaiming's uniform distribution with a = sqrt(5), which PEFT uses, has this bound.
                           .initial = is_a ? Initial::uniform : Initial::zeros,
                           .deviation = is_a ? 1 / std::sqrt(static_cast<double>(in)) : 0};
  parameter.elements = parameter.shape[0] * parameter.shape[1];
  return parameter;
}

void append(ModelParameter parameter, uint64_t alignment_elements, ModelUnit& unit) {
  parameter.first_element = unit.elements;
  unit.elements += round_up(parameter.elements, alignment_elements);
  unit.parameters.push_back(std::move(parameter));
}

Result<ModelUnit> adapters_of(const ModelUnit& block, const ModelConfig& config, const LoraConfig& lora,
                              uint64_t alignment_elements, Targets& targets) {
  ModelUnit unit{.name = block.name + " adapters", .parameters = {}};
  for (const ModelParameter& matrix : block.parameters) {
    if (!is_matrix(matrix) || !targets.fit(module_of(matrix))) continue;
    // gpt2's matrices are input by output.
    const bool is_turned = config.block == BlockKind::gpt2;
    const uint64_t in = matrix.shape[is_turned ? 0 : 1], out = matrix.shape[is_turned ? 1 : 0];
    if (lora.rank > std::min(in, out)) {
      return Status(Code::kUsage, text("config: lora.rank: is ", lora.rank, ", at most ", std::min(in, out),
                                       " expected, the smaller side of ", matrix.name));
    }
    append(factor_of(matrix, Factor::a, in, out, lora.rank), alignment_elements, unit);
    append(factor_of(matrix, Factor::b, in, out, lora.rank), alignment_elements, unit);
  }
  return unit;
}

// Leaves the matrices of a block in `unit`, to rest in codes. Norms and biases, which a block of 64 codes with one
// scale would spoil, and save nothing, come into a unit of their own.
ModelUnit coded(ModelUnit& unit, BlockCode code, uint64_t alignment_elements) {
  ModelUnit others{.name = unit.name + " vectors", .parameters = {}};
  const ModelUnit whole = std::exchange(unit, ModelUnit{.name = unit.name, .parameters = {}, .code = code});
  for (const ModelParameter& parameter : whole.parameters)
    append(parameter, alignment_elements, is_matrix(parameter) ? unit : others);
  return others;
}

std::string matrices_of_blocks(const Model& model) {
  std::string found;
  for (const ModelUse& use : model.uses) {
    if (use.kind != UseKind::block) continue;
    for (const ModelParameter& parameter : model.units[use.units.front()].parameters) {
      const std::string name = last_name(module_of(parameter));
      const bool is_new = (", " + found + ",").find(" " + name + ",") == std::string::npos;
      if (is_matrix(parameter) && is_new) found += (found.empty() ? "" : ", ") + name;
    }
    break;
  }
  return found;
}

// Those are whole modules: the embedding of tokens, or the head.
Status mark_modules(const LoraConfig& lora, Model& model) {
  for (const std::string& module : lora.modules_to_save) {
    bool fits = false;
    for (ModelUnit& unit : model.units) {
      for (ModelParameter& parameter : unit.parameters) {
        const bool can_be = parameter.role == WeightRole::tokens || parameter.role == WeightRole::head;
        if (!can_be || !names(module, module_of(parameter))) continue;
        parameter.trainable = fits = true;
      }
    }
    if (!fits) {
      return Status(Code::kUsage,
                    text("config: lora.modules_to_save: '", module, "' is neither embedding nor head of the model"),
                    model.config.block == BlockKind::gpt2 ? "wte or lm_head" : "embed_tokens or lm_head");
    }
    if (model.config.tied) {
      return Status(Code::kUsage,
                    text("config: lora.modules_to_save: '", module,
                         "' is embedding and head at once in this model, whose config.json ties them"),
                    "leave it out: PEFT would train a copy of one of them alone");
    }
  }
  return Status();
}

}  // namespace

std::string module_of(const ModelParameter& parameter) {
  const std::string_view name = parameter.name;
  return std::string(name.substr(0, name.rfind('.')));
}

double scale_of(const LoraConfig& lora) {
  const double rank = lora.rank, alpha = lora.alpha.value_or(rank);
  return lora.rslora ? alpha / std::sqrt(rank) : alpha / rank;
}

Status add_adapters(const LoraConfig& lora, uint64_t alignment_elements, Model& model) {
  PENSTOCK_TRY_ASSIGN(targets, Targets::make(lora));
  for (ModelUnit& unit : model.units)
    for (ModelParameter& parameter : unit.parameters) parameter.trainable = false;
  PENSTOCK_TRY(mark_modules(lora, model));

  std::vector<ModelUnit> units;
  std::vector<uint32_t> place(model.units.size());  // of the units that were there
  std::vector<std::vector<uint32_t>> beside(model.uses.size());
  bool gets_adapters = false;
  for (uint32_t number = 0; number < model.units.size(); ++number) {
    place[number] = static_cast<uint32_t>(units.size());
    units.push_back(model.units[number]);
    for (size_t use = 0; use < model.uses.size(); ++use) {
      if (model.uses[use].kind != UseKind::block || model.uses[use].units.front() != number) continue;
      PENSTOCK_TRY_ASSIGN(unit, adapters_of(model.units[number], model.config, lora, alignment_elements, targets));
      if (lora.base) {
        ModelUnit others = coded(units.back(), *lora.base, alignment_elements);
        beside[use].push_back(static_cast<uint32_t>(units.size()));
        units.push_back(std::move(others));
      }
      if (unit.parameters.empty()) continue;
      gets_adapters = true;
      beside[use].push_back(static_cast<uint32_t>(units.size()));
      units.push_back(std::move(unit));
    }
  }
  const std::string unused = targets.unused();
  if (!unused.empty() || !gets_adapters) {
    return Status(Code::kUsage,
                  text("config: lora.targets: '", unused.empty() ? lora.target_pattern : unused,
                       "' fits no matrix of the model's blocks"),
                  text("these are there: ", matrices_of_blocks(model)));
  }
  for (size_t use = 0; use < model.uses.size(); ++use) {
    for (uint32_t& unit : model.uses[use].units) unit = place[unit];
    model.uses[use].units.insert(model.uses[use].units.end(), beside[use].begin(), beside[use].end());
  }
  model.units = std::move(units);
  model.adapters = Adapters{.scale = scale_of(lora), .dropout = lora.dropout};
  return Status();
}

}  // namespace penstock::trainer
