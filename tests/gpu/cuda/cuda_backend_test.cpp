// The CUDA device over a runtime that lives in plain memory: what it takes and gives back, what it says when a call is
// refused, and what runs instead. The contract of Device, the optimizers and the shared arena are run over it too.
#include "gpu/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <thread>

#include "gpu/open_device.h"
#include "tests/gpu/cuda/plain_runtime.h"

namespace penstock::gpu {
namespace {

using test::left_over;
using test::PlainMachine;

class CudaOnPlainMemory : public testing::Test {
 protected:
  void SetUp() override { test::set_up({}); }
  void TearDown() override { test::set_up({}); }

  static Result<OpenedDevice> open(DeviceChoice choice, uint64_t cuda_bytes = kMiB) {
    return open_device(
        {.choice = choice, .cuda = {.index = 0, .arena_bytes = cuda_bytes}, .host = {.arena_bytes = kMiB}});
  }
};

TEST_F(CudaOnPlainMemory, RunsTheHostDeviceWhereCudaCannotBeUsedAndSaysWhy) {
  struct Case {
    PlainMachine machine;
    std::string found;
  };
  const Case cases[] = {
      {{.driver_version = 0},
       "CUDA device: no driver: libcuda.so.1 could not be loaded; this build uses CUDA 13.0 "
       "(cudaErrorInsufficientDriver: as the test asked)"},
      {{.driver_version = 12080},
       "CUDA device: driver too old: it supports CUDA up to 12.8; this build uses CUDA 13.0"},
      {{.devices = 0},
       "CUDA device: no device: the driver (CUDA 13.0) lists none (cudaErrorNoDevice: as the test asked)"},
      {{.good_calls = {{"cudaGetDeviceCount", 0}}},
       "CUDA device: the driver (CUDA 13.0) refuses: cudaErrorUnknown: as the test asked"}};
  for (const Case& c : cases) {
    test::set_up(c.machine);
    Result<OpenedDevice> opened = open(DeviceChoice::automatic);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_TRUE(opened->device->facts().is_host);
    EXPECT_EQ(opened->explanation, c.found + "; the host device runs instead");
    test::set_up(c.machine);
    Result<OpenedDevice> forced = open(DeviceChoice::cuda);
    ASSERT_FALSE(forced.ok());
    EXPECT_EQ(forced.status().code(), Code::kEnvironment);
    EXPECT_EQ(forced.status().message(), c.found);
    EXPECT_NE(forced.status().remedy().find("use the host device"), std::string::npos);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for an unrelated call to find";
  }
}

TEST_F(CudaOnPlainMemory, OpensTheFirstDeviceAndSaysWhatIsPeculiar) {
  Result<OpenedDevice> opened = open(DeviceChoice::automatic);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_FALSE(opened->device->facts().is_host);
  EXPECT_EQ(opened->explanation,
            "plain memory 0, 1.00 MiB arena, no host memory registered. plain memory 0 reaches no other GPU directly: "
            "traffic between GPUs goes through host memory.");
}

TEST_F(CudaOnPlainMemory, RefusesAnArenaThatDoesNotFitAndSaysWhatThereIs) {
  test::set_up({.memory_bytes = 8 * kMiB, .free_bytes = 5 * kMiB});
  for (DeviceChoice choice : {DeviceChoice::automatic, DeviceChoice::cuda}) {
    Result<OpenedDevice> refused = open(choice, 6 * kMiB);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kDoesNotFit);
    EXPECT_EQ(refused.status().message(),
              "open plain memory 0: device budget: needs 6291456 B (6.00 MiB), 5242880 B of 8388608 B were free: "
              "cudaErrorMemoryAllocation (out of memory)");
    EXPECT_EQ(refused.status().remedy(), "lower --budget device=, or end what else uses this GPU (nvidia-smi)");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
}

TEST_F(CudaOnPlainMemory, RefusesADeviceThatIsTooOld) {
  test::set_up({.attributes = {{cudaDevAttrComputeCapabilityMajor, 7}, {cudaDevAttrComputeCapabilityMinor, 5}}});
  EXPECT_EQ(open(DeviceChoice::automatic).status().message(),
            "CUDA device: plain memory 0 has compute capability 7.5, the kernels need 8.0 (Ampere) or newer");
}

TEST_F(CudaOnPlainMemory, SaysWhichCallWasRefusedAndGivesBackWhatItHad) {
  struct Case {
    const char* call;
    int good;
    const char* said;
  };
  for (const Case& c :
       {Case{"cudaMemGetInfo", 0, "ask for free memory"}, Case{"cudaGetDeviceProperties", 0, "ask for properties"},
        Case{"cudaStreamCreateWithFlags", 0, "open plain memory 0: make a stream"},
        Case{"cudaStreamCreateWithFlags", 4, "open plain memory 0: make a stream"}}) {
    test::set_up({.good_calls = {{c.call, c.good}}, .refusal = cudaErrorIllegalAddress});
    Result<std::unique_ptr<Device>> device = open_cuda_device({.index = 0, .arena_bytes = kMiB});
    ASSERT_FALSE(device.ok()) << c.call;
    EXPECT_EQ(device.status().message(), text(c.said, ": cudaErrorIllegalAddress (as the test asked)"));
    EXPECT_EQ(device.status().code(), Code::kEnvironment);
    EXPECT_EQ(left_over(), "") << c.call;
  }
}

TEST_F(CudaOnPlainMemory, EndsACopyWithTheCallThatWasRefused) {
  struct Case {
    const char* call;
    const char* said;
  };
  for (const Case& c :
       {Case{"cudaMemcpyAsync", "copy 4096 B"}, Case{"cudaEventCreateWithFlags", "make an event"},
        Case{"cudaEventRecord", "record an event"}, Case{"cudaStreamWaitEvent", "make a stream wait"},
        Case{"cudaLaunchHostFunc", "have the host called"},
        Case{"cudaEventQuery", "copy on plain memory 0: ask for an event"}, Case{"cudaHostAlloc", "pin 4194304 B"}}) {
    std::vector<std::byte> bytes(4096);
    Buffer arena = Buffer::on_heap(4096);
    test::set_up({.good_calls = {{c.call, 0}}, .refusal = cudaErrorIllegalAddress});
    {
      std::unique_ptr<Device> device = open_cuda_device({.index = 0, .arena_bytes = 4096}).value();
      device->register_host_memory(arena.bytes(), {});
      bool staged = std::string(c.call) == "cudaHostAlloc";
      Lease source = Lease::over(Tier::host, staged ? std::span(bytes) : arena.bytes());
      Result<Lease> ended =
          std::move(device->copy(std::move(source), Lease::over(Tier::device, device->memory())).transfer).wait();
      ASSERT_FALSE(ended.ok()) << c.call;
      EXPECT_EQ(ended.status().message(), text(c.said, ": cudaErrorIllegalAddress (as the test asked)"));
    }
    EXPECT_EQ(left_over(), "") << c.call;
  }
}

TEST_F(CudaOnPlainMemory, SaysThatAKernelWasNotLaunched) {
  test::set_up({.good_calls = {{"launch", 0}}, .refusal = cudaErrorIllegalAddress});
  std::unique_ptr<Device> device = open_cuda_device({.index = 0, .arena_bytes = 4096}).value();
  Status refused = device->launch(kernel::Fill{device->memory().data(), 4096, 0}, device->kernel_stream());
  EXPECT_EQ(refused.message(), "launch a kernel: cudaErrorIllegalAddress (as the test asked)");
}

TEST_F(CudaOnPlainMemory, RegistersAllThenWindowsThenNothingAndSaysSo) {
  struct Case {
    uint64_t at_most_bytes;
    HostRegistration::Extent extent;
    std::string explanation;
  };
  const std::string refused =
      "host memory of 4.00 MiB is not registered: cudaHostRegister: cudaErrorMemoryAllocation (out of memory)";
  const std::string rest = "; copies elsewhere go through a pinned buffer of 4.00 MiB";
  for (const Case& c : {Case{4 * kMiB, HostRegistration::Extent::all, ""},
                        Case{kMiB, HostRegistration::Extent::windows, refused + "; its windows of 1.00 MiB are" + rest},
                        Case{4096, HostRegistration::Extent::nothing, refused + rest}}) {
    Buffer arena = Buffer::on_heap(4 * kMiB);
    std::span<std::byte> windows[] = {arena.bytes().subspan(kMiB, kMiB), arena.bytes().subspan(2 * kMiB, 2 * kMiB)};
    test::set_up({.register_at_most_bytes = c.at_most_bytes});
    {
      std::unique_ptr<Device> device = open_cuda_device({.index = 0, .arena_bytes = 4096}).value();
      HostRegistration done = device->register_host_memory(arena.bytes(), windows);
      EXPECT_EQ(done.extent, c.extent);
      EXPECT_EQ(done.explanation, c.explanation);
    }
    EXPECT_EQ(left_over(), "");
  }
}

TEST_F(CudaOnPlainMemory, LeavesTheCallersDeviceCurrent) {
  test::set_up({.devices = 2, .peers = true});
  cudaSetDevice(1);
  std::unique_ptr<Device> device = open_cuda_device({.index = 0, .arena_bytes = 4096}).value();
  EXPECT_TRUE(device->facts().reaches_peers);
  EXPECT_TRUE(device->launch(kernel::Fill{device->memory().data(), 4096, 0}, device->kernel_stream()).ok());
  EXPECT_TRUE(device->record(device->kernel_stream()).ok());
  device.reset();
  int current = -1;
  cudaGetDevice(&current);
  EXPECT_EQ(current, 1);
  EXPECT_EQ(left_over(), "");
}

TEST_F(CudaOnPlainMemory, MakesNoContextOnADeviceThatNobodyUses) {
  test::set_up({.devices = 2});
  std::unique_ptr<Device> device = open_cuda_device({.index = 1, .arena_bytes = 4096}).value();
  Event event = device->record(device->kernel_stream()).value();
  std::thread([&] {  // that never chose a device
    EXPECT_TRUE(device->reached(event).ok());
    EXPECT_TRUE(device->launch(kernel::Fill{device->memory().data(), 4096, 0}, device->kernel_stream()).ok());
  })
      .join();
  device.reset();
  EXPECT_EQ(test::contexts(), std::set<int>{1});
}

TEST_F(CudaOnPlainMemory, TellsThePlannerWhatTheAttributesSay) {
  test::set_up({.attributes = {{cudaDevAttrComputeCapabilityMajor, 12},
                               {cudaDevAttrComputeCapabilityMinor, 1},
                               {cudaDevAttrAsyncEngineCount, 1},
                               {cudaDevAttrIntegrated, 1},
                               {cudaDevAttrPageableMemoryAccessUsesHostPageTables, 1},
                               {cudaDevAttrHostNumaId, 3}}});
  std::unique_ptr<Device> device = open_cuda_device({.index = 0, .arena_bytes = 4096}).value();
  const DeviceFacts& facts = device->facts();
  EXPECT_EQ(facts.compute_capability, 121u);
  EXPECT_EQ(facts.copy_engines, 1u);
  EXPECT_TRUE(facts.shares_host_memory);
  EXPECT_TRUE(facts.reads_pageable_memory);
  EXPECT_EQ(facts.numa_node, 3);
  EXPECT_EQ(facts.memory_bytes, uint64_t{8} << 30);
  EXPECT_EQ(facts.memory_free_bytes, uint64_t{7} << 30);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaOnPlainMemory, UsesItsEventsAgain) {
  // Ten are made, a thousand are recorded.
  test::set_up({.good_calls = {{"cudaEventCreateWithFlags", 10}}});
  std::unique_ptr<Device> device = open_cuda_device({.index = 0, .arena_bytes = 4096}).value();
  std::thread([&] {
    for (int i = 0; i < 1000; ++i) EXPECT_TRUE(device->record(device->kernel_stream()).ok());
  }).join();
  device.reset();
  EXPECT_EQ(left_over(), "");
}

}  // namespace
}  // namespace penstock::gpu
