// EngineCore is what lives on the decision thread: drives, store, memory, workers and the executor, opened in that
// order and ended in the other. Engine's verbs reach it through messages.
#pragma once

#include "runtime/engine/engine.h"
#include "runtime/engine/executor.h"

namespace penstock::engine {

class EngineCore {
 public:
  // Opens the store and plans for the tiles it has.
  static Result<std::unique_ptr<EngineCore>> open(const EngineOptions& options, Mailbox& mailbox);

  const Plan& plan() const { return *plan_; }
  aio::TileStore& store() { return *store_; }
  Executor& executor() { return *executor_; }
  TileMemory& memory() { return *memory_; }
  const IoEngine& io() const { return *drives_.io; }
  uint32_t drives() const { return static_cast<uint32_t>(drives_.folders.size()); }
  std::string description() const;

  // Between steps, nothing under way. All of them block this thread until they are done.

  // What rests in host memory, from the store: all of it, or only the weights of tiles whose state rests on drives.
  enum class Resting { all, weights_of_others };
  Status load_resting(Resting which);
  // Makes what rests in host memory durable, with everything else.
  Status commit_resting(RootPayload payload);
  // One plane's elements.
  Status read_plane(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values);
  Status write_plane(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values, RootPayload payload);

 private:
  explicit EngineCore(const EngineOptions& options) : options_(options) {}
  Status open_store();
  Status make_plan();

  Status read_tile(uint32_t tile, aio::TileStore::Range range, Lease into, uint64_t lease_offset_bytes);
  Status write_tile(uint32_t tile, Lease from);
  Status commit(RootPayload payload);
  Status check_blocks(uint32_t tile, aio::TileStore::Range range, const std::byte* bytes,
                      std::span<const uint64_t> expected) const;
  std::vector<uint64_t> checksums_of(uint32_t tile, const std::byte* bytes) const;
  // Gathers each tile that has some of those elements and calls `visit` with its slot, the run of the plane that is
  // meant, and where that run lies in the caller's values.
  using VisitRun =
      std::function<Status(uint32_t tile, const Lease& slot, std::span<std::byte> run, uint64_t values_offset_bytes)>;
  Status visit_plane(const char* verb, uint32_t unit, Role role, uint64_t first, uint64_t length_bytes,
                     const VisitRun& visit);
  // A whole tile's bytes: from host memory where they rest, else from the store. `slot` is a window's piece.
  Status gather_tile(uint32_t tile, std::byte* slot);
  void scatter_resting(uint32_t tile, const std::byte* slot);

  const EngineOptions& options_;
  Drives drives_;
  std::unique_ptr<aio::TileStore> store_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<TileMemory> memory_;
  std::unique_ptr<SpillFiles> spill_;
  std::unique_ptr<cpu_optim::UpdateArena> workers_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace penstock::engine
