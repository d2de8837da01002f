#include "tools/penstock/config_checks.h"

#include "tools/penstock/options.h"
#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

Result<std::optional<uint64_t>> bytes_of_key(const char* key, const std::string& written) {
  std::optional<uint64_t> said;
  if (written.empty()) return said;
  Result<uint64_t> bytes = parse_bytes(written);
  if (!bytes.ok()) return bytes.status().within(text("config: penstock.", key));
  said = *bytes;
  return said;
}

Status expect_evaluations(const trainer::TrainConfig& config, const char* key, uint64_t value) {
  if (value == 0 || config.eval_every > 0) return Status();
  return Status(Code::kUsage, text("config: ", key, ": ", value, ": eval_every is 0, so that no step is evaluated"),
                "\"eval_every\": 100");
}

}  // namespace

Result<PlacesOfConfig> places_of(const trainer::TrainConfig& config) {
  PENSTOCK_TRY_ASSIGN(host_bytes, bytes_of_key("host_budget", config.host_budget));
  PENSTOCK_TRY_ASSIGN(device_bytes, bytes_of_key("device_budget", config.device_budget));
  PENSTOCK_TRY_ASSIGN(nvme_bytes, bytes_of_key("nvme_budget", config.nvme_budget));
  if (host_bytes == 0u) {
    return Status(Code::kUsage, text("config: penstock.host_budget: ", config.host_budget, ": nothing can run in that"),
                  "\"penstock\": {\"host_budget\": \"1GiB\"}");
  }
  Result<std::optional<Durability>> durability = parse_durability(config.durability);
  if (!durability.ok()) return durability.status().within("config: penstock.durability");
  return PlacesOfConfig{host_bytes, device_bytes, nvme_bytes, *durability};
}

Status refuse_contradictions(const trainer::TrainConfig& config) {
  PENSTOCK_TRY(expect_evaluations(config, "early_stopping.patience", config.early_stopping.evaluations));
  return expect_evaluations(config, "keep_best", config.keep_best);
}

}  // namespace penstock::tools
