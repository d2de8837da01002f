// The calls of the CUDA runtime that gpu/cuda makes, carried out in plain memory by threads: so that all of the CUDA
// device but the driver and the kernels' launches runs, and fails, in tests on any machine.
//
// Stricter than the real one where that finds mistakes: a copy engine that is sent to memory which is neither allocated
// nor registered, a stream or an event that does not exist, memory that is given back twice: each stops the test.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>

namespace penstock::test {

// What the pretended machine has. Set while no device is open.
struct PlainMachine {
  int runtime_version = 13000;
  int driver_version = 13000;
  int devices = 1;
  size_t memory_bytes = size_t{8} << 30;
  size_t free_bytes = size_t{7} << 30;
  std::map<cudaDeviceAttr, int> attributes = {
      {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrComputeCapabilityMinor, 0}, {cudaDevAttrAsyncEngineCount, 3}};
  bool peers = false;
  size_t register_at_most_bytes = ~size_t{0};  // in one call, as a memlock limit does
  // How often each call answers well before it refuses with `refusal`; what is not named always does.
  std::map<std::string, int> good_calls = {};
  cudaError_t refusal = cudaErrorUnknown;
};

void set_up(PlainMachine machine);
// From now on the call answers well so many times. Also while a device is open.
void refuse_after(const std::string& call, int good_calls);

// Devices that somebody has made current, as the driver would have made a context there.
std::set<int> contexts();

// What was taken and not given back: "2 streams, 1 allocation"; empty for nothing.
std::string left_over();

}  // namespace penstock::test
