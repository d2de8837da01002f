#include "tests/support/ranked_crash_world.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/support/wrapping_backend.h"

namespace penstock::engine {
namespace {

using aio::RecordedDrives;

// A unit of two blocks, one of them ragged, is cut among the ranks; the others are one rank's alone.
const std::vector<uint64_t> kUnits = {66'000, 3'000, 70'000, 2'000, 1'000};

constexpr std::chrono::minutes kLoaded{5};  // a machine of which other tests take most

std::string name_of_meeting() {
  static std::atomic<uint64_t> meetings = 0;
  return text("crash images of ", ::getpid(), ":", ++meetings);
}

// Where a rank's log stands when it comes to a barrier, and when it may have gone on from it. All but `passed` is the
// decision thread's.
struct Barriers {
  const RecordedDrives& drives;
  std::vector<size_t>& came;
  std::vector<size_t>& went_on;
  std::atomic<size_t> passed = 0;

  void look() {
    while (went_on.size() < passed.load()) went_on.push_back(drives.events());
  }
};

class NotedCommits final : public test::PassingCollective {
 public:
  NotedCommits(Collective& inner, Barriers& barriers) : PassingCollective(inner), barriers_(barriers) {}

  void barrier(const Status& mine, Then then) override {
    barriers_.look();
    barriers_.came.push_back(barriers_.drives.events());
    PassingCollective::barrier(mine, [this, then = std::move(then)](const Status& verdict) {
      ++barriers_.passed;  // before anybody goes on
      then(verdict);
    });
  }

 private:
  Barriers& barriers_;
};

class NotedRanks final : public test::PassingRanks {
 public:
  NotedRanks(Ranks& inner, Barriers& barriers) : PassingRanks(inner), commits_(inner.commits(), barriers) {}

  Collective& commits() override { return commits_; }

 private:
  NotedCommits commits_;
};

// Looks whether a barrier was passed before anything is asked of the drives.
class NotingBackend final : public aio::WrappingBackend {
 public:
  NotingBackend(std::unique_ptr<aio::IoBackend> inner, Barriers& barriers)
      : WrappingBackend(std::move(inner)), barriers_(barriers) {}

  void submit(const aio::Piece& piece) override {
    barriers_.look();
    inner_->submit(piece);
  }
  std::string description() const override { return inner_->description(); }

 private:
  Barriers& barriers_;
};

Drives drives_on(const RecordedDrives& drives, std::unique_ptr<aio::IoBackend> backend) {
  return {std::make_unique<aio::QueuedIoEngine>(std::move(backend)), drives.folders(), "memory"};
}

uint64_t number_behind(const std::string& line, const std::string& word) {
  return line.starts_with(word) ? std::stoull(line.substr(word.size())) : 0;
}

}  // namespace

RankedCrashWorld::RankedCrashWorld(uint64_t seed, uint32_t group_ranks, uint64_t steps)
    : seed_(seed), group_ranks_(group_ranks) {
  wrong_ = run([&](RankedCourse& course, Ranks& ranks) {
    PENSTOCK_TRY(course.create(ranks));
    Rank& here = ranks_[ranks.rank()];
    std::vector<aio::MemoryFile::Bytes> images;
    for (uint32_t drive = 0; drive < course.world().drives(); ++drive)
      images.push_back(course.world().folder(drive).bytes(aio::store_file_name(ranks.rank())));
    here.drives = std::make_unique<RecordedDrives>(std::move(images), ranks.rank());
    here.drives->put_files();
    here.drives->acknowledge(0);
    Barriers barriers{*here.drives, here.came, here.went_on};
    course.options().engine.drives = [&]() -> Result<Drives> {
      return drives_on(*here.drives,
                       std::make_unique<NotingBackend>(
                           here.drives->make_backend(seed_ + ranks.rank(), RecordedDrives::kNeverKilled), barriers));
    };
    NotedRanks noted(ranks, barriers);
    PENSTOCK_TRY(course.live(noted, steps, [&](const std::string& line) {
      if (!line.starts_with("durable ")) return;
      barriers.look();
      here.drives->acknowledge(number_behind(line, "durable "));
    }));
    here.drives->life_ended();
    return Status();
  });
}

RankedCrashWorld::Moments RankedCrashWorld::moments_of_other(uint32_t rank, size_t events) const {
  const Rank &here = ranks_[rank], &other = ranks_[1 - rank];
  Moments moments{0, this->events(1 - rank)};
  for (size_t barrier = 0; barrier < here.went_on.size(); ++barrier) {
    if (events >= here.went_on[barrier]) moments.first = std::max(moments.first, other.came[barrier]);
  }
  for (size_t barrier = 0; barrier < other.went_on.size(); ++barrier) {
    if (events < here.came[barrier]) moments.last = std::min(moments.last, other.went_on[barrier] - 1);
  }
  return moments;
}

std::string RankedCrashWorld::check(const std::array<aio::Crash, kRanks>& crashes) const {
  uint64_t acknowledged = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    acknowledged = std::max(acknowledged, ranks_[rank].drives->acknowledged(crashes[rank].events));
  std::array<uint64_t, kRanks> found{};
  std::string wrong = run([&](RankedCourse& course, Ranks& ranks) {
    const RecordedDrives drives = ranks_[ranks.rank()].drives->after(crashes[ranks.rank()]);
    course.options().engine.drives = [&]() -> Result<Drives> {
      return drives_on(drives, std::make_unique<aio::MemoryBackend>());
    };
    return course.live(ranks, 1, [&](const std::string& line) {
      found[ranks.rank()] = std::max(found[ranks.rank()], number_behind(line, "opened "));
    });
  });
  if (!wrong.empty()) return wrong;
  if (found[0] != found[1]) return text("rank 0 is at step ", found[0], ", rank 1 at step ", found[1]);
  return found[0] >= acknowledged ? "" : text("step ", acknowledged, " was acknowledged, found step ", found[0]);
}

std::string RankedCrashWorld::run(const OfRank& life) const {
  const std::string meeting = name_of_meeting();
  std::array<Status, kRanks> ends;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ends[rank] = [&]() -> Status {
        RankedCourse course(seed_, {.rank = rank, .ranks = kRanks, .meeting = meeting}, group_ranks_,
                            /*keeps_weights=*/false, /*codes=*/{}, /*device=*/nullptr, kUnits);
        PENSTOCK_TRY_ASSIGN(ranks, meet({.place = course.place(),
                                         .memory_bytes = course.memory_bytes(),
                                         .silent_at_most = kLoaded,
                                         .hangs_after = kLoaded}));
        const Status lived = life(course, *ranks);
        if (!lived.ok()) ranks->fail(lived);  // or the other would wait for it
        return lived;
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string wrong;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    if (!ends[rank].ok()) wrong += text(wrong.empty() ? "" : "; ", "rank ", rank, ": ", ends[rank].message());
  }
  return wrong;
}

}  // namespace penstock::engine
