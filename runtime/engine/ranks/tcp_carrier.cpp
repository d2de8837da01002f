#include "runtime/engine/ranks/tcp_carrier.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "runtime/engine/ranks/rank_order_sum.h"
#include "tiering/check.h"

namespace penstock::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kStagingBytes = 4 * kMiB;
constexpr uint64_t kPieceElements = 64;  // what runs of a round are multiples of
constexpr int kLooksEveryMs = 50;

// The run of a part that a round moves.
Collective::Reduction::Part run_of(const Collective::Reduction::Part& part, uint64_t first, uint64_t at_once) {
  return {std::min(part.begin + first, part.end), std::min(part.begin + first + at_once, part.end)};
}

}  // namespace

TcpCarrier::TcpCarrier(const SharedMemory& memory, const RanksOptions& options, std::vector<Connection> connections)
    : memory_(memory),
      rank_(options.place.rank),
      hangs_after_(options.hangs_after),
      silent_at_most_(options.silent_at_most),
      connections_(std::move(connections)),
      staging_(std::min(kStagingBytes, options.staging_bytes)) {
  for (const Connection& connection : connections_) {
    if (connection.descriptor() < 0) continue;
    const int flags = ::fcntl(connection.descriptor(), F_GETFL);
    (void)::fcntl(connection.descriptor(), F_SETFL, flags | O_NONBLOCK);
  }
}

Status TcpCarrier::gather(std::span<const Collective::Shard> shards) {
  std::vector<Flow> flows(memory_.ranks());
  std::vector<bool> is_named(memory_.ranks());
  for (const Collective::Shard& shard : shards) is_named[shard.rank] = true;
  for (const Collective::Shard& shard : shards) {
    if (shard.bytes == 0) continue;
    const std::span<std::byte> place = memory().subspan(shard.offset_bytes, shard.bytes);
    if (shard.rank != rank_) {
      flows[shard.rank].in.push_back(place);
      continue;
    }
    for (uint32_t other = 0; other < flows.size(); ++other) {
      if (other != rank_ && is_named[other]) flows[other].out.push_back(place);
    }
  }
  return move(std::move(flows));
}

Status TcpCarrier::reduce(const Collective::Reduction& reduction) {
  const uint64_t bytes = bytes_of(reduction.dtype);
  const uint64_t at_once = staging_.size() / memory_.ranks() / bytes / kPieceElements * kPieceElements;
  uint64_t longest = 0;
  for (const auto& part : reduction.parts) longest = std::max(longest, part.end - part.begin);
  for (uint64_t first = 0; first < longest; first += at_once) {
    std::vector<Flow> flows(memory_.ranks());
    const auto mine = run_of(reduction.parts[rank_], first, at_once);
    const uint64_t count = mine.end - mine.begin;
    for (uint32_t other = 0; other < flows.size(); ++other) {
      if (other == rank_) continue;
      const auto theirs = run_of(reduction.parts[other], first, at_once);
      const uint64_t leaving = (theirs.end - theirs.begin) * bytes;
      if (leaving > 0) {
        flows[other].out.push_back(memory().subspan(reduction.offset_bytes + theirs.begin * bytes, leaving));
      }
      const std::span<std::byte> place(staging_.data() + other * at_once * bytes, count * bytes);
      if (count > 0) flows[other].in.push_back(place);
    }
    PENSTOCK_TRY(move(std::move(flows)));
    if (count > 0) add_up(reduction, first, count, at_once);
  }
  return Status();
}

Status TcpCarrier::collect(const Collective::Collection& collection) {
  std::vector<Flow> flows(memory_.ranks());
  const auto [begin, end] = collection.parts[rank_];
  for (uint32_t other = 0; other < flows.size(); ++other) {
    if (other == rank_) continue;
    const auto [from, until] = collection.parts[other];
    if (until > from) flows[other].out.push_back(memory().subspan(collection.offset_bytes + from, until - from));
    const uint64_t place = collection.target_offset_bytes + other * (end - begin);
    if (end > begin) flows[other].in.push_back(memory().subspan(place, end - begin));
  }
  return move(std::move(flows));
}

