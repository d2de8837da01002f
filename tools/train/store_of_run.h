// The store of a run: which of a host's folders it lies in, what it keeps of the run, and how it is made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/files/starting_values.h"
#include "runtime/trainer/training_settings.h"
#include "tools/nvme/job.h"

namespace penstock::tools {

// Those of a host's stores that this rank's lies in: all of them, or one for each rank there, where there are as many.
std::vector<std::string> folders_of_rank(const std::vector<std::string>& stores, const engine::RankPlace& place);

// What a root of the stores in a host's folders keeps of the run: that of rank 0 where all ranks are on one host, of
// this rank where they are on several, which do not see one another's folders; none where there is no store, or one
// whose making was cut short. Refuses what another number of ranks has made.
Result<std::optional<trainer::TrainerState>> stored_state(const std::vector<std::string>& stores,
                                                          const engine::RankPlace& place = {});

// What the run begins with.
Result<trainer::StartingValues> starting_values(const trainer::TrainingSettings& settings);

// Makes the store: weights come from the model's folder, or begin from scratch. Several ranks make theirs together.
Status make_store(const trainer::TrainingSettings& settings, aio::CreateOptions::Existing existing, const Tick& tick,
                  engine::Ranks* ranks = nullptr);

}  // namespace penstock::tools
