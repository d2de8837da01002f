#include "runtime/engine/gradient_intake.h"

#include <algorithm>
#include <cstring>

namespace penstock::engine {

GradientIntake::GradientIntake(const Workload& workload, const SumLayout& layout, std::span<std::byte> sums,
                               cpu_optim::UpdateWorkers& workers)
    : GradientIntake(workload, nullptr, workers) {
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    const std::vector<uint64_t>& places = layout.offset_bytes[unit];
    units_[unit].last_stays = layout.last_stays[unit];
    for (size_t use = 0; use < places.size(); ++use) {
      units_[unit].of_use[use].sum = sums.data() + places[use];
    }
  }
}

GradientIntake::GradientIntake(const Workload& workload, Adder* adder, cpu_optim::UpdateWorkers& workers)
    : workload_(workload), workers_(workers), adder_(adder), units_(workload.units.size()) {
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    units_[unit].uses = uses_of(workload, unit);
    units_[unit].of_use.resize(units_[unit].uses.size());
    units_[unit].sum_dtype = sum_dtype(workload, unit);
    units_[unit].parameters.resize(workload.units[unit].parameters.size());
  }
}

void GradientIntake::begin(uint32_t micro_batches) {
  micro_batches_ = micro_batches;
  summing_.clear();
  for (UnitState& unit : units_) {
    unit.done = unit.has_values = false;
    unit.last_given.clear();
    std::fill(unit.parameters.begin(), unit.parameters.end(), UnitState::Of::nothing);
    for (UseState& use : unit.of_use) {
      use.next_micro_batch = 0;
      use.given.clear();
      use.staying.clear();
    }
  }
}

Status GradientIntake::check(const Part& part, const Values& values, uint64_t count) const {
  auto refuse = [&](const std::string& why) {
    return Status(Code::kUsage, text("gradient: unit ", part.unit, ", micro-batch ", part.micro_batch, ": ", why));
  };
  if (part.unit >= units_.size()) return refuse(text("the model has ", units_.size(), " units"));
  const Unit& unit = workload_.units[part.unit];
  const UnitState& state = units_[part.unit];
  if (!unit.trainable) return refuse("the unit is frozen");
  const auto found = std::find(state.uses.begin(), state.uses.end(), part.use);
  if (found == state.uses.end()) return refuse(text("use ", part.use, " does not name the unit"));
  if (values.bytes.size() % bytes_of(values.dtype) != 0 || count == 0 || part.first_element > unit.elements ||
      count > unit.elements - part.first_element) {
    return refuse(text(values.bytes.size(), " B of ", name_of(values.dtype), " from element ", part.first_element,
                       ": the unit has ", unit.elements, " elements"));
  }
  if (part.micro_batch >= micro_batches_) return refuse(text("the step has ", micro_batches_, " micro-batches"));
  if (state.done) return refuse("the gradient is complete already");
  const UseState& use = state.of_use[static_cast<size_t>(found - state.uses.begin())];
  if (part.micro_batch > use.next_micro_batch) return refuse(text("comes before micro-batch ", use.next_micro_batch));
  if (part.micro_batch < use.next_micro_batch) return refuse("has come already");
  const uint64_t end = part.first_element + count;
  for (const auto& [first, last] : use.given) {
    if (first < end && part.first_element < last) {
      return refuse(text("elements ", part.first_element, " to ", end, " come twice"));
    }
  }
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const Parameter& parameter = unit.parameters[i];
    const bool overlaps =
        parameter.first_element < end && part.first_element < parameter.first_element + parameter.elements;
    if (overlaps && state.parameters[i] == UnitState::Of::absent) {
      return refuse(text("parameter ", parameter.name, " was declared absent"));
    }
  }
  const uint64_t next = use.given.empty() ? 0 : use.given.back().second;
  if (passes_by(state, use, count, unit.elements) && part.first_element != next) {
    return refuse(text("elements from ", part.first_element, " on, expected from ", next,
                       " on: where nothing is added up, parts come in order"));
  }
  return Status();
}

