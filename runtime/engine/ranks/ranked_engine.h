// RankedEngine is the StepEngine of one rank, a process that trains one model together with the other ranks'. Each rank
// has an Engine of its own for its shards, with their store, and runs the same trainer over other samples.
//
//   acquire(...)   waits for the weights of a use's units, gathered from the ranks of this one's group
//   release(...)   of a unit's last backward pass: its gradients are added up over all ranks, each rank's piece there
//   step()         takes the norm over all ranks' blocks, so that all have one verdict
//
// Both run beside the trainer, on a CollectiveLane. A use's weights are gathered while the one before it is computed,
// and the gradients of the one before that are added up; there is memory for the weights of two uses, one after
// another, and for the gradients of one. Where the plan of some rank brings a use's weights too late for that
// (visits_ahead), they are gathered when it is acquired, and what is added up is waited for. So the order of the
// collectives follows from the plan's passes alone, and is that of all ranks.
//
// A gradient's sum over ranks is made of each rank's sum over its uses and micro-batches, rounded to the gradient dtype
// for the way, then in fp32 in the order of ranks, and rounded once. Which ranks keep what (ShardMap, and whether
// gathered weights are kept within a step) changes bytes, never bits.
//
// Where the workload says so (RankCodes), weights are gathered in codes, and every rank computes with what they stand
// for, its own shard's too; and gradients are sent in codes, and what they stand for is added up as above, of the rank
// that adds up too. Blocks are the unit's, so that these bits do not depend on who keeps what either.
//
// All ranks call the same verbs in the same order, with the same hyper-parameters and numbers of micro-batches; but for
// gradients and absences, which are each rank's own. What no rank has a gradient of is absent; what some rank has one
// of is updated. A root is written when all ranks have flushed, and a slot used again when all have their roots. What
// refuses a verb, other than a wrong call, ends all ranks.
//
// Where the plan computes on a device, that is this rank's, and streams say when, as with Engine. Ranks may share among
// their devices (shares_on_device): each rank's shard is copied within its device to its place in the memory of the
// collective among devices, which brings the others', and the trainer computes with them there. Gradients are added up
// on the device, by kernels on the trainer's stream, then by that collective, and what a rank has added up of its
// shards comes down; those that are sent in codes come down before that, as below. Or ranks share in host memory:
// shards come down from the device, whole units go up, gradients come down and are added up there, and gradient() waits
// for what it brings down. The bits are the same.
//
// ranked_engine_request.cpp has what a rank is asked for and takes, ranked_engine_open.cpp create() and open(),
// ranked_engine.cpp the verbs, and ranked_engine_lane.cpp what goes on beside the trainer.
#pragma once

#include <atomic>
#include <map>

#include "cpu_optim/coded_records.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/rank_side.h"
#include "runtime/engine/ranks/collective_lane.h"
#include "runtime/engine/ranks/rank_commits.h"
#include "runtime/engine/ranks/rank_device_sums.h"
#include "runtime/engine/ranks/ranks.h"
#include "runtime/engine/ranks/shard_map.h"
#include "tiering/plan/collective_moves.h"

namespace penstock::engine {

struct RankedOptions {
  // Of the whole model; budgets, machine and drives are this rank's.
  EngineOptions engine;
  // How many ranks, neighbours, have all of the model together; divides the number of ranks. 0: all. 1: every rank has
  // all of it, and the gradients alone are shared (stage 0).
  uint32_t group_ranks = 0;
  // Whether what was gathered is kept until the step ends (stages 1 and 2), or gathered for every pass (stage 3).
  bool keeps_weights = false;
  // Where the plan computes on a device: whether weights are gathered there, and gradients added up that are not sent
  // in codes, by Ranks::among_devices(); or in host memory. Alike on all ranks; it changes no bit.
  bool shares_on_device = false;

