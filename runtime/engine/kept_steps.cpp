#include "runtime/engine/kept_steps.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
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
#include "aio/file_descriptor.h"
#include "aio/host_arena.h"
#include "aio/make_io_engine.h"
#include "cpu_optim/checksum.h"
#include "tiering/store/store_layout.h"
#include "tiering/tier.h"

namespace penstock::engine {
namespace {

namespace fs = std::filesystem;

Status sync_folder(const std::string& folder) {
  const aio::FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open() || ::fsync(opened.number()) != 0) return errno_status(text("flush the folder ", folder), errno);
  return Status();
}

// Of the store's, and of the copy's, while one becomes the other.
constexpr uint64_t kCarryingBytes = 32 * kMiB;

struct Run {
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

Status copy_bytes(int from, int to, const Run& run, const std::string& what) {
  auto from_offset = static_cast<off_t>(run.offset_bytes), to_offset = from_offset;
  for (uint64_t left = run.length_bytes; left > 0;) {
    const ssize_t copied = ::copy_file_range(from, &from_offset, to, &to_offset, std::min<uint64_t>(left, kGiB), 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return errno_status(what, errno);
    if (copied == 0) return Status(Code::kEnvironment, text(what, ": the file ends ", left, " B early"));
    left -= static_cast<uint64_t>(copied);
  }
  return Status();
}

Status refuse_without_space(const std::string& target, std::span<const Run> runs) {
  uint64_t needed = 0;
  for (const Run& run : runs) needed += run.length_bytes;
  std::error_code unknown;
  const fs::space_info space = fs::space(fs::path(target).parent_path(), unknown);
  if (unknown || space.available >= needed) return Status();
  return Status(Code::kDoesNotFit,
                text(target, ": a copy of the step needs ", needed, " B here and ", space.available, " B are free"),
                "free some space, or remove a step that is kept: `penstock checkpoint ls` lists them");
}

// The runs of the file, at their places; between them are holes.
Status copy_file(const std::string& source, const std::string& target, std::span<const Run> runs) {
  const std::string what = text("copy ", source, " to ", target);
  const aio::FileDescriptor from(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
  if (!from.is_open()) return errno_status(what, errno);
  const aio::FileDescriptor to(::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!to.is_open()) return errno_status(what, errno);
  if (::ioctl(to.number(), FICLONE, from.number()) != 0) {
    struct stat found {};
    if (::fstat(from.number(), &found) != 0 || ::ftruncate(to.number(), found.st_size) != 0)
      return errno_status(what, errno);
    const Run all{0, static_cast<uint64_t>(found.st_size)};
    if (runs.empty()) runs = std::span(&all, 1);
    PENSTOCK_TRY(refuse_without_space(target, runs));
    for (const Run& run : runs) PENSTOCK_TRY(copy_bytes(from.number(), to.number(), run, what));
  }
  if (::fsync(to.number()) != 0) return errno_status(what, errno);
  return Status();
}

// Whether two files of a store hold the same state: every commit writes a root of its own, which names all of it.
bool have_the_same_roots(const std::string& one, const std::string& other) {
  auto roots_of = [](const std::string& path) {
    std::string roots(2 * kAlignmentBytes, '\0');
    const aio::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    for (uint64_t place : {0, 1}) {
      const auto offset = static_cast<off_t>(StoreLayout::root_offset(place));
      const ssize_t there = ::pread(file.number(), roots.data() + place * kAlignmentBytes, kAlignmentBytes, offset);
      if (there != static_cast<ssize_t>(kAlignmentBytes)) return std::string();
    }
    return roots;
  };
  const std::string roots = roots_of(one);
  return !roots.empty() && roots == roots_of(other);
}

Status make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? errno_status(text("make the folder ", folder), error.value()) : Status();
}

Status rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return errno_status(text("rename ", from, " to ", to), errno);
  return Status();
}

void remove_all(const std::string& path) {
  std::error_code unimportant;
  fs::remove_all(path, unimportant);
}

// A crash leaves all of the line or, without its end, a part.
Status write_line(const std::string& path, const std::string& line) {
  const aio::FileDescriptor to(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::string bytes = line + "\n";
  const bool is_written = to.number() >= 0 && ::write(to.number(), bytes.data(), bytes.size()) == std::ssize(bytes);
  if (!is_written || ::fsync(to.number()) != 0) return errno_status("write " + path, errno);
  return sync_folder(fs::path(path).parent_path());
}

// None where there is no whole line.
std::optional<std::string> line_in(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  return std::getline(in, line) && !in.eof() ? std::optional(line) : std::nullopt;
}

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
  return place_of(folder, step) + ".partial";
}

bool KeptSteps::is_kept(uint64_t step) const {
  return std::all_of(folders_.begin(), folders_.end(), [&](const std::string& folder) {
    std::error_code unknown;
    return fs::exists(place_of(folder, step) + "/" + file_name_, unknown);
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

Status KeptSteps::keep(uint64_t step, std::span<const aio::TileStore::FileRun> runs, const std::string& note) {
  // After a rollback, or a write between steps, the step of that number may be another than the one that was kept.
  if (is_as_kept(step)) return Status();
  PENSTOCK_TRY(prepare(step, runs, note));
  return publish(step);
}

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
  std::vector<Run> here;
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
    PENSTOCK_TRY(rename(partial_of(folder, step), place_of(folder, step)));
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
  const auto copies = aio::direct_folders(places, aio::Access::read_only);
  return aio::TileStore::open(
      io, copies,
      {.purpose = aio::OpenOptions::Purpose::inspect, .rank = of_.rank, .checksum = cpu_optim::checksum_function()});
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
  const auto drives = aio::direct_folders(folders_, aio::Access::read_write);
  PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*made.engine, drives,
                                                  {.rank = of_.rank, .checksum = cpu_optim::checksum_function()}));
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
    PENSTOCK_TRY(rename(folder + "/" + restored, folder + "/" + name));
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

Status KeptSteps::drop(uint64_t step) {
  PENSTOCK_TRY(check(step));
  for (const std::string& folder : folders_) remove_all(place_of(folder, step));
  return Status();
}

}  // namespace penstock::engine