bool GradientIntake::has_all_values(uint32_t index, const UseState& use) const {
  const Unit& unit = workload_.units[index];
  auto covers = [&](uint64_t first, uint64_t end) {
    for (const auto& [from, to] : use.given) {
      if (from <= first) first = std::max(first, to);
    }
    return first >= end;
  };
  if (unit.parameters.empty()) return covers(0, unit.elements);
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const Parameter& parameter = unit.parameters[i];
    if (units_[index].parameters[i] == UnitState::Of::absent) continue;
    if (!covers(parameter.first_element, parameter.first_element + parameter.elements)) return false;
  }
  return true;
}

bool GradientIntake::passes_by(const UnitState& unit, const UseState& use, uint64_t count, uint64_t elements) const {
  return count != elements && use.sum == nullptr && adder_ == nullptr && workload_.scope == StepScope::update_only &&
         unit.uses.size() == 1;
}

void GradientIntake::note_parameters(const Part& part, uint64_t count) {
  const Unit& unit = workload_.units[part.unit];
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const Parameter& parameter = unit.parameters[i];
    const bool overlaps = parameter.first_element < part.first_element + count &&
                          part.first_element < parameter.first_element + parameter.elements;
    if (overlaps) units_[part.unit].parameters[i] = UnitState::Of::values;
  }
}

Result<GradientIntake::Taken> GradientIntake::take(const Part& part, const Values& values) {
  const uint64_t count = values.bytes.size() / bytes_of(values.dtype);
  PENSTOCK_TRY(check(part, values, count));
  const Unit& unit = workload_.units[part.unit];
  UnitState& state = units_[part.unit];
  const auto number = std::find(state.uses.begin(), state.uses.end(), part.use) - state.uses.begin();
  UseState& use = state.of_use[static_cast<size_t>(number)];
  const bool is_whole = count == unit.elements;
  const bool is_last_whole = is_whole && state.uses.size() == 1 && part.micro_batch + 1 == micro_batches_;
  if (is_last_whole && workload_.scope == StepScope::update_only) {
    state.done = state.has_values = true;
    state.last_given = text("micro-batch ", part.micro_batch);
    return Taken::completes_with;
  }
  if (passes_by(state, use, count, unit.elements)) {
    state.last_given = text("micro-batch ", part.micro_batch);
    state.has_values = true;
    note_parameters(part, count);
    use.given = {{0, part.first_element + count}};
    state.done = part.first_element + count == unit.elements;
    return Taken::passes_by;
  }
  const auto [place, is_free] = summing_.insert({use.sum, part.unit});
  if (use.sum != nullptr && !is_free && place->second != part.unit) {
    return Status(Code::kDoesNotFit,
                  text("gradient: unit ", part.unit,
                       ": no memory to add up in: what is planned for it is still used for "
                       "unit ",
                       place->second),
                  "plan with micro_batch_group 1 if micro-batches come one after another");
  }
  state.last_given = text("micro-batch ", part.micro_batch);
  state.has_values = true;
  note_parameters(part, count);
  if (stays(state, part.micro_batch)) {
    use.staying.push_back({part.first_element, count, values});
  } else {
    add(part, values, use, count);
  }
  const auto run = std::make_pair(part.first_element, part.first_element + count);
  use.given.insert(std::upper_bound(use.given.begin(), use.given.end(), run), run);
  if (!has_all_values(part.unit, use)) return Taken::added;
  return end_micro_batch(state, use) ? Taken::completes : Taken::added;
}

Result<bool> GradientIntake::give_up(uint32_t index, uint32_t number) {
  const Unit& unit = workload_.units[index];
  UnitState& state = units_[index];
  auto refuse = [&](const char* why) {
    return Status(Code::kUsage,
                  text("absent gradient: parameter ", unit.parameters[number].name, " of unit ", unit.name, why));
  };
  if (state.parameters[number] == UnitState::Of::absent) return refuse(" was declared absent");
  if (state.parameters[number] == UnitState::Of::values || state.done) return refuse(" has one");
  state.parameters[number] = UnitState::Of::absent;
  if (workload_.scope == StepScope::training) return false;  // the last pass completes it
  const auto is_absent = [](UnitState::Of of) { return of == UnitState::Of::absent; };
  if (std::all_of(state.parameters.begin(), state.parameters.end(), is_absent)) return state.done = true;
  // It may have been all that a micro-batch lacked.
  for (UseState& use : state.of_use) {
    if (!use.given.empty() && has_all_values(index, use) && end_micro_batch(state, use)) return true;
  }
  return false;
}

