// Does an optimizer step whose state rests on NVMe run at the byte floor?
//
// On paper: a parameter's lo16, m and v are read (10 B), and with hi16 written back (12 B). The drive moves that
// mixture at a rate which is measured between the steps on the store's own bytes, with nothing computed; the floor is
// bytes by rate. Where the CPU is slower than the drive, its update rate is the floor. What the drive gives at the same
// moment on a small scratch file is said besides.
//
//   build/bench/update FOLDER[,FOLDER...] [--params 250M,1B] [--rounds 5] [--clip never,tenth,always]
//                      [--retained 1,0.5,0] [--budget 4GiB] [--durability exit] [--quick] [--json]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "aio/drive_info.h"
#include "bench/support/flags.h"
#include "bench/support/store_rate.h"
#include "tools/nvme/rig.h"
#include "tools/nvme/statistics.h"
#include "tools/penstock/quantity.h"
#include "tools/update/measured_machine.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::vector<std::string> folders;
  std::vector<uint64_t> parameters = {250'000'000};
  std::vector<double> strike_shares = {-1};  // below 0: not clipping at all
  std::vector<double> retained = {1};
  uint64_t budget_bytes = 0;
  std::optional<Durability> durability = Durability{};
  uint64_t seed = 1;
  int rounds = 5;
  int steps = 3;
  bool json = false;
  bool quick = false;
};

struct Sectors {
  uint64_t read_bytes = 0, written_bytes = 0;
};

// What the block devices below the folders have moved since boot.
Sectors device_bytes(const std::vector<std::string>& folders) {
  Sectors sum;
  std::map<std::string, bool> seen;
  for (const std::string& folder : folders) {
    Result<aio::DriveInfo> drive = aio::describe_drive(folder);
    if (!drive.ok() || drive->device.empty() || seen[drive->device]) continue;
    seen[drive->device] = true;
    std::ifstream stat("/sys/class/block/" + drive->device + "/stat");
    uint64_t fields[11] = {};
    for (uint64_t& field : fields) stat >> field;
    sum.read_bytes += fields[2] * 512;
    sum.written_bytes += fields[6] * 512;
  }
  return sum;
}

void print(const Flags& flags, const std::string& name, double value, const std::string& unit, double against,
           double ratio, double goal, const std::string& note) {
  if (flags.json) {
    nlohmann::ordered_json line = {{"bench", "update"}, {"case", name},       {"value", value},
                                   {"unit", unit},      {"against", "floor"}, {"against_value", against},
                                   {"ratio", ratio},    {"goal", goal}};
    std::cout << line.dump() << std::endl;
  } else {
    std::printf("%-34s %9.3f %-8s floor %9.3f  ratio %.3f (goal %.2f)  %s\n", name.c_str(), value, unit.c_str(),
                against, ratio, goal, note.c_str());
    std::fflush(stdout);
  }
}

// What a step without redo moves over the lane.
uint64_t lane_bytes(const Plan& plan, Lane lane) {
  uint64_t sum = 0;
  for (const Move& move : plan.moves) {
    if (move.lane == lane && move.kind != MoveKind::update_again) sum += move.bytes;
  }
  return sum;
}

// What a step writes, on average over steps that are durable and others.
double written_bytes(const Plan& plan) {
  const Durability& durability = plan.durability;
  const double durable_share = durability.kind == Durability::Kind::exit ? 0 : 1.0 / durability.steps;
  return static_cast<double>(plan.written_bytes()) -
         (1 - durable_share) * static_cast<double>(plan.written_through_bytes());
}

// What was measured and created before the run does not count as its memory.
void forget_resident_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

