// ranked_worker SEED STEPS GROUP_RANKS each|once: one rank of a course of training; gathered for each pass or once a
// step. Says what happened, or what is wrong and ends with 1.
#include <cstdio>
#include <cstdlib>

#include "tests/support/ranked_course.h"

namespace penstock::engine {
namespace {

Status run(char** arguments) {
  auto number = [&](int index) { return std::strtoull(arguments[index], nullptr, 10); };
  PENSTOCK_TRY_ASSIGN(place, find_rank_place());
  RankedCourse course(number(1), place, static_cast<uint32_t>(number(3)), std::string(arguments[4]) == "once");
  PENSTOCK_TRY_ASSIGN(ranks, meet({.place = place, .memory_bytes = course.memory_bytes()}));
  PENSTOCK_TRY(course.run(*ranks, number(2)));
  std::printf("struck %d skipped %d discarded %d absent %d\n", course.struck, course.skipped, course.discarded,
              course.absent);
  return wait_for_end([&](Collective::Then then) { ranks->passes().barrier(Status(), std::move(then)); });
}

}  // namespace
}  // namespace penstock::engine

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const penstock::Status status = penstock::engine::run(arguments);
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