bool GradientIntake::end_micro_batch(UnitState& unit, UseState& use) const {
  use.given.clear();
  ++use.next_micro_batch;
  unit.done = std::all_of(unit.of_use.begin(), unit.of_use.end(),
                          [&](const UseState& of) { return of.next_micro_batch == micro_batches_; });
  return unit.done;
}

std::vector<uint32_t> GradientIntake::end_pass(uint32_t use, uint32_t micro_batch) {
  std::vector<uint32_t> complete;
  for (uint32_t index : workload_.uses[use].units) {
    UnitState& unit = units_[index];
    if (!workload_.units[index].trainable || unit.done) continue;
    const auto number = std::find(unit.uses.begin(), unit.uses.end(), use) - unit.uses.begin();
    UseState& of_use = unit.of_use[static_cast<size_t>(number)];
    if (of_use.next_micro_batch != micro_batch) continue;  // has all
    if (starts_sum(micro_batch) && of_use.given.empty() && !stays(unit, micro_batch)) zero(index, of_use);
    if (end_micro_batch(unit, of_use)) complete.push_back(index);
  }
  return complete;
}

void GradientIntake::zero(uint32_t unit, UseState& use) {
  if (adder_ != nullptr) return adder_->zero(unit);
  std::memset(use.sum, 0, workload_.units[unit].elements * bytes_of(units_[unit].sum_dtype));
}

void GradientIntake::add(const Part& part, const Values& values, UseState& use, uint64_t count) {
  const uint64_t size = bytes_of(values.dtype);
  // What no parameter names is never handed over in parts, and counts as zero.
  if (starts_sum(part.micro_batch) && use.given.empty() && count != workload_.units[part.unit].elements) {
    zero(part.unit, use);
  }
  if (adder_ != nullptr) return adder_->add(part, values, count);
  const Dtype dtype = units_[part.unit].sum_dtype;
  workers_.share_pieces(count, kBlockElements, [&](uint64_t begin, uint64_t end) {
    std::byte* target = use.sum + (part.first_element + begin) * bytes_of(dtype);
    if (part.micro_batch == 0) {
      convert(values, begin, end - begin, target, dtype);
    } else {
      kernels_.accumulate(values.dtype, values.bytes.data() + begin * size, reinterpret_cast<float*>(target),
                          end - begin);
    }
  });
}

void GradientIntake::finish(uint32_t unit, const std::optional<Values>& last, std::span<const Target> targets) {
  const uint64_t size = bytes_of(workload_.form.gradient);
  uint64_t blocks = 0;
  for (const Target& target : targets) blocks += ceil_div(target.elements, kBlockElements);
  workers_.share_pieces(blocks, 1, [&](uint64_t begin, uint64_t end) {
    uint64_t first = 0;  // block of the target
    for (const Target& target : targets) {
      const uint64_t after = first + ceil_div(target.elements, kBlockElements);
      const uint64_t from = std::max(begin, first), to = std::min(end, after);
      if (from < to) {
        const uint64_t skip = (from - first) * kBlockElements;
        finish_run(unit, last,
                   {target.first_element + skip, std::min(target.elements, (to - first) * kBlockElements) - skip,
                    target.place + skip * size, target.squares.subspan(from - first)});
      }
      first = after;
    }
  });
}

void GradientIntake::finish_run(uint32_t unit, const std::optional<Values>& last, const Target& target) {
  const Dtype form = workload_.form.gradient;
  if (!units_[unit].has_values) {
    std::memset(target.place, 0, target.elements * bytes_of(form));
    std::fill_n(target.squares.begin(), ceil_div(target.elements, kBlockElements), 0.0);
    return;
  }
  // Block by block, so that what is measured is still in the cache.
  for (uint64_t at = 0; at < target.elements; at += kBlockElements) {
    const uint64_t count = std::min(kBlockElements, target.elements - at);
    std::byte* const place = target.place + at * bytes_of(form);
    join(unit, last, target.first_element + at, count, place);
    kernels_.square_sums(form, place, count, target.squares.subspan(at / kBlockElements, 1));
  }
}

