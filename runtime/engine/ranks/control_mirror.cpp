#include "runtime/engine/ranks/control_mirror.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <cstring>
#include <memory>
#include <system_error>
#include <type_traits>

namespace penstock::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMagic = 0x4d4b'4e50;  // PNKM
constexpr std::chrono::milliseconds kLivesEvery{50}, kLooksEvery{100};
constexpr std::chrono::seconds kLeavesWithin{2};
constexpr timeval kSendsWithin{5, 0};  // who takes nothing for so long is named for its silence

enum Kind : uint32_t { kLife, kWord, kTurn, kFailure };

struct Header {
  uint32_t magic = kMagic;
  uint32_t kind = kLife;
  uint32_t bytes = 0;
};
struct Life {
  uint64_t sign_of_life, step, has_left, absence, in_step, progress, longest_absence_ms, expected_pass_ms;
};
struct Said {
  uint64_t number;
  Word word;
};
struct Turn {
  uint64_t begun, done, waits;
};
struct Failed {
  uint32_t code, bytes;
  std::array<char, 2048> message;
};
static_assert(std::is_trivially_copyable_v<Said>);

template <typename Payload>
void append(std::vector<char>& messages, Kind kind, const Payload& payload) {
  const Header header{.kind = kind, .bytes = sizeof payload};
  const auto* head = reinterpret_cast<const char*>(&header);
  const auto* body = reinterpret_cast<const char*>(&payload);
  messages.insert(messages.end(), head, head + sizeof header);
  messages.insert(messages.end(), body, body + sizeof payload);
}

Life life_of(const ControlOfRank& rank) {
  constexpr auto kAnyOrder = std::memory_order_relaxed;
  return {rank.sign_of_life.load(kAnyOrder),
          rank.step.load(kAnyOrder),
          rank.has_left.load(),
          rank.absence.load(kAnyOrder),
          rank.in_step.load(kAnyOrder),
          rank.progress.load(kAnyOrder),
          rank.longest_absence_ms.load(kAnyOrder),
          rank.expected_pass_ms.load(kAnyOrder)};
}

}  // namespace

ControlMirror::ControlMirror(const SharedMemory& memory, uint32_t rank, Connections connections)
    : memory_(memory),
      rank_(rank),
      connections_(std::move(connections)),
      says_it_has_left_(memory.ranks()),
      channels_ended_(memory.ranks()) {
  for (auto& of_channel : has_gone_) of_channel = std::vector<std::atomic<bool>>(memory.ranks());
}

Result<std::unique_ptr<ControlMirror>> ControlMirror::make(const SharedMemory& memory, uint32_t rank,
                                                           Connections connections) {
  std::unique_ptr<ControlMirror> mirror(new ControlMirror(memory, rank, std::move(connections)));
  for (const std::vector<Connection>& of_channel : mirror->connections_) {
    for (const Connection& each : of_channel) {
      if (each.descriptor() < 0) continue;
      (void)::setsockopt(each.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &kSendsWithin, sizeof kSendsWithin);
    }
  }
  try {
    mirror->hearing_ = std::thread([made = mirror.get()] { made->hear(); });
    for (uint32_t channel = 0; channel < kMirroredChannels; ++channel) {
      mirror->telling_[channel] = std::thread([made = mirror.get(), channel] { made->tell(channel); });
    }
  } catch (const std::system_error& error) {
    return thread_status("ranks: start a thread that speaks with other hosts", error.code().value());
  }
  return Result<std::unique_ptr<ControlMirror>>(std::move(mirror));
}

ControlMirror::~ControlMirror() {
  stopping_ = true;
  memory_.ring_all();
  for (std::thread& thread : telling_) {
    if (thread.joinable()) thread.join();
  }
  if (hearing_.joinable()) hearing_.join();
}

void ControlMirror::tell_step() {
  const uint64_t step = memory_.control().ranks[rank_].step.load(std::memory_order_relaxed);
  memory_.ring(0);
  for (uint64_t told = told_step_; told != step; told = told_step_) told_step_.wait(told);
}

