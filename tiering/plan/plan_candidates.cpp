#include "tiering/plan/plan_candidates.h"

#include <algorithm>
#include <tuple>

#include "tiering/plan/pass_bytes.h"
#include "tiering/plan/plan_fit.h"

namespace penstock {
namespace {

bool trains(const PlanRequest& request) { return request.workload.scope == StepScope::training; }

std::vector<ActivationChoice> activation_choices(const PlanRequest& request) {
  using enum ActivationChoice;
  if (!trains(request)) return {recompute};
  if (request.choices.activations) return {*request.choices.activations};
  // Without a device there is nowhere to offload to.
  if (!request.machine.copies_to_device() || !request.stores_activations) return {keep, recompute};
  return {keep, recompute, recompute_offload, offload};
}

std::vector<uint32_t> micro_batch_groups(const PlanRequest& request) {
  if (request.choices.micro_batch_group) return {*request.choices.micro_batch_group};
  std::vector<uint32_t> groups;
  for (uint32_t group = request.workload.micro_batches; group > 1; group /= 2) groups.push_back(group);
  groups.push_back(1);
  return groups;
}

// With each of the values for one choice, or with it open again.
std::vector<Candidate> with_each(const Candidate& from, std::optional<double> PlanChoices::*choice,
                                 std::initializer_list<double> values) {
  std::vector<Candidate> all(1, from);
  (all.back().choices.*choice).reset();
  for (double value : values) {
    all.push_back(from);
    all.back().choices.*choice = value;
  }
  return all;
}

auto all_of(const Candidate& candidate) {
  const PlanChoices& choices = candidate.choices;
  return std::tie(candidate.host_budget_share, choices.tile_elements, choices.window_tiles, choices.ahead_window_tiles,
                  choices.host_state_share, choices.device_share, choices.weights, choices.retained_host_share,
                  choices.micro_batch_group, choices.activations, choices.keep_share, choices.offload_host_share,
                  choices.deferred_share);
}

}  // namespace

bool Candidate::operator==(const Candidate& other) const { return all_of(*this) == all_of(other); }

CandidateSpace::CandidateSpace(const PlanRequest& request, uint64_t tile_factor)
    : request_(request), tile_factor_(tile_factor) {
  const uint64_t usual_elements = tile_sizes_worth_trying(request).front();
  const TileMap usual(request.workload, usual_elements);
  tiles_of_a_use_ = tiles_of_a_use(request.workload, usual, {});
  if (tile_factor == 1) return;
  tile_elements_ = usual_elements * tile_factor;
  auto window_bytes = [](const TileMap& tiles) { return tiles.slot_bytes_max() + tiles.gradient_bytes_max(); };
  const TileMap large(request.workload, tile_elements_);
  usual_window_bytes_ = window_bytes(usual);
  large_window_bytes_ = window_bytes(large);
  table_bytes_spared_ = (usual.size() - large.size()) * book_bytes_per_tile(request);
}

PlanRequest CandidateSpace::request_of(const Candidate& candidate) const {
  PlanRequest request = request_;
  request.choices = candidate.choices;
  uint64_t& host_bytes = request.budgets.host_bytes;
  if (candidate.host_budget_share < 1) {
    host_bytes = static_cast<uint64_t>(static_cast<double>(host_bytes) * candidate.host_budget_share);
  }
  if (tile_factor_ == 1) return request;
  const std::vector<uint32_t> windows = windows_worth_trying(request.machine);
  const uint64_t usual = candidate.choices.window_tiles.value_or(windows.front());
  const uint64_t large = std::max<uint64_t>(ceil_div(usual, tile_factor_), windows.back());
  const uint64_t more_bytes =
      large * large_window_bytes_ - std::min(large * large_window_bytes_, usual * usual_window_bytes_);
  request.choices.tile_elements = tile_elements_;
  request.choices.window_tiles = static_cast<uint32_t>(large);
  host_bytes -= std::min(table_bytes_spared_, host_bytes);
  host_bytes += std::min(more_bytes, std::numeric_limits<uint64_t>::max() - host_bytes);
  request.budgets.nvme_bytes = std::numeric_limits<uint64_t>::max();
  return request;
}

bool CandidateSpace::fits(const Candidate& candidate) const {
  const PlanRequest request = request_of(candidate);
  PlanChoices choices = request.choices;
  if (!choices.window_tiles) choices.window_tiles = windows_worth_trying(request.machine).back();
  const std::vector<uint64_t> sizes = tile_sizes_worth_trying(request);
  return std::ranges::any_of(sizes, [&](uint64_t tile_elements) {
    choices.tile_elements = tile_elements;
    return budget_lines(request, choices).ok();
  });
}

Candidate CandidateSpace::with_largest(Candidate candidate, std::optional<double> PlanChoices::*share, uint32_t most,
                                       uint32_t count) const {
  auto choose = [&](uint32_t chosen) { candidate.choices.*share = static_cast<double>(chosen) / count; };
  choose(most_that_fits(0, most, [&](uint32_t chosen) {
    choose(chosen);
    return fits(candidate);
  }));
  return candidate;
}

Candidate CandidateSpace::with_most_kept(Candidate candidate) const {
  const auto uses = static_cast<uint32_t>(request_.workload.uses.size());
  return with_largest(std::move(candidate), &PlanChoices::keep_share, uses - 1, uses);
}

std::vector<Candidate> CandidateSpace::beginnings() const {
  std::vector<Candidate> all;
  const std::vector<uint32_t> groups = micro_batch_groups(request_);
  Candidate candidate{request_.choices};
  auto begin = [&] {
    for (ActivationChoice activations : activation_choices(request_)) {
      candidate.choices.activations = activations;
      for (uint32_t group : groups) {
        candidate.choices.micro_batch_group = group;
        if (!fits(candidate)) continue;
        all.push_back(candidate);
        break;
      }
    }
  };
  begin();
  // What rests on the device passes through no host memory.
  for (double share : {1.0, 0.75, 0.5, 0.25}) {
    if (!all.empty() || !device_share_is_open()) break;
    candidate.choices.device_share = share;
    begin();
  }
  if (all.empty()) {
    candidate.choices.device_share = request_.choices.device_share;
    return {candidate};
  }
  // State that rests in host memory is updated in place, so where gradients are clipped not before the verdict: all at
  // once, and the next forward waits. From the drives it is updated while backward runs.
  const bool waits = trains(request_) && request_.workload.clipping.may_take_back();
  for (size_t i = 0, count = waits && !request_.choices.host_state_share ? all.size() : 0; i < count; ++i) {
    Candidate on_drives = all[i];
    on_drives.choices.host_state_share = 0;
    all.push_back(std::move(on_drives));
  }
  for (size_t i = 0, count = device_share_is_open() ? all.size() : 0; i < count; ++i) {
    Candidate resting = with_most_on_device(all[i]);
    all.push_back(may_keep_some(resting) ? with_most_kept(std::move(resting)) : std::move(resting));
  }
  // One micro-batch after another holds the least, so that the most uses may keep what they have made.
  for (size_t i = 0, count = all.size(); i < count; ++i) {
    Candidate one_by_one = all[i];
    one_by_one.choices.micro_batch_group = groups.back();
    const bool differs =
        all[i].choices.micro_batch_group != groups.back() && all[i].choices.device_share.value_or(0) == 0;
    if (differs && may_keep_some(one_by_one)) all.push_back(with_most_kept(std::move(one_by_one)));
  }
  return all;
}

std::vector<Candidate> CandidateSpace::along(size_t dimension, const Candidate& from) const {
  const PlanChoices& made = request_.choices;
  const bool clips = request_.workload.clipping.may_take_back();
  switch (dimension) {
    case 0:
      return activations_along(from);
    case 1:
      return groups_along(from);
    case 2:
      if (made.host_state_share) return {};
      return with_each(from, &PlanChoices::host_state_share, {0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1});
    case 3:
      return budgets_along(from);
    case 4:
      if (made.retained_host_share || !clips) return {};
      return with_each(from, &PlanChoices::retained_host_share, {0, 0.5, 1});
    case 5:
      return weights_along(from);
    case 6:
      if (made.offload_host_share || !request_.machine.copies_to_device() || !trains(request_)) return {};
      if (!offloads(*from.choices.activations)) return {};
      return with_each(from, &PlanChoices::offload_host_share, {0, 0.5, 1});
    case 7:
      // Backward moves most of a step's bytes in two thirds of its time.
      if (made.deferred_share || !trains(request_)) return {};
      return with_each(from, &PlanChoices::deferred_share, {0.25, 0.35, 0.5});
    case 8:
      return windows_along(from);
    default:
      return device_units_along(from);
  }
}

bool CandidateSpace::device_share_is_open() const {
  const Workload& workload = request_.workload;
  const PlanChoices& made = request_.choices;
  if (made.device_share || made.weights != WeightTier::automatic || !request_.machine.copies_to_device()) return false;
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    if (may_rest_on_device(workload, unit, workload.micro_batches)) return true;
  }
  return false;
}

