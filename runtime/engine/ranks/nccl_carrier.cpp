#include "runtime/engine/ranks/nccl_carrier.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>

#include "gpu/cuda_device.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kPieceElements = 64;  // what runs of a round are multiples of: rows of values that are read fast
// A slower network than any that is used for training: an operation may take as long as over it, and hangs_after more.
constexpr uint64_t kSlowestBytesPerMs = 64 * 1024;

uint64_t length_of(const Collective::Reduction::Part& part) { return part.end - part.begin; }

// The run of a part that a round moves.
Collective::Reduction::Part run_of(const Collective::Reduction::Part& part, uint64_t first, uint64_t at_once) {
  return {std::min(part.begin + first, part.end), std::min(part.begin + first + at_once, part.end)};
}

}  // namespace

Result<std::unique_ptr<Carrier>> NcclCarrier::make(const RanksOptions& options, Ranks& ranks) {
  std::unique_ptr<NcclCarrier> carrier(new NcclCarrier(options, ranks));
  Status mine = carrier->take_device();
  nccl::UniqueId id;
  if (mine.ok() && ranks.rank() == 0) {
    mine = carrier->library_->outcome("an id for the ranks", carrier->library_->call().get_unique_id(&id), nullptr);
  }
  const Status verdict =
      wait_for_end([&](Collective::Then then) { ranks.commits().barrier(mine, std::move(then)); }).within("ranks");
  PENSTOCK_TRY(mine);  // with its remedy
  PENSTOCK_TRY(verdict);
  std::vector<std::byte> ids(sizeof id * ranks.ranks());
  PENSTOCK_TRY(wait_for_end([&](Collective::Then then) {
    ranks.commits().exchange(std::as_bytes(std::span(&id, 1)), ids, std::move(then));
  }));
  std::memcpy(&id, ids.data(), sizeof id);  // rank 0's
  // On a thread of its own, so that the caller's keeps its device.
  Status connected;
  try {
    std::thread([&] { connected = carrier->connect(id); }).join();
  } catch (const std::system_error& error) {
    connected = thread_status("ranks: start a thread that meets the other devices: 0 of 1", error.code().value());
  }
  if (!connected.ok()) {
    // The others wait for this one.
    ranks.fail(connected);
    return ranks.status();
  }
  return std::unique_ptr<Carrier>(std::move(carrier));
}

NcclCarrier::~NcclCarrier() = default;

Status NcclCarrier::take_device() {
  PENSTOCK_TRY_ASSIGN(library, NcclLibrary::open());
  library_ = std::move(library);
  PENSTOCK_TRY_ASSIGN(backend, gpu::open_cuda_backend(*options_.device));
  backend_ = std::move(backend);
  const uint64_t memory_bytes = round_up(options_.device_memory_bytes, kAlignmentBytes);
  const uint64_t half_bytes = round_up(options_.staging_bytes / 2, kAlignmentBytes);
  PENSTOCK_TRY_ASSIGN(all, backend_->reserve(memory_bytes + 2 * half_bytes));
  memory_ = all.first(options_.device_memory_bytes);
  for (size_t i = 0; i < halves_.size(); ++i) halves_[i] = all.subspan(memory_bytes + i * half_bytes, half_bytes);
  for (Stream* stream : {&messages_, &sums_}) {
    PENSTOCK_TRY_ASSIGN(made, backend_->make_stream());
    *stream = made;
  }
  return Status();
}

Status NcclCarrier::connect(const nccl::UniqueId& id) {
  PENSTOCK_TRY(backend_->enter_thread());
  LongWait wait([this] { return ranks_.status(); }, options_.meets_within, "NCCL has not connected all ranks");
  PENSTOCK_TRY_ASSIGN(made, NcclCommunicator::make(library_, id, options_.place, std::move(wait)));
  communicator_ = std::move(made);
  return Status();
}

LongWait NcclCarrier::wait_for(uint64_t bytes) const {
  return LongWait([this] { return ranks_.status(); },
                  options_.hangs_after + std::chrono::milliseconds(bytes / kSlowestBytesPerMs),
                  "NCCL has not carried it");
}

