#include "tools/train/gathering_of_run.h"

#include <array>
#include <vector>

#include "gpu/cuda_device.h"
#include "runtime/engine/ranks/nccl_library.h"
#include "runtime/engine/ranks/rank_agreement.h"
#include "tiering/store/store_hash.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kDevicesSeed = 0x5345'4349'5645'44;

struct Here {
  DeviceOfRank device;
  std::string nccl;  // which was found, or why none
};

Here look_here(const TrainingSettings& settings) {
  Here here;
  here.device.is_cuda = settings.device.kind == trainer::ComputeDevice::Kind::cuda;
  if (!here.device.is_cuda) return here;
  const Result<std::string> identity = gpu::cuda_identity(settings.device.index);
  if (identity.ok()) here.device.identity = store_hash(std::as_bytes(std::span(*identity)), kDevicesSeed);
  const auto library = engine::NcclLibrary::open();
  here.device.finds_nccl = library.ok();
  here.nccl = library.ok() ? (*library)->description() : library.status().message();
  return here;
}

}  // namespace

std::string why_in_host_memory(std::span<const DeviceOfRank> ranks, const engine::RankPlace& place,
                               const RankCodes& codes) {
  if (place.hosts > 1) return "ranks of several hosts share no bytes among devices";
  if (codes.weights || codes.frozen_weights) return "the CPU decodes weights that come in int8";
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].is_cuda) return text("rank ", rank, " computes on no GPU");
    if (ranks[rank].identity == 0) return text("rank ", rank, " cannot tell its GPU from others");
    for (size_t other = 0; other < rank; ++other) {
      if (ranks[rank].identity == ranks[other].identity)
        return text("ranks ", other, " and ", rank, " compute on the same GPU");
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].finds_nccl) return text("rank ", rank, " finds no NCCL");
  }
  return "";
}

bool may_gather_on_devices(const TrainingSettings& settings) {
  return settings.place.ranks > 1 && settings.device.kind == trainer::ComputeDevice::Kind::cuda;
}

Result<std::string> choose_gathering(TrainingSettings& settings, engine::Ranks& ranks) {
  const Here here = look_here(settings);
  std::vector<std::array<uint64_t, 3>> each(ranks.ranks());
  PENSTOCK_TRY(engine::exchange_numbers(
      ranks, std::array<uint64_t, 3>{here.device.is_cuda, here.device.identity, here.device.finds_nccl}, each));
  std::vector<DeviceOfRank> all;
  for (const auto& [is_cuda, identity, finds_nccl] : each) all.push_back({is_cuda != 0, identity, finds_nccl != 0});
  std::string why = why_in_host_memory(all, settings.place, settings.config.codes);
  settings.shares_on_device = why.empty();
  // Those in int4 the CPU decodes.
  const char* what = settings.config.codes.gradients ? "weights" : "weights and gradients";
  if (why.empty()) return text("ranks: they share ", what, " among their GPUs, by ", here.nccl);
  if (!here.device.finds_nccl && why == text("rank ", ranks.rank(), " finds no NCCL")) why = here.nccl;
  return text("ranks: they share weights and gradients in host memory: ", why);
}

}  // namespace penstock::tools
