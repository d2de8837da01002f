#include "runtime/engine/ranks/ranked_engine.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/engine/ranks/in_verb.h"
#include "runtime/engine/ranks/rank_agreement.h"
#include "runtime/engine/ranks/rank_places.h"
#include "runtime/engine/ranks/stopwatch.h"
#include "tiering/store/store_hash.h"

namespace penstock::engine {
namespace {

std::optional<Plane> plane_of(const StateForm& form, Role role) {
  if (role == Role::weight) return Plane{role, form.weight};
  for (const Plane& plane : resting_planes(form)) {
    if (plane.role == role) return plane;
  }
  return std::nullopt;
}

}  // namespace

Status RankedEngine::passed_on(const Status& status) {
  if (status.ok()) return status;
  const Status ended = ranks_.status();
  if (!ended.ok()) return ended;
  return status.code() == Code::kUsage ? status : give_up(status);
}

Status RankedEngine::give_up(const Status& why) {
  ranks_.fail(why);
  return ranks_.status();
}

Status RankedEngine::exchange(std::span<const uint64_t> mine, std::span<uint64_t> all) {
  const InVerb in_verb(ranks_);
  PENSTOCK_TRY(drain());
  return passed_on(exchange_bytes(ranks_, std::as_bytes(mine), std::as_writable_bytes(all)));
}

Status RankedEngine::run(const std::function<void(Collective::Then)>& operation) {
  return passed_on(wait_for_end(operation));
}

Status RankedEngine::begin(const StepBegin& begin) {
  const InVerb in_verb(ranks_);
  if (in_step_) return here_->begin(begin);  // which refuses it
  ranks_.at_step(steps_done() + 1);
  const uint64_t numbers[] = {steps_done() + 1, begin.micro_batches, std::bit_cast<uint64_t>(begin.loss_scale),
                              hash_of(begin.groups)};
  PENSTOCK_TRY(expect_same(ranks_, "the step that begins (its number, micro-batches, loss scale and hyper-parameters)",
                           numbers));
  PENSTOCK_TRY(passed_on(here_->begin(begin)));
  in_step_ = true;
  has_asked_all_ = false;
  intake_->begin(begin.micro_batches);
  passes_ = here_->passes();
  visit_of_pass_.clear();
  for (size_t i = 0; i < plan().computes.size(); ++i) {
    if (plan().computes[i].micro_batch >= plan().micro_batches - begin.micro_batches) {
      visit_of_pass_.push_back(visits_[i]);
    }
  }
  next_visit_ = visit_of_pass_.front();
  gatherings_.clear();
  waited_s_ = intake_s_ = 0;
  next_pass_ = 0;
  is_held_ = false;
  last_pass_.assign(model().units.size(), 0);
  for (size_t i = 0; i < passes_.size(); ++i) {
    if (passes_[i].direction == Direction::forward) continue;
    for (uint32_t unit : model().uses[passes_[i].use].units) last_pass_[unit] = i;
  }
  is_gathered_.assign(model().units.size(), false);
  skips_.clear();
  for (const Unit& unit : model().units) skips_.emplace_back(unit.parameters.size() + 1, false);
  ranks_.step_began();
  return Status();
}

// What was gathered ahead is gathered anew behind these passes, which take its places.
Status RankedEngine::begin_forward() {
  const InVerb in_verb(ranks_);
  if (in_step_ && !is_held_) PENSTOCK_TRY(end_reducing());
  PENSTOCK_TRY(passed_on(here_->begin_forward()));
  in_forward_ = true;
  PENSTOCK_TRY(drain());
  is_gathered_.assign(model().units.size(), false);
  gatherings_.clear();
  if (in_step_ && next_pass_ < passes_.size()) next_visit_ = visit_of_pass_[next_pass_];
  return Status();
}

Result<std::vector<UnitWeights>> RankedEngine::acquire(const ComputePass& pass, Stream stream) {
  const InVerb in_verb(ranks_);
  const bool may_be_late = expects(pass) && ahead_[visit_of_pass_[next_pass_]];
  if (reducing_ && (!may_be_late || lane_->has_ended(reducing_->number))) PENSTOCK_TRY(end_reducing());
  auto acquired = here_->acquire(pass, stream);
  PENSTOCK_TRY(passed_on(acquired.status()));
  is_held_ = true;
  pass_stream_ = stream;
  if (device_sums_) device_sums_->begin_pass(pass.use, stream);
  if (map_.group_ranks() > 1) return gathered(pass, *acquired);
  for (UnitWeights& view : *acquired) view.unit = *shards_.model_unit[view.unit];
  return acquired;
}

Status RankedEngine::end_reading() {
  if (!weights_device_ || !is_held_) return Status();
  return passed_on(weights_device_->end_pass(pass_stream_));
}

Result<std::span<std::byte>> RankedEngine::put(const ComputePass& pass, uint64_t bytes) {
  const InVerb in_verb(ranks_);
  return here_->put(pass, bytes);
}

Result<std::span<std::byte>> RankedEngine::get(const ComputePass& pass, size_t number) {
  const InVerb in_verb(ranks_);
  return here_->get(pass, number);
}

Status RankedEngine::end_forward() {
  const InVerb in_verb(ranks_);
  PENSTOCK_TRY(end_reading());
  PENSTOCK_TRY(passed_on(here_->end_forward()));
  is_held_ = in_forward_ = false;
  return Status();
}

Status RankedEngine::finish() {
  const InVerb in_verb(ranks_);
  return passed_on(here_->finish());
}

Status RankedEngine::settle() {
  const InVerb in_verb(ranks_);
  return passed_on(here_->settle());
}

Status RankedEngine::release(const ComputePass& pass) {
  const InVerb in_verb(ranks_);
  const bool is_of_step = expects(pass);
  PENSTOCK_TRY(end_reading());
  PENSTOCK_TRY(passed_on(here_->release(pass)));
  is_held_ = false;
  if (!is_of_step) return Status();
  const size_t released = next_pass_++;
  if (pass.direction == Direction::forward) return Status();
  (void)intake_->end_pass(pass.use, pass.micro_batch);
  std::vector<uint32_t> complete;
  for (uint32_t unit : model().uses[pass.use].units) {
    if (model().units[unit].trainable && last_pass_[unit] == released) complete.push_back(unit);
  }
  if (!complete.empty()) PENSTOCK_TRY(begin_reducing(complete));
  return device_sums_ ? passed_on(gradients_device_->end_pass(pass_stream_)) : Status();
}

Status RankedEngine::gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values,
                              std::optional<Stream> stream) {
  const InVerb in_verb(ranks_);
  auto refuse = [&](const std::string& why, const std::string& remedy) {
    return Status(Code::kUsage, text("gradient: unit ", part.unit, ", micro-batch ", part.micro_batch, ": ", why),
                  remedy);
  };
  const bool is_held = in_step_ && is_held_ && !in_forward_ && passes_[next_pass_].direction == Direction::backward &&
                       passes_[next_pass_].micro_batch == part.micro_batch &&
                       passes_[next_pass_].use == part.use.value_or(passes_[next_pass_].use);
  if (!is_held) {
    return refuse("its backward pass is not acquired",
                  "give gradients between acquire() and release() of their backward pass");
  }
  std::span<const std::byte> here = values;
  if (device_sums_) device_sums_->take_from(stream.value_or(pass_stream_));
  // What is longer than any unit's is refused unread.
  if (gradients_device_ && !device_sums_ && values.size() <= taken_.on_device.gradient) {
    const std::span<std::byte> downloaded{memory(0), values.size()};
    const Stream given_on = stream.value_or(pass_stream_);
    PENSTOCK_TRY(passed_on(gradients_device_->download_gradient(values, dtype, downloaded, given_on)));
    here = downloaded;
  }
  const Stopwatch adding(intake_s_);
  const Result<GradientIntake::Taken> taken =
      intake_->take({part.unit, passes_[next_pass_].use, part.micro_batch, part.first_element}, {dtype, here});
  PENSTOCK_TRY(taken.status());
  return device_sums_ ? passed_on(device_sums_->status()) : Status();
}