Candidate CandidateSpace::with_most_on_device(Candidate candidate) const {
  const auto units = static_cast<uint32_t>(request_.workload.units.size());
  return with_largest(std::move(candidate), &PlanChoices::device_share, units, units);
}

// Weights and state that rest on the device pass over no link and no drive.
std::vector<Candidate> CandidateSpace::device_units_along(const Candidate& from) const {
  if (!device_share_is_open()) return {};
  std::vector<Candidate> all;
  const Candidate most = with_most_on_device(from);
  for (double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    all.push_back(most);
    *all.back().choices.device_share *= part;
  }
  return all;
}

bool CandidateSpace::may_keep_some(const Candidate& candidate) const {
  return !request_.choices.activations && !request_.choices.keep_share && trains(request_) &&
         request_.workload.uses.size() > 1 && candidate.choices.activations != ActivationChoice::keep;
}

std::vector<Candidate> CandidateSpace::activations_along(const Candidate& from) const {
  std::vector<Candidate> all;
  for (ActivationChoice activations : activation_choices(request_)) {
    all.push_back(from);
    all.back().choices.activations = activations;
    all.back().choices.keep_share = request_.choices.keep_share;
    if (!may_keep_some(all.back())) continue;
    Candidate some = with_most_kept(all.back());
    all.push_back(some);
    *some.choices.keep_share /= 2;
    all.push_back(std::move(some));
  }
  return all;
}

