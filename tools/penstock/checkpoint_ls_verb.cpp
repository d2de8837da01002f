#include <algorithm>

#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/checkpoint_snapshots.h"
#include "tools/penstock/command.h"
#include "tools/penstock/export_output.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/text_table.h"

namespace penstock::tools {
namespace {

// Ranks commit together; one that is a step ahead was killed between the others' roots and its own.
uint64_t step_of(const InspectedStores& stores) {
  uint64_t step = stores.ranks().front()->payload().step;
  for (const auto& store : stores.ranks()) step = std::min(step, store->payload().step);
  return step;
}

// Of a trainer of ours, the model's: no padding of units, and nothing twice that several ranks have. Of another, what
// the stores have.
uint64_t parameters_of(const InspectedStores& stores) {
  const Result<Trained> trained = trained_by(stores.ranks().front()->payload());
  if (trained.ok()) return trained->model.parameters();
  uint64_t sum = 0;
  for (const auto& store : stores.ranks()) sum += store->shape().parameter_elements();
  return sum;
}

Result<Answer> list(const std::vector<std::string>& paths) {
  PENSTOCK_TRY_ASSIGN(stores, InspectedStores::open(paths));
  const uint64_t parameters = parameters_of(*stores);
  uint64_t bytes = 0, tiles = 0;
  for (const auto& store : stores->ranks()) {
    bytes += store->size_bytes();
    tiles += store->shape().tiles.size();
  }
  const aio::TileStore& first = *stores->ranks().front();
  const RootPayload& payload = first.payload();
  const uint64_t step = step_of(*stores);
  const engine::KeptTogether together = stores->kept();
  std::vector<std::string> remarks = stores->report().notes;
  if (const auto back = together.unfinished_rollback()) {
    remarks.push_back(text("a rollback to step ", *back, " was cut short: the next run ends it"));
  }
  Answer answer;
  answer.json = {{"step", step},
                 {"parameters", parameters},
                 {"bytes", bytes},
                 {"snapshots", snapshots_json(together)},
                 {"ranks", stores->ranks().size()},
                 {"drives", first.layout().drives()},
                 {"slots", first.layout().slots()},
                 {"units", first.shape().units.size()},
                 {"tiles", tiles},
                 {"engine_state_bytes", payload.engine_state.size()},
                 {"trainer_state_bytes", payload.trainer_state.size()},
                 {"remarks", remarks}};
  TextTable table(
      {"step", "parameters", "bytes", "ranks", "drives", "slots", "units", "tiles", "engine state", "trainer state"});
  table.add({text(step), text(parameters), bytes_text(bytes), text(stores->ranks().size()),
             text(first.layout().drives()), text(first.layout().slots()), text(first.shape().units.size()), text(tiles),
             bytes_text(payload.engine_state.size()), bytes_text(payload.trainer_state.size())});
  answer.text = table.str();
  if (const Json& snapshots = answer.json["snapshots"]; !snapshots.empty()) {
    TextTable kept({"kept step", "bytes", "held-out loss"});
    for (const Json& one : snapshots) {
      kept.add({text(one["step"].get<uint64_t>()), bytes_text(one["bytes"].get<uint64_t>()),
                one.contains("eval_loss") ? fixed(one["eval_loss"].get<double>(), 4) : "-"});
    }
    answer.text += "\n" + kept.str();
  }
  for (const std::string& note : remarks) answer.text += note + "\n";
  return answer;
}

}  // namespace

Verb checkpoint_ls_verb() {
  auto paths = std::make_shared<std::vector<std::string>>();
  return {"checkpoint ls",
          "Show what a store holds",
          "The store is the checkpoint. Lists its newest durable step, and the steps that were kept; changes nothing. "
          "A store that a run has open\n"
          "is refused until the run ends.",
          {{"penstock checkpoint ls /mnt/nvme0/run,/mnt/nvme1/run", "A store on two drives"}},
          [paths](Options& options) -> Action {
            options.paths("PATH", *paths, 1,
                          "The folders of the store, one on each drive, in any order; commas may join them");
            return [paths](Session&) { return list(*paths); };
          }};
}

}  // namespace penstock::tools