Status run_case(const Flags& flags, uint64_t parameters, double strike_share, double retained) {
  UpdateSettings settings;
  settings.parameters = parameters;
  settings.seed = flags.seed;
  for (const std::string& folder : flags.folders) settings.folders.push_back(folder + "/update.store");
  for (const std::string& folder : settings.folders) std::filesystem::create_directories(folder);
  // All states on NVMe; the weight in host memory, written through.
  settings.host_bytes = flags.budget_bytes ? flags.budget_bytes : parameters * 2 + parameters * 2 + kGiB;
  settings.choices.host_state_share = flags.budget_bytes ? std::optional<double>() : 0.0;
  settings.choices.weights = flags.budget_bytes ? WeightRest::automatic : WeightRest::host;
  settings.durability = flags.durability;
  settings.clip = strike_share >= 0;
  settings.strike_share = std::max(0.0, strike_share);
  if (settings.clip) settings.choices.retained_host_share = retained;

  PENSTOCK_TRY_ASSIGN(
      rig,
      Rig::make({.paths = flags.folders, .size_bytes = flags.quick ? 256 * kMiB : 2 * kGiB, .memory_bytes = 16 * kMiB},
                [](double) { return Status(); }));
  for (const std::string& folder : flags.folders) {
    DriveRates drive;
    drive.path = folder;
    size_t index = settings.machine.drives.size();
    std::vector<std::pair<double, double>> curve;
    for (double share : {0.0, 10.0 / 22, 1.0}) {
      PENSTOCK_TRY_ASSIGN(result,
                          rig->run_on(index, {.read_share = share, .depth = 8, .seconds = flags.quick ? 0.1 : 1.0},
                                      [](double) { return Status(); }));
      curve.push_back({share, result.gbps()});
    }
    drive.burst = MixCurve(curve);
    settings.machine.drives.push_back(drive);
  }
  settings.machine.host_gbps = measure_update_gbps(StateForm(), 0);

  UpdateRun run(settings);
  PENSTOCK_TRY(run.create(aio::CreateOptions::Existing::replace));
  forget_resident_peak();
  PENSTOCK_TRY(run.open());
  const Plan plan = run.engine().plan();
  std::vector<double> store_gbps, scratch_gbps;
  const double per = static_cast<double>(parameters);
  // A speculative step that strikes, and one that waits, move more; the plan says how much.
  for (int i = 0; i < 3; ++i) PENSTOCK_TRY(run.step().status());
  PENSTOCK_TRY(run.engine().settle());
  const uint64_t peak_bytes = resident_bytes_peak();  // before the probes take memory of their own

  const double update_bytes = static_cast<double>(lane_bytes(plan, Lane::update)) / per;
  const double planned_read = static_cast<double>(plan.read_bytes()) / per;
  const double planned_written = written_bytes(plan) / per;
  bench::StoreTraffic traffic;
  traffic.read_share = planned_read / (planned_read + planned_written);
  traffic.seconds = flags.quick ? 0.1 : 1.0;
  auto probe = [&]() -> Result<double> {
    run.close();
    PENSTOCK_TRY_ASSIGN(gbps, bench::measure_store_gbps(settings.folders, traffic));
    PENSTOCK_TRY_ASSIGN(scratch, rig->run({.read_share = traffic.read_share, .depth = 8, .seconds = traffic.seconds},
                                          [](double) { return Status(); }));
    scratch_gbps.push_back(scratch.gbps());
    store_gbps.push_back(gbps);
    PENSTOCK_TRY(run.open());
    return gbps;
  };
  std::vector<double> ratios, ns, floors, reads, writes;
  for (int round = 0; round < flags.rounds; ++round) {
    PENSTOCK_TRY_ASSIGN(before, probe());
    const Sectors start = device_bytes(flags.folders);
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < flags.steps; ++i) {
      PENSTOCK_TRY_ASSIGN(report, run.step());
      (void)report;
    }
    PENSTOCK_TRY(run.engine().settle());
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / flags.steps;
    const Sectors end = device_bytes(flags.folders);
    const double moved_read = static_cast<double>(end.read_bytes - start.read_bytes) / flags.steps / per;
    const double moved_written = static_cast<double>(end.written_bytes - start.written_bytes) / flags.steps / per;
    PENSTOCK_TRY_ASSIGN(after, probe());
    const double drive_ns = (moved_read + moved_written) / ((before + after) / 2);
    const double floor_ns = std::max(drive_ns, update_bytes / settings.machine.host_gbps);
    ns.push_back(seconds / per * 1e9);
    floors.push_back(floor_ns);
    ratios.push_back(floor_ns / ns.back());
    reads.push_back(moved_read);
    writes.push_back(moved_written);
  }
  std::string name = text(parameters / 1'000'000, "M");
  if (strike_share >= 0) name += text(" clip ", strike_share, " retained ", retained);
  if (flags.budget_bytes) name += text(" budget ", bytes_text(flags.budget_bytes));
  std::string note =
      text("read ", median(reads), " of ", planned_read, " B, written ", median(writes), " of ", planned_written,
           " B, peak ", bytes_text(peak_bytes), " of ", bytes_text(plan.needed_bytes(Tier::host)),
           " planned; the drives give ", median(store_gbps), " GB/s, ", median(scratch_gbps), " on a scratch file");
  print(flags, name, median(ns), "ns/param", median(floors), median(ratios), 1 / 1.05, note);
  run.close();
  for (const std::string& folder : settings.folders) std::filesystem::remove_all(folder);
  return Status();
}

// A case's peak of memory is its own only in a process of its own.
int in_own_process(const std::function<Status()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const Status status = body();
    if (!status.ok()) {
      std::fprintf(stderr, "penstock: bench update: %s\ntry: %s\n", status.message().c_str(), status.remedy().c_str());
    }
    std::fflush(nullptr);
    _exit(static_cast<int>(status.code()));
  }
  int state = 0;
  if (child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state)) return WEXITSTATUS(state);
  std::fprintf(stderr, "penstock: bench update: a case's process ended by signal %d\n", WTERMSIG(state));
  return static_cast<int>(Code::kEnvironment);
}

int run(int argc, char** argv) {
  Flags flags;
  flags.folders = {std::filesystem::current_path().string()};
  uint64_t rounds = 5, steps = 3;
  bench::Flags line("update", "Does an optimizer step whose state rests on NVMe run at the byte floor?");
  line.folders("FOLDER", flags.folders, "Where the state rests: one on each drive");
  line.options().count_list("--params", flags.parameters, "Parameters of the model, one case for each");
  line.options().count("--rounds", rounds, "Measurements of each case");
  line.options().count("--steps", steps, "Steps of one measurement");
  line.numbers("--clip", flags.strike_shares, {{"off", -1}, {"never", 0}, {"tenth", 0.1}, {"always", 1}},
               "How often the norm strikes: off, never, tenth, always");
  line.options().share_list("--retained", flags.retained, "Shares of the gradient that clipping keeps in host memory");
  line.options().durability("--durability", flags.durability);
  line.options().bytes("--budget", flags.budget_bytes, "Host memory; 0 for what the states' tiles need");
  line.parse(argc, argv);
  flags.rounds = static_cast<int>(rounds);
  flags.steps = static_cast<int>(steps);
  flags.json = line.json();
  flags.quick = line.quick();
  if (flags.quick) {
    flags.parameters = {8'000'000};
    flags.rounds = 1;
    flags.strike_shares = {-1, 0.1};
  }
  for (uint64_t parameters : flags.parameters) {
    for (double strikes : flags.strike_shares) {
      for (double retained : strikes < 0 ? std::vector<double>{1} : flags.retained) {
        const int code = in_own_process([&] { return run_case(flags, parameters, strikes, retained); });
        if (code != 0) return code;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) { return penstock::tools::run(argc, argv); }
