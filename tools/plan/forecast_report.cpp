#include "tools/plan/forecast_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tools/penstock/quantity.h"
#include "tools/penstock/text_table.h"
#include "tools/plan/held_state.h"

namespace penstock::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr Lane kLanesShown[] = {Lane::nvme_read, Lane::nvme_write, Lane::host_to_device, Lane::device_to_host,
                                Lane::update,    Lane::collective, Lane::compute};
constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();

// "recompute", or "keep 5 of 14, recompute the others".
std::string activations_text(const std::vector<ActivationChoice>& by_use) {
  const auto kept = std::count(by_use.begin(), by_use.end(), ActivationChoice::keep);
  if (kept == 0 || kept == static_cast<ptrdiff_t>(by_use.size())) return name_of(by_use.front());
  const auto other = std::find_if(by_use.begin(), by_use.end(),
                                  [](ActivationChoice choice) { return choice != ActivationChoice::keep; });
  return text("keep ", kept, " of ", by_use.size(), ", ", name_of(*other), " the others");
}

std::string budget_text(uint64_t bytes) { return bytes >= kUnbounded / 2 ? "unbounded" : bytes_text(bytes); }

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
    const std::optional<StageForecast>& foretold = stage.foretold;
    cells.push_back(!foretold ? "" : foretold->fits ? least + seconds_text(foretold->step_s) : "does not fit");
    cells.push_back(foretold && foretold->fits ? bytes_text(foretold->sent_bytes) : "");
    if (has_network) cells.push_back(foretold && foretold->fits ? bytes_text(foretold->network_bytes) : "");
    table.add(std::move(cells));
  }
  return table.str();
}

std::string bound_text(const std::string& bottleneck) {
  return bottleneck == "order" ? "the order of its parts, which wait for one another" : bottleneck;
}

uint64_t trained_parameters(const ForecastRequest& request) {
  if (!request.adapters) return request.shape.parameters();
  return request.shape.layers * request.shape.block_adapter_parameters(request.adapters->rank);
}