void TcpCarrier::add_up(const Collective::Reduction& reduction, uint64_t first, uint64_t count, uint64_t at_once) {
  const uint64_t bytes = bytes_of(reduction.dtype), target_bytes = bytes_of(reduction.target_dtype);
  const std::byte* const own =
      memory().data() + reduction.offset_bytes + (reduction.parts[rank_].begin + first) * bytes;
  const auto values_of = [&](uint32_t other) {
    return other == rank_ ? own : staging_.data() + other * at_once * bytes;
  };
  add_up_in_rank_order(kernels_, memory_.ranks(), reduction.dtype, count, values_of, reduction.target_dtype,
                       reduction.target.data() + first * target_bytes);
}

Status TcpCarrier::move(std::vector<Flow> flows) const {
  Clock::time_point moved = Clock::now(), looked = moved;
  while (true) {
    std::vector<pollfd> sources;
    std::vector<uint32_t> of;
    for (uint32_t other = 0; other < flows.size(); ++other) {
      const Flow& flow = flows[other];
      const int events = (flow.in.empty() ? 0 : POLLIN) | (flow.out.empty() ? 0 : POLLOUT);
      if (events == 0) continue;
      sources.push_back({connections_[other].descriptor(), static_cast<short>(events), 0});
      of.push_back(other);
    }
    if (sources.empty()) return Status();
    PENSTOCK_TRY(memory_.failure());
    (void)::poll(sources.data(), sources.size(), kLooksEveryMs);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].revents == 0) continue;
      PENSTOCK_TRY_ASSIGN(has_moved, move_some(of[i], flows[of[i]]));
      if (has_moved) moved = Clock::now();
    }
    const Clock::time_point now = Clock::now();
    if (now - std::exchange(looked, now) > hangs_after_ / 4) moved = now;  // this process itself was stopped
    if (now - moved <= hangs_after_) continue;
    return Status(Code::kEnvironment,
                  text("nothing has come or left within ", static_cast<double>(hangs_after_.count()) / 1000, " s"),
                  "look at the network and the devices; where operations take so long, a longer "
                  "`penstock.hangs_after_s`");
  }
}

Result<bool> TcpCarrier::move_some(uint32_t other, Flow& flow) const {
  const int connection = connections_[other].descriptor();
  bool has_moved = false;
  auto go_on = [&](std::vector<std::span<std::byte>>& runs, ssize_t now) -> Status {
    if (now < 0 && (errno == EAGAIN || errno == EINTR)) return Status();
    if (now <= 0) return ended_by(other, now == 0 ? 0 : errno);
    has_moved = true;
    runs.front() = runs.front().subspan(static_cast<size_t>(now));
    if (runs.front().empty()) runs.erase(runs.begin());
    return Status();
  };
  if (!flow.out.empty()) {
    PENSTOCK_TRY(go_on(flow.out, ::send(connection, flow.out.front().data(), flow.out.front().size(), MSG_NOSIGNAL)));
  }
  if (!flow.in.empty()) {
    PENSTOCK_TRY(go_on(flow.in, ::recv(connection, flow.in.front().data(), flow.in.front().size(), 0)));
  }
  return has_moved;
}

// Why it has ended those know that hear its signs of life.
Status TcpCarrier::ended_by(uint32_t other, int error) const {
  const Deadline named(silent_at_most_ + std::chrono::seconds(2));
  while (memory_.failure().ok() && !named.is_over()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  PENSTOCK_TRY(memory_.failure());
  const std::string words = text("the connection with ", memory_.name_of(other), " has ended");
  return error == 0 ? Status(Code::kEnvironment, words) : errno_status(words, error);
}

}  // namespace penstock::engine
