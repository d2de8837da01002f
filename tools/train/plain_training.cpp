#include "tools/train/plain_training.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_optim/tile_update.h"
#include "runtime/trainer/torch/refusals.h"
#include "runtime/trainer/torch/tensors.h"
#include "runtime/trainer/torch/training_batches.h"
#include "runtime/trainer/torch/training_device.h"
#include "tiering/arithmetic/convert.h"
#include "tools/train/plain_words.h"
#include "tools/train/store_of_run.h"

namespace penstock::tools {
namespace {

using trainer::ComputePass;

std::string tensor_name(const trainer::ModelParameter& parameter, Role role) {
  return role == Role::weight ? parameter.name : text(parameter.name, ' ', name_of(role));
}

// The parameter that element `index` of the unit is in, or the one whose padding it is.
const trainer::ModelParameter& parameter_at(const trainer::ModelUnit& unit, uint64_t index) {
  size_t number = 0;
  while (number + 1 < unit.parameters.size() && unit.parameters[number + 1].first_element <= index) ++number;
  return unit.parameters[number];
}

// Stochastic rounding draws for each unit apart.
uint64_t rounding_seed(uint64_t seed, uint32_t unit) { return (seed ^ unit) * 0x9e3779b97f4a7c15u + unit; }

}  // namespace

PlainTraining::PlainTraining(const TrainingSettings& settings)
    : settings_(settings),
      accelerator_(trainer::accelerator_of(settings)),
      form_(settings.engine.request.workload.form),
      codes_(settings.place.ranks > 1 ? settings.config.codes : RankCodes()),
      step_(settings.model, *this, trainer::choices_of(settings),
            std::vector<ActivationChoice>(settings.model.uses.size(), ActivationChoice::recompute)),
      scaler_(settings.config.loss_scaling, settings.config.precision) {}

Result<std::unique_ptr<PlainTraining>> PlainTraining::make(const TrainingSettings& settings) {
  std::unique_ptr<PlainTraining> plain(new PlainTraining(settings));
  plain->accelerator_->limit_tensors(trainer::Accelerator::kNoLimit);  // it has no budget
  PENSTOCK_TRY_ASSIGN(starting, starting_values(settings));
  for (uint32_t unit = 0; unit < settings.model.units.size(); ++unit) {
    std::vector<float> masters(settings.model.units[unit].elements);
    PENSTOCK_TRY(starting.read(unit, 0, masters));
    if (const std::optional<BlockCode> code = settings.model.units[unit].code) round_to(*code, masters);
    PENSTOCK_TRY(plain->fill(unit, masters));
  }
  return plain;
}

uint64_t PlainTraining::bytes_needed(const TrainingSettings& settings) {
  uint64_t bytes = 0;
  const StateForm& form = settings.engine.request.workload.form;
  for (const trainer::ModelUnit& unit : settings.model.units) {
    bytes += unit.elements * bytes_of(form.weight);
    // States, the gradient, its sum of one use, and that of ranks.
    if (unit.trainable()) bytes += TileLayout(form, unit.elements).size_bytes + unit.elements * 12;
  }
  return bytes;
}

Status PlainTraining::fill(uint32_t unit, std::span<const float> masters) {
  PlainUnit& plain = units_.emplace_back();
  plain.weights = Buffer::on_heap(round_up(masters.size() * bytes_of(form_.weight), kAlignmentBytes));
  std::fill(plain.weights.bytes().begin(), plain.weights.bytes().end(), std::byte{0});
  // What codes stand for is rounded as any other value; a master is cut.
  const bool is_split = form_.master == MasterForm::split && !settings_.model.units[unit].code;
  for (uint64_t i = 0; i < masters.size(); ++i) {
    if (is_split)
      put_word(plain.weights.data(), i, arithmetic::split_of(masters[i]).high);
    else
      put_value(plain.weights.data(), i, form_.weight, masters[i]);
  }
  if (!settings_.model.units[unit].trainable()) return Status();
  const TileLayout layout(form_, masters.size());
  plain.states = Buffer::on_heap(layout.size_bytes);
  std::fill(plain.states.bytes().begin(), plain.states.bytes().end(), std::byte{0});
  if (const TileLayout::Place* low = layout.find(Role::master_low)) {
    for (uint64_t i = 0; i < masters.size(); ++i)
      put_word(plain.states.data() + low->offset_bytes, i, arithmetic::split_of(masters[i]).low);
  }
  if (const TileLayout::Place* full = layout.find(Role::master)) {
    for (uint64_t i = 0; i < masters.size(); ++i) put_word(plain.states.data() + full->offset_bytes, i, masters[i]);
  }
  plain.gradient.resize(masters.size() * bytes_of(form_.gradient));
  return Status();
}

Result<std::vector<trainer::UnitWeights>> PlainTraining::acquire(const ComputePass& pass) {
  on_device_.clear();
  return trainer::without_exceptions(nullptr, [&]() -> Result<std::vector<trainer::UnitWeights>> {
    std::vector<trainer::UnitWeights> lent;
    for (uint32_t unit : settings_.model.uses[pass.use].units) {
      on_device_.push_back(computed_weights(unit).to(accelerator_->device()));
      lent.push_back({unit, settings_.model.units[unit].elements, trainer::bytes_of(std::as_const(on_device_.back()))});
    }
    return lent;
  });
}

// What ranks compute with that gather weights in codes is what these stand for.
at::Tensor PlainTraining::computed_weights(uint32_t unit) {
  const at::Tensor weights = trainer::tensor_over(units_[unit].weights.bytes(), at::kCPU);
  const bool is_coded = codes_.weights || (codes_.frozen_weights && !settings_.model.units[unit].trainable());
  if (!is_coded) return weights;
  std::vector<float> values(settings_.model.units[unit].elements);
  for (uint64_t i = 0; i < values.size(); ++i) values[i] = value_of(units_[unit].weights.data(), i, form_.weight);
  round_to(BlockCode::int8, values);
  at::Tensor coded = weights.clone();
  for (uint64_t i = 0; i < values.size(); ++i) {
    put_value(trainer::bytes_of(coded).data(), i, form_.weight, values[i]);
  }
  return coded;
}

Status PlainTraining::gradient(const ComputePass& pass, uint32_t unit, uint64_t first, Dtype dtype,
                               std::span<const std::byte> given) {
  const at::Tensor on_host = trainer::tensor_over(given, accelerator_->device()).to(at::kCPU);
  const std::span<const std::byte> values = trainer::bytes_of(on_host);
  auto [found, is_new] = sums_.try_emplace({unit, pass.use}, settings_.model.units[unit].elements, 0.0f);
  float* sum = found->second.data() + first;
  for (uint64_t i = 0; i < values.size() / bytes_of(dtype); ++i) {
    const float x = value_of(values.data(), i, dtype);
    sum[i] = pass.micro_batch == 0 ? x : sum[i] + x;
  }
  return Status();
}

Status PlainTraining::put(uint32_t, uint32_t, uint32_t, std::span<const std::byte>) {
  return Status(Code::kUsage, "the plain loop keeps no activations elsewhere");
}
Status PlainTraining::get(uint32_t, uint32_t, uint32_t, std::span<std::byte>) {
  return Status(Code::kUsage, "the plain loop keeps no activations elsewhere");
}

void PlainTraining::add_rank() {
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    if (!settings_.model.units[unit].trainable()) continue;
    const uint64_t elements = settings_.model.units[unit].elements;
    std::vector<float> total(elements, 0.0f);
    bool first = true;
    for (const auto& [unit_and_use, sum] : sums_) {
      if (unit_and_use.first != unit) continue;
      for (uint64_t i = 0; i < elements; ++i) total[i] = first ? sum[i] : total[i] + sum[i];
      first = false;
    }
    std::byte* gradient = units_[unit].gradient.data();
    std::vector<float>& over_ranks = units_[unit].over_ranks;
    const bool is_first_rank = over_ranks.empty();
    over_ranks.resize(elements);
    for (uint64_t i = 0; i < elements; ++i) {
      put_value(gradient, i, form_.gradient, total[i]);
      total[i] = value_of(gradient, i, form_.gradient);
    }
    if (codes_.gradients) round_to(BlockCode::int4, total);
    for (uint64_t i = 0; i < elements; ++i) over_ranks[i] = is_first_rank ? total[i] : over_ranks[i] + total[i];
  }
  sums_.clear();
}

