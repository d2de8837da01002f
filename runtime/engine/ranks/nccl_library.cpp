#include "runtime/engine/ranks/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <mutex>
#include <utility>

namespace penstock::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libnccl.so.2";
constexpr const char* kInWheel = "nvidia/nccl/lib/libnccl.so.2";  // below site-packages
constexpr const char* kRemedy =
    "install NVIDIA's NCCL (pip install nvidia-nccl-cu13, or the package libnccl2), or name its file in PENSTOCK_NCCL";

std::string words_of_version(int version) {
  // 2.8.4 and older had one digit less.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version / 100 % 10 : version / 100 % 100;
  return text(major, ".", minor, ".", version % 100);
}

std::string loader_words() {
  const char* words = ::dlerror();
  return words != nullptr ? words : "the loader gives no reason";
}

// The folder of a library that this process has loaded already; empty for none.
fs::path folder_of_loaded(const char* name) {
  void* const loaded = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return {};
  std::array<char, PATH_MAX> origin{};
  const bool is_known = ::dlinfo(loaded, RTLD_DI_ORIGIN, origin.data()) == 0;
  ::dlclose(loaded);
  return is_known ? fs::path(origin.data()) : fs::path();
}

// Where pip may have put it.
std::vector<fs::path> wheels(const Environment& environment) {
  std::vector<fs::path> places;
  std::error_code unknown;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    unknown.clear();
    const std::string folder = environment(variable).value_or("");
    if (folder.empty()) continue;
    std::vector<fs::path> versions;
    for (fs::directory_iterator at(fs::path(folder) / "lib", unknown), end; !unknown && at != end;
         at.increment(unknown)) {
      if (at->path().filename().string().starts_with("python")) versions.push_back(at->path());
    }
    std::sort(versions.begin(), versions.end());
    for (const fs::path& version : versions) places.push_back(version / "site-packages" / kInWheel);
  }
  if (const fs::path torch = folder_of_loaded("libtorch_cpu.so"); !torch.empty()) {
    places.push_back(torch.parent_path().parent_path() / kInWheel);
  }
#ifdef PENSTOCK_NCCL_LIBRARY
  places.emplace_back(PENSTOCK_NCCL_LIBRARY);
#endif
  return places;
}

template <typename Function>
bool find(void* library, const char* name, Function& into) {
  into = reinterpret_cast<Function>(::dlsym(library, name));
  return into != nullptr;
}

}  // namespace

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::open(const Environment& environment) {
  if (const std::string named = environment("PENSTOCK_NCCL").value_or(""); !named.empty()) {
    const Result<std::shared_ptr<const NcclLibrary>> opened = open_first({named});
    return opened.ok() ? opened : opened.status().within("PENSTOCK_NCCL");
  }
  std::vector<std::string> files = {kFile};
  for (const fs::path& place : wheels(environment)) files.push_back(place.string());
  return open_first(files);
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::open_first(const std::vector<std::string>& files) {
  // A thread sanitizer does not see the lock that the loader has, and here is read what another thread may have loaded.
  static std::mutex loading;
  const std::lock_guard lock(loading);
  std::string looked;
  for (const std::string& file : files) {
    std::error_code unknown;
    const bool has_folder = file.find('/') != std::string::npos;
    if (has_folder && !fs::exists(file, unknown)) {
      looked += text(looked.empty() ? "" : "; ", file, ": there is no such file");
    } else if (void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      std::shared_ptr<NcclLibrary> made(new NcclLibrary());
      PENSTOCK_TRY(made->take(library, file));
      return std::shared_ptr<const NcclLibrary>(std::move(made));
    } else {
      looked += text(looked.empty() ? "" : "; ", loader_words());
    }
  }
  return Status(Code::kEnvironment, text("NCCL: not found: ", looked), kRemedy);
}

Status NcclLibrary::take(void* library, const std::string& name) {
  nccl::Functions& f = functions_;
  int version = 0;
  if (!find(library, "ncclGetVersion", f.get_version) || f.get_version(&version) != nccl::Answer::success) {
    return Status(Code::kEnvironment, text("NCCL: ", name, " tells no version"), kRemedy);
  }
  // By whichever name it was found, this is the file.
  Dl_info file{};
  const bool is_known = ::dladdr(reinterpret_cast<void*>(f.get_version), &file) != 0 && file.dli_fname != nullptr;
  description_ = text("NCCL ", words_of_version(version), " of ", is_known ? std::string(file.dli_fname) : name);
  if (version < nccl::kOldestVersion) {
    return Status(Code::kEnvironment,
                  text(description_, ": ", words_of_version(nccl::kOldestVersion), " or newer is needed"), kRemedy);
  }
  const char* lacks = nullptr;
  auto need = [&](const char* symbol, auto& into) {
    if (!find(library, symbol, into)) lacks = symbol;
  };
  need("ncclGetUniqueId", f.get_unique_id);
  need("ncclCommInitRankConfig", f.init_rank);
  need("ncclCommGetAsyncError", f.get_async_error);
  need("ncclCommAbort", f.abort);
  need("ncclGroupStart", f.group_start);
  need("ncclGroupEnd", f.group_end);
  need("ncclSend", f.send);
  need("ncclRecv", f.receive);
  need("ncclGetErrorString", f.error_words);
  need("ncclGetLastError", f.last_error);
  if (lacks == nullptr) return Status();
  return Status(Code::kEnvironment, text(description_, ": lacks ", lacks), kRemedy);
}

Status NcclLibrary::outcome(const std::string& what, nccl::Answer answer, nccl::Communicator* of) const {
  if (answer == nccl::Answer::success || answer == nccl::Answer::in_progress) return Status();
  std::string words = functions_.error_words(answer);
  const char* const last = functions_.last_error(of);
  if (last != nullptr && *last != '\0') words += text("; ", last);
  return Status(Code::kEnvironment, text("NCCL: ", what, ": ", words),
                "NCCL_DEBUG=WARN makes NCCL say more on standard output");
}

}  // namespace penstock::engine
