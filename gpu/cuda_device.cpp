// The messages about CUDA devices. They need no CUDA, so every machine tests them.
#include "gpu/cuda_device.h"

namespace penstock::gpu {
namespace {

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

std::string in_parentheses(const std::string& words) { return words.empty() ? "" : " (" + words + ")"; }

Status refusal(const std::string& found, std::string remedy) {
  return Status(Code::kEnvironment, "CUDA device: " + found, std::move(remedy));
}

}  // namespace

Status usable(const CudaFindings& findings, int index) {
  if (findings.built_for == 0) {
    return refusal("this build has none, since no CUDA toolkit of 12.4 or newer was found when it was configured",
                   "install the CUDA toolkit and build again, or use the host device");
  }
  std::string built = "this build uses CUDA " + version_text(findings.built_for);
  if (findings.driver_version == 0) {
    return refusal("no driver: libcuda.so.1 could not be loaded; " + built + in_parentheses(findings.error),
                   "install the NVIDIA driver (in a container: run it with --gpus all), or use the host device");
  }
  // A driver supports newer runtimes of the same major version.
  if (findings.driver_version / 1000 < findings.built_for / 1000) {
    return refusal("driver too old: it supports CUDA up to " + version_text(findings.driver_version) + "; " + built,
                   text("install a driver for CUDA ", findings.built_for / 1000, ", build with a toolkit of CUDA ",
                        findings.driver_version / 1000, ", or use the host device"));
  }
  if (findings.devices == 0) {
    const std::string driver = "the driver (CUDA " + version_text(findings.driver_version) + ")";
    const bool has_none = findings.error.empty() || findings.error.starts_with("cudaErrorNoDevice");
    return refusal(has_none ? "no device: " + driver + " lists none" + in_parentheses(findings.error)
                            : driver + " refuses: " + findings.error,
                   "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use the host device");
  }
  if (index < 0 || index >= findings.devices) {
    return Status(Code::kUsage, text("CUDA device ", index, " does not exist: the driver lists ", findings.devices),
                  text("use 0 to ", findings.devices - 1));
  }
  return Status();
}

Status usable(const DeviceFacts& facts) {
  if (facts.compute_capability >= kOldestCapability) return Status();
  return refusal(
      text(facts.name, " has compute capability ", facts.compute_capability / 10, ".", facts.compute_capability % 10,
           ", the kernels need ", kOldestCapability / 10, ".", kOldestCapability % 10, " (Ampere) or newer"),
      "use the host device");
}

std::string peculiarities(const DeviceFacts& facts) {
  std::string out;
  auto say = [&](const std::string& sentence) { out += (out.empty() ? "" : " ") + sentence; };
  if (facts.shares_host_memory) {
    say(facts.name +
        " and the host share one memory: device and host budgets add up to it, and a copy moves bytes "
        "within it.");
  } else if (facts.reads_pageable_memory) {
    say(facts.name + " is coherent with host memory: copies need no registration.");
  }
  if (facts.copy_engines < 2) say(facts.name + " has one copy engine: the two directions take turns.");
  if (!facts.is_host && !facts.reaches_peers) {
    say(facts.name + " reaches no other GPU directly: traffic between GPUs goes through host memory.");
  }
  return out;
}

}  // namespace penstock::gpu
