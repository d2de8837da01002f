#include "runtime/trainer/files/starting_values.h"

#include "runtime/trainer/initial_values.h"

namespace penstock::trainer {
namespace {

// What another thread is to take over lasts some 100 us.
constexpr uint64_t kPieceElements = 4096;

bool has_weights(const ModelUnit& unit) { return unit.parameters.front().factor == Factor::none; }

}  // namespace

Result<StartingValues> StartingValues::open(const Model& model, const std::string& model_folder,
                                            const std::string& adapter_folder, uint64_t seed) {
  PENSTOCK_TRY_ASSIGN(workers, cpu_optim::UpdateWorkers::make());
  StartingValues values(model, seed, std::move(workers));
  if (!model_folder.empty()) {
    PENSTOCK_TRY_ASSIGN(folder, ModelFolder::open(model_folder, model));
    values.folder_ = std::move(folder);
  }
  if (!adapter_folder.empty()) {
    PENSTOCK_TRY_ASSIGN(adapters, AdapterFolder::open(adapter_folder, model));
    values.adapters_ = std::move(adapters);
  }
  return Result<StartingValues>(std::move(values));
}

Status StartingValues::read(uint32_t unit, uint64_t first, std::span<float> values) const {
  if (folder_ != nullptr && has_weights(model_->units.at(unit)))
    PENSTOCK_TRY(folder_->read(unit, first, values));
  else
    workers_->share_pieces(values.size(), kPieceElements, [&](uint64_t begin, uint64_t end) {
      fill_initial_values(*model_, seed_, unit, first + begin, values.subspan(begin, end - begin));
    });
  return adapters_ == nullptr ? Status() : adapters_->read(unit, first, values);
}

}  // namespace penstock::trainer
