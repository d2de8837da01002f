// The samples that a run learns from: those of its config's files, or of the text that ships with Penstock.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/data/samples.h"

namespace penstock::tools {

// The text that ships with Penstock.
std::string shipped_text();

// Opens the config's data. Its hashes go into the config, so that it names what was opened. Refuses data of another
// hash than the config names, and tokens that are not in a vocabulary of that size.
Result<trainer::Samples> samples_of(trainer::TrainConfig& config, uint32_t vocabulary);

}  // namespace penstock::tools
