// Requests for plans that are compared: the same with more of something, with a choice made by hand, with all choices
// drawn by chance.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tiering/plan/planner.h"
#include "tools/plan/forecast.h"

namespace penstock::bench {

struct Variation {
  std::string name;  // what is varied
  std::string value;
  PlanRequest request;
};

// A step that clips, in sequences of 2048 tokens or the model's most; durability and all choices are open.
tools::ForecastRequest training_step(const tools::ModelShape& model, const MachineProfile& machine, uint64_t tokens);

// What one rank of it asks the planner for.
PlanRequest rank_request(tools::ForecastRequest request);

// Host memory, device memory, drives, and the link to the device.
std::vector<Variation> more_of_something(const tools::ForecastRequest& request);

// Each choice by itself, with each of its values or some over their range.
std::vector<Variation> each_choice_by_hand(const PlanRequest& request);

// All of them.
PlanChoices random_choices(const PlanRequest& request, std::mt19937_64& random);

// "group 4, state in host memory 0.25"
std::string words_of(const PlanChoices& choices);

}  // namespace penstock::bench
