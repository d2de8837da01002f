#include "tools/plan/forecast_text.h"

#include <algorithm>
#include <numeric>

#include "tools/penstock/quantity.h"
#include "tools/penstock/text_table.h"
#include "tools/plan/held_state.h"

namespace penstock::tools {
namespace {

std::string budget_text(uint64_t bytes) { return is_unbounded(bytes) ? "unbounded" : bytes_text(bytes); }

std::string memory_table(const Forecast& forecast) {
  TextTable table({"tier", "line", "needed", "available"});
  for (Tier tier : kTiers) {
    if (forecast.needed_bytes(tier) == 0) continue;
    for (const BudgetLine& line : forecast.needed) {
      if (line.tier == tier) table.add({penstock::name_of(tier), line.name, bytes_text(line.bytes), ""});
    }
    const uint64_t needed = forecast.needed_bytes(tier), budget = forecast.budget_bytes(tier);
    table.add(
        {penstock::name_of(tier), needed > budget ? "all: too much" : "all", bytes_text(needed), budget_text(budget)});
  }
  return table.str();
}

std::string lane_table(const Forecast& forecast) {
  TextTable table({"lane", "busy", "of the step", "a tenth faster"});
  auto saved = [&](const std::string& name) {
    const auto relief = std::find_if(forecast.reliefs.begin(), forecast.reliefs.end(),
                                     [&](const Relief& one) { return one.resource == name; });
    if (relief == forecast.reliefs.end()) return std::string();
    const double share = relief->saved_s / forecast.times.step_s;
    return share < 0.0005 ? "0 %" : fixed(-100 * share, 1) + " %";
  };
  auto add = [&](const std::string& name, double busy_s) {
    if (busy_s <= 0) return;
    table.add({name, seconds_text(busy_s), fixed(100 * busy_s / forecast.times.step_s, 0) + " %", saved(name)});
  };
  add("drives", forecast.times.drives_busy_s);
  for (Lane lane : kLanesShown) add(penstock::name_of(lane), forecast.lane_busy_s(lane));
  return table.str();
}

// Bytes by parameter of the model. "0" would look like a little; what is not there at all is left empty.
std::string by_parameter(double bytes, const Forecast& forecast) {
  return bytes > 0 ? fixed(bytes / static_cast<double>(forecast.request.shape.parameters()), 3) : "";
}

std::string state_table(const Forecast& forecast) {
  TextTable table({"role", "device", "host", "nvme", "all"});
  std::array<double, 4> sums{};
  auto add = [&](const char* name, const std::array<double, 4>& bytes) {
    std::vector<std::string> cells{name};
    for (double one : bytes) cells.push_back(by_parameter(one, forecast));
    table.add(std::move(cells));
  };
  for (const HeldRole& held : held_state(forecast)) {
    std::array<double, 4> bytes{};
    for (Tier tier : kTiers) bytes[static_cast<size_t>(tier)] = held.bytes_of(tier);
    bytes.back() = std::accumulate(bytes.begin(), bytes.end() - 1, 0.0);
    for (size_t i = 0; i < bytes.size(); ++i) sums[i] += bytes[i];
    add(penstock::name_of(held.role), bytes);
  }
  add("all", sums);
  return table.str();
}

std::string stage_table(const Forecast& forecast) {
  std::vector<std::string> heads{"state, by ZeRO", "of each rank", "of the node", "step", "a rank sends"};
  const bool has_network = forecast.request.nodes > 1;
  if (has_network) heads.push_back("to other nodes");
  TextTable table(std::move(heads));
  const std::string least = forecast.unknown_rates().empty() ? "" : "at least ";
  for (const HeldByStage& stage : held_by_stage(forecast)) {
    std::vector<std::string> cells{text(name_of(stage.stage), stage.is_planned ? ", as planned" : ""),
                                   bytes_text(static_cast<uint64_t>(stage.rank_bytes)),
                                   bytes_text(static_cast<uint64_t>(stage.rank_bytes * forecast.rank_count().of_node))};
    const std::optional<StageForecast>& predicted = stage.predicted;
    cells.push_back(!predicted ? "" : predicted->fits ? least + seconds_text(predicted->step_s) : "does not fit");
    cells.push_back(predicted && predicted->fits ? bytes_text(predicted->sent_bytes) : "");
    if (has_network) cells.push_back(predicted && predicted->fits ? bytes_text(predicted->network_bytes) : "");
    table.add(std::move(cells));
  }
  return table.str();
}

std::string bound_text(const std::string& bottleneck) {
  return bottleneck == "order" ? "the order of its parts, which wait for one another" : bottleneck;
}

std::string model_line(const Forecast& forecast) {
  const ModelShape& shape = forecast.request.shape;
  std::string line = text(shape.name, ": ", short_count_text(static_cast<double>(shape.parameters())), " parameters, ",
                          counted(shape.layers, "layer"), ", ", shape.hidden, " wide, ", counted(shape.heads, "head"));
  if (shape.kv_heads != shape.heads) line += text(" (", shape.kv_heads, " for keys and values)");
  line += text(", ffn ", shape.ffn, ", ", shape.vocab, " words");
  if (shape.experts > 1) {
    line += text(", ", shape.experts_active, " of ", shape.experts, " experts active (",
                 short_count_text(static_cast<double>(shape.active_parameters())), " parameters)");
  }
  line += shape.tied ? ", tied head\n" : "\n";
  if (const auto& adapters = forecast.request.adapters) {
    line += text("trained: adapters of rank ", adapters->rank, ", ",
                 short_count_text(static_cast<double>(trained_parameters(forecast.request))),
                 " parameters; the blocks' matrices rest in ",
                 adapters->base_code ? penstock::name_of(*adapters->base_code) : "bf16", "\n");
  }
  return line;
}

std::string machine_line(const Forecast& forecast) {
  const MachineProfile& machine = forecast.request.machine;
  const MixCurve drives = machine.striped();
  std::string line = text(machine.name, ": ", machine.drives.size(), machine.drives.size() == 1 ? " drive" : " drives",
                          ", ", fixed(drives.gbps(1), 1), " GB/s read, ", fixed(drives.gbps(0), 1), " GB/s written");
  if (machine.devices > 0) line += text(", ", machine.devices, machine.devices == 1 ? " device" : " devices");
  if (forecast.ranks > 1) line += text(", ", forecast.ranks, " ranks, ", name_of(forecast.stage));
  if (forecast.request.nodes > 1) {
    line += text("; ", forecast.request.nodes, " such nodes, ", fixed(machine.network_gbps, 1), " GB/s between them");
  }
  return line + "\n";
}

std::string exit_line(const Forecast& forecast) {
  const std::optional<ExitCommit>& commit = forecast.exit_commit;
  if (!commit) return "";
  return text("commit at exit: ", bytes_text(commit->written_bytes * forecast.ranks), " written once, in ",
              seconds_text(commit->seconds), " after the last step",
              forecast.durability.kind == Durability::Kind::every ? ", unless that is durable\n" : "\n");
}

std::string codes_line(const Forecast& forecast) {
  const RankCodes& codes = forecast.request.codes;
  if (!codes.any()) return "";
  std::string coded, saved;
  auto add = [](std::string& list, const std::string& part) { list += (list.empty() ? "" : ", ") + part; };
  if (codes.weights) {
    add(coded, "weights in int8");
    add(saved, bytes_text(forecast.gathered_bytes_saved) + " of weights");
  }
  if (codes.gradients) {
    add(coded, "gradients in int4");
    add(saved, bytes_text(forecast.reduced_bytes_saved) + " of gradients");
  }
  return text("codes: ", coded, ": a rank sends ", saved, " less a step; bits are others than without\n");
}

std::string step_lines(const Forecast& forecast) {
  const ForecastRequest& request = forecast.request;
  const auto parameters = static_cast<double>(request.shape.parameters());
  std::string lines = text("step: ", step_text(forecast));
  if (request.scope == StepScope::training) lines += text("; ", request.tokens, " tokens");
  if (const auto rate = forecast.tokens_per_s()) lines += text(", ", fixed(*rate, 0), " tokens/s");
  lines += text("\ndrives: ", fixed(forecast.read_bytes_per_step / parameters, 1), " bytes read and ",
                fixed(forecast.written_bytes_per_step / parameters, 1), " written per parameter; ",
                bytes_text(static_cast<uint64_t>(forecast.written_bytes_per_step)), " written per step");
  if (const auto days = forecast.drive_life_days()) lines += text("; rated life ", fixed(*days, 0), " days of this");
  lines += "\n";
  if (request.scope == StepScope::training) {
    lines += text("plan: ", request.micro_batches, request.micro_batches == 1 ? " micro-batch" : " micro-batches",
                  " in groups of ", forecast.plan->micro_batch_group, ", activations ",
                  activations_text(forecast.plan->activations), ", ");
  } else {
    lines += "plan: ";
  }
  lines += text(forecast.plan->tiles.size(), " tiles, durable: ", text_of(forecast.durability), "\n");
  lines += codes_line(forecast) + exit_line(forecast);
  if (forecast.struck_step_s > 0) lines += text("a step that clips: ", seconds_text(forecast.struck_step_s), "\n");
  if (forecast.compute_bound_tokens > 0) {
    lines += text("compute-bound from about ", short_count_text(forecast.compute_bound_tokens), " tokens a step\n");
  }
  return lines;
}

}  // namespace

const char* name_of(ActivationChoice choice) {
  switch (choice) {
    case ActivationChoice::keep:
      return "keep";
    case ActivationChoice::recompute:
      return "recompute";
    case ActivationChoice::offload:
      return "offload";
    case ActivationChoice::recompute_offload:
      return "recompute-offload";
  }
  return "?";
}

bool is_unbounded(uint64_t budget_bytes) {
  constexpr uint64_t kSaidMost = uint64_t{1} << 53;  // as sizes are read
  return budget_bytes >= kSaidMost;                  // as a rank's part of what is unbounded is, too
}

std::string activations_text(const std::vector<ActivationChoice>& by_use) {
  const auto kept = std::count(by_use.begin(), by_use.end(), ActivationChoice::keep);
  if (kept == 0 || kept == static_cast<ptrdiff_t>(by_use.size())) return name_of(by_use.front());
  const auto other = std::find_if(by_use.begin(), by_use.end(),
                                  [](ActivationChoice choice) { return choice != ActivationChoice::keep; });
  return text("keep ", kept, " of ", by_use.size(), ", ", name_of(*other), " the others");
}

uint64_t trained_parameters(const ForecastRequest& request) {
  if (!request.adapters) return request.shape.parameters();
  return request.shape.layers * request.shape.block_adapter_parameters(request.adapters->rank);
}

std::string step_text(const Forecast& forecast) {
  const std::string step = seconds_text(forecast.times.step_s);
  std::string unknown;
  for (const std::string& rate : forecast.unknown_rates()) unknown += (unknown.empty() ? "" : " and ") + rate;
  return unknown.empty() ? text(step, ", bound by ", bound_text(forecast.bottleneck()))
                         : text("at least ", step, ", without ", unknown);
}

std::string forecast_text(const Forecast& forecast) {
  std::string all = model_line(forecast) + machine_line(forecast);
  const char* of_rank = forecast.ranks > 1 ? " (of each rank)" : "";
  if (!forecast.fits) {
    return all + text("\nDoes not fit. The smallest plan needs", of_rank, ":\n\n", memory_table(forecast));
  }
  all +=
      text("\n", step_lines(forecast), "\n", lane_table(forecast), "\nmemory", of_rank, "\n", memory_table(forecast));
  all += text("\nstate at rest, bytes per parameter\n", state_table(forecast));
  if (forecast.ranks > 1) all += "\n" + stage_table(forecast);
  if (!forecast.notes.empty()) all += "\n";
  for (const std::string& note : forecast.notes) all += "note: " + note + "\n";
  return all;
}

Status forecast_verdict(const Forecast& forecast) {
  if (forecast.fits) return Status();
  std::string missing;
  for (Tier tier : kTiers) {
    const uint64_t needed = forecast.needed_bytes(tier), budget = forecast.budget_bytes(tier);
    if (needed <= budget) continue;
    missing += text(missing.empty() ? "" : "; ", penstock::name_of(tier), " needs ", bytes_text(needed), ", ",
                    bytes_text(needed - budget), " more than its budget of ", bytes_text(budget));
  }
  if (forecast.ranks > 1) missing += " (of each rank)";
  return Status(Code::kDoesNotFit, text("plan: ", forecast.request.shape.name, ": does not fit: ", missing),
                forecast.remedy);
}

}  // namespace penstock::tools
