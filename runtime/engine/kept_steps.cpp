#include "runtime/engine/kept_steps.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "aio/direct_folder.h"
#include "aio/host_arena.h"
#include "aio/make_io_engine.h"
#include "cpu_optim/checksum.h"
#include "runtime/engine/kept_files.h"
#include "runtime/engine/root_state.h"

namespace penstock::engine {
namespace {

namespace fs = std::filesystem;

// Of the store's, and of the copy's, while one becomes the other.
constexpr uint64_t kCarryingBytes = 32 * kMiB;
constexpr const char* kPartial = ".partial";

std::optional<uint64_t> number_in(const std::string& words) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(words.data(), words.data() + words.size(), number);
  if (error != std::errc() || end != words.data() + words.size()) return std::nullopt;
  return number;
}

}  // namespace

KeptSteps::KeptSteps(std::vector<std::string> folders, RankOfRun of)
    : folders_(std::move(folders)), of_(of), file_name_(aio::store_file_name(of.rank)) {}

std::string KeptSteps::places_in(const std::string& folder) const {
  return folder + "/kept" + (of_.ranks > 1 ? text("/rank", of_.rank) : "");
}

std::string KeptSteps::place_of(const std::string& folder, uint64_t step) const {
  return text(places_in(folder), "/", step);
}

std::string KeptSteps::partial_of(const std::string& folder, uint64_t step) const {
  return place_of(folder, step) + kPartial;
}

bool KeptSteps::is_kept(uint64_t step) const {
  return std::all_of(folders_.begin(), folders_.end(), [&](const std::string& folder) {
    const std::string copy = place_of(folder, step) + "/" + file_name_;
    std::error_code unknown;
    return fs::exists(copy, unknown) && !are_of_two_stores(copy, folder + "/" + file_name_);
  });
}

std::vector<uint64_t> KeptSteps::steps() const {
  std::vector<uint64_t> found;
  std::error_code unknown;
  for (const auto& entry : fs::directory_iterator(places_in(folders_.front()), unknown)) {
    const std::optional<uint64_t> step = number_in(entry.path().filename().string());
    if (step && is_kept(*step)) found.push_back(*step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> KeptSteps::left_by_others() const {
  std::vector<std::string> found;
  for (const std::string& folder : folders_) {
    std::error_code unknown;
    for (const auto& entry : fs::directory_iterator(places_in(folder), unknown)) {
      const std::string copy = (entry.path() / file_name_).string();
      if (!number_in(entry.path().filename().string()) || !fs::exists(copy, unknown)) continue;
      if (are_of_two_stores(copy, folder + "/" + file_name_)) found.push_back(entry.path().string());
    }
  }
  return found;
}

Status refuse_unless_kept(uint64_t step, const std::vector<uint64_t>& kept) {
  if (std::find(kept.begin(), kept.end(), step) != kept.end()) return Status();
  std::string list;
  for (uint64_t other : kept) list += text(list.empty() ? "" : ", ", other);
  return Status(Code::kUsage, text("kept steps: step ", step, " is not among them: ", list.empty() ? "none" : list),
                "`penstock checkpoint ls` lists those that can be gone back to");
}

bool KeptSteps::is_as_kept(uint64_t step) const {
  return std::all_of(folders_.begin(), folders_.end(), [&](const std::string& folder) {
    return have_the_same_roots(folder + "/" + file_name_, place_of(folder, step) + "/" + file_name_);
  });
}

Status KeptSteps::check(uint64_t step) const { return refuse_unless_kept(step, steps()); }

Status KeptSteps::prepare(uint64_t step, std::span<const aio::TileStore::FileRun> runs, const std::string& note) {
  Status copied;
  for (const std::string& folder : folders_) {
    if (copied.ok()) copied = copy_into(folder, step, runs, note);
  }
  if (!copied.ok()) {
    abandon(step);
    return copied;
  }
  for (const std::string& folder : folders_) {
    remove_all(place_of(folder, step));
    PENSTOCK_TRY(sync_folder(places_in(folder)));
  }
  return Status();
}

Status KeptSteps::copy_into(const std::string& folder, uint64_t step, std::span<const aio::TileStore::FileRun> runs,
                            const std::string& note) const {
  const std::string partial = partial_of(folder, step), source = folder + "/" + file_name_;
  remove_all(partial);
  PENSTOCK_TRY(make_folder(partial));
  std::vector<CopiedRun> here;
  for (const aio::TileStore::FileRun& run : runs) {
    std::error_code unknown;
    if (fs::equivalent(run.file, source, unknown)) here.push_back({run.offset_bytes, run.length_bytes});
  }
  CHECK(!here.empty(), source, " is not a file of the store");
  PENSTOCK_TRY(copy_file(source, partial + "/" + file_name_, here));
  if (!note.empty() && !(std::ofstream(partial + "/note") << note).flush())
    return errno_status(text("write ", partial, "/note"), errno);
  // And those that were made for it.
  for (std::string made = partial; made != folder; made = fs::path(made).parent_path()) {
    PENSTOCK_TRY(sync_folder(made));
  }
  return sync_folder(folder);
}

Status KeptSteps::publish(uint64_t step) {
  for (const std::string& folder : folders_) {
    PENSTOCK_TRY(rename_file(partial_of(folder, step), place_of(folder, step)));
    PENSTOCK_TRY(sync_folder(places_in(folder)));
  }
  return Status();
}

void KeptSteps::abandon(uint64_t step) {
  for (const std::string& folder : folders_) remove_all(partial_of(folder, step));
}

Result<std::unique_ptr<aio::TileStore>> KeptSteps::open_copy(IoEngine& io, uint64_t step) const {
  std::vector<std::string> places;
  for (const std::string& folder : folders_) places.push_back(place_of(folder, step));
  PENSTOCK_TRY_ASSIGN(copy, open_in(places, io, aio::OpenOptions::Purpose::inspect));
  if (const uint64_t there = copy->payload().step; there != step) {
    return Status(Code::kCorrupt, text(places.front(), ": holds step ", there, ", not ", step),
                  text("give its folder the name that it had, ", there));
  }
  return std::move(copy);
}

Result<uint64_t> KeptSteps::course_of(uint64_t step) const {
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  PENSTOCK_TRY_ASSIGN(copy, open_copy(*made.engine, step));
  return engine::course_of(copy->payload());
}

Result<std::unique_ptr<aio::TileStore>> KeptSteps::open_in(const std::vector<std::string>& folders, IoEngine& io,
                                                           aio::OpenOptions::Purpose purpose) const {
  const bool is_read = purpose == aio::OpenOptions::Purpose::inspect;
  const auto drives = aio::direct_folders(folders, is_read ? aio::Access::read_only : aio::Access::read_write);
  return aio::TileStore::open(io, drives,
                              {.purpose = purpose, .rank = of_.rank, .checksum = cpu_optim::checksum_function()});
}

Result<uint64_t> KeptSteps::step_of_store() const {
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  PENSTOCK_TRY_ASSIGN(store, open_in(folders_, *made.engine, aio::OpenOptions::Purpose::inspect));
  return store->payload().step;
}

Status KeptSteps::verify(uint64_t step, const aio::ScrubProgress& progress) const {
  PENSTOCK_TRY(check(step));
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kCarryingBytes));
  PENSTOCK_TRY_ASSIGN(memory, arena->take("tiles that are read", kCarryingBytes));
  PENSTOCK_TRY_ASSIGN(copy, open_copy(*made.engine, step));
  PENSTOCK_TRY_ASSIGN(store, open_in(folders_, *made.engine, aio::OpenOptions::Purpose::run));
  return store->check_copy(*copy, memory, progress);
}

Status KeptSteps::restore(uint64_t step, const aio::ScrubProgress& progress) const {
  PENSTOCK_TRY(check(step));
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kCarryingBytes));
  PENSTOCK_TRY_ASSIGN(memory, arena->take("tiles that are carried", kCarryingBytes));
  PENSTOCK_TRY_ASSIGN(copy, open_copy(*made.engine, step));
  if (copy->layout().slots() == 1) {
    copy.reset();
    return replace_files(step);
  }
  PENSTOCK_TRY_ASSIGN(store, open_in(folders_, *made.engine, aio::OpenOptions::Purpose::run));
  return store->become(*copy, memory, progress);
}