double PlainTraining::finish_gradients() {
  double squares = 0;
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    if (!settings_.model.units[unit].trainable()) continue;
    const uint64_t elements = settings_.model.units[unit].elements;
    std::byte* gradient = units_[unit].gradient.data();
    for (uint64_t i = 0; i < elements; ++i) put_value(gradient, i, form_.gradient, units_[unit].over_ranks[i]);
    units_[unit].over_ranks.clear();
    squares += square_sum(gradient, elements, form_.gradient);
  }
  return squares;
}

void PlainTraining::update(uint32_t unit, const std::vector<Hyper>& groups, double gradient_scale) {
  const trainer::ModelUnit& shape = settings_.model.units[unit];
  std::vector<NumbersRun> runs;
  for (size_t i = 0; i < shape.parameters.size(); ++i) {
    const bool last = i + 1 == shape.parameters.size();
    StepNumbers numbers;
    numbers.gradient_scale = static_cast<float>(gradient_scale);
    numbers.seed = rounding_seed(settings_.engine.seed, unit);
    numbers.step = updates_ + 1;
    numbers.coefficients = make_coefficients(form_.optimizer, groups[settings_.groups.of[unit][i]], numbers.step);
    runs.push_back({numbers, last ? shape.elements : shape.parameters[i + 1].first_element});
  }
  PlainUnit& plain = units_[unit];
  const TileLayout layout(form_, shape.elements);
  const auto tile = cpu_optim::TileView::in_place(layout, plain.states.data(), plain.weights.data(),
                                                  plain.gradient.data(), shape.elements, 0);
  cpu_optim::TileUpdater(form_, cpu_optim::Isa::scalar).update(tile, runs);
}

