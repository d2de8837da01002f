#include "runtime/engine/ranks/host_ranks.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "runtime/engine/ranks/nccl_carrier.h"
#include "runtime/engine/ranks/shared_memory_carrier.h"
#include "runtime/engine/ranks/tcp_carrier.h"

namespace penstock::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLooksEvery{100};
constexpr uint32_t kPasses = 0, kCommits = 1, kDevices = 2;

Result<Meeting> meet_on_several(const RanksOptions& options) {
  if (options.device) {
    return Status(Code::kUsage, "ranks: those of several hosts share no bytes among devices",
                  "start all ranks on one host");
  }
  PENSTOCK_TRY_ASSIGN(mesh, meet_over_tcp(options));
  std::vector<uint64_t> bytes(options.place.ranks);
  bytes[options.place.rank] = options.memory_bytes;
  PENSTOCK_TRY_ASSIGN(memory, SharedMemory::make(bytes));
  memory->name_hosts(mesh.hosts);
  Meeting meeting;
  meeting.memory = std::move(memory);
  meeting.mesh = std::move(mesh);
  return Result<Meeting>(std::move(meeting));
}

}  // namespace

Result<std::unique_ptr<Ranks>> HostRanks::make(const RanksOptions& options) {
  Result<Meeting> met = options.place.hosts > 1 ? meet_on_several(options) : meet_on_host(options);
  if (!met.ok() && options.gives_up && options.gives_up()) {
    return Status(Code::kInterrupted, text("ranks: interrupted, while rank ", options.place.rank,
                                           " waited for the others at ", options.place.meeting));
  }
  PENSTOCK_TRY(met.status());
  Meeting meeting = std::move(*met);
  std::optional<TcpMesh> mesh = std::move(meeting.mesh);
  auto ranks = std::unique_ptr<HostRanks>(new HostRanks(options, std::move(meeting)));
  const SharedMemory& memory = *ranks->memory_;
  if (mesh) {
    ControlMirror::Connections control{std::move(mesh->connections[TcpMesh::kPassesControl]),
                                       std::move(mesh->connections[TcpMesh::kCommitsControl])};
    PENSTOCK_TRY_ASSIGN(mirror, ControlMirror::make(memory, ranks->rank(), std::move(control)));
    ranks->mirror_ = std::move(mirror);
  }
  PENSTOCK_TRY(ranks->start(kCommits, nullptr));
  try {
    ranks->watcher_ = std::thread([watched = ranks.get()] { watched->watch(); });
  } catch (const std::system_error& error) {
    return thread_status("ranks: start the watching thread: 0 of 1", error.code().value());
  }
  if (options.device) {
    PENSTOCK_TRY_ASSIGN(made, NcclCarrier::make(options, *ranks));
    PENSTOCK_TRY(ranks->start(kDevices, std::move(made)));
  }
  std::unique_ptr<Carrier> carrier;
  if (mesh) {
    carrier = std::make_unique<TcpCarrier>(memory, options, std::move(mesh->connections[TcpMesh::kBytes]));
  } else {
    carrier = std::make_unique<SharedMemoryCarrier>(memory, ranks->rank());
  }
  PENSTOCK_TRY(ranks->start(kPasses, std::move(carrier)));
  // Who lacks memory says so before any rank begins to train.
  const Status mine = memory.populate(ranks->rank());
  PENSTOCK_TRY(
      wait_for_end([&](Collective::Then then) { ranks->commits().barrier(mine, std::move(then)); }).within("ranks"));
  return std::unique_ptr<Ranks>(std::move(ranks));
}

Status HostRanks::start(uint32_t channel, std::unique_ptr<Carrier> carrier) {
  PENSTOCK_TRY_ASSIGN(collective, HostCollective::make(*memory_, channel, rank(), std::move(carrier), options_));
  collectives_[channel] = std::move(collective);
  return Status();
}

HostRanks::HostRanks(const RanksOptions& options, Meeting meeting)
    : options_(options), memory_(std::move(meeting.memory)), connections_(std::move(meeting.connections)) {
  looked_ = Clock::now();
  signs_.assign(options.place.ranks, {0, looked_});
}