Status RankedEngine::absent_gradient(uint32_t unit, Absent absent) {
  auto refuse = [](const std::string& why) { return Status(Code::kUsage, "absent gradient: unit " + why); };
  if (!in_step_) return Status(Code::kUsage, "absent gradient: called outside a step", "call begin() first");
  if (unit >= model().units.size()) return refuse(text(unit, " of ", model().units.size()));
  if (!model().units[unit].trainable) return refuse(model().units[unit].name + " is frozen");
  if (std::string why = intake_->why_not_absent(unit); !why.empty()) return refuse(model().units[unit].name + why);
  if (absent == Absent::zero) return Status();  // what its passes do not give is zero
  intake_->give_up(unit);
  std::fill(skips_[unit].begin(), skips_[unit].end(), true);
  return Status();
}

Status RankedEngine::absent_gradient(ParameterId id, Absent absent) {
  if (!in_step_) return Status(Code::kUsage, "absent gradient: called outside a step", "call begin() first");
  const bool is_there = id.unit < model().units.size() && id.parameter < model().units[id.unit].parameters.size();
  if (!is_there || !model().units[id.unit].trainable) {
    return Status(Code::kUsage, text("absent gradient: parameter ", id.parameter, " of unit ", id.unit,
                                     is_there ? ", which is frozen" : ": there is none"));
  }
  PENSTOCK_TRY(intake_->give_up(id.unit, id.parameter).status());
  std::vector<bool>& skips = skips_[id.unit];
  skips[id.parameter] = absent == Absent::skip;
  // Without any of its parameters nothing is left of it to update.
  skips.back() = std::find(skips.begin(), skips.end() - 1, false) == skips.end() - 1;
  return Status();
}

