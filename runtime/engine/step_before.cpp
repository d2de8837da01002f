#include "runtime/engine/step_before.h"

#include "aio/direct_folder.h"
#include "aio/host_arena.h"
#include "aio/make_io_engine.h"
#include "cpu_optim/checksum.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kVerifyingBytes = 64 * kMiB;

}  // namespace

Result<std::optional<uint64_t>> whole_step_before(uint64_t newest, const std::vector<std::string>& folders,
                                                  const aio::ScrubProgress& progress) {
  if (newest == 0) return std::optional<uint64_t>();
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kVerifyingBytes));
  PENSTOCK_TRY_ASSIGN(memory, arena->take("blocks to verify", kVerifyingBytes));
  const auto drives = aio::direct_folders(folders, aio::Access::read_only);
  const auto store = aio::TileStore::open(*made.engine, drives,
                                          {.purpose = aio::OpenOptions::Purpose::inspect,
                                           .checksum = cpu_optim::checksum_function(),
                                           .newest_step = newest - 1});
  if (!store.ok() || (*store)->shape().ranks != 1) return std::optional<uint64_t>();
  PENSTOCK_TRY_ASSIGN(report, (*store)->scrub(memory, progress));
  return report.bad.empty() ? std::optional<uint64_t>((*store)->payload().step) : std::nullopt;
}

Status go_back_to_step_before(uint64_t step, const std::vector<std::string>& folders) {
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  const auto drives = aio::direct_folders(folders, aio::Access::read_write);
  PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*made.engine, drives,
                                                  {.checksum = cpu_optim::checksum_function(), .newest_step = step}));
  // By a root that is later than all that is given up, none of which is missed then.
  return store->commit_and_wait(store->payload());
}

}  // namespace penstock::engine