Status NcclCarrier::gather(std::span<const Collective::Shard> shards) {
  const Status carried = put_gather(shards);
  return carried.ok() ? carried : ended_with(carried);
}

Status NcclCarrier::reduce(const Collective::Reduction& reduction) {
  const Status carried = put_reduction(reduction);
  return carried.ok() ? carried : ended_with(carried);
}

Status NcclCarrier::collect(const Collective::Collection& collection) {
  const Status carried = put_collection(collection);
  return carried.ok() ? carried : ended_with(carried);
}

Status NcclCarrier::ended_with(const Status& refused) {
  const bool is_of_nccl = !communicator_->status().ok();
  communicator_.reset();
  if (!is_of_nccl) return refused;
  // It may notice first that a rank has died; which one only those know that watch the processes.
  LongWait named([this] { return ranks_.status(); }, options_.silent_at_most + std::chrono::seconds(2), "");
  while (named.go_on().ok()) {
  }
  return refused;
}

Status NcclCarrier::put_gather(std::span<const Collective::Shard> shards) {
  PENSTOCK_TRY(backend_->enter_thread());
  std::vector<uint32_t> peers;
  uint64_t bytes = 0;
  for (const Collective::Shard& shard : shards) {
    bytes += shard.bytes;
    const bool is_known = std::find(peers.begin(), peers.end(), shard.rank) != peers.end();
    if (shard.rank != ranks_.rank() && !is_known) peers.push_back(shard.rank);
  }
  std::vector<Message> messages;
  for (const Collective::Shard& shard : shards) {
    if (shard.bytes == 0) continue;
    const std::span<std::byte> place = memory_.subspan(shard.offset_bytes, shard.bytes);
    if (shard.rank != ranks_.rank()) {
      messages.push_back({Message::Way::receive, shard.rank, place});
      continue;
    }
    for (uint32_t peer : peers) messages.push_back({Message::Way::send, peer, place});
  }
  if (messages.empty()) return Status();
  PENSTOCK_TRY(communicator_->put(messages, messages_, wait_for(bytes)));
  return finish(bytes);
}

Status NcclCarrier::put_collection(const Collective::Collection& collection) {
  PENSTOCK_TRY(backend_->enter_thread());
  const auto [begin, end] = collection.parts[ranks_.rank()];
  const uint64_t taken = end - begin;
  std::vector<Message> messages;
  uint64_t bytes = 0;
  for (uint32_t other = 0; other < ranks_.ranks(); ++other) {
    if (other == ranks_.rank()) continue;
    const auto [from, until] = collection.parts[other];
    const std::span<std::byte> theirs = memory_.subspan(collection.offset_bytes + from, until - from);
    if (!theirs.empty()) messages.push_back({Message::Way::send, other, theirs});
    const std::span<std::byte> place = memory_.subspan(collection.target_offset_bytes + other * taken, taken);
    if (taken > 0) messages.push_back({Message::Way::receive, other, place});
    bytes += theirs.size() + taken;
  }
  if (messages.empty()) return Status();
  PENSTOCK_TRY(communicator_->put(messages, messages_, wait_for(bytes)));
  return finish(bytes);
}

