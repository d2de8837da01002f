// The CUDA device: what is said where there is none, and, on a machine with one, the contract and the kernels' bits.
#include "gpu/cuda_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "gpu/open_device.h"
#include "tests/gpu/adversarial.h"
#include "tests/gpu/device_cases.h"

namespace penstock {
namespace {

using gpu::CudaFindings;

Result<std::unique_ptr<Device>> open_cuda(uint64_t arena_bytes) {
  return gpu::open_cuda_device({.index = 0, .arena_bytes = arena_bytes});
}

void expect_refusal(const CudaFindings& findings, const std::string& message, const std::string& remedy) {
  Status status = gpu::usable(findings, 0);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kEnvironment);
  EXPECT_EQ(status.message(), message);
  EXPECT_EQ(status.remedy(), remedy);
}

TEST(CudaFindings, EveryWayToHaveNoDeviceIsASentence) {
  expect_refusal({},
                 "CUDA device: this build has none, since no CUDA toolkit of 12.4 or newer was found when it was "
                 "configured",
                 "install the CUDA toolkit and build again, or use the host device");
  expect_refusal({.built_for = 13000, .error = "cudaErrorInsufficientDriver: driver version is insufficient"},
                 "CUDA device: no driver: libcuda.so.1 could not be loaded; this build uses CUDA 13.0 "
                 "(cudaErrorInsufficientDriver: driver version is insufficient)",
                 "install the NVIDIA driver (in a container: run it with --gpus all), or use the host device");
  expect_refusal({.built_for = 13000, .driver_version = 12040, .error = "cudaErrorInsufficientDriver"},
                 "CUDA device: driver too old: it supports CUDA up to 12.4; this build uses CUDA 13.0",
                 "install a driver for CUDA 13, build with a toolkit of CUDA 12, or use the host device");
  expect_refusal({.built_for = 12040, .driver_version = 13000, .error = "cudaErrorNoDevice: none"},
                 "CUDA device: no device: the driver (CUDA 13.0) lists none (cudaErrorNoDevice: none)",
                 "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use the host device");
  expect_refusal({.built_for = 13000, .driver_version = 13000, .error = "cudaErrorSystemDriverMismatch: two drivers"},
                 "CUDA device: the driver (CUDA 13.0) refuses: cudaErrorSystemDriverMismatch: two drivers",
                 "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use the host device");
}

TEST(CudaFindings, AcceptsAnOlderDriverOfTheSameMajorVersionAndANewerOne) {
  EXPECT_TRUE(gpu::usable({.built_for = 12080, .driver_version = 12020, .devices = 1}, 0).ok());
  EXPECT_TRUE(gpu::usable({.built_for = 12080, .driver_version = 13000, .devices = 1}, 0).ok());
}

TEST(CudaFindings, RefusesAnIndexThatTheDriverDoesNotShow) {
  Status status = gpu::usable({.built_for = 13000, .driver_version = 13000, .devices = 2}, 2);
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_EQ(status.message(), "CUDA device 2 does not exist: the driver lists 2");
}

TEST(CudaFindings, RefusesADeviceOlderThanTheKernels) {
  DeviceFacts facts;
  facts.name = "Tesla T4";
  facts.compute_capability = 75;
  EXPECT_EQ(gpu::usable(facts).message(),
            "CUDA device: Tesla T4 has compute capability 7.5, the kernels need 8.0 (Ampere) or newer");
  facts.compute_capability = 80;
  EXPECT_TRUE(gpu::usable(facts).ok());
}

TEST(CudaFindings, TellsThePlannerWhatIsPeculiar) {
  DeviceFacts server{.name = "H200", .copy_engines = 3, .reaches_peers = true};
  EXPECT_EQ(gpu::peculiarities(server), "");
  DeviceFacts geforce{.name = "RTX 4090", .copy_engines = 1};
  EXPECT_EQ(
      gpu::peculiarities(geforce),
      "RTX 4090 has one copy engine: the two directions take turns. RTX 4090 reaches no other GPU directly: traffic "
      "between GPUs goes through host memory.");
  DeviceFacts spark{.name = "GB10",
                    .copy_engines = 2,
                    .shares_host_memory = true,
                    .reads_pageable_memory = true,
                    .reaches_peers = true};
  EXPECT_EQ(
      gpu::peculiarities(spark),
      "GB10 and the host share one memory: device and host budgets add up to it, and a copy moves bytes within it.");
  DeviceFacts grace{.name = "GH200", .copy_engines = 2, .reads_pageable_memory = true, .reaches_peers = true};
  EXPECT_EQ(gpu::peculiarities(grace), "GH200 is coherent with host memory: copies need no registration.");
}

// The real runtime on this machine, whatever it has.
TEST(OpenDevice, RunsTheHostDeviceWhereNoGpuCanBeUsedAndSaysWhy) {
  std::string absent = absent_cuda();
  if (absent.empty()) GTEST_SKIP() << "a CUDA device is here";
  Result<gpu::OpenedDevice> opened = gpu::open_device({.host = {.arena_bytes = kMiB}});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_TRUE(opened->device->facts().is_host);
  EXPECT_EQ(opened->explanation, absent + "; the host device runs instead");
  Result<gpu::OpenedDevice> forced = gpu::open_device({.choice = gpu::DeviceChoice::cuda});
  ASSERT_FALSE(forced.ok());
  EXPECT_EQ(forced.status().message(), absent);
  EXPECT_FALSE(forced.status().remedy().empty());
}

TEST(OpenDevice, TakesTheHostDeviceWhenAsked) {
  Result<gpu::OpenedDevice> opened =
      gpu::open_device({.choice = gpu::DeviceChoice::host, .host = {.arena_bytes = 4096}});
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->explanation, "the host device, as chosen");
}

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string absent = absent_cuda(); !absent.empty()) GTEST_SKIP() << absent;
  }
};