// A word is said before the turn that others read it at.
void ControlMirror::tell(uint32_t channel) {
  const ControlOfRank& mine = memory_.control().ranks[rank_];
  const ChannelOfRank& of_channel = mine.channels[channel];
  uint64_t begun = 0, done = 0;
  bool has_told_failure = false;
  Clock::time_point told;
  for (bool is_last = false; !is_last;) {
    is_last = stopping_;
    const uint32_t heard = memory_.control().bells[channel].load(std::memory_order_seq_cst);
    const Life life = life_of(mine);  // who has left in it has no later turn than this
    const Turn turn{of_channel.begun.load(std::memory_order_acquire), of_channel.done.load(std::memory_order_acquire),
                    of_channel.waits.load(std::memory_order_relaxed)};
    const Status failure = has_told_failure || channel != 0 ? Status() : memory_.failure();
    const uint64_t step = life.step;
    const bool has_step = channel == 0 && step != told_step_;
    const bool has_news = turn.begun != begun || turn.done != done || has_step || !failure.ok() || is_last;
    if (has_news || Clock::now() - told >= kLivesEvery) {
      std::vector<char> messages;
      // One operation may have ended with what the others had begun: both words are there.
      for (uint64_t number = begun + 1; number <= turn.begun; ++number) {
        append(messages, kWord, Said{number, of_channel.words[number % 2]});
      }
      append(messages, kTurn, turn);
      if (!failure.ok()) {
        Failed failed{static_cast<uint32_t>(failure.code()), 0, {}};
        failed.bytes = static_cast<uint32_t>(std::min(failure.message().size(), failed.message.size()));
        std::memcpy(failed.message.data(), failure.message().data(), failed.bytes);
        append(messages, kFailure, failed);
        has_told_failure = true;
      }
      if (channel == 0) append(messages, kLife, life);
      send_to_all(channel, messages);
      if (has_step) {
        told_step_ = step;
        told_step_.notify_all();
      }
      begun = turn.begun;
      done = turn.done;
      told = Clock::now();
    }
    if (!is_last) memory_.listen(channel, heard);
  }
  for (uint32_t other = 0; other < memory_.ranks(); ++other) {
    if (descriptor(channel, other) >= 0) ::shutdown(descriptor(channel, other), SHUT_WR);
  }
}

void ControlMirror::send_to_all(uint32_t channel, const std::vector<char>& messages) {
  for (uint32_t other = 0; other < memory_.ranks(); ++other) {
    if (descriptor(channel, other) < 0) continue;
    for (size_t sent = 0; sent < messages.size() && !has_gone_[channel][other];) {
      const ssize_t now =
          ::send(descriptor(channel, other), messages.data() + sent, messages.size() - sent, MSG_NOSIGNAL);
      if (now < 0 && errno == EINTR) continue;
      if (now <= 0) {
        has_gone_[channel][other] = true;  // half a message would be read as another
        break;
      }
      sent += static_cast<size_t>(now);
    }
  }
}

void ControlMirror::hear() {
  std::vector<Hearing> all;
  for (uint32_t channel = 0; channel < kMirroredChannels; ++channel) {
    for (uint32_t other = 0; other < memory_.ranks(); ++other) {
      if (descriptor(channel, other) >= 0) all.push_back({.channel = channel, .rank = other});
    }
  }
  // Who leaves waits for the others to have read it: what is closed unread is lost to them.
  Clock::time_point leaves_by = Clock::time_point::max();
  while (Clock::now() < leaves_by) {
    if (stopping_ && leaves_by == Clock::time_point::max()) leaves_by = Clock::now() + kLeavesWithin;
    std::vector<pollfd> sources;
    std::vector<Hearing*> of;
    for (Hearing& each : all) {
      if (each.has_ended) continue;
      sources.push_back({descriptor(each.channel, each.rank), POLLIN, 0});
      of.push_back(&each);
    }
    if (sources.empty() && stopping_) return;
    if (::poll(sources.data(), sources.size(), static_cast<int>(kLooksEvery.count())) <= 0) continue;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].revents != 0) hear_from(*of[i]);
    }
  }
}

