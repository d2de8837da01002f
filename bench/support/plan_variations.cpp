#include "bench/support/plan_variations.h"

#include <algorithm>

#include "tools/plan/forecast_request.h"
#include "tools/plan/forecast_text.h"
#include "tools/plan/node_share.h"

namespace penstock::bench {
namespace {

constexpr uint64_t kSequence = 2048;
constexpr ActivationChoice kActivations[] = {ActivationChoice::keep, ActivationChoice::recompute,
                                             ActivationChoice::offload, ActivationChoice::recompute_offload};

std::vector<uint32_t> groups_of(const PlanRequest& request) {
  std::vector<uint32_t> groups;
  for (uint32_t group = request.workload.micro_batches; group > 1; group /= 2) groups.push_back(group);
  groups.push_back(1);
  return groups;
}

uint64_t times(uint64_t bytes, double factor) { return static_cast<uint64_t>(static_cast<double>(bytes) * factor); }

}  // namespace

tools::ForecastRequest training_step(const tools::ModelShape& model, const MachineProfile& machine, uint64_t tokens) {
  tools::ForecastRequest request;
  request.shape = model;
  request.machine = machine;
  request.tokens = tokens;
  request.sequence = model.positions > 0 ? std::min(model.positions, kSequence) : kSequence;
  request.clipping.norm = 1;
  return request;
}

PlanRequest rank_request(tools::ForecastRequest request) {
  tools::fill_in(request);
  return tools::request_of_rank(request, tools::Stage::sharded);
}

std::vector<Variation> more_of_something(const tools::ForecastRequest& request) {
  std::vector<Variation> all;
  const Budgets usual = tools::usual_budgets(request.machine);
  for (double factor : {1.1, 1.5, 4.0}) {
    tools::ForecastRequest more = request;
    more.budgets.host_bytes = times(usual.host_bytes, factor);
    all.push_back({"more host memory", text(factor, " times"), rank_request(more)});
    if (request.machine.devices == 0) continue;
    more = request;
    more.budgets.device_bytes = times(usual.device_bytes, factor);
    all.push_back({"more device memory", text(factor, " times"), rank_request(more)});
  }
  for (size_t drives : {1, 4}) {
    tools::ForecastRequest more = request;
    more.machine.drives.resize(request.machine.drives.size() + drives, request.machine.drives.back());
    all.push_back({"more drives", text(drives, " more"), rank_request(more)});
  }
  for (double factor : {1.25, 2.0}) {
    if (!request.machine.copies_to_device()) break;
    tools::ForecastRequest more = request;
    more.machine.host_to_device_gbps *= factor;
    more.machine.device_to_host_gbps *= factor;
    all.push_back({"a faster link", text(factor, " times"), rank_request(more)});
  }
  return all;
}

std::vector<Variation> each_choice_by_hand(const PlanRequest& request) {
  std::vector<Variation> all;
  auto with = [&](const char* name, const std::string& value, auto member, auto chosen) {
    PlanRequest by_hand = request;
    by_hand.choices.*member = chosen;
    all.push_back({text("by hand: ", name), value, std::move(by_hand)});
  };
  auto shares = [&](const char* name, std::optional<double> PlanChoices::*member, std::vector<double> values) {
    for (double share : values) with(name, text(share), member, share);
  };
  for (ActivationChoice choice : kActivations) {
    with("activations", tools::name_of(choice), &PlanChoices::activations, choice);
  }
  for (uint32_t group : groups_of(request)) with("group", text(group), &PlanChoices::micro_batch_group, group);
  shares("state in host memory", &PlanChoices::host_state_share, {0, 0.25, 0.5, 0.75, 1});
  shares("retained in host memory", &PlanChoices::retained_host_share, {0, 0.5, 1});
  shares("uses that keep", &PlanChoices::keep_share, {0, 0.25, 0.5, 0.75});
  with("weights", "host", &PlanChoices::weights, WeightTier::host);
  with("weights", "nvme", &PlanChoices::weights, WeightTier::nvme);
  shares("deferred", &PlanChoices::deferred_share, {0, 0.25, 0.5, 0.75});
  if (request.machine.copies_to_device()) {
    shares("offloaded to host memory", &PlanChoices::offload_host_share, {0, 0.5, 1});
    shares("units on the device", &PlanChoices::device_share, {0, 0.25, 0.5, 1});
  }
  for (uint32_t tiles : {3, 6, 12}) with("windows", text(tiles), &PlanChoices::window_tiles, tiles);
  return all;
}

PlanChoices random_choices(const PlanRequest& request, std::mt19937_64& random) {
  auto up_to = [&](uint64_t n) { return random() % (n + 1); };
  auto share = [&](uint64_t parts) { return static_cast<double>(up_to(parts)) / static_cast<double>(parts); };
  PlanChoices choices;
  const std::vector<uint32_t> groups = groups_of(request);
  choices.micro_batch_group = groups[up_to(groups.size() - 1)];
  choices.activations = kActivations[up_to(std::size(kActivations) - 1)];
  if (up_to(1)) choices.keep_share = share(8);
  if (up_to(1)) choices.offload_host_share = share(4);
  if (up_to(1)) choices.host_state_share = share(8);
  if (up_to(1)) choices.retained_host_share = share(4);
  if (up_to(1)) choices.deferred_share = share(4);
  choices.weights = static_cast<WeightTier>(up_to(2));
  return choices;
}

std::string words_of(const PlanChoices& choices) {
  std::string words;
  auto add = [&](const char* name, const auto& value) {
    if (value) words += text(words.empty() ? "" : ", ", name, " ", *value);
  };
  if (choices.activations) words = tools::name_of(*choices.activations);
  add("group", choices.micro_batch_group);
  add("uses that keep", choices.keep_share);
  add("offloaded to host memory", choices.offload_host_share);
  add("units on the device", choices.device_share);
  add("state in host memory", choices.host_state_share);
  add("retained in host memory", choices.retained_host_share);
  add("deferred", choices.deferred_share);
  if (choices.weights == WeightTier::host) words += ", weights in host memory";
  if (choices.weights == WeightTier::nvme) words += ", weights on the drives";
  return words;
}

}  // namespace penstock::bench
