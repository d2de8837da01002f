#include "tests/support/engine_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/watchdog.h"

namespace penstock::engine {

EngineWorld::EngineWorld(uint64_t seed, uint32_t drives, std::vector<uint64_t> unit_elements) : seed_(seed) {
  for (uint32_t drive = 0; drive < drives; ++drive) {
    folders_.push_back(std::make_shared<aio::MemoryFolder>("/drive" + std::to_string(drive), drive));
  }
  Workload& workload = options.request.workload;
  for (uint64_t elements : unit_elements) {
    Unit unit;
    unit.name = "unit" + std::to_string(workload.units.size());
    unit.elements = elements;
    workload.units.push_back(unit);
    plain_.units.emplace_back(initial(static_cast<uint32_t>(plain_.units.size()), elements));
    cut_into_groups(workload.units.back(), plain_.units.back());
  }
  DriveRates drive;
  drive.burst = MixCurve::flat(4);
  options.request.machine.drives.assign(drives, drive);
  options.request.machine.host_gbps = 50;
  options.request.budgets.host_bytes = 256 * kMiB;
  options.request.choices.tile_elements = kBlockElements;
  options.update_threads = 2;
  options.drives = [this] {
    return make_backend_ ? test::drives_in_memory(folders_, make_backend_()) : test::drives_in_memory(folders_);
  };
  settings.groups.clear();
  for (const Hyper& group : groups) {
    settings.groups.push_back({group.lr, group.beta1, group.beta2, group.eps, group.weight_decay});
  }
}

Status EngineWorld::create(aio::CreateOptions::Existing existing) {
  auto initial_values = [this](uint32_t unit, uint64_t first, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = initial_value(unit, first + i);
    return Status();
  };
  return Engine::create(options, initial_values, existing);
}

std::string EngineWorld::trainer_state(uint64_t step) {
  std::string state;
  while (step > 0 && state.size() < 6000) state += "step " + std::to_string(step) + " of the trainer\n";
  return state;
}

Status EngineWorld::begin_and_give(Engine& engine, float size) {
  const Watchdog watchdog(std::chrono::seconds(120), "an engine that is given its gradients");
  const uint64_t number = engine.steps_done() + 1;
  PENSTOCK_TRY(engine.begin({.groups = groups, .micro_batches = micro_batches, .loss_scale = settings.loss_scale}));
  std::vector<uint32_t> order = unit_order;
  for (uint32_t unit = static_cast<uint32_t>(plain_.units.size()); order.size() < plain_.units.size();)
    order.push_back(--unit);
  for (uint32_t unit : order) {
    PENSTOCK_TRY(
        give(engine, unit, given(number, unit), [&](uint32_t mb) { return gradient(number, unit, mb, size); }));
  }
  return Status();
}

Status EngineWorld::give(Engine& engine, uint32_t unit, Given what,
                         const std::function<std::vector<uint16_t>(uint32_t mb)>& gradient) {
  if (!trainable(unit)) return Status();
  if (what != Given::gradients) {
    return engine.absent_gradient(unit, absent_of(what));
  }
  if (gives_parts(unit)) return give_parts(engine, unit, gradient);
  for (uint32_t mb = 0; mb < micro_batches; ++mb) {
    const std::vector<uint16_t> values = gradient(mb);
    PENSTOCK_TRY(engine.gradient(unit, mb, Dtype::bf16, std::as_bytes(std::span(values))));
  }
  return Status();
}

Status EngineWorld::give_parts(Engine& engine, uint32_t unit,
                               const std::function<std::vector<uint16_t>(uint32_t mb)>& gradient) const {
  const uint64_t number = engine.steps_done() + 1;
  const std::vector<Parameter>& parameters = options.request.workload.units[unit].parameters;
  for (uint32_t mb = 0; mb < micro_batches; ++mb) {
    const std::vector<uint16_t> values = gradient(mb);
    for (uint32_t i = static_cast<uint32_t>(parameters.size()); i-- > 0;) {
      const Given what = given_parameter(number, unit, i);
      if (what != Given::gradients) {
        if (mb == 0) PENSTOCK_TRY(engine.absent_gradient(ParameterId{unit, i}, absent_of(what)));
        continue;
      }
      const uint64_t first = parameters[i].first_element;
      const auto part = std::span(values).subspan(first, parameters[i].elements);
      PENSTOCK_TRY(
          engine.gradient({.unit = unit, .micro_batch = mb, .first_element = first}, Dtype::bf16, std::as_bytes(part)));
    }
  }
  return Status();
}

Status EngineWorld::give_ones(Engine& engine, uint32_t unit, uint32_t micro_batch) const {
  const std::vector<uint16_t> values(options.request.workload.units[unit].elements, 0x3f80);
  return engine.gradient(unit, micro_batch, Dtype::bf16, std::as_bytes(std::span(values)));
}

void EngineWorld::plain_step(uint64_t number, float size) {
  std::vector<std::pair<uint32_t, plain::Unit>> untouched;
  for (uint32_t unit = 0; unit < plain_.units.size(); ++unit) {
    plain::Unit& plain = plain_.units[unit];
    for (plain::Unit::Part& part : plain.parts) part.absent = false;
    const bool has = trainable(unit) && given(number, unit) == Given::gradients;
    if (!has) std::fill(plain.g.begin(), plain.g.end(), uint16_t{0});
    for (uint32_t mb = 0; has && mb < micro_batches; ++mb) {
      plain.add_gradient(gradient(number, unit, mb, size).data(), mb == 0, mb + 1 == micro_batches);
    }
    if (has && gives_parts(unit)) leave_parts(number, unit, plain.g);
    const bool skips_all = has && gives_parts(unit) && skips_all_parameters(number, unit);
    if (!trainable(unit) || given(number, unit) == Given::skip || skips_all) untouched.emplace_back(unit, plain);
  }
  plain::step(plain_.units, settings, plain_.updates);
  for (auto& [unit, plain] : untouched) plain_.units[unit] = std::move(plain);
}

uint64_t EngineWorld::words_different(Engine& engine, const PlainModel& model) {
  uint64_t different = 0;
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    const plain::Unit& expected = model.units[unit];
    const size_t n = expected.p.size();
    std::vector<uint16_t> high(n), low(n);
    std::vector<float> m(n), v(n);
    read(engine, unit, Role::weight, high);
    if (!trainable(unit)) {
      for (size_t i = 0; i < n; ++i) different += high[i] != expected.high(i);
      continue;
    }
    read(engine, unit, Role::master_low, low);
    read(engine, unit, Role::momentum, m);
    read(engine, unit, Role::variance, v);
    for (size_t i = 0; i < n; ++i) {
      different += high[i] != expected.high(i) || low[i] != expected.low(i);
      different += plain::bits(m[i]) != plain::bits(expected.m[i]);
      different += plain::bits(v[i]) != plain::bits(expected.v[i]);
    }
  }
  return different;
}