Status NcclCarrier::put_reduction(const Collective::Reduction& reduction) {
  PENSTOCK_TRY(backend_->enter_thread());
  const auto [begin, end] = reduction.parts[ranks_.rank()];
  const std::byte* const target = reduction.target.data();
  CHECK(
      begin == end || (target >= memory_.data() && target + reduction.target.size() <= memory_.data() + memory_.size()),
      "reduce: the target of ", reduction.target.size(), " B is not in the device's memory");
  // Of each element in a half: what the others give, and the sum.
  const uint64_t element_bytes = (ranks_.ranks() - 1) * bytes_of(reduction.dtype) + sizeof(float);
  const uint64_t at_once = halves_[0].size() / element_bytes / kPieceElements * kPieceElements;
  CHECK(at_once > 0, "reduce: a staging area of ", options_.staging_bytes, " B for ", ranks_.ranks(), " ranks");
  uint64_t longest = 0, bytes = 0;
  for (const Collective::Reduction::Part& part : reduction.parts) {
    longest = std::max(longest, length_of(part));
    bytes += length_of(part) * bytes_of(reduction.dtype);
  }
  std::array<Event, 2> added;  // when a half can be filled again
  for (uint64_t first = 0, round = 0; first < longest; first += at_once, ++round) {
    Event& last = added[round % 2];
    PENSTOCK_TRY(backend_->make_wait(messages_, last));
    PENSTOCK_TRY(put_round(reduction, first, at_once, halves_[round % 2].data()));
    PENSTOCK_TRY_ASSIGN(come, backend_->record(messages_));
    PENSTOCK_TRY(backend_->make_wait(sums_, come));
    PENSTOCK_TRY(put_sums(reduction, first, at_once, halves_[round % 2].data()));
    PENSTOCK_TRY_ASSIGN(ended, backend_->record(sums_));
    last = ended;
  }
  return finish(bytes);
}

// Half: the sums, then the runs of the other ranks, in their order.
Status NcclCarrier::put_round(const Collective::Reduction& reduction, uint64_t first, uint64_t at_once,
                              std::byte* half) {
  const uint64_t bytes = bytes_of(reduction.dtype);
  const auto mine = run_of(reduction.parts[ranks_.rank()], first, at_once);
  std::byte* place = half + at_once * sizeof(float);
  std::vector<Message> messages;
  uint64_t moved = 0;
  for (uint32_t other = 0; other < ranks_.ranks(); ++other) {
    if (other == ranks_.rank()) continue;
    const auto theirs = run_of(reduction.parts[other], first, at_once);
    if (length_of(theirs) > 0) {
      messages.push_back({Message::Way::send, other,
                          memory_.subspan(reduction.offset_bytes + theirs.begin * bytes, length_of(theirs) * bytes)});
    }
    if (length_of(mine) > 0) messages.push_back({Message::Way::receive, other, {place, length_of(mine) * bytes}});
    place += at_once * bytes;
    moved += (length_of(theirs) + length_of(mine)) * bytes;
  }
  if (messages.empty()) return Status();
  return communicator_->put(messages, messages_, wait_for(moved));
}

Status NcclCarrier::put_sums(const Collective::Reduction& reduction, uint64_t first, uint64_t at_once,
                             std::byte* half) {
  const uint64_t bytes = bytes_of(reduction.dtype), target_bytes = bytes_of(reduction.target_dtype);
  const auto mine = run_of(reduction.parts[ranks_.rank()], first, at_once);
  const uint64_t count = length_of(mine);
  if (count == 0) return Status();
  const std::byte* const own = memory_.data() + reduction.offset_bytes + mine.begin * bytes;
  const std::byte* come = half + at_once * sizeof(float);
  for (uint32_t other = 0; other < ranks_.ranks(); ++other) {
    const std::byte* const values = other == ranks_.rank() ? own : std::exchange(come, come + at_once * bytes);
    const Kernel kernel =
        other == 0 ? Kernel(kernel::Cast{values, half, reduction.dtype, Dtype::fp32, count})
                   : Kernel(kernel::Accumulate{values, reduction.dtype, reinterpret_cast<float*>(half), count});
    PENSTOCK_TRY(backend_->launch(kernel, sums_));
  }
  std::byte* const target = reduction.target.data() + first * target_bytes;
  return backend_->launch(kernel::Cast{half, target, Dtype::fp32, reduction.target_dtype, count}, sums_);
}

Status NcclCarrier::finish(uint64_t bytes) {
  LongWait wait = wait_for(bytes);
  for (const Stream stream : {messages_, sums_}) {
    PENSTOCK_TRY_ASSIGN(end, backend_->record(stream));
    while (true) {
      PENSTOCK_TRY_ASSIGN(is_over, backend_->reached(end));
      if (is_over) break;
      PENSTOCK_TRY(communicator_->status());
      PENSTOCK_TRY(wait.go_on());
    }
  }
  return Status();
}

}  // namespace penstock::engine