std::string model_line(const Forecast& forecast) {
  const ModelShape& shape = forecast.request.shape;
  std::string line = text(shape.name, ": ", short_count_text(static_cast<double>(shape.parameters())), " parameters, ",
                          shape.layers, " layers, ", shape.hidden, " wide, ", shape.heads, " heads");
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

Json codes_json(const Forecast& forecast) {
  const RankCodes& codes = forecast.request.codes;
  if (!codes.any()) return Json();
  return {{"weights", codes.weights ? Json("int8") : Json()},
          {"gradients", codes.gradients ? Json("int4") : Json()},
          {"gathered_bytes_saved", forecast.gathered_bytes_saved},
          {"reduced_bytes_saved", forecast.reduced_bytes_saved}};
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

Json needed_json(const Forecast& forecast) {
  Json all = Json::object();
  for (Tier tier : kTiers) {
    Json lines = Json::object();
    for (const BudgetLine& line : forecast.needed) {
      if (line.tier == tier) lines[line.name] = line.bytes;
    }
    all[penstock::name_of(tier)] = {{"total", forecast.needed_bytes(tier)}, {"lines", lines}};
  }
  return all;
}

Json held_json(const Forecast& forecast) {
  Json roles = Json::object();
  for (const HeldRole& held : held_state(forecast)) {
    for (Tier tier : kTiers) {
      roles[penstock::name_of(held.role)][penstock::name_of(tier)] =
          held.bytes_of(tier) / static_cast<double>(forecast.request.shape.parameters());
    }
  }
  return roles;
}

Json exit_json(const Forecast& forecast) {
  const std::optional<ExitCommit>& commit = forecast.exit_commit;
  if (!commit) return Json();
  return {{"written_bytes", commit->written_bytes * forecast.ranks}, {"predicted_s", commit->seconds}};
}

Json stages_json(const Forecast& forecast) {
  Json stages = Json::array();
  for (const HeldByStage& stage : held_by_stage(forecast)) {
    const bool fits = stage.foretold && stage.foretold->fits;
    stages.push_back({{"stage", name_of(stage.stage)},
                      {"planned", stage.is_planned},
                      {"rank_bytes", std::llround(stage.rank_bytes)},
                      {"node_bytes", std::llround(stage.rank_bytes * forecast.rank_count().of_node)},
                      {"fits", stage.foretold ? Json(fits) : Json()},
                      {"step_s", fits ? Json(stage.foretold->step_s) : Json()},
                      {"sent_bytes", fits ? Json(stage.foretold->sent_bytes) : Json()},
                      {"network_bytes", fits ? Json(stage.foretold->network_bytes) : Json()}});
  }
  return stages;
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

Json forecast_json(const Forecast& forecast) {
  const ForecastRequest& request = forecast.request;
  Json json;
  json["fits"] = forecast.fits;
  json["model"] = {{"name", request.shape.name},
                   {"parameters", request.shape.parameters()},
                   {"active_parameters", request.shape.active_parameters()},
                   {"trained_parameters", trained_parameters(request)},
                   {"layers", request.shape.layers},
                   {"hidden", request.shape.hidden}};
  json["machine"] = request.machine.name;
  json["ranks"] = forecast.ranks;
  json["nodes"] = request.nodes;
  json["network_gbps"] = request.nodes > 1 ? Json(request.machine.network_gbps) : Json();
  json["stage"] = forecast.ranks > 1 ? Json(name_of(forecast.stage)) : Json();
  json["needed_bytes"] = needed_json(forecast);
  for (Tier tier : kTiers) {
    const uint64_t budget = forecast.budget_bytes(tier);
    json["budget_bytes"][penstock::name_of(tier)] = budget >= kUnbounded / 2 ? Json("unbounded") : Json(budget);
  }
  if (!forecast.fits) return json;
  json["step_s"] = forecast.times.step_s;
  json["unknown_rates"] = forecast.unknown_rates();
  json["bottleneck"] = forecast.bottleneck();
  json["saved_by_a_tenth_faster_s"] = Json::object();
  for (const Relief& relief : forecast.reliefs)
    json["saved_by_a_tenth_faster_s"][relief.resource] = std::max(0.0, relief.saved_s);
  json["lanes"] = {{"drives", forecast.times.drives_busy_s}};
  for (Lane lane : kLanesShown) json["lanes"][penstock::name_of(lane)] = forecast.lane_busy_s(lane);
  const auto parameters = static_cast<double>(request.shape.parameters());
  json["bytes_per_parameter"] = {{"read", forecast.read_bytes_per_step / parameters},
                                 {"written", forecast.written_bytes_per_step / parameters}};
  json["written_bytes_per_step"] = std::llround(forecast.written_bytes_per_step);
  json["codes"] = codes_json(forecast);
  json["commit_at_exit"] = exit_json(forecast);
  const bool trains = request.scope == StepScope::training;
  json["tokens_per_step"] = trains ? Json(request.tokens) : Json();
  const auto tokens_per_s = forecast.tokens_per_s();
  json["tokens_per_s"] = tokens_per_s ? Json(*tokens_per_s) : Json();
  const auto days = forecast.drive_life_days();
  json["drive_life_days"] = days ? Json(*days) : Json();
  json["compute_bound_tokens"] =
      forecast.compute_bound_tokens > 0 ? Json(std::llround(forecast.compute_bound_tokens)) : Json();
  json["struck_step_s"] = forecast.struck_step_s > 0 ? Json(forecast.struck_step_s) : Json();
  json["rates"] = request.machine.uses_burst_rates() ? "burst" : "sustained";
  json["plan"] = {{"micro_batches", request.micro_batches},
                  {"micro_batch_group", forecast.plan->micro_batch_group},
                  {"activations", trains ? Json(activations_text(forecast.plan->activations)) : Json()},
                  {"tile_parameters", forecast.plan->tiles.tile_elements()},
                  {"tiles", forecast.plan->tiles.size()},
                  {"durability", text_of(forecast.durability)},
                  {"space", request.slots == 1 ? "single" : "double"}};
  json["state_bytes_per_parameter"] = held_json(forecast);
  json["state_by_zero_stage"] = stages_json(forecast);
  json["notes"] = forecast.notes;
  return json;
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
