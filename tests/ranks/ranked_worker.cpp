// ranked_worker SEED STEPS GROUP_RANKS each|once [overlap|create|live|keep|back FOLDER...]: one rank of a course of
// training; weights are gathered for each pass or once a step. A whole course in memory, or an OverlapCourse; or a
// store's creation in these folders, or a life of a run that goes on with it, to be killed; keep: which keeps its last
// step; or going back to STEPS. Says what happened, or what is wrong and ends with 1.
//
// CODES=w, g, wg or fg: weights, those of frozen units alone, or gradients are sent in codes.
//
// ON_DEVICE=MILLISECONDS: the course computes on a device, each piece of work for at least so long. GATHERS=host or
// device: ranks share there; says what copies have moved of the weights that are computed with, and of gradients.
//
// DIES_IN_GATHER="RANK NUMBER": that rank kills itself within this gather among devices, counted from 0.
//
// DIES="RANK BARRIER WHEN": that rank kills itself at this barrier of its commits, counted from 0. WHEN is `before` it
// comes there, or `after`: then with the verdict of all, which it does not learn, and when the others have had time to
// go on. Of one that keeps its last step, barriers are counted from there.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "gpu/cuda_device.h"
#include "runtime/engine/ranks/kept_together.h"
#include "tests/support/counted_device.h"
#include "tests/support/overlap_course.h"
#include "tests/support/passing_ranks.h"
#include "tests/support/ranked_course.h"
#include "tiering/store/store_layout.h"

namespace penstock::engine {
namespace {

void say(const std::string& line) {
  const std::string whole = line + "\n";
  if (::write(STDOUT_FILENO, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) _exit(3);
}

using Wait = std::function<void(uint64_t barrier)>;  // until the others have gone on from it

class DyingCollective final : public test::PassingCollective {
 public:
  DyingCollective(Collective& inner, uint64_t barrier, bool before, Wait wait)
      : PassingCollective(inner), barrier_(barrier), left_(barrier), before_(before), wait_(std::move(wait)) {}

  void barrier(const Status& mine, Then then) override {
    if (left_-- > 0) return PassingCollective::barrier(mine, std::move(then));
    if (before_) ::raise(SIGKILL);
    PassingCollective::barrier(mine, [this](const Status&) {
      wait_(barrier_);
      ::raise(SIGKILL);
    });
  }

 private:
  const uint64_t barrier_;
  uint64_t left_;
  const bool before_;
  const Wait wait_;
};

class DyingRanks final : public test::PassingRanks {
 public:
  DyingRanks(Ranks& inner, uint64_t barrier, bool before, Wait wait)
      : PassingRanks(inner), commits_(inner.commits(), barrier, before, std::move(wait)) {}

  Collective& commits() override { return commits_; }

 private:
  DyingCollective commits_;
};

// Its share of the gather never comes, where NCCL is told that it is stuck.
class DyingDevices final : public test::PassingCollective {
 public:
  DyingDevices(Collective& inner, uint64_t gather) : PassingCollective(inner), left_(gather) {}

  void gather(std::span<const Shard> shards, Then then) override {
    if (left_-- == 0) {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        ::raise(SIGKILL);
      }).detach();
    }
    PassingCollective::gather(shards, std::move(then));
  }

 private:
  uint64_t left_;
};

class RanksWithDyingDevices final : public test::PassingRanks {
 public:
  RanksWithDyingDevices(Ranks& inner, uint64_t gather)
      : PassingRanks(inner), devices_(*inner.among_devices(), gather) {}

  Collective* among_devices() override { return &devices_; }