void RankedEngine::take_gradient(uint32_t unit, uint64_t first, uint64_t count, std::byte* target,
                                 std::span<double> squares) {
  const Dtype dtype = model().form.gradient;
  const uint64_t bytes = bytes_of(dtype);
  std::memcpy(target, memory(added_at_[*shards_.model_unit[unit]] + first * bytes), count * bytes);
  kernels_.square_sums(dtype, target, count, squares);
}

Result<double> RankedEngine::sum_of_squares(const std::vector<std::vector<double>>& blocks) {
  has_asked_all_ = true;
  auto* const all = reinterpret_cast<double*>(memory(squares_at_));
  std::vector<Collective::Shard> shards;
  for (uint32_t unit = 0; unit < model().units.size(); ++unit) {
    if (!model().units[unit].trainable) continue;
    auto first_of = [&](uint32_t other) { return first_block_[unit] + map_.shard(unit, other).begin / kBlockElements; };
    if (const std::optional<uint32_t> here = shards_.unit_here[unit]) {
      std::copy(blocks[*here].begin(), blocks[*here].end(), all + first_of(rank()));
    }
    for (uint32_t member : map_.group(rank())) {
      const uint64_t count = ceil_div(map_.shard(unit, member).elements(), kBlockElements);
      shards.push_back({member, squares_at_ + first_of(member) * sizeof(double), count * sizeof(double)});
    }
  }
  if (map_.group_ranks() > 1) {
    PENSTOCK_TRY(run([&](Collective::Then then) { ranks_.passes().gather(shards, std::move(then)); }));
  }
  double sum = 0;
  for (uint32_t unit = 0; unit < model().units.size(); ++unit) {
    if (!model().units[unit].trainable) continue;
    const uint64_t count = ceil_div(model().units[unit].elements, kBlockElements);
    for (uint64_t block = 0; block < count; ++block) sum += all[first_block_[unit] + block];
  }
  return sum;
}

// What refused while the others went on to the verdict ends them, too.
Status RankedEngine::passed_on_after_asking(const Status& status) {
  if (!status.ok() && has_asked_all_ && ranks_.status().ok()) ranks_.fail(status);
  return passed_on(status);
}

Result<double> RankedEngine::gradient_norm() {
  const InVerb in_verb(ranks_);
  PENSTOCK_TRY(end_reducing());
  Result<double> norm = here_->gradient_norm();
  PENSTOCK_TRY(passed_on_after_asking(norm.status()));
  return norm;
}

Result<StepReport> RankedEngine::step(std::string trainer_state) {
  const InVerb in_verb(ranks_);
  PENSTOCK_TRY(end_reducing());
  Result<StepReport> report = here_->step(std::move(trainer_state));
  PENSTOCK_TRY(passed_on_after_asking(report.status()));
  in_step_ = false;
  ranks_.step_ended();
  report->trainer_s -= waited_s_ + intake_s_;
  report->intake_s += intake_s_;
  const auto lane = static_cast<size_t>(Lane::collective);
  report->stall_s[lane] += waited_s_;
  const double busy_s = lane_->busy_s();
  report->busy_s[lane] += busy_s - std::exchange(busy_reported_s_, busy_s);
  report->gathered_bytes = gathered_bytes_.exchange(0);
  report->reduced_bytes = reduced_bytes_.exchange(0);
  report->predicted_s =
      prediction_.of(report->verdict, here_->speculates(), here_->request().machine, [this] { return forecast(); });
  return report;
}

