#include "tools/plan/advice.h"

#include <algorithm>

#include "tools/penstock/quantity.h"
#include "tools/penstock/text_table.h"
#include "tools/plan/forecast_text.h"
#include "tools/plan/resource_change.h"

namespace penstock::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kHostStep = 64 * kMiB;  // how finely a host budget is looked for
constexpr int kHostTries = 10, kChangesMost = 7, kDurabilityTries = 5;
// A plan that is not the best one counts as fast enough only where the best one surely is.
constexpr double kSurely = 0.99;
constexpr Durability kDurabilities[] = {{Durability::Kind::step, 1},
                                        {Durability::Kind::every, 10},
                                        {Durability::Kind::every, 100},
                                        {Durability::Kind::every, 1000},
                                        {Durability::Kind::exit, 1}};

// Of a plan that was found, what its search had to choose.
PlanChoices choices_of(const Forecast& found) {
  PlanChoices choices = found.request.choices;
  choices.micro_batch_group = found.plan->micro_batch_group;
  const std::vector<ActivationChoice>& by_use = found.plan->activations;
  if (by_use.empty()) return choices;
  auto is_kept = [](ActivationChoice choice) { return choice == ActivationChoice::keep; };
  const auto other = std::ranges::find_if_not(by_use, is_kept);
  choices.activations = other == by_use.end() ? ActivationChoice::keep : *other;
  const auto kept = std::ranges::count_if(by_use, is_kept);
  if (kept > 0 && other != by_use.end()) {
    choices.keep_share = static_cast<double>(kept) / static_cast<double>(by_use.size());
  }
  return choices;
}

class Adviser {
 public:
  Adviser(const ForecastRequest& asked, const Forecast& usual, const PlanningProgress& progress)
      : asked_(asked), usual_(usual), progress_(progress) {
    if (usual.ranks > 1) asked_.stage = usual.stage;
    asked_.machine.network_gbps = usual.request.machine.network_gbps;
  }

  Result<Advice> run(const Wishes& wishes) {
    const bool out_of_reach = wishes.step_s > 0 && usual_.times.step_s > wishes.step_s;
    const bool changes = wishes.changes || out_of_reach;
    expected_ = std::max(1, (changes ? kChangesMost : 0) + (wishes.step_s > 0 && !out_of_reach ? kHostTries : 0) +
                                (wishes.drive_life_days > 0 ? kDurabilityTries : 0));
    if (changes) PENSTOCK_TRY(consider_changes());
    if (wishes.step_s > 0) PENSTOCK_TRY(reach_step(wishes.step_s));
    if (wishes.drive_life_days > 0) PENSTOCK_TRY(reach_drive_life(wishes.drive_life_days));
    return std::move(advice_);
  }

 private:
  Result<Forecast> plan_again(ForecastRequest changed, const std::string& what) {
    progress_(std::min(1.0, static_cast<double>(planned_++) / expected_), what);
    changed.explains = false;
    return forecast(std::move(changed));
  }

  Status consider(std::string what, const ForecastRequest& changed) {
    PENSTOCK_TRY_ASSIGN(result, plan_again(changed, what));
    if (result.fits) advice_.changes.push_back({std::move(what), result.times.step_s, result.drive_life_days()});
    return Status();
  }

  Status consider_changes() {
    const Resources now{.machine = asked_.machine,
                        .asked = asked_.budgets,
                        .used = usual_.request.budgets,
                        .scope = asked_.scope,
                        .ranks = usual_.ranks,
                        .nodes = asked_.nodes};
    for (ResourceChange& more : more_of_each(now)) {
      ForecastRequest changed = asked_;
      changed.machine = std::move(more.machine);
      changed.budgets = more.budgets;
      PENSTOCK_TRY(consider(std::move(more.what), changed));
    }
    return Status();
  }

  Result<Forecast> plan_with_host(uint64_t bytes, const PlanChoices& choices) {
    ForecastRequest changed = asked_;
    changed.budgets.host_bytes = bytes;
    changed.choices = choices;
    return plan_again(std::move(changed), text(bytes_text(bytes), " of host memory"));
  }

  // Where the choices that sufficed with more memory still do, nothing has to be searched for.
  Result<bool> suffices(uint64_t host_bytes, double aim_s, PlanChoices& choices) {
    PENSTOCK_TRY_ASSIGN(alike, plan_with_host(host_bytes, choices));
    if (alike.fits && alike.times.step_s <= kSurely * aim_s) return true;
    PENSTOCK_TRY_ASSIGN(best, plan_with_host(host_bytes, asked_.choices));
    if (!best.fits || best.times.step_s > aim_s) return false;
    choices = choices_of(best);
    return true;
  }