bool EngineWorld::skips_all_parameters(uint64_t step, uint32_t unit) const {
  for (uint32_t i = 0; i < parameters(unit).size(); ++i) {
    if (given_parameter(step, unit, i) != Given::skip) return false;
  }
  return true;
}

void EngineWorld::leave_parts(uint64_t step, uint32_t unit, std::vector<uint16_t>& gradient) {
  std::vector<uint16_t> all(gradient.size());
  all.swap(gradient);
  for (uint32_t i = 0; i < parameters(unit).size(); ++i) {
    const uint64_t first = parameters(unit)[i].first_element, end = first + parameters(unit)[i].elements;
    const Given what = given_parameter(step, unit, i);
    if (what == Given::gradients) std::copy(all.begin() + first, all.begin() + end, gradient.begin() + first);
    std::vector<plain::Unit::Part>& parts = plain_.units[unit].parts;
    const auto ends = [end](const plain::Unit::Part& part) { return part.end >= end; };
    std::find_if(parts.begin(), parts.end(), ends)->absent = what == Given::skip;
  }
}

void EngineWorld::cut_into_groups(Unit& unit, plain::Unit& plain) {
  const uint64_t number = plain_.units.size() - 1;
  std::mt19937_64 random(seed_ * 1009 + number);
  unit.group = static_cast<uint32_t>(number % groups.size());
  plain.parts.clear();
  for (uint64_t at = 0; at < unit.elements;) {
    const uint64_t lengths[] = {1 + random() % 700, unit.elements / 3, kBlockElements - at % kBlockElements};
    const uint64_t length = std::min(lengths[random() % 3], unit.elements - at);
    uint32_t group = static_cast<uint32_t>(random() % groups.size());
    switch (random() % 4) {
      case 0:
        group = unit.group;
        break;  // unnamed
      case 1:
        group = unit.group;
        unit.parameters.push_back({text(unit.name, ".", at), at, length});
        break;
      default:
        unit.parameters.push_back({text(unit.name, ".", at), at, length, group});
    }
    at = std::min(unit.elements, (at + length + 127) / 128 * 128);
    plain.parts.push_back({group, at});
  }
}

float EngineWorld::initial_value(uint32_t unit, uint64_t i) const {
  return static_cast<float>(static_cast<int64_t>((i * 2654435761u + unit * 97 + seed_) % 20011) - 10005) * 1e-5f;
}

std::vector<StoreLayout::FileRange> EngineWorld::pieces_of(TileId tile, Role role) const {
  aio::QueuedIoEngine io(std::make_unique<aio::MemoryBackend>());
  const std::vector<std::shared_ptr<aio::DriveFolder>> folders(folders_.begin(), folders_.end());
  auto store = aio::TileStore::open(io, folders, {.purpose = aio::OpenOptions::Purpose::inspect}).value();
  const TileLayout layout = store->shape().layout(tile);
  const TileLayout::Place* place = layout.find(role);
  CHECK(place != nullptr);
  aio::TileStore::Reading reading = *store->begin_read(tile);
  store->end_read(reading.place);
  return store->layout().file_ranges(tile, reading.place.slot, place->offset_bytes,
                                     round_up(place->length_bytes, kAlignmentBytes));
}

std::vector<float> EngineWorld::initial(uint32_t unit, uint64_t elements) const {
  std::vector<float> values(elements);
  for (uint64_t i = 0; i < elements; ++i) values[i] = initial_value(unit, i);
  return values;
}

std::vector<uint16_t> EngineWorld::gradient(uint64_t step, uint32_t unit, uint32_t mb, float size) const {
  std::vector<uint16_t> values(plain_.units[unit].p.size());
  uint64_t state = seed_ * 7919 + step * 104729 + unit * 1299709 + mb * 15485863 + 1;
  for (uint16_t& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    float x = static_cast<float>(static_cast<int32_t>(state >> 33) - (1 << 30)) * 0x1p-30f * size;
    value = static_cast<uint16_t>(plain::bits(x) >> 16);
  }
  return values;
}

}  // namespace penstock::engine
