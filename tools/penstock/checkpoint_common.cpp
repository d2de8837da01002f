#include "tools/penstock/checkpoint_common.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "aio/direct_folder.h"
#include "cpu_optim/checksum.h"
#include "runtime/engine/ranks/stored_model.h"
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

constexpr const char* kAllFolders = "the folders of all ranks' drives";

// A rank above 0 whose store lies there.
std::optional<uint32_t> later_rank_in(const std::string& folder) {
  std::error_code unknown;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unknown)) {
    uint32_t rank = 0;
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "rank%u.tiles", &rank) == 1 && rank > 0 && name == aio::store_file_name(rank))
      return rank;
  }
  return std::nullopt;
}

Status refuse_without_rank_0(const std::vector<std::string>& folders) {
  if (has_store(folders)) return Status();
  for (const std::string& folder : folders) {
    if (const auto rank = later_rank_in(folder))
      return Status(Code::kUsage, text(folder, ": has the store of rank ", *rank, ", and rank 0's is nowhere here"),
                    kAllFolders);
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<InspectedStores>> InspectedStores::open(const std::vector<std::string>& paths) {
  auto stores = std::make_unique<InspectedStores>();
  for (const std::string& path : split_at_commas(paths)) {
    if (path.empty()) return Status(Code::kUsage, "PATH: '': a folder expected", "the folders of a store");
    PENSTOCK_TRY_ASSIGN(folder, store_folder_of(path));
    stores->folders_.push_back(folder);
  }
  PENSTOCK_TRY(refuse_without_rank_0(stores->folders_));
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
  } while (options.rank < stores->ranks_.front()->shape().ranks && std::any_of(drives.begin(), drives.end(), has_one));
  PENSTOCK_TRY(stores->expect_one_run());
  return stores;
}

Status InspectedStores::go_to(uint64_t step) {
  PENSTOCK_TRY(expect_all_ranks());
  const Status is_kept = kept().check(step);
  const auto is_there = [step](const auto& store) { return store->payload().step == step; };
  if (!is_kept.ok() && std::all_of(ranks_.begin(), ranks_.end(), is_there)) return Status();
  PENSTOCK_TRY(is_kept);
  std::vector<std::unique_ptr<aio::TileStore>> copies;
  for (const engine::KeptSteps& of_rank : kept_by_rank()) {
    PENSTOCK_TRY_ASSIGN(copy, of_rank.open_copy(*engine_, step));
    copies.push_back(std::move(copy));
  }
  copied_ = std::exchange(ranks_, std::move(copies));
  return expect_one_run();
}

std::vector<engine::KeptSteps> InspectedStores::kept_by_rank() const {
  std::vector<engine::KeptSteps> each;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    std::vector<std::string> own;
    for (const std::string& folder : folders_) {
      if (has_store({folder}, rank)) own.push_back(folder);
    }
    each.emplace_back(std::move(own), engine::RankOfRun{.rank = rank, .ranks = ranks_[rank]->shape().ranks});
  }
  return each;
}

Status InspectedStores::expect_all_ranks() const {
  const uint32_t ranks = ranks_.front()->shape().ranks;
  if (ranks_.size() == ranks) return Status();
  return Status(Code::kUsage, text("store: ", ranks_.size(), " of ", ranks, " ranks' stores are here"), kAllFolders);
}

Status InspectedStores::expect_one_run() const {
  const std::string first = ranks_.front()->id();
  for (uint32_t rank = 1; rank < ranks_.size(); ++rank) {
    const std::string other = ranks_[rank]->id();
    if (other != first) {
      return Status(Code::kUsage, text("store of rank ", rank, ": belongs to run ", other, ", rank 0's to ", first),
                    "the folders of one run");
    }
    const RootPayload &mine = ranks_.front()->payload(), &its = ranks_[rank]->payload();
    if (its.step == mine.step && engine::course_of(its) != engine::course_of(mine))
      return engine::another_course(rank, its.step);
  }
  return Status();
}

Status InspectedStores::expect_one_step() const {
  const aio::TileStore& first = *ranks_.front();
  for (uint32_t rank = 1; rank < ranks_.size(); ++rank) {
    const aio::TileStore& other = *ranks_[rank];
    if (other.payload().step != first.payload().step)
      return engine::another_step(rank, other.payload().step, first.payload().step);
  }
  return Status();
}

aio::OpenReport InspectedStores::report() const {
  aio::OpenReport all;
  for (const auto& store : ranks_) {
    const aio::OpenReport& one = store->open_report();
    all.notes.insert(all.notes.end(), one.notes.begin(), one.notes.end());
    all.bad_copies += one.bad_copies;
  }
  if (const Status part = expect_all_ranks(); !part.ok())
    all.notes.push_back(part.message() + ": these figures are of them alone");
  return all;
}

}  // namespace penstock::tools
