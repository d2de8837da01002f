// Forecasts of known models on shipped machines, for the tests of what is said of them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tools/machine/shipped_machines.h"
#include "tools/plan/forecast.h"
#include "tools/plan/known_models.h"

namespace penstock::tools {

inline MachineProfile shipped(const std::string& name) {
  for (MachineProfile& machine : shipped_profiles()) {
    if (machine.name == name) return std::move(machine);
  }
  ADD_FAILURE() << name;
  return {};
}

// In sequences of 512 tokens.
inline ForecastRequest step_of(const std::string& model, const std::string& machine, uint64_t tokens) {
  ForecastRequest request;
  request.shape = *load_model(model);
  request.machine = shipped(machine);
  request.tokens = tokens;
  request.sequence = 512;
  return request;
}

// Of 65,536 tokens.
inline ForecastRequest large_step_of(const std::string& model, const std::string& machine) {
  ForecastRequest request = step_of(model, machine, 65536);
  request.durability = Durability{};
  return request;
}

inline ForecastRequest clipped_step_of(const std::string& model, const std::string& machine, uint64_t tokens) {
  ForecastRequest request = step_of(model, machine, tokens);
  request.clipping.norm = 1;
  return request;
}

inline Forecast forecast_of(ForecastRequest request) {
  Result<Forecast> result = forecast(std::move(request));
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::move(*result) : Forecast();
}

// GPT-2 with all its state on the drives.
inline ForecastRequest ranks_of(const char* machine, uint32_t ranks) {
  ForecastRequest request = clipped_step_of("gpt2", machine, 16384);
  request.ranks = ranks;
  request.choices.weights = WeightTier::nvme;
  request.choices.host_state_share = 0;
  return request;
}

}  // namespace penstock::tools
