#include "runtime/engine/ranks/kept_together.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "runtime/engine/ranks/in_verb.h"
#include "runtime/engine/ranks/stored_model.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kNone = ~uint64_t{0};

std::optional<InVerb> in_verb(Ranks* others) {
  return others == nullptr ? std::nullopt : std::optional<InVerb>(std::in_place, *others);
}

}  // namespace

Result<std::vector<uint64_t>> KeptTogether::by_rank(const std::function<uint64_t(const KeptSteps&)>& number) {
  std::vector<uint64_t> here;
  for (const KeptSteps& kept : here_) here.push_back(number(kept));
  if (others_ == nullptr) return here;
  std::vector<uint64_t> all(others_->ranks());
  PENSTOCK_TRY(wait_for_end([&](Collective::Then then) {
    others_->commits().exchange(std::as_bytes(std::span(here)), std::as_writable_bytes(std::span(all)),
                                std::move(then));
  }));
  return all;
}

Status KeptTogether::agreed(const Status& mine) {
  if (others_ == nullptr) return mine;
  const Status all = wait_for_end([&](Collective::Then then) { others_->commits().barrier(mine, std::move(then)); });
  return mine.ok() ? all : mine;
}

Status KeptTogether::each(const std::function<Status(KeptSteps&)>& does) {
  for (KeptSteps& kept : here_) PENSTOCK_TRY(does(kept));
  return Status();
}

std::vector<uint64_t> KeptTogether::steps() const {
  std::vector<uint64_t> common = here_.front().steps();
  for (const KeptSteps& kept : here_) {
    const std::vector<uint64_t> of_one = kept.steps();
    std::erase_if(common, [&](uint64_t step) { return !std::binary_search(of_one.begin(), of_one.end(), step); });
  }
  return common;
}

uint64_t KeptTogether::bytes_of(uint64_t step) const {
  return std::accumulate(here_.begin(), here_.end(), uint64_t{0},
                         [&](uint64_t bytes, const KeptSteps& kept) { return bytes + kept.bytes_of(step); });
}