  // More memory is never slower, so that halving finds the least.
  Status reach_step(double aim_s) {
    AimAnswer answer{.aim = text("a step of at most ", seconds_text(aim_s))};
    uint64_t enough = usual_.request.budgets.host_bytes, too_little = 0;
    const double usual_s = usual_.times.step_s;
    answer.is_reached = usual_s <= aim_s;
    if (!answer.is_reached) {
      answer.answer = text("not with ", bytes_text(enough), " of host memory: ", seconds_text(usual_s));
      const Change* best = best_change();
      if (best != nullptr) {
        answer.answer += text("; nearest by one change, ", best->what, ": ", seconds_text(best->step_s));
      }
    } else {
      PlanChoices choices = choices_of(usual_);
      for (int i = 0; i < kHostTries && enough - too_little > kHostStep; ++i) {
        const uint64_t tried = round_up((enough + too_little) / 2, kHostStep);
        if (tried >= enough) break;
        PENSTOCK_TRY_ASSIGN(is_enough, suffices(tried, aim_s, choices));
        (is_enough ? enough : too_little) = tried;
      }
      PENSTOCK_TRY_ASSIGN(reached, plan_with_host(enough, asked_.choices));
      answer.answer = text("--budget host=", bytes_flag_text(enough), ": ", seconds_text(reached.times.step_s));
    }
    advice_.aims.push_back(std::move(answer));
    return Status();
  }

  const Change* best_change() const {
    const auto best = std::min_element(advice_.changes.begin(), advice_.changes.end(),
                                       [](const Change& a, const Change& b) { return a.step_s < b.step_s; });
    return best == advice_.changes.end() ? nullptr : &*best;
  }

  Result<Forecast> plan_durable(const Durability& durability) {
    ForecastRequest changed = asked_;
    changed.durability = durability;
    return plan_again(std::move(changed), "durable " + text_of(durability));
  }

  Status reach_drive_life(double aim_days) {
    AimAnswer answer{.aim = text("drives that last ", fixed(aim_days, 0), " days")};
    double longest_days = 0;
    for (const Durability& durability : kDurabilities) {
      PENSTOCK_TRY_ASSIGN(result, plan_durable(durability));
      if (!result.fits) continue;
      const std::optional<double> days = result.drive_life_days();
      // Nothing is written at all, or nobody knows what the drives endure.
      const bool wears = result.written_bytes_per_step > 0;
      if (wears && !days) {
        answer.answer = "unknown: the profile does not say what its drives endure (endurance_bytes)";
        break;
      }
      longest_days = std::max(longest_days, days.value_or(0));
      if (wears && *days < aim_days) continue;
      answer.is_reached = true;
      answer.answer = text("--durability ", text_of(durability), ": ",
                           wears ? fixed(*days, 0) + " days" : std::string("no byte is written before the end"), ", ",
                           seconds_text(result.times.step_s), " a step");
      break;
    }
    if (answer.answer.empty()) {
      answer.answer = text("not by durability alone: ", fixed(longest_days, 0),
                           " days at most; more host memory keeps state off the drives");
    }
    advice_.aims.push_back(std::move(answer));
    return Status();
  }

  ForecastRequest asked_;  // in the stage of the usual one
  const Forecast& usual_;
  const PlanningProgress& progress_;
  int planned_ = 0, expected_ = 1;
  Advice advice_;
};

std::string days_text(const std::optional<double>& days) { return days ? fixed(*days, 0) + " days" : "unknown"; }

}  // namespace

Result<Advice> advise(const ForecastRequest& asked, const Forecast& usual, const Wishes& wishes,
                      const PlanningProgress& progress) {
  return Adviser(asked, usual, progress).run(wishes);
}

std::string advice_text(const Advice& advice, const Forecast& usual) {
  TextTable table({"what would change", "step", "gain", "drive life"});
  table.add({"as it is", seconds_text(usual.times.step_s), "", days_text(usual.drive_life_days())});
  for (const Change& change : advice.changes) {
    const double gain = std::max(0.0, 100 * (1 - change.step_s / usual.times.step_s));
    table.add({change.what, seconds_text(change.step_s), fixed(gain, 1) + " %", days_text(change.drive_life_days)});
  }
  std::string all = advice.changes.empty() ? "" : table.str();
  for (const AimAnswer& aim : advice.aims) all += text("aim: ", aim.aim, ": ", aim.answer, "\n");
  return all;
}

Json advice_json(const Advice& advice) {
  Json json = {{"changes", Json::array()}, {"aims", Json::array()}};
  for (const Change& change : advice.changes) {
    json["changes"].push_back({{"what", change.what},
                               {"step_s", change.step_s},
                               {"drive_life_days", change.drive_life_days ? Json(*change.drive_life_days) : Json()}});
  }
  for (const AimAnswer& aim : advice.aims) {
    json["aims"].push_back({{"aim", aim.aim}, {"reached", aim.is_reached}, {"answer", aim.answer}});
  }
  return json;
}

}  // namespace penstock::tools