  uint32_t ranks_of_group(uint32_t ranks) const { return group_ranks == 0 ? ranks : group_ranks; }
};

// What a rank's engine takes besides its plan: lines of its budget.
struct RankMemory {
  // Weights of two uses, one after another; on their way to a device, of one; none where they are gathered there.
  uint64_t gathered_bytes = 0;
  uint64_t given_bytes = 0;      // gradients of a use on their way to those who add them up
  uint64_t added_bytes = 0;      // what this rank has added up
  uint64_t squares_bytes = 0;    // of all blocks
  uint64_t coded_bytes = 0;      // weights of a use in codes
  uint64_t collected_bytes = 0;  // gradients in codes, of all ranks, of what this one adds up of a unit
  // Where a device computes: a gradient as the trainer gives it, and what the rank has on the device.
  uint64_t downloaded_bytes = 0;
  struct OnDevice {
    uint64_t weights = 0;   // of two uses, one after another
    bool gathers = false;   // them, in the memory of the ranks' collective among devices
    uint64_t gradient = 0;  // as the trainer gives it, on its way down
    // Where gradients are added up there: of this rank's micro-batches and uses; and in the collective's memory, those
    // of a use on their way, what this rank has added up, and what comes from others meanwhile.
    uint64_t sums = 0, given = 0, added = 0, staging = 0;
    uint64_t all() const { return weights + gradient + sums + given + added + staging; }
    bool reduces() const { return given > 0; }
  } on_device = {};
  uint64_t sums_bytes = 0;  // of this rank's micro-batches and uses, in fp32; in no other rank's reach

  // What the ranks' collective for passes must have.
  uint64_t shared_bytes() const {
    return gathered_bytes + given_bytes + added_bytes + squares_bytes + coded_bytes + collected_bytes +
           downloaded_bytes;
  }
  // What their collective among devices must have; 0: it is not used.
  uint64_t shared_on_device() const {
    return (on_device.gathers ? on_device.weights : 0) + on_device.given + on_device.added;
  }
  std::vector<BudgetLine> lines() const;
};

class RankedEngine final : public StepEngine, private RankSide {
 public:
  // Refuses what several ranks cannot do: forms of state, by any request of theirs, and the rest.
  static Status check_form(const PlanRequest& request);
  static Status check(const RankedOptions& options, uint32_t ranks);
  // REQUIRES: check() is ok.
  static RankMemory memory_of(const RankedOptions& options, uint32_t ranks);
  // What this rank's own engine is asked for: its shards, and what is left of its budget. REQUIRES: check() is ok.
  static Result<PlanRequest> request_of(const RankedOptions& options, const RankPlace& place);

  // All ranks together. `initial` as of Engine::create(), by the model's units.
  static Status create(const RankedOptions& options, Ranks& ranks, const InitialValues& initial,
                       aio::CreateOptions::Existing existing = aio::CreateOptions::Existing::refuse);
  // At the newest step that all ranks' stores have. `ranks` outlives it.
  static Result<std::unique_ptr<RankedEngine>> open(const RankedOptions& options, Ranks& ranks);
  ~RankedEngine() override;

  uint64_t steps_done() const override { return here_->steps_done(); }
  uint64_t updates_done() const override { return here_->updates_done(); }
  const Plan& plan() const override { return here_->plan(); }
  Plan forecast() const override;
  double predicted_step_s() const override { return prediction_.step_s(); }
  const std::string& restored_state() const override { return here_->restored_state(); }
  const std::string& store_id() const override { return here_->store_id(); }
  std::string description() const override;
  std::vector<std::string> remarks() const override { return here_->remarks(); }
  // Of this rank's drives.
  DriveBytes drive_bytes() const override { return here_->drive_bytes(); }
  const ShardMap& shards() const { return map_; }

  Status begin(const StepBegin& begin) override;
  std::vector<ComputePass> passes() const override { return here_->passes(); }
  Result<std::vector<UnitWeights>> acquire(const ComputePass& pass, Stream stream = {}) override;
  Status release(const ComputePass& pass) override;
  Result<std::span<std::byte>> put(const ComputePass& pass, uint64_t bytes) override;
  Result<std::span<std::byte>> get(const ComputePass& pass, size_t number) override;
  // As Engine::gradient().
  Status gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values,
                  std::optional<Stream> stream = {}) override;
  Status absent_gradient(uint32_t unit, Absent absent) override;
  Status absent_gradient(ParameterId parameter, Absent absent) override;
  Result<double> gradient_norm() override;
  Result<StepReport> step(std::string trainer_state = {}) override;
  Status discard() override;
  Status give_up(const Status& why) override;
  Status begin_forward() override;
  Status end_forward() override;
  Status finish() override;
  Status settle() override;
  // Of this rank's store. See KeptTogether.
  std::vector<aio::TileStore::FileRun> runs_of_durable_step() const override { return here_->runs_of_durable_step(); }