// Where every tile has one slot.
Status KeptSteps::replace_files(uint64_t step) const {
  const std::string name = file_name_, restored = name + ".restored";
  for (const std::string& folder : folders_) {
    PENSTOCK_TRY(copy_file(place_of(folder, step) + "/" + name, folder + "/" + restored, {}));
  }
  // A crash between two drives' names leaves roots that differ, which opening tells and does not believe.
  for (const std::string& folder : folders_) {
    PENSTOCK_TRY(rename_file(folder + "/" + restored, folder + "/" + name));
    PENSTOCK_TRY(sync_folder(folder));
  }
  return Status();
}

Status KeptSteps::mark_rollback(uint64_t step) const {
  for (const std::string& folder : folders_) PENSTOCK_TRY(write_line(mark_in(folder), text(step)));
  return Status();
}

Status KeptSteps::unmark_rollback() const {
  for (const std::string& folder : folders_) {
    const std::string mark = mark_in(folder);
    if (::unlink(mark.c_str()) == 0) {
      PENSTOCK_TRY(sync_folder(places_in(folder)));
    } else if (errno != ENOENT) {
      return errno_status("remove " + mark, errno);
    }
  }
  return Status();
}

std::optional<uint64_t> KeptSteps::marked_rollback() const {
  std::optional<std::string> mark = line_in(mark_in(folders_.front()));
  for (const std::string& folder : folders_) {
    if (line_in(mark_in(folder)) != mark) return std::nullopt;
  }
  return mark ? number_in(*mark) : std::nullopt;
}

uint64_t KeptSteps::bytes_of(uint64_t step) const {
  uint64_t bytes = 0;
  for (const std::string& folder : folders_) {
    struct stat found {};
    if (::stat((place_of(folder, step) + "/" + file_name_).c_str(), &found) == 0)
      bytes += static_cast<uint64_t>(found.st_blocks) * 512;
  }
  return bytes;
}

std::string KeptSteps::note_of(uint64_t step) const {
  std::ifstream in(place_of(folders_.front(), step) + "/note");
  return {std::istreambuf_iterator<char>(in), {}};
}

void KeptSteps::drop_partial() const {
  for (const std::string& folder : folders_) {
    std::vector<std::string> partial;
    std::error_code unknown;
    for (const auto& entry : fs::directory_iterator(places_in(folder), unknown)) {
      if (number_in(entry.path().stem().string()) && entry.path().extension() == kPartial)
        partial.push_back(entry.path().string());
    }
    for (const std::string& path : partial) remove_all(path);
  }
}

Status KeptSteps::drop(uint64_t step) {
  PENSTOCK_TRY(check(step));
  for (const std::string& folder : folders_) remove_all(place_of(folder, step));
  return Status();
}

}  // namespace penstock::engine
