#include "runtime/trainer/left_out.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace penstock::trainer {

using nlohmann::json;

void LeftOut::add(Run run) {
  CHECK(1 <= run.first && run.first <= run.last && run.last <= kNumberMost, "batches ", run.first, " to ", run.last);
  // All that touch it become one with it.
  const auto begin =
      std::find_if(runs_.begin(), runs_.end(), [&](const Run& one) { return one.last + 1 >= run.first; });
  const auto end = std::find_if(begin, runs_.end(), [&](const Run& one) { return one.first > run.last + 1; });
  if (begin != end) {
    run.first = std::min(run.first, begin->first);
    run.last = std::max(run.last, std::prev(end)->last);
  }
  runs_.insert(runs_.erase(begin, end), run);
}

void LeftOut::add(const LeftOut& other) {
  for (const Run& run : other.runs_) add(run);
}

bool LeftOut::has(uint64_t batch) const {
  return std::any_of(runs_.begin(), runs_.end(),
                     [batch](const Run& run) { return run.first <= batch && batch <= run.last; });
}

uint64_t LeftOut::batch_of(uint64_t step) const {
  CHECK(step >= 1, "steps count from 1");
  uint64_t batch = step;
  for (const Run& run : runs_) {
    if (batch < run.first) break;
    batch += run.last - run.first + 1;
  }
  return batch;
}

uint64_t LeftOut::count_up_to(uint64_t batch) const {
  uint64_t count = 0;
  for (const Run& run : up_to(batch).runs_) count += run.last - run.first + 1;
  return count;
}

LeftOut LeftOut::up_to(uint64_t batch) const {
  LeftOut some;
  for (const Run& run : runs_)
    if (run.first <= batch) some.add({run.first, std::min(run.last, batch)});
  return some;
}

LeftOut LeftOut::after(uint64_t batch) const {
  LeftOut some;
  for (const Run& run : runs_)
    if (run.last > batch) some.add({std::max(run.first, batch + 1), run.last});
  return some;
}

std::string json_of(const LeftOut& batches) {
  json list = json::array();
  for (const LeftOut::Run& run : batches.runs())
    list.push_back(run.first == run.last ? json(run.first) : json({run.first, run.last}));
  return list.dump();
}

Result<LeftOut> parse_left_out(const std::string& text_of_list, size_t most) {
  auto refused = [](const std::string& found) {
    return Status(Code::kUsage, text("has ", found, "; numbers of batches, from 1, and [first, last] expected"));
  };
  const json list = json::parse(text_of_list, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array())
    return Status(Code::kUsage, text("is ", list.is_discarded() ? "not JSON" : list.dump(),
                                     ", a list as [3, [17, 20]] expected: batch 3, and those from 17 to 20"));
  if (list.size() > most)
    return Status(Code::kUsage, text("has ", list.size(), " entries, at most ", most, " expected"));
  LeftOut batches;
  for (const json& item : list) {
    const bool is_run = item.is_array() && item.size() == 2 && item[0].is_number_unsigned();
    const json& first = is_run ? item[0] : item;
    const json& last = is_run ? item[1] : item;
    if (!first.is_number_unsigned() || !last.is_number_unsigned()) return refused(item.dump());
    const LeftOut::Run run{first.get<uint64_t>(), last.get<uint64_t>()};
    if (run.first < 1 || run.last < run.first || run.last > LeftOut::kNumberMost) return refused(item.dump());
    batches.add(run);
  }
  return batches;
}

}  // namespace penstock::trainer
