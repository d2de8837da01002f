#include <dlfcn.h>

#include <array>

#include "tiering/check.h"
#include "tiering/tier.h"
#include "tools/doctor/checks.h"
#ifdef PENSTOCK_STEPS
#include "gpu/cuda_device.h"
#endif

namespace penstock::tools {
namespace {

// The few calls of the CUDA driver that tell what is there; loaded at run time, so that this needs no CUDA to build.
struct Driver {
  void* library = nullptr;
  int (*init)(unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  int (*count)(int*) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(size_t*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*words)(int, const char**) = nullptr;  // may be absent

  Driver() : library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    load(init, "cuInit");
    load(version, "cuDriverGetVersion");
    load(count, "cuDeviceGetCount");
    load(device, "cuDeviceGet");
    load(name, "cuDeviceGetName");
    load(memory, "cuDeviceTotalMem_v2");
    load(attribute, "cuDeviceGetAttribute");
    load(words, "cuGetErrorString");
  }
  ~Driver() {
    if (library != nullptr) dlclose(library);
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  std::string words_for(int error) const {
    const char* found = nullptr;
    if (words == nullptr || words(error, &found) != 0 || found == nullptr) return text(error);
    return text(error, " (", found, ")");
  }

  bool complete() const { return init && version && count && device && name && memory && attribute; }

 private:
  template <typename Function>
  void load(Function& into, const char* symbol) {
    if (library != nullptr) into = reinterpret_cast<Function>(dlsym(library, symbol));
  }
};

constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // CUdevice_attribute
constexpr int kOldestDriver = 12040;
constexpr const char* kHostDevice =
    "without one, the CPU runs the same engine: everything but the speed of a GPU can be tried";

Finding device_finding(const Driver& driver, int index) {
  int device = 0, major = 0, minor = 0;
  size_t bytes = 0;
  std::array<char, 256> name{};
  driver.device(&device, index);
  driver.name(name.data(), static_cast<int>(name.size()) - 1, device);
  driver.memory(&bytes, device);
  driver.attribute(&major, kCapabilityMajor, device);
  driver.attribute(&minor, kCapabilityMinor, device);
  const std::string found = text(name.data(), ", ", bytes_text(bytes), ", compute capability ", major, ".", minor);
  const std::string subject = text("GPU ", index);
  if (major >= 8) return {subject, Level::good, found, "", ""};
  return {subject, Level::problem, found, text("kernels are built for capability 8.0 and newer; ", kHostDevice), ""};
}

// Without it nothing is missing. cuFile's own check is not asked: it writes a log file where it is called.
Finding direct_storage_finding(const SystemFiles& files) {
  const char* subject = "GPUDirect Storage";
  void* library = dlopen("libcufile.so.0", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    return {subject, Level::good, "none: drives reach the GPU through pinned host memory, as they do on most machines",
            "", ""};
  }
  dlclose(library);
  const auto version = files.value_of("/proc/driver/nvidia-fs/version", "version:");
  const std::string module =
      version ? "nvidia-fs " + *version : "no nvidia-fs module, so it may go through host memory itself";
  return {subject, Level::good,
          text("libcufile.so.0, ", module, "; not used: drives reach the GPU through pinned host memory"), "", ""};
}

}  // namespace

Findings check_cuda(const SystemFiles& files) {
  const Driver driver;
  const auto kernel_module = files.read("/proc/driver/nvidia/version");
  if (!driver.complete()) {
    if (kernel_module) {
      return {{"CUDA driver", Level::problem, "the kernel module is loaded but libcuda.so.1 is not found", kHostDevice,
               "in a container: docker run --gpus all ...; else sudo apt install libcuda1"}};
    }
    return {{"CUDA driver", Level::note, "none", kHostDevice, "with an NVIDIA card: sudo apt install nvidia-driver"}};
  }
  int version = 0, count = 0;
  driver.version(&version);
  const int refused = driver.init(0);
  if (refused == 0) driver.count(&count);
  const std::string found = text("supports CUDA ", version / 1000, ".", version % 1000 / 10, ", ", count, " devices");
  if (refused != 0 || count == 0) {
    return {{"CUDA driver", Level::problem,
             text(found, refused == 0 ? "" : ", cuInit refuses with " + driver.words_for(refused)), kHostDevice,
             "nvidia-smi tells more; in a container: docker run --gpus all ..."}};
  }
  Findings findings;
  if (version < kOldestDriver) {
    findings.push_back({"CUDA driver", Level::problem, found, text("12.4 or newer is needed; ", kHostDevice),
                        "sudo apt install a driver of 550 or newer"});
  } else {
    findings.push_back({"CUDA driver", Level::good, found, "", ""});
  }
  for (int index = 0; index < count; ++index) findings.push_back(device_finding(driver, index));
  findings.push_back(direct_storage_finding(files));
#ifdef PENSTOCK_STEPS
  if (Status usable = gpu::usable(gpu::find_cuda(), 0); !usable.ok()) {
    findings.push_back({"CUDA in this build", Level::problem, usable.message(), kHostDevice, usable.remedy()});
  }
#endif
  return findings;
}

}  // namespace penstock::tools
