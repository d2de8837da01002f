// What can be told of a training file without its model, its data and its drives: by `penstock config check` and by the
// run alike.
#pragma once

#include <optional>

#include "runtime/trainer/config/train_config.h"
#include "tiering/plan/durability.h"
#include "tiering/status.h"

namespace penstock::tools {

// Of a node, of whose memory each of its ranks has its part. None: nothing was said.
struct PlacesOfConfig {
  std::optional<uint64_t> host_bytes, device_bytes, nvme_bytes;
  std::optional<Durability> durability;
};

// Refuses what is no size, no durability, or no host memory at all.
Result<PlacesOfConfig> places_of(const trainer::TrainConfig& config);

// Refuses keys that ask for what another key takes away.
Status refuse_contradictions(const trainer::TrainConfig& config);

}  // namespace penstock::tools
