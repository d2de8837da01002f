#include "tools/penstock/store_flags.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "aio/available_memory.h"
#include "aio/direct_file.h"
#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "aio/store/tile_store.h"
#include "runtime/engine/ranks/rank_place.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/system/interrupt.h"
#include "tools/system/words.h"
#include "tools/update/profiled_machine.h"

namespace penstock::tools {

Result<uint64_t> host_budget(const std::string& budget) {
  if (!budget.starts_with("host=") || budget.find(',') != std::string::npos) {
    return Status(Code::kUsage, text("--budget: '", budget, "': host=SIZE expected"),
                  parse_bytes(budget).ok() ? text("--budget host=", budget) : "--budget host=256MiB");
  }
  Result<uint64_t> bytes = parse_bytes(std::string_view(budget).substr(5));
  if (!bytes.ok()) return bytes.status().within("--budget");
  PENSTOCK_TRY(refuse_more_than_memory(*bytes, "--budget"));
  return bytes;
}

Status refuse_more_than_memory(uint64_t host_bytes, const std::string& what) {
  constexpr double kShareAdvised = 0.75;
  const aio::AvailableMemory most = aio::AvailableMemory::at_most();
  if (host_bytes <= most.bytes) return Status();
  const auto advised_mib = static_cast<uint64_t>(kShareAdvised * static_cast<double>(most.bytes / kMiB));
  return Status(
      Code::kDoesNotFit,
      text(what, ": ", bytes_text(host_bytes), " of host memory, ", most.limited_by, " is ", bytes_text(most.bytes)),
      text("--budget host=", advised_mib, "MiB"));
}

MadeFolders::~MadeFolders() {
  for (const std::string& folder : folders_) rmdir(folder.c_str());  // stays if there is something in it
}

Status MadeFolders::make(const std::string& folder, const std::string& what) {
  if (folder.empty()) return Status(Code::kUsage, what + ": '': a folder expected", "/mnt/nvme0/model");
  if (mkdir(folder.c_str(), 0700) == 0) {
    folders_.push_back(folder);
  } else if (errno != EEXIST) {
    const int error = errno;
    const std::string parent = std::filesystem::path(folder).lexically_normal().parent_path();
    // Not made: where it is a drive's, it may be that it is not mounted.
    if (error == ENOENT)
      return Status(Code::kUsage,
                    text(what, ": ", folder, ": the folder ", parent, ", which it is to be made in, does not exist"),
                    text("mkdir -p ", shell_word(parent)));
    return errno_status(text(what, ": ", folder), error,
                        "an existing folder, or a new one in a folder that you may write to");
  }
  return Status();
}

Result<MachineProfile> machine_of(Session& session, const std::string& path, const std::vector<std::string>& folders,
                                  const MeasureOptions& options) {
  if (!path.empty()) return machine_of_profile(path, folders);
  Result<MachineProfile> machine = measure_machine(folders, StateForm(), options, ticking(session, "measure drives"));
  if (machine.ok() || machine.status().code() != Code::kDoesNotFit) return machine;
  // A store may have a place where scratch files have none, above all one that is there already.
  session.progress.note("steps are not predicted: " + machine.status().message());
  return MachineProfile();
}

std::vector<std::shared_ptr<aio::DriveFolder>> drives_of_rank(
    const std::vector<std::shared_ptr<aio::DriveFolder>>& drives, uint32_t rank) {
  std::vector<std::shared_ptr<aio::DriveFolder>> own;
  for (const auto& drive : drives) {
    bool has_others = false;
    for (uint32_t other = 0; other < engine::kRanksMax; ++other) {
      has_others |= other != rank && drive->has_file(aio::store_file_name(other));
    }
    // Where a file is missing, opening says so.
    if (!has_others || drive->has_file(aio::store_file_name(rank))) own.push_back(drive);
  }
  return own.empty() ? drives : own;
}

Result<aio::StorePresence> find_store(const std::vector<std::string>& folders, uint32_t rank) {
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  return aio::find_store(*made.engine, drives_of_rank(aio::direct_folders(folders, aio::Access::read_only), rank),
                         rank);
}

Status wait_while_taken(Session& session, const std::vector<std::string>& folders, uint32_t rank) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause{10};
  const std::chrono::milliseconds most = aio::FileOptions().lock_wait;
  const Clock::time_point until = Clock::now() + most;
  bool has_said = false;
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + aio::store_file_name(rank);
    while (aio::is_taken(path)) {
      if (!std::exchange(has_said, true))
        session.progress.note(text("store: ", path, ": another process has it; waiting for its end, up to ",
                                   std::chrono::duration_cast<std::chrono::seconds>(most).count(), " s"));
      PENSTOCK_TRY(check_interrupted());
      if (Clock::now() >= until) return aio::taken_refusal(path, most);
      std::this_thread::sleep_for(kPause);
    }
  }
  return Status();
}

bool has_store(const std::vector<std::string>& folders, uint32_t rank) {
  return std::any_of(folders.begin(), folders.end(), [rank](const std::string& folder) {
    std::error_code unknown;
    return std::filesystem::exists(folder + "/" + aio::store_file_name(rank), unknown) || unknown;
  });
}

}  // namespace penstock::tools