Result<uint64_t> KeptTogether::keep(uint64_t step, const std::vector<Runs>& runs, const std::string& note) {
  const auto verb = in_verb(others_);
  PENSTOCK_TRY_ASSIGN(have_it, by_rank([&](const KeptSteps& kept) { return kept.is_as_kept(step) ? 1 : 0; }));
  if (std::find(have_it.begin(), have_it.end(), 0) != have_it.end()) {
    size_t store = 0;
    const Status copied = agreed(each([&](KeptSteps& kept) { return kept.prepare(step, runs[store++], note); }));
    if (!copied.ok()) {
      for (KeptSteps& kept : here_) kept.abandon(step);
      return copied;
    }
    PENSTOCK_TRY(agreed(each([&](KeptSteps& kept) { return kept.publish(step); })));
  }
  PENSTOCK_TRY_ASSIGN(bytes, by_rank([&](const KeptSteps& kept) { return kept.bytes_of(step); }));
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

Status KeptTogether::drop(uint64_t step) {
  const auto verb = in_verb(others_);
  return agreed(each([&](KeptSteps& kept) { return kept.drop(step); }));
}

Status KeptTogether::restore(uint64_t step, const aio::ScrubProgress& progress) {
  if (here_.front().of().ranks == 1) return here_.front().restore(step, progress);  // by one root
  PENSTOCK_TRY(verify_together(step));
  PENSTOCK_TRY(agreed(each([&](KeptSteps& kept) { return kept.mark_rollback(step); })));
  return go_back(step, progress);
}

// Copies of one run and step may be of two times, with other steps before: nobody goes back to a mixture.
Status KeptTogether::verify_together(uint64_t step) {
  PENSTOCK_TRY_ASSIGN(courses, by_rank([&](const KeptSteps& kept) {
                        const Result<uint64_t> course = kept.course_of(step);
                        return course.ok() ? *course : 0;  // verifying it says why
                      }));
  const Status is_kept = check(step);
  PENSTOCK_TRY(agreed(is_kept.ok() ? each([&](KeptSteps& kept) { return kept.verify(step); }) : is_kept));
  for (uint32_t rank = 1; rank < courses.size(); ++rank) {
    if (courses[rank] != courses[0]) return another_course(rank, step);
  }
  return Status();
}

Status KeptTogether::go_back(uint64_t step, const aio::ScrubProgress& progress) {
  double done = 0;
  const auto of_all_here = [&](double share) {
    return progress ? progress((done + share) / static_cast<double>(here_.size())) : Status();
  };
  const Status went_back = each([&](KeptSteps& kept) {
    PENSTOCK_TRY(kept.restore(step, of_all_here));
    ++done;
    return Status();
  });
  PENSTOCK_TRY(agreed(went_back));
  return forget_rollback();
}

Status KeptTogether::forget_rollback() {
  return agreed(each([](KeptSteps& kept) { return kept.unmark_rollback(); }));
}

// Where no store has gone back yet, all stay where they are.
Status KeptTogether::give_up_rollback(uint64_t step, const Status& why) {
  Status found;
  PENSTOCK_TRY_ASSIGN(gone, by_rank([&](const KeptSteps& kept) {
                        const Result<uint64_t> there = kept.step_of_store();
                        if (!there.ok()) found = there.status();
                        return there.ok() && *there == step ? 1 : 0;
                      }));
  PENSTOCK_TRY(agreed(found));
  const std::string what = text("a rollback to step ", step, " was cut short, and its copies cannot be used: ");
  if (std::count(gone.begin(), gone.end(), 1) > 0) {
    return Status(why.code(), what + why.message(),
                  text("put back a copy of that file, or go back to another step that is kept: `penstock checkpoint "
                       "rollback`; some ranks' stores are at step ",
                       step, " already"));
  }
  PENSTOCK_TRY(forget_rollback());
  return Status(why.code(), what + why.message(),
                text("start again: the run goes on from where it was; `penstock checkpoint rm --step ", step,
                     "` removes what is damaged"));
}

std::optional<uint64_t> KeptTogether::unfinished_rollback() const {
  const std::optional<uint64_t> first = here_.front().marked_rollback();
  const bool all_have =
      std::all_of(here_.begin(), here_.end(), [&](const KeptSteps& kept) { return kept.marked_rollback() == first; });
  return all_have ? first : std::nullopt;
}

Result<std::optional<uint64_t>> KeptTogether::finish_rollback(const aio::ScrubProgress& progress) {
  PENSTOCK_TRY_ASSIGN(marked, by_rank([](const KeptSteps& kept) { return kept.marked_rollback().value_or(kNone); }));
  const uint64_t step = marked.front();
  if (step != kNone && std::count(marked.begin(), marked.end(), step) == std::ssize(marked)) {
    const Status verified = verify_together(step);
    if (!verified.ok()) return give_up_rollback(step, verified);
    PENSTOCK_TRY(go_back(step, progress));
    return std::optional(step);
  }
  PENSTOCK_TRY(forget_rollback());
  return std::optional<uint64_t>();
}

// Step by step upwards: every rank names the next that it has, and the least is of all or goes.
Result<std::vector<std::string>> KeptTogether::drop_incomplete() {
  for (const KeptSteps& kept : here_) kept.drop_partial();
  std::vector<std::string> removed;
  for (uint64_t first = 0;;) {
    PENSTOCK_TRY_ASSIGN(next, by_rank([&](const KeptSteps& kept) {
                          const std::vector<uint64_t> steps = kept.steps();
                          const auto found = std::lower_bound(steps.begin(), steps.end(), first);
                          return found == steps.end() ? kNone : *found;
                        }));
    const uint64_t step = *std::min_element(next.begin(), next.end());
    if (step == kNone) return removed;
    first = step + 1;
    std::string without;
    for (uint32_t rank = 0; rank < next.size(); ++rank) {
      if (next[rank] == step) continue;
      without += text(without.empty() ? "" : ", ", others_ == nullptr ? text("rank ", rank) : others_->name_of(rank));
    }
    if (without.empty()) continue;
    PENSTOCK_TRY(agreed(each([&](KeptSteps& kept) { return kept.check(step).ok() ? kept.drop(step) : Status(); })));
    removed.push_back(text("the snapshot of step ", step, " is removed: ", without, " had none"));
  }
}

}  // namespace penstock::engine