// Runs one kernel on a device over copies of the same bytes and brings all of them back.
std::vector<std::byte> after_kernel(Device& device, const std::vector<std::byte>& bytes,
                                    const std::function<Kernel(std::byte* base)>& kernel) {
  std::vector<std::byte> in = bytes, out(bytes.size());
  Lease place = Lease::over(Tier::device, device.memory().first(bytes.size()));
  Copy copy = device.copy(Lease::over(Tier::host, in), std::move(place));
  EXPECT_TRUE(device.make_wait(device.kernel_stream(), copy.done).ok());
  EXPECT_TRUE(std::move(copy.transfer).wait().ok());
  EXPECT_TRUE(device.launch(kernel(device.memory().data()), device.kernel_stream()).ok());
  Event done = device.record(device.kernel_stream()).value();
  place = Lease::over(Tier::device, device.memory().first(bytes.size()));
  EXPECT_TRUE(std::move(device.copy(std::move(place), Lease::over(Tier::host, out), {&done, 1}).transfer).wait().ok());
  return out;
}

// The GPU's bits against the host build of the same functions, which other tests compare with cpu_optim.
TEST_F(CudaDevice, ComputesEveryKernelToTheHostsBits) {
  constexpr uint64_t kElements = 300'001, kPlane = 2 * kMiB;
  std::unique_ptr<Device> cuda = open_cuda(8 * kPlane).value();
  std::unique_ptr<Device> host = gpu::open_host_device({.arena_bytes = 8 * kPlane}).value();
  std::vector<std::byte> bytes(8 * kPlane);
  for (uint64_t plane = 0; plane < 8; ++plane) {
    std::vector<std::byte> values =
        gpu::bytes_in(Dtype::fp32, gpu::adversarial_floats(kPlane / 4, plane + 1, plane < 2 ? 1.0f : 1e-3f,
                                                           plane == 0 ? gpu::Tiny::kept : gpu::Tiny::flushed));
    std::copy(values.begin(), values.end(), bytes.begin() + static_cast<int64_t>(plane * kPlane));
  }
  std::vector<std::pair<std::string, std::function<Kernel(std::byte*)>>> kernels;
  for (Dtype from : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    for (Dtype to : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      kernels.emplace_back(text("cast ", name_of(from), " to ", name_of(to)), [=](std::byte* base) -> Kernel {
        return kernel::Cast{base, base + kPlane, from, to, kElements};
      });
    }
    kernels.emplace_back(text("accumulate ", name_of(from)), [=](std::byte* base) -> Kernel {
      return kernel::Accumulate{base, from, reinterpret_cast<float*>(base + kPlane), kElements};
    });
    kernels.emplace_back(text("scale ", name_of(from)), [=](std::byte* base) -> Kernel {
      return kernel::Scale{base, from, 0.3f, kElements};
    });
    kernels.emplace_back(text("square sums ", name_of(from)), [=](std::byte* base) -> Kernel {
      return kernel::SquareSums{base + 2 * kPlane, from, kElements, reinterpret_cast<double*>(base + kPlane)};
    });
    for (kernel::BlockCode code : {kernel::BlockCode::int8, kernel::BlockCode::int4, kernel::BlockCode::nf4}) {
      for (uint32_t block : {64u, 256u, 4096u}) {
        kernels.emplace_back(text("quantise ", static_cast<int>(code), " of ", name_of(from), " in ", block),
                             [=](std::byte* base) -> Kernel {
                               return kernel::Quantise{
                                   code,      base, from, base + kPlane, reinterpret_cast<float*>(base + 2 * kPlane),
                                   kElements, block};
                             });
        kernels.emplace_back(text("dequantise ", static_cast<int>(code), " to ", name_of(from), " in ", block),
                             [=](std::byte* base) -> Kernel {
                               return kernel::Dequantise{
                                   code,      base, reinterpret_cast<float*>(base + kPlane), base + 2 * kPlane, from,
                                   kElements, block};
                             });
      }
    }
  }
  kernels.emplace_back("round stochastically", [=](std::byte* base) -> Kernel {
    return kernel::RoundStochastic{reinterpret_cast<float*>(base),
                                   reinterpret_cast<uint16_t*>(base + kPlane),
                                   kElements,
                                   (1ull << 32) - 1000,
                                   3,
                                   4};
  });
  for (auto& [name, kernel] : kernels) {
    const std::vector<std::byte> on_cuda = after_kernel(*cuda, bytes, kernel),
                                 on_host = after_kernel(*host, bytes, kernel);
    EXPECT_EQ(std::memcmp(on_cuda.data(), on_host.data(), on_host.size()), 0) << name;
  }
}

}  // namespace
}  // namespace penstock