Status RankedEngine::discard() {
  const InVerb in_verb(ranks_);
  PENSTOCK_TRY(end_reading());
  if (device_sums_ && is_held_) PENSTOCK_TRY(passed_on(gradients_device_->end_pass(pass_stream_)));
  PENSTOCK_TRY(drain());
  gatherings_.clear();
  reducing_.reset();
  PENSTOCK_TRY(passed_on(here_->discard()));
  in_step_ = is_held_ = false;
  ranks_.step_ended();
  return Status();
}

Status RankedEngine::read_shard(uint32_t unit, Role role, std::span<std::byte> values) {
  const InVerb in_verb(ranks_);
  const std::optional<uint32_t> here = unit < shards_.unit_here.size() ? shards_.unit_here[unit] : std::nullopt;
  if (here) return passed_on(here_->read(*here, role, 0, values));
  return values.empty() ? Status() : Status(Code::kUsage, text("read: rank ", rank(), " has nothing of unit ", unit));
}

// Piece by piece, through the place of gradients under way: there is none outside a step.
Status RankedEngine::read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) {
  const InVerb in_verb(ranks_);
  auto refuse = [](const std::string& why) { return Status(Code::kUsage, "read: " + why); };
  if (unit >= model().units.size()) return refuse(text("unit ", unit, " of ", model().units.size()));
  const std::optional<Plane> plane = plane_of(model().form, role);
  if (!plane) return refuse(text("unit ", model().units[unit].name, " has no ", name_of(role)));
  const std::optional<uint32_t> here = shards_.unit_here[unit];
  if (map_.group_ranks() == 1) return passed_on(here_->read(*here, role, first, values));
  const uint64_t bytes = bytes_of(plane->dtype), end = first + values.size() / bytes;
  const uint64_t at_once = taken_.given_bytes / bytes;
  // Shards begin at multiples of what shares a scale.
  auto values_of = [&](uint32_t other, uint64_t from, uint64_t until) {
    const ElementRun shard = map_.shard(unit, other);
    const uint64_t begin = plane->values(shard.begin);
    return ElementRun{std::clamp(begin, from, until), std::clamp(begin + plane->values(shard.elements()), from, until)};
  };
  for (uint64_t at = first; at < end; at += at_once) {
    const uint64_t until = std::min(end, at + at_once);
    std::vector<Collective::Shard> parts;
    for (uint32_t member : map_.group(rank())) {
      const ElementRun part = values_of(member, at, until);
      parts.push_back({member, given_begin_ + (part.begin - at) * bytes, part.elements() * bytes});
      if (member != rank() || part.elements() == 0) continue;
      const uint64_t shard_begin = plane->values(map_.shard(unit, rank()).begin);
      const std::span<std::byte> place{memory(parts.back().offset_bytes), parts.back().bytes};
      PENSTOCK_TRY(passed_on(here_->read(*here, role, part.begin - shard_begin, place)));
    }
    PENSTOCK_TRY(run([&](Collective::Then then) { ranks_.passes().gather(parts, std::move(then)); }));
    std::memcpy(values.data() + (at - first) * bytes, memory(given_begin_), (until - at) * bytes);
  }
  return Status();
}

std::string RankedEngine::gathering_words() const {
  const RankMemory::OnDevice& there = taken_.on_device;
  if (there.all() == 0) return "";
  const char* weights = there.weights == 0 ? ""
                        : there.gathers    ? "  weights are gathered among the ranks' devices, by NCCL\n"
                                           : "  weights are gathered in host memory, and go up to each device whole\n";
  return text(weights, there.reduces() ? "  gradients are added up among the ranks' devices\n"
                                       : "  gradients come down whole, and are added up in host memory\n");
}

RankSide::Origin RankedEngine::origin_of(uint32_t unit) const {
  const std::optional<uint32_t> number = shards_.model_unit[unit];
  if (!number) return {};
  return {*number, map_.shard(*number, ranks_.rank()).begin};
}

Plan RankedEngine::forecast() const {
  Plan whole = with_collectives(plan(), traffic(), ahead_);
  const std::vector<BudgetLine> of_ranks = taken_.lines();
  whole.budget_lines.insert(whole.budget_lines.begin(), of_ranks.begin(), of_ranks.end());
  return whole;
}

std::string RankedEngine::description() const {
  std::string words = text("  rank ", ranks_.rank(), " of ", ranks_.ranks(), ", in groups of ", map_.group_ranks(),
                           "\n", gathering_words());
  for (const BudgetLine& line : taken_.lines()) {
    words += text("  ", name_of(line.tier), "  ", line.name, "  ", bytes_text(line.bytes), "\n");
  }
  return words + here_->description();
}

}  // namespace penstock::engine
