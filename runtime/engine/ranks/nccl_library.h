// NcclLibrary is what Penstock calls of NCCL, found while the program runs: one build serves machines with it and
// without. Types and numbers are declared here as nccl.h has had them since the version below; nccl_header_check.cpp
// compares them with that header wherever a build finds it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/ranks/rank_place.h"
#include "tiering/status.h"

namespace penstock::engine::nccl {

// The first with communicators whose calls do not block.
constexpr int kOldestVersion = 21400;

struct Communicator;  // ncclComm
enum class Answer : uint32_t {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};
enum class DataType : uint32_t { uint8 = 1 };
struct UniqueId {
  std::array<char, 128> bytes{};
};
// That of 2.14, which all later versions take.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestVersion;
  int blocking = 0;
};

struct Functions {
  Answer (*get_version)(int* version) = nullptr;
  Answer (*get_unique_id)(UniqueId* id) = nullptr;
  Answer (*init_rank)(Communicator** made, int ranks, UniqueId id, int rank, Config* config) = nullptr;
  Answer (*get_async_error)(Communicator* of, Answer* error) = nullptr;
  Answer (*abort)(Communicator* which) = nullptr;
  Answer (*group_start)() = nullptr;
  Answer (*group_end)() = nullptr;
  Answer (*send)(const void* from, size_t count, DataType type, int peer, Communicator* by, void* stream) = nullptr;
  Answer (*receive)(void* into, size_t count, DataType type, int peer, Communicator* by, void* stream) = nullptr;
  const char* (*error_words)(Answer answer) = nullptr;
  const char* (*last_error)(Communicator* of) = nullptr;  // null: of this thread
};

}  // namespace penstock::engine::nccl

namespace penstock::engine {

class NcclLibrary {
 public:
  // The file that PENSTOCK_NCCL names; or else libnccl.so.2 as the system's loader finds it (and what LibTorch has
  // loaded), or of pip's wheel: in VIRTUAL_ENV or CONDA_PREFIX, beside LibTorch, or where this build has found it. Says
  // what was found where none can be used.
  static Result<std::shared_ptr<const NcclLibrary>> open(const Environment& environment = environment_variable);
  // The first of the files that is there; a name without a folder is for the system's loader.
  static Result<std::shared_ptr<const NcclLibrary>> open_first(const std::vector<std::string>& files);
  // Stays loaded: it has threads of its own.
  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  const nccl::Functions& call() const { return functions_; }
  // "NCCL 2.29.7 of /usr/lib/libnccl.so.2"
  const std::string& description() const { return description_; }
  // Ok for success and for what is under way. `what` was refused: "communicator", "send".
  Status outcome(const std::string& what, nccl::Answer answer, nccl::Communicator* of) const;

 private:
  NcclLibrary() = default;
  Status take(void* library, const std::string& name);

  nccl::Functions functions_;
  std::string description_;
};

}  // namespace penstock::engine
