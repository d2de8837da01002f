#include "tools/penstock/checkpoint_common.h"

#include <algorithm>
#include <filesystem>

#include "aio/direct_folder.h"
#include "cpu_optim/checksum.h"
#include "tools/penstock/store_flags.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kMemoryBytes = 64 * kMiB;

std::vector<std::string> split_at_commas(const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const std::string& given : paths) {
    if (given.empty()) all.emplace_back();
    for (const std::string& path : split(given, ',')) all.push_back(path);
  }
  return all;
}

Result<std::string> store_folder_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return error ? errno_status(path, error.value(), "a folder that you may read, or run it as its owner")
                 : errno_status(path, ENOENT, "the folders of a store");
  }
  if (!std::filesystem::is_directory(path, error)) {
    return errno_status(path, ENOTDIR, "the folder that holds the store's files");
  }
  const std::string inside = path + "/store";
  const bool is_run = !std::filesystem::exists(path + "/" + aio::store_file_name(0), error) &&
                      std::filesystem::exists(inside + "/" + aio::store_file_name(0), error);
  return is_run ? inside : path;
}

}  // namespace

Result<std::unique_ptr<InspectedStores>> InspectedStores::open(const std::vector<std::string>& paths) {
  auto stores = std::make_unique<InspectedStores>();
  for (const std::string& path : split_at_commas(paths)) {
    if (path.empty()) return Status(Code::kUsage, "PATH: '': a folder expected", "the folders of a store");
    PENSTOCK_TRY_ASSIGN(folder, store_folder_of(path));
    stores->folders_.push_back(folder);
  }
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  stores->engine_ = std::move(made.engine);
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kMemoryBytes));
  PENSTOCK_TRY_ASSIGN(memory, arena->take("blocks to verify", kMemoryBytes));
  stores->arena_ = std::move(arena);
  stores->memory_ = memory;
  stores->engine_->register_memory(memory);

  const auto drives = aio::direct_folders(stores->folders_, aio::Access::read_only);
  aio::OpenOptions options;
  options.purpose = aio::OpenOptions::Purpose::inspect;
  options.checksum = cpu_optim::checksum_function();
  const auto has_one = [&](const auto& drive) { return drive->has_file(aio::store_file_name(options.rank)); };
  do {
    const auto of_rank = drives_of_rank(drives, options.rank);
    PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*stores->engine_, of_rank, options));
    stores->ranks_.push_back(std::move(store));
    ++options.rank;
  } while (std::any_of(drives.begin(), drives.end(), has_one));
  return stores;
}

aio::OpenReport InspectedStores::report() const {
  aio::OpenReport all;
  for (const auto& store : ranks_) {
    const aio::OpenReport& one = store->open_report();
    all.notes.insert(all.notes.end(), one.notes.begin(), one.notes.end());
    all.bad_copies += one.bad_copies;
  }
  return all;
}

}  // namespace penstock::tools
