// Processes that run the real engine on real files, killed with SIGKILL in every phase: while the store is made,
// opened, or opened after a kill, in calm, struck and overflowing steps, while a step settles, while another plan takes
// over and while state is written over. What they promised is there, bit for bit, and goes on.
//
// ENGINE_KILLS sets how many are killed with each setting (150 for the full claim). The phase hit least often is aimed
// at next, and what counts is what the process had begun when it died; so every phase is hit, by no luck.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>

#include "tests/aio/test_files.h"
#include "tests/runtime/engine_worker.h"
#include "tests/support/instrumented.h"
#include "tests/support/worker_process.h"

namespace penstock::engine {
namespace {

using std::chrono::microseconds;

uint64_t kills() {
  const char* asked = std::getenv("ENGINE_KILLS");
  if (asked) return std::strtoull(asked, nullptr, 10);
  return test::kStride > 1 ? std::size(kPhases) : 4 * std::size(kPhases);
}

// Of one setting; on the device only what rests there is another matter.
uint64_t kills_of(const std::string& durability) {
  return durability == "device" ? std::max<uint64_t>(kills() / 4, std::size(kPhases)) : kills();
}

bool is_phase(const Said& said) {
  return std::any_of(std::begin(kPhases), std::end(kPhases), [&](const char* phase) { return said.line == phase; });
}

class EngineKill : public testing::TestWithParam<const char*> {
 protected:
  EngineKill() {
    for (const char* drive : {"a", "b"}) {
      folders_.push_back(scratch_ / drive);
      std::filesystem::create_directory(folders_.back());
    }
    world_ = std::make_unique<WorkerWorld>(GetParam(), folders_);
  }

  // Kills one worker somewhere in `phase`, or soon after if that is over sooner than usual; at times at the first
  // promise after its beginning, which must hold from that moment on.
  void kill_in(const std::string& phase) {
    const char* verb = phase == "create" ? "create" : "run";
    std::vector<std::string> command{ENGINE_WORKER, verb, GetParam()};
    command.insert(command.end(), folders_.begin(), folders_.end());
    const bool at_promise = verb == std::string("run") && random_() % 3 == 0;
    const uint64_t usual_us = std::max<uint64_t>(1, static_cast<uint64_t>(usual_[phase].count()));
    auto begun = [&](const std::vector<Said>& so_far) {
      return std::any_of(so_far.begin(), so_far.end(), [&](const Said& each) { return each.line == phase; });
    };
    auto promised = [&](const std::vector<Said>& so_far) {
      return begun(so_far) && (!at_promise || so_far.back().line.starts_with("durable "));
    };
    std::vector<Said> said = killed(command, promised, microseconds(at_promise ? 0 : random_() % usual_us));
    std::string last;
    for (size_t i = 0; i < said.size(); ++i) {
      if (said[i].line == "created") last = "";
      if (said[i].line.starts_with("durable "))
        durable_ = std::max<uint64_t>(durable_, std::stoull(said[i].line.substr(8)));
      if (said[i].line.starts_with("wrote ")) wrote_ = std::stoull(said[i].line.substr(6));
      if (!is_phase(said[i])) continue;
      last = said[i].line;
      auto next = std::find_if(said.begin() + static_cast<ptrdiff_t>(i) + 1, said.end(), is_phase);
      if (next == said.end()) continue;
      // Until the next begins, as a mean that forgets.
      const auto took = std::chrono::duration_cast<microseconds>(next->when - said[i].when);
      usual_[last] = (usual_[last] * 3 + took) / 4;
    }
    if (!last.empty()) ++hits_[last];
    created_ = phase != "create" || (!said.empty() && said.back().line == "created");
  }

  // Opens as the next run would, and goes on. Whether there is a store.
  bool check() {
    Result<std::unique_ptr<Engine>> engine = world_->open(nullptr);
    if (!engine.ok()) {
      EXPECT_TRUE(!created_ && was_never_created(engine.status())) << engine.status().message();
      return false;
    }
    EXPECT_GE((*engine)->steps_done(), durable_);
    EXPECT_EQ(world_->difference(**engine, wrote_), "");
    Status went_on = world_->live(**engine, 2, [](const std::string&) {});
    if (went_on.ok()) went_on = (*engine)->settle();
    EXPECT_TRUE(went_on.ok()) << went_on.message();
    EXPECT_EQ(world_->difference(**engine, 0), "");
    durable_ = (*engine)->steps_done();
    return true;
  }

  void start_anew() {
    world_->start_anew();
    durable_ = wrote_ = 0;
  }

  aio::ScratchFolder scratch_;
  std::vector<std::string> folders_;
  std::unique_ptr<WorkerWorld> world_;
  std::mt19937_64 random_{1};
  std::map<std::string, microseconds> usual_;  // how long a phase lasts
  std::map<std::string, uint64_t> hits_;
  bool created_ = true;
  uint64_t durable_ = 0, wrote_ = 0;  // promised
};

TEST_P(EngineKill, LeavesWhatWasPromisedInWhateverPhaseItComes) {
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(world_->create().ok());
  usual_["create"] = std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - begin);
  for (const char* phase : kPhases) hits_[phase] = 0;
  // As many as asked for, and every phase at least half as often as if they were spread evenly.
  const uint64_t wanted = kills_of(GetParam());
  auto is_enough = [&] {
    uint64_t all = 0, fewest = wanted;
    for (const auto& [phase, hits] : hits_) {
      all += hits;
      fewest = std::min(fewest, hits);
    }
    return all >= wanted && fewest >= wanted / std::size(kPhases) / 2;
  };
  for (uint64_t round = 0; !is_enough() && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round << ", seed 1");
    ASSERT_LT(round, 10 * wanted) << "the workers die elsewhere";
    // Up to three in a row, so that what one has left is opened by one that is killed as well.
    for (uint64_t lives = 1 + random_() % 3; lives > 0; --lives) {
      const std::string phase = std::min_element(hits_.begin(), hits_.end(), [](const auto& a, const auto& b) {
                                  return a.second < b.second;
                                })->first;
      if (phase == "create") start_anew();
      kill_in(phase);
      if (phase == "create") break;
    }
    if (check()) continue;
    start_anew();
    ASSERT_TRUE(world_->create().ok());
  }
  std::string counts;
  for (const auto& [phase, hits] : hits_) counts += text(" ", phase, " ", hits);
  std::printf("killed in%s\n", counts.c_str());
}

INSTANTIATE_TEST_SUITE_P(Durability, EngineKill, testing::Values("step", "every2", "passes", "device"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace penstock::engine
