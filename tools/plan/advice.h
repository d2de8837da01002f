// Advice: what more of each resource would bring a step, each planned again from nothing, and what it takes to reach an
// aim.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/plan/forecast.h"

namespace penstock::tools {

// What is asked. Each answer takes some seconds of planning.
struct Wishes {
  bool changes = false;  // what more of each resource would bring
  double step_s = 0;     // aims; 0: none
  double drive_life_days = 0;
};

struct Change {
  std::string what;  // "one more drive"
  double step_s = 0;
  std::optional<double> drive_life_days;
};

// What reaches an aim: the least that does, or why nothing would.
struct AimAnswer {
  std::string aim;  // "a step of at most 20 s"
  bool is_reached = false;
  std::string answer = {};  // "--budget host=48GiB: 19.7 s", or what comes nearest
};

struct Advice {
  std::vector<Change> changes;  // also where no memory reaches an aim, and the nearest is to be named
  std::vector<AimAnswer> aims;
};

// `asked` is the request before anything was filled in, `usual` its forecast. REQUIRES: usual.fits.
Result<Advice> advise(const ForecastRequest& asked, const Forecast& usual, const Wishes& wishes,
                      const PlanningProgress& progress);

std::string advice_text(const Advice& advice, const Forecast& usual);
nlohmann::ordered_json advice_json(const Advice& advice);

}  // namespace penstock::tools
