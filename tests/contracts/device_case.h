// A device that a suite of tests runs over, and why it cannot run where it is absent.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "tiering/device.h"

namespace penstock {

struct DeviceCase {
  std::string name;
  std::function<Result<std::unique_ptr<Device>>(uint64_t arena_bytes)> open;
  // Why it cannot run here; empty where it can.
  std::function<std::string()> absent = [] { return std::string(); };
};
inline std::string device_case_name(const testing::TestParamInfo<DeviceCase>& device) { return device.param.name; }
inline void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.name; }

}  // namespace penstock