std::vector<Candidate> CandidateSpace::groups_along(const Candidate& from) const {
  std::vector<Candidate> all;
  // In a smaller one, units that are to rest on the device may not.
  if (request_.choices.device_share.value_or(0) > 0) return all;
  for (uint32_t group : micro_batch_groups(request_)) {
    if (group == *from.choices.micro_batch_group) continue;
    all.push_back(from);
    all.back().choices.micro_batch_group = group;
    if (may_keep_some(from)) all.push_back(with_most_kept(all.back()));
  }
  return all;
}

std::vector<Candidate> CandidateSpace::weights_along(const Candidate& from) const {
  if (request_.choices.weights != WeightTier::automatic) return {};
  std::vector<Candidate> all;
  for (WeightTier weights : {WeightTier::automatic, WeightTier::host, WeightTier::nvme}) {
    all.push_back(from);
    all.back().choices.weights = weights;
  }
  return all;
}

std::vector<Candidate> CandidateSpace::budgets_along(const Candidate& from) const {
  std::vector<Candidate> all;
  for (double share : {1.0, 0.875, 0.75, 0.5, 0.25}) {
    all.push_back(from);
    all.back().host_budget_share = share;
  }
  return all;
}

std::optional<Candidate> CandidateSpace::with_ahead_windows(const Candidate& from, const Plan& plan,
                                                            uint64_t spare_bytes) const {
  const bool waits = trains(request_) && request_.workload.clipping.may_take_back();
  if (!waits || request_.choices.ahead_window_tiles) return std::nullopt;
  const uint64_t window_bytes = plan.tiles.slot_bytes_max();
  double backward_s = 0;
  for (const Move& move : plan.moves) backward_s += move.kind == MoveKind::backward ? move.seconds : 0;
  const double read_meanwhile =
      backward_s * request_.machine.striped().gbps(1) * 1e9 / static_cast<double>(window_bytes);
  const auto to_read = static_cast<uint64_t>(
      std::ranges::count_if(plan.of_tile, [](const Plan::TileMoves& moves) { return moves.reread != kNoMove; }));
  uint64_t windows = std::min(to_read, spare_bytes / window_bytes);
  if (read_meanwhile < static_cast<double>(windows)) windows = static_cast<uint64_t>(read_meanwhile);
  if (windows == 0) return std::nullopt;
  Candidate with = from;
  with.choices.ahead_window_tiles = static_cast<uint32_t>(windows);
  return with;
}

std::vector<Candidate> CandidateSpace::windows_along(const Candidate& from) const {
  if (request_.choices.window_tiles) return {};
  std::vector<Candidate> all;
  auto try_with = [&](uint32_t tiles) {
    all.push_back(from);
    all.back().choices.window_tiles = tiles;
  };
  const std::vector<uint32_t> windows = windows_worth_trying(request_.machine);
  for (uint32_t tiles : windows) {
    try_with(tiles);
    // In few windows less is under way, and what that frees may be kept. Where all is kept, a few that are computed
    // again may make room for units that arrive ahead.
    Candidate some = all.back();
    if (!may_keep_some(some)) some.choices.activations = ActivationChoice::recompute;
    if (may_keep_some(some)) all.push_back(with_most_kept(std::move(some)));
  }
  // With room for what two uses will update, their state is there when their gradients come.
  const uint32_t reads_ahead = 2 * tiles_of_a_use_;
  if (trains(request_) && reads_ahead > windows.front()) try_with(reads_ahead);
  return all;
}

}  // namespace penstock