HostRanks::~HostRanks() {
  for (auto& collective : collectives_) collective.reset();
  memory_->control().ranks[rank()].has_left.store(1, std::memory_order_release);
  memory_->ring_all();
  stopping_ = true;
  if (watcher_.joinable()) watcher_.join();
}

void HostRanks::at_step(uint64_t step) {
  memory_->control().ranks[rank()].step.store(step, std::memory_order_relaxed);
  if (mirror_) mirror_->tell_step();
}

void HostRanks::came() {
  ControlOfRank& mine = memory_->control().ranks[rank()];
  if (mine.absence.exchange(0, std::memory_order_relaxed) == 0) return;
  const auto away = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - went_);
  const auto away_ms = static_cast<uint64_t>(away.count());
  if (away_ms > mine.longest_absence_ms.load(std::memory_order_relaxed)) {
    mine.longest_absence_ms.store(away_ms, std::memory_order_relaxed);
  }
}

void HostRanks::went() {
  went_ = Clock::now();
  memory_->control().ranks[rank()].absence.store(++absences_, std::memory_order_relaxed);
}

void HostRanks::step_began() { memory_->control().ranks[rank()].in_step.store(1, std::memory_order_relaxed); }

void HostRanks::step_ended() { memory_->control().ranks[rank()].in_step.store(0, std::memory_order_relaxed); }

void HostRanks::progressed() { memory_->control().ranks[rank()].progress.fetch_add(1, std::memory_order_relaxed); }

void HostRanks::expect_pass(double seconds) {
  memory_->control().ranks[rank()].expected_pass_ms.store(static_cast<uint64_t>(seconds * 1000),
                                                          std::memory_order_relaxed);
}

void HostRanks::fail(const Status& why) {
  memory_->fail(Status(why.code(),
                       text(memory_->name_of(rank()), " failed in step ",
                            memory_->control().ranks[rank()].step.load(std::memory_order_relaxed), ": ", why.message()),
                       why.remedy()));
}

void HostRanks::watch() {
  std::atomic<uint64_t>& sign = memory_->control().ranks[rank()].sign_of_life;
  while (!stopping_) {
    sign.fetch_add(1, std::memory_order_relaxed);
    look_at_connections();
    look_for_signs_of_life();
  }
}

// Also how the watching thread sleeps.
void HostRanks::look_at_connections() {
  std::vector<pollfd> sources;
  for (const Connection& connection : connections_) sources.push_back({connection.descriptor(), POLLIN, 0});
  if (::poll(sources.data(), sources.size(), static_cast<int>(kLooksEvery.count())) <= 0) return;
  for (uint32_t other = 0; other < sources.size(); ++other) {
    if (sources[other].revents == 0) continue;
    // Nobody sends anything any more, so what is readable is the end.
    const ControlOfRank& control = memory_->control().ranks[other];
    connections_[other] = Connection();
    if (control.has_left.load(std::memory_order_acquire) != 0) continue;
    memory_->fail(memory_->died(other));
  }
}

void HostRanks::look_for_signs_of_life() {
  const Clock::time_point now = Clock::now();
  // Where this rank was stopped itself, or the whole machine, the others' silence says nothing.
  const bool was_away = now - looked_ > options_.silent_at_most / 4;
  looked_ = now;
  for (uint32_t other = 0; other < signs_.size(); ++other) {
    const ControlOfRank& control = memory_->control().ranks[other];
    const uint64_t number = control.sign_of_life.load(std::memory_order_relaxed);
    LastSign& last = signs_[other];
    const bool has_left = control.has_left.load(std::memory_order_acquire) != 0;
    if (was_away || has_left || number != last.number) {
      last = {number, now};
    } else if (now - last.seen > options_.silent_at_most) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - last.seen).count();
      memory_->fail(Status(Code::kEnvironment, text(memory_->name_of(other), " hangs in step ",
                                                    control.step.load(std::memory_order_relaxed),
                                                    ": no sign of life for ", seconds, " s")));
    }
  }
}

}  // namespace penstock::engine