Result<double> PlainTraining::step() {
  const uint64_t number = steps_ + 1;
  const uint64_t accumulation = settings_.config.accumulation, sequences = settings_.config.micro_batch;
  const uint64_t all = accumulation * settings_.place.ranks;
  std::vector<trainer::MicroBatch> batches;
  trainer::StepLoss loss;
  while (settings_.config.leave_out.has(++batch_)) continue;
  for (uint64_t mb = (batch_ - 1) * all; mb < batch_ * all; ++mb) {
    batches.push_back(settings_.samples.batch(mb * sequences, sequences));
    loss.supervised += batches.back().supervised();
  }
  const auto order = trainer::step_order(settings_.model, static_cast<uint32_t>(accumulation), 1);
  const double scale = scaler_.scale();
  for (uint64_t first = 0; first < all; first += accumulation) {
    const std::span<const trainer::MicroBatch> of_rank = std::span(batches).subspan(first, accumulation);
    PENSTOCK_TRY_ASSIGN(part, step_.run(number, of_rank, order, scale, {first, loss.supervised}));
    loss.sum += part.sum;
    add_rank();
  }
  const double squares = finish_gradients();
  const Clipping& clipping = settings_.engine.request.workload.clipping;
  const bool skipped = clipping.skips_overflow && !std::isfinite(squares);
  if (!skipped) {
    const double norm = std::sqrt(squares) / scale;
    const double clipped = clipping.norm > 0 ? clipping.norm / (norm + 1e-6) : 1.0;
    const double factor = clipped > 1 ? 1.0 : clipped;  // no number where it is none
    const std::vector<Hyper> groups = trainer::hypers_of(settings_.config, settings_.groups, number);
    for (uint32_t unit = 0; unit < units_.size(); ++unit) {
      if (settings_.model.units[unit].trainable()) update(unit, groups, 1 / scale * factor);
    }
    ++updates_;
  }
  PENSTOCK_TRY(scaler_.learn(number, skipped));
  steps_ = number;
  return loss.mean();
}

Status PlainTraining::read_for_comparison(const TrainingSettings& settings, engine::StepEngine& engine) {
  const StateForm& form = settings.engine.request.workload.form;
  for (uint32_t unit = 0; unit < settings.model.units.size(); ++unit) {
    const trainer::ModelUnit& shape = settings.model.units[unit];
    auto read = [&](const Plane& plane) {
      std::vector<std::byte> unused(plane.bytes(shape.elements));
      return engine.read(unit, plane.role, 0, unused);
    };
    PENSTOCK_TRY(read({Role::weight, form.weight}));
    if (!shape.trainable()) continue;
    for (const TileLayout::Place& place : TileLayout(form, shape.elements).places) PENSTOCK_TRY(read(place.plane));
  }
  return Status();
}

Result<Comparison> PlainTraining::compare(engine::StepEngine& engine) const {
  Comparison comparison;
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    const trainer::ModelUnit& shape = settings_.model.units[unit];
    const TileLayout layout(form_, shape.elements);
    auto compare_plane = [&](const Plane& plane, const std::byte* expected) {
      const uint64_t values = plane.values(shape.elements);
      std::vector<std::byte> tiered(values * bytes_of(plane.dtype));
      PENSTOCK_TRY(engine.read(unit, plane.role, 0, tiered));
      comparison.tensors += shape.parameters.size();
      comparison.words_compared += values;
      for (uint64_t i = 0; i < values; ++i) {
        const uint32_t there = word_at(tiered.data(), i, plane.dtype), here = word_at(expected, i, plane.dtype);
        if (there == here) continue;
        ++comparison.words_different;
        const bool is_scale = values != shape.elements;
        const trainer::ModelParameter& parameter = parameter_at(shape, is_scale ? i * kMomentBlockElements : i);
        const uint64_t first = is_scale ? parameter.first_element / kMomentBlockElements : parameter.first_element;
        if (!comparison.first) comparison.first = {tensor_name(parameter, plane.role), i - first, there, here};
      }
      return Status();
    };
    PENSTOCK_TRY(compare_plane({Role::weight, form_.weight}, units_[unit].weights.data()));
    if (!shape.trainable()) continue;
    for (const TileLayout::Place& place : layout.places)
      PENSTOCK_TRY(compare_plane(place.plane, units_[unit].states.data() + place.offset_bytes));
  }
  return comparison;
}

}  // namespace penstock::tools