void GradientIntake::join(uint32_t index, const std::optional<Values>& last, uint64_t first, uint64_t count,
                          std::byte* target) {
  const Dtype form = workload_.form.gradient;
  if (last && micro_batches_ == 1) return convert(*last, first, count, target, form);  // there is no sum to join
  const std::vector<UseState>& uses = units_[index].of_use;
  if (units_[index].last_stays) return join_staying(index, first, count, target);
  const Dtype dtype = units_[index].sum_dtype;
  const uint64_t at = first * bytes_of(dtype);
  float* joined = reinterpret_cast<float*>(uses.front().sum + at);
  for (size_t use = 1; use < uses.size(); ++use) {
    kernels_.accumulate(Dtype::fp32, uses[use].sum + at, joined, count);
  }
  if (last) kernels_.accumulate(last->dtype, last->bytes.data() + first * bytes_of(last->dtype), joined, count);
  const Values sum{dtype, {uses.front().sum, workload_.units[index].elements * bytes_of(dtype)}};
  convert(sum, first, count, target, form);
}

void GradientIntake::join_staying(uint32_t index, uint64_t first, uint64_t count, std::byte* target) {
  const UseState& use = units_[index].of_use.front();
  const Dtype form = workload_.form.gradient;
  const bool has_sum = micro_batches_ > 1;
  float* const sum = has_sum ? reinterpret_cast<float*>(use.sum) + first : nullptr;
  uint64_t given = 0;
  const auto begin_of = [&](const StayingPart& part) { return std::max(first, part.first_element); };
  const auto end_of = [&](const StayingPart& part) {
    return std::max(begin_of(part), std::min(first + count, part.first_element + part.elements));
  };
  for (const StayingPart& part : use.staying) given += end_of(part) - begin_of(part);
  if (!has_sum && given < count) std::memset(target, 0, count * bytes_of(form));
  for (const StayingPart& part : use.staying) {
    const uint64_t begin = begin_of(part), end = end_of(part), skip = begin - part.first_element;
    if (begin == end) continue;
    if (has_sum) {
      const std::byte* const values = part.values.bytes.data() + skip * bytes_of(part.values.dtype);
      kernels_.accumulate(part.values.dtype, values, sum + (begin - first), end - begin);
    } else {
      convert(part.values, skip, end - begin, target + (begin - first) * bytes_of(form), form);
    }
  }
  if (has_sum) kernels_.cast(Dtype::fp32, reinterpret_cast<const std::byte*>(sum), form, target, count);
}

void GradientIntake::convert(const Values& values, uint64_t skip, uint64_t count, std::byte* target) const {
  const Dtype form = workload_.form.gradient;
  workers_.share_pieces(count, kBlockElements, [&](uint64_t begin, uint64_t end) {
    convert(values, skip + begin, end - begin, target + begin * bytes_of(form), form);
  });
}

void GradientIntake::measure(const std::byte* gradient, uint64_t count, std::span<double> squares) const {
  const Dtype form = workload_.form.gradient;
  workers_.share_pieces(count, kBlockElements, [&](uint64_t begin, uint64_t end) {
    kernels_.square_sums(form, gradient + begin * bytes_of(form), end - begin, squares.subspan(begin / kBlockElements));
  });
}

void GradientIntake::convert(const Values& values, uint64_t skip, uint64_t count, std::byte* target,
                             Dtype dtype) const {
  const std::byte* source = values.bytes.data() + skip * bytes_of(values.dtype);
  if (values.dtype == dtype) {
    std::memcpy(target, source, count * bytes_of(dtype));
  } else {
    kernels_.cast(values.dtype, source, dtype, target, count);
  }
}

void GradientIntake::finished(uint32_t unit) {
  std::erase_if(summing_, [&](const auto& place) { return place.second == unit; });
  for (UseState& use : units_[unit].of_use) use.staying.clear();
}

std::string GradientIntake::why_not_absent(uint32_t index) const {
  const UnitState& state = units_[index];
  if (state.done) return state.last_given.empty() ? " was declared absent" : " has one";
  return state.last_given.empty() ? "" : " has one of " + state.last_given;
}

}  // namespace penstock::engine
