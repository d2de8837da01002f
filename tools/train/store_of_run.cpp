#include "tools/train/store_of_run.h"

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "cpu_optim/checksum.h"
#include "runtime/trainer/engine_link.h"
#include "tools/penstock/store_flags.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

// Of the ranks' stores in these folders the one to look at: this rank's own, or of those that are there the first.
std::optional<uint32_t> store_to_look_at(const std::vector<std::string>& folders, uint32_t own, bool sees_all) {
  if (has_store(folders, own)) return own;
  for (uint32_t rank = 0; !sees_all && rank < engine::kRanksMax; ++rank) {
    if (has_store(folders, rank)) return rank;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> folders_of_rank(const std::vector<std::string>& stores, const engine::RankPlace& place) {
  if (place.ranks == 1 || stores.size() != place.ranks_here()) return stores;
  return {stores[place.rank_here()]};
}

Result<std::optional<trainer::TrainerState>> stored_state(const std::vector<std::string>& stores,
                                                          const engine::RankPlace& place) {
  const bool sees_all = place.hosts == 1;
  const std::vector<std::string> folders = sees_all ? stores : folders_of_rank(stores, place);
  const uint32_t own = sees_all ? 0 : place.rank;
  const std::optional<uint32_t> rank = store_to_look_at(folders, own, sees_all);
  if (!rank) return std::optional<trainer::TrainerState>();
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  aio::OpenOptions options;
  options.purpose = aio::OpenOptions::Purpose::inspect;
  options.checksum = cpu_optim::checksum_function();
  options.rank = *rank;
  const auto drives = drives_of_rank(aio::direct_folders(folders, aio::Access::read_only), *rank);
  PENSTOCK_TRY_ASSIGN(found, aio::find_store(*made.engine, drives, *rank));
  if (found.kind == aio::StorePresence::Kind::half_made) return std::optional<trainer::TrainerState>();
  PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*made.engine, drives, options));
  if (const uint32_t made_by = store->shape().ranks; made_by != place.ranks) {
    return Status(Code::kUsage,
                  text("store: ", folders.front(), ": made by ", made_by, made_by == 1 ? " rank" : " ranks", ", ",
                       place.ranks, place.ranks == 1 ? " is here" : " are here"),
                  text(made_by == 1 ? std::string("start without --ranks") : text("--ranks ", made_by),
                       ", or `penstock checkpoint reshard ", shell_word(joined(folders, ",")), " NEW --ranks ",
                       place.ranks, "`, another folder, or --force, which replaces it"));
  }
  if (*rank != own) return std::optional<trainer::TrainerState>();
  PENSTOCK_TRY_ASSIGN(state, trainer::parse_trainer_state(store->payload().trainer_state));
  return std::optional(std::move(state));
}

Result<trainer::StartingValues> starting_values(const trainer::TrainingSettings& settings) {
  return trainer::StartingValues::open(settings.model, settings.model_folder, settings.config.lora.adapter,
                                       settings.config.seed);
}

Status make_store(const trainer::TrainingSettings& settings, aio::CreateOptions::Existing existing, const Tick& tick,
                  engine::Ranks* ranks) {
  PENSTOCK_TRY_ASSIGN(starting, starting_values(settings));
  auto initial = [&](uint32_t unit, uint64_t first, std::span<float> values) {
    PENSTOCK_TRY(starting.read(unit, first, values));
    return tick(static_cast<double>(unit) / static_cast<double>(settings.model.units.size()));
  };
  if (ranks != nullptr) return engine::RankedEngine::create(settings.ranked(), *ranks, initial, existing);
  return engine::Engine::create(settings.engine, initial, existing);
}

}  // namespace penstock::tools