void ControlMirror::hear_from(Hearing& from) {
  const int source = descriptor(from.channel, from.rank);
  char bytes[16384];
  const ssize_t now = ::recv(source, bytes, sizeof bytes, MSG_DONTWAIT);
  if (now < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (now > 0) {
    from.bytes.insert(from.bytes.end(), bytes, bytes + now);
    return take_messages(from);
  }
  from.has_ended = true;
  has_gone_[from.channel][from.rank] = true;
  ::shutdown(source, SHUT_RDWR);
  ++channels_ended_[from.rank];
  ControlOfRank& control = memory_.control().ranks[from.rank];
  if (says_it_has_left_[from.rank]) {
    // Only then its last words on every channel have come.
    if (channels_ended_[from.rank] < kMirroredChannels) return;
    control.has_left.store(1, std::memory_order_release);
    memory_.ring_all();
  } else if (from.channel == 0) {
    memory_.fail(memory_.died(from.rank));
  }
}

void ControlMirror::take_messages(Hearing& from) {
  size_t at = 0;
  while (from.bytes.size() - at >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, from.bytes.data() + at, sizeof header);
    if (header.magic != kMagic || header.bytes > sizeof(Failed)) {
      memory_.fail(Status(Code::kEnvironment, text(memory_.name_of(from.rank), " sent an unknown message"),
                          "start all ranks with the same version of penstock"));
      from.bytes.clear();
      return;
    }
    if (from.bytes.size() - at < sizeof header + header.bytes) break;
    take(from, header.kind, from.bytes.data() + at + sizeof header, header.bytes);
    at += sizeof header + header.bytes;
  }
  from.bytes.erase(from.bytes.begin(), from.bytes.begin() + static_cast<ptrdiff_t>(at));
}

void ControlMirror::take(const Hearing& from, uint32_t kind, const char* payload, size_t bytes) {
  ControlOfRank& rank = memory_.control().ranks[from.rank];
  ChannelOfRank& channel = rank.channels[from.channel];
  const auto read = [&](auto& into) {
    if (bytes != sizeof into) return false;
    std::memcpy(&into, payload, sizeof into);
    return true;
  };
  if (Life life; kind == kLife && read(life)) {
    constexpr auto kAnyOrder = std::memory_order_relaxed;
    rank.sign_of_life.store(life.sign_of_life, kAnyOrder);
    rank.step.store(life.step, kAnyOrder);
    rank.absence.store(life.absence, kAnyOrder);
    rank.in_step.store(static_cast<uint32_t>(life.in_step), kAnyOrder);
    rank.progress.store(life.progress, kAnyOrder);
    rank.longest_absence_ms.store(life.longest_absence_ms, kAnyOrder);
    rank.expected_pass_ms.store(life.expected_pass_ms, kAnyOrder);
    if (life.has_left != 0) says_it_has_left_[from.rank] = true;
  } else if (Said said; kind == kWord && read(said)) {
    said.word.bytes = std::min<uint32_t>(said.word.bytes, kExchangeBytesMax);
    channel.words[said.number % 2] = said.word;
  } else if (Turn turn; kind == kTurn && read(turn)) {
    channel.waits.store(static_cast<uint32_t>(turn.waits), std::memory_order_relaxed);
    const bool is_news = channel.begun.exchange(turn.begun, std::memory_order_acq_rel) != turn.begun;
    if ((channel.done.exchange(turn.done, std::memory_order_acq_rel) != turn.done) || is_news) {
      memory_.ring(from.channel);
    }
  } else if (Failed failed; kind == kFailure && read(failed)) {
    const size_t length = std::min<size_t>(failed.bytes, failed.message.size());
    const Code code = failed.code == 0 ? Code::kEnvironment : static_cast<Code>(failed.code);
    memory_.fail(Status(code, std::string(failed.message.data(), length)));
  }
}

}  // namespace penstock::engine