 private:
  DyingDevices devices_;
};

std::optional<RanksWithDyingDevices> dying_in_gather(Ranks& ranks) {
  const char* dies = std::getenv("DIES_IN_GATHER");
  unsigned rank = 0;
  unsigned long gather = 0;
  if (dies == nullptr || std::sscanf(dies, "%u %lu", &rank, &gather) != 2 || rank != ranks.rank()) return std::nullopt;
  return std::optional<RanksWithDyingDevices>(std::in_place, ranks, gather);
}

std::optional<DyingRanks> dying(Ranks& ranks, Wait wait) {
  const char* dies = std::getenv("DIES");
  unsigned rank = 0;
  unsigned long barrier = 0;
  char when[8] = {};
  if (dies == nullptr || std::sscanf(dies, "%u %lu %7s", &rank, &barrier, when) != 3) return std::nullopt;
  if (rank != ranks.rank()) return std::nullopt;
  return std::optional<DyingRanks>(std::in_place, ranks, barrier, std::string(when) == "before", std::move(wait));
}

KeptSteps kept_of(uint32_t rank, uint32_t ranks, const std::vector<std::string>& folders) {
  return KeptSteps(folders, {.rank = rank, .ranks = ranks});
}

// Of the rank's store, on its first drive.
std::string roots_of(uint32_t rank, const std::vector<std::string>& folders) {
  std::ifstream in(folders.front() + "/" + aio::store_file_name(rank));
  std::string roots;
  for (uint64_t place : {0, 1}) {
    std::string root(kAlignmentBytes, '\0');
    in.seekg(static_cast<std::streamoff>(StoreLayout::root_offset(place)));
    in.read(root.data(), static_cast<std::streamsize>(root.size()));
    roots += root;
  }
  return roots;
}

// To a step that is kept. Who dies with the verdict of a barrier does so when the other has done what comes next: it
// has marked that it goes back, has gone back, and has taken the mark away.
Status go_back(Ranks& ranks, uint64_t step, const std::vector<std::string>& folders) {
  const uint32_t other = 1 - ranks.rank();
  const std::string before = roots_of(other, folders);
  std::optional<DyingRanks> dies = dying(ranks, [&](uint64_t barrier) {
    const auto has_done = [&] {
      if (barrier == 1) return roots_of(other, folders) != before;
      return kept_of(other, 2, folders).marked_rollback().has_value() == (barrier == 0);
    };
    while (!has_done()) std::this_thread::yield();
  });
  return KeptTogether({kept_of(ranks.rank(), 2, folders)}, dies ? &*dies : &ranks).restore(step);
}

// The step that this rank's store is at, beside the others'.
Status keep(Ranks& ranks, const std::vector<std::string>& folders) {
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  const auto drives = aio::direct_folders(folders, aio::Access::read_only);
  PENSTOCK_TRY_ASSIGN(store,
                      aio::TileStore::open(*made.engine, drives,
                                           {.purpose = aio::OpenOptions::Purpose::inspect, .rank = ranks.rank()}));
  const uint64_t step = store->payload().step;
  std::optional<DyingRanks> dies = dying(ranks, [&](uint64_t) {
    for (uint32_t other = 0; other < ranks.ranks(); ++other) {
      while (other != ranks.rank() && !kept_of(other, ranks.ranks(), folders).check(step).ok())
        std::this_thread::yield();
    }
  });
  KeptTogether kept({kept_of(ranks.rank(), ranks.ranks(), folders)}, dies ? &*dies : &ranks);
  PENSTOCK_TRY_ASSIGN(removed, kept.drop_incomplete());
  for (const std::string& line : removed) say(line);
  std::string steps;
  for (const uint64_t each : kept.steps()) steps += text(" ", each);
  say("kept" + steps);
  return kept.keep(step, {store->runs_of_durable_step()}).status();
}

RankCodes codes_of_environment() {
  const char* given = std::getenv("CODES");
  const std::string codes = given != nullptr ? given : "";
  auto has = [&](char code) { return codes.find(code) != std::string::npos; };
  return {.weights = has('w'), .frozen_weights = has('f'), .gradients = has('g')};
}

// Of the devices that have the memory of weights that are computed with, of gradients, and of the engine's arena.
test::CopiedBytes weights_copied, gradients_copied, engine_copied;

// Whether they are gathered on the devices.
bool gather_as_told(RankedCourse& course) {
  const char* told = std::getenv("GATHERS");
  if (told == nullptr) return false;
  RankedOptions& options = course.options();
  options.shares_on_device = std::string(told) == "device";
  const RankMemory memory = RankedEngine::memory_of(options, course.place().ranks);
  const uint64_t weights = options.shares_on_device ? 0 : memory.on_device.weights;
  const uint64_t gradients = memory.on_device.sums + memory.on_device.gradient;
  options.engine.device = [make = options.engine.device, weights,
                           gradients](uint64_t bytes) -> Result<std::unique_ptr<Device>> {
    PENSTOCK_TRY_ASSIGN(device, make(bytes));
    test::CopiedBytes& copied = bytes == weights     ? weights_copied
                                : bytes == gradients ? gradients_copied
                                                     : engine_copied;
    return Result<std::unique_ptr<Device>>(std::make_unique<test::CountedDevice>(std::move(device), copied));
  };
  return memory.shared_on_device() > 0;
}

RanksOptions meeting_of(RankedCourse& course) {
  RanksOptions options{.place = course.place(), .memory_bytes = course.memory_bytes()};
  if (!gather_as_told(course)) return options;
  options.memory_bytes = course.memory_bytes();
  options.device = static_cast<int>(course.place().rank) % std::max(1, gpu::find_cuda().devices);
  const RankMemory memory = RankedEngine::memory_of(course.options(), course.place().ranks);
  options.device_memory_bytes = memory.shared_on_device();
  options.staging_bytes = memory.on_device.staging;
  return options;
}

Status run(int count, char** arguments) {
  auto number = [&](int index) { return std::strtoull(arguments[index], nullptr, 10); };
  PENSTOCK_TRY_ASSIGN(place, find_rank_place());
  const std::string what = count > 5 ? arguments[5] : "run";
  if (what == "overlap") {
    OverlapCourse course(place, static_cast<uint32_t>(number(3)), codes_of_environment());
    PENSTOCK_TRY_ASSIGN(met, meet({.place = place, .memory_bytes = course.memory_bytes()}));
    return course.run(*met, number(2));
  }
  std::optional<CourseDevice> device;
  if (const char* least = std::getenv("ON_DEVICE")) device = course_device(std::chrono::milliseconds(std::atoi(least)));
  RankedCourse course(number(1), place, static_cast<uint32_t>(number(3)), std::string(arguments[4]) == "once",
                      codes_of_environment(), device ? &*device : nullptr);
  if (count > 6) {
    course.options().engine.drives = direct_drives({arguments + 6, arguments + count});
    // A course that is killed makes something durable.
    course.options().engine.request.durability =
        number(1) % 2 == 0 ? Durability() : Durability{Durability::Kind::every, 2};
  }
  PENSTOCK_TRY_ASSIGN(met, meet(meeting_of(course)));
  const std::vector<std::string> folders(arguments + std::min(count, 6), arguments + count);
  if (what == "back") return go_back(*met, number(2), folders);
  if (what == "keep") {
    KeptTogether kept({kept_of(place.rank, place.ranks, folders)}, &*met);
    PENSTOCK_TRY_ASSIGN(back, kept.finish_rollback());
    if (back) say(text("back at ", *back));
    PENSTOCK_TRY(course.live(*met, number(2), say));
    return keep(*met, folders);
  }
  std::optional<DyingRanks> dies = dying(*met, [](uint64_t) { std::this_thread::sleep_for(std::chrono::seconds(2)); });
  std::optional<RanksWithDyingDevices> dies_in_gather = dying_in_gather(*met);
  Ranks& ranks = dies_in_gather ? *dies_in_gather : dies ? static_cast<Ranks&>(*dies) : *met;
  if (what == "create") return course.create(ranks);
  if (what == "live") {
    PENSTOCK_TRY(course.live(ranks, number(2), say));
  } else {
    PENSTOCK_TRY(course.run(ranks, number(2)));
  }
  say(text("struck ", course.struck, " skipped ", course.skipped, " discarded ", course.discarded, " absent ",
           course.absent));
  if (std::getenv("GATHERS") != nullptr) {
    say(text("weights up ", weights_copied.up.load(), " down ", weights_copied.down.load(), " within ",
             weights_copied.within.load(), ", gradients up ", gradients_copied.up.load(), " down ",
             gradients_copied.down.load(), ", engine up ", engine_copied.up.load(), " down ",
             engine_copied.down.load()));
  }
  return wait_for_end([&](Collective::Then then) { ranks.passes().barrier(Status(), std::move(then)); });
}

}  // namespace
}  // namespace penstock::engine

int main(int count, char** arguments) {
  if (count < 5) return 2;
  const penstock::Status status = penstock::engine::run(count, arguments);
  if (!status.ok()) penstock::engine::say(status.message());
  return status.ok() ? 0 : 1;
}
