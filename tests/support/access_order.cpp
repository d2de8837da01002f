#include "tests/support/access_order.h"

#include <algorithm>

#include "tiering/status.h"

namespace penstock::test {
namespace {

void join(std::vector<uint64_t>& into, const std::vector<uint64_t>& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

}  // namespace

size_t AccessOrder::number_of(StreamHandle stream) {
  const size_t number = numbers_.try_emplace(stream, numbers_.size()).first->second;
  if (number == clocks_.size()) clocks_.emplace_back();
  return number;
}

// What is put on a stream follows all that the host knows.
std::vector<uint64_t>& AccessOrder::clock_of(size_t stream) {
  std::vector<uint64_t>& clock = clocks_[stream];
  join(clock, host_);
  if (clock.size() <= stream) clock.resize(stream + 1);
  return clock;
}

AccessOrder::Moment AccessOrder::record(StreamHandle stream) {
  std::lock_guard lock(mutex_);
  Moment moment;
  moment.times_ = clock_of(number_of(stream));
  return moment;
}

void AccessOrder::make_wait(StreamHandle stream, const Moment& moment) {
  std::lock_guard lock(mutex_);
  join(clock_of(number_of(stream)), moment.times_);
}

void AccessOrder::host_learned(const Moment& moment) {
  std::lock_guard lock(mutex_);
  join(host_, moment.times_);
}

AccessOrder::SharedOperation AccessOrder::begin(StreamHandle stream, const std::string& what, bool gives_back) {
  const size_t number = number_of(stream);
  const uint64_t time = ++clock_of(number)[number];
  return std::make_shared<const Operation>(
      Operation{.what = what, .stream = number, .time = time, .gives_back = gives_back});
}

void AccessOrder::put(StreamHandle stream, const std::string& what, std::span<const Run> reads,
                      std::span<const Run> writes) {
  std::lock_guard lock(mutex_);
  const SharedOperation operation = begin(stream, what, false);
  for (const Run& run : reads) touch(operation, run, /*writes=*/false);
  for (const Run& run : writes) touch(operation, run, /*writes=*/true);
}

void AccessOrder::give_back(StreamHandle stream, const Run& run) {
  std::lock_guard lock(mutex_);
  touch(begin(stream, "giving back", true), run, /*writes=*/true);
}

void AccessOrder::forget(const Run& run) {
  std::lock_guard lock(mutex_);
  const auto first = reinterpret_cast<uintptr_t>(run.data);
  const auto begin = cut(first), end = cut(first + run.bytes);
  cells_.erase(begin, end);
}

std::vector<std::string> AccessOrder::take_failures() {
  std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [words, times] : failures_) all.push_back(text(words, " (", times, " x)"));
  failures_.clear();
  return all;
}

uint64_t AccessOrder::accesses() const {
  std::lock_guard lock(mutex_);
  return accesses_;
}

// The first cell that begins at `at` or behind it; none has it inside.
AccessOrder::Cells::iterator AccessOrder::cut(uintptr_t at) {
  const auto behind = cells_.lower_bound(at);
  if (behind == cells_.begin()) return behind;
  const auto before = std::prev(behind);
  if (before->second.end <= at) return behind;
  Cell second = before->second;
  before->second.end = at;
  return cells_.emplace_hint(behind, at, std::move(second));
}

void AccessOrder::touch(const SharedOperation& by, const Run& run, bool writes) {
  if (run.bytes == 0) return;
  ++accesses_;
  const auto first = reinterpret_cast<uintptr_t>(run.data), end = first + run.bytes;
  auto cell = cut(first);
  cut(end);
  for (uintptr_t at = first; at < end; ++cell) {
    if (cell == cells_.end() || cell->first > at) {
      const uintptr_t next = cell == cells_.end() ? end : std::min(cell->first, end);
      cell = cells_.emplace_hint(cell, at, Cell{.end = next, .written = nullptr});
    }
    Cell& here = cell->second;
    if (here.written) expect_before(here.written, by, run, true, writes);
    if (writes) {
      for (const SharedOperation& reader : here.read) expect_before(reader, by, run, false, true);
      here.written = by;
      here.read.clear();
    } else {
      std::erase_if(here.read, [&](const SharedOperation& reader) { return reader->stream == by->stream; });
      here.read.push_back(by);
    }
    at = here.end;
  }
}

void AccessOrder::expect_before(const SharedOperation& earlier, const SharedOperation& later, const Run& run,
                                bool earlier_writes, bool later_writes) {
  if (earlier == later) return;
  const std::vector<uint64_t>& clock = clocks_[later->stream];
  const bool is_before = earlier->stream < clock.size() && earlier->time <= clock[earlier->stream];
  if (is_before && !earlier->gives_back) return;
  const std::string words =
      earlier->gives_back
          ? text(words_of(*later), later_writes ? " writes" : " reads", " ", run.bytes, " B that stream ",
                 earlier->stream, " has given back")
          : text(words_of(*later), later_writes ? " writes" : " reads", " ", run.bytes, " B that ", words_of(*earlier),
                 earlier_writes ? " writes" : " reads", ", and nothing says which is first");
  ++failures_[words];
}

std::string AccessOrder::words_of(const Operation& operation) const {
  return text(operation.what, " on stream ", operation.stream);
}

}  // namespace penstock::test