  // Of this rank's shard of the unit, from its first element on; see shards().
  Status read_shard(uint32_t unit, Role role, std::span<std::byte> values);
  Status read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) override;
  Status exchange(std::span<const uint64_t> mine, std::span<uint64_t> all) override;

 private:
  RankedEngine(const RankedOptions& options, Ranks& ranks);

  // RankSide
  uint32_t rank() const override { return ranks_.rank(); }
  Origin origin_of(uint32_t unit) const override;
  uint32_t ranks() const override { return ranks_.ranks(); }
  void take_gradient(uint32_t unit, uint64_t first, uint64_t count, std::byte* target,
                     std::span<double> squares) override;
  Result<double> sum_of_squares(const std::vector<std::vector<double>>& blocks) override;
  aio::CommitBarriers barriers(std::function<void()> wake) override { return commits_.barriers(std::move(wake)); }
  void poll(std::chrono::milliseconds at_most) override { commits_.poll(at_most); }
  void progressed() override { ranks_.progressed(); }

  Result<EngineOptions> options_here();
  Status agree_on_plan();
  Status open_at_common_step();
  Status expect_one_course(uint64_t step);
  Status open_device();
  void open_sums();
  void lay_out();
  // By visit.
  std::vector<VisitTraffic> traffic() const;

  std::string gathering_words() const;

  // Tells the others of what is no wrong call.
  Status passed_on(const Status& status);
  Status passed_on_after_asking(const Status& status);
  // When all that is under way beside the trainer has ended.
  Status drain();
  Status run(const std::function<void(Collective::Then)>& operation);

  // The weights of a use's units that are not gathered yet, on their way.
  struct Gathering {
    struct Place {
      uint32_t unit;
      std::span<std::byte> gathered, own;               // where ranks gather it; of it, this rank's shard
      std::span<std::byte> on_device;                   // if that computes
      std::span<std::byte> coded = {}, own_coded = {};  // what is gathered instead of them, if codes are
    };
    std::vector<Collective::Shard> shards;
    std::vector<Place> places;
    std::vector<UnitWeights> views;  // this rank's shards, when they are there
    Event written;                   // on a device: when they are
    std::vector<Event> readers;      // of what was at the places there before
    std::vector<Event> uploaded;
    CollectiveLane::Number number = 0;
  };
  // Where the use's weights are computed with, in the visit.
  std::vector<uint64_t> places_of(uint32_t use, uint32_t visit) const;
  std::span<std::byte> computed_with(uint64_t place, uint64_t bytes) const;
  // None: all are gathered.
  std::shared_ptr<Gathering> next_gathering(uint32_t use, uint32_t visit);
  void gather_visit(uint32_t visit);
  Status carry_out(Gathering& gathering);
  // Where this rank's shards come to, and from where.
  std::vector<RankDevice::Within> own_shards(const Gathering& gathering) const;
  Status gather_in_host(Gathering& gathering);
  Status gather_on_device(Gathering& gathering);
  void encode_own(const Gathering::Place& place);
  void decode(const Gathering::Place& place);
  Status wait_for(CollectiveLane::Number number);
  Result<std::vector<UnitWeights>> gathered(const ComputePass& pass, const std::vector<UnitWeights>& views);
  Status gather_for_forward(const ComputePass& pass, const std::vector<UnitWeights>& views);
  Status gather_in_step();

  // Gradients of units that are added up over all ranks.
  struct Reducing {
    struct OfUnit {
      uint32_t unit;
      std::vector<bool> absent;  // on this rank, then on all: by parameter, then the unit as a whole
    };
    std::vector<OfUnit> units;
    Event given;  // on a device: when this rank's are there
    CollectiveLane::Number number = 0;
  };
  // Where ranks add up.
  Collective& adding_up() const { return device_sums_ ? *ranks_.among_devices() : ranks_.passes(); }
  Status begin_reducing(const std::vector<uint32_t>& units);
  Status end_reducing();
  Status add_up(Reducing::OfUnit& of);
  // What this rank has added up of its own, as it gives it to the others.
  void give(uint32_t unit, uint64_t begin, uint64_t end);
  // The sums of this rank's piece of the unit, into `target`.
  Status reduce(uint32_t unit, std::span<std::byte> target);
  Status reduce_codes(uint32_t unit, BlockCode code, std::byte* target);

  bool expects(const ComputePass& pass) const {
    return in_step_ && !in_forward_ && next_pass_ < passes_.size() && passes_[next_pass_] == pass;
  }
  // What the trainer has put on the stream of the pass that is held reads weights.
  Status end_reading();

  const Workload& model() const { return options_.engine.request.workload; }
  std::byte* memory(uint64_t offset_bytes) const { return ranks_.passes().memory().data() + offset_bytes; }

  RankedOptions options_;
  Ranks& ranks_;
  const ShardMap map_;
  const RankWorkload shards_;
  const RankMemory taken_;
  const cpu_optim::GradientKernels kernels_;
  const cpu_optim::RecordCodec codec_;
  RankCommits commits_;
  // Where things begin in the collective's memory; where a device computes, kept weights lie there. By unit: gathered
  // weights, if they are kept, counted from the first; its gradient on its way; what this rank's shard has been added
  // up to.
  uint64_t gathered_begin_ = 0, given_begin_ = 0, squares_at_ = 0, coded_begin_ = 0, collected_at_ = 0;
  std::vector<uint64_t> kept_at_, given_at_, added_at_;
  std::vector<uint64_t> summed_at_;    // by unit: the last, as ranks add it up; on a device, from where it comes down
  std::vector<uint64_t> first_block_;  // by unit, of all
  std::unique_ptr<Engine> here_;       // of this rank's shards
  // Where a device computes: for gathered weights, used on the lane, and for gradients that come down or are added up.
  std::unique_ptr<RankDevice> weights_device_, gradients_device_;
  std::unique_ptr<RankDeviceSums> device_sums_;
  std::vector<uint32_t> visits_;  // by the plan's passes; see visits_of()
  std::vector<bool> ahead_;       // by visit, on all ranks; see visits_ahead()
  std::unique_ptr<cpu_optim::UpdateWorkers> workers_;
  Buffer sums_;
  std::unique_ptr<GradientIntake> intake_;  // of what this rank's trainer gives

  StepPrediction prediction_;
  bool is_open_ = false;  // on all ranks

  // Of the step that has begun.
  bool in_step_ = false, has_asked_all_ = false;
  bool in_forward_ = false;  // passes that change nothing, in a step or not
  bool is_held_ = false;     // a pass
  Stream pass_stream_;       // of the pass that was acquired last
  size_t next_pass_ = 0;
  std::vector<ComputePass> passes_;
  std::vector<uint32_t> visit_of_pass_;
  uint32_t next_visit_ = 0;  // to be gathered
  std::map<uint32_t, std::shared_ptr<Gathering>> gatherings_;
  std::shared_ptr<Reducing> reducing_;    // whose sums are not handed over yet
  std::vector<size_t> last_pass_;         // by unit: in which its gradient becomes complete
  std::vector<bool> is_gathered_;         // by unit, where weights are kept: there, or on its way
  std::vector<std::vector<bool>> skips_;  // by unit and parameter, then the unit as a whole: said to be absent here

  // Of the report: what the engine of the shards takes for the trainer's time.
  double waited_s_ = 0, intake_s_ = 0;  // for the lane, and adding up
  double busy_reported_s_ = 0;          // the lane, up to the last report
  std::atomic<uint64_t> gathered_bytes_ = 0, reduced_bytes_ = 0;

  // Ends before all that it touches.
  std::shared_ptr<CollectiveLane> lane_;
};

}  // namespace penstock::engine
