#include "tools/penstock/train_start.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/engine/ranks/rank_place.h"
#include "tools/penstock/rank_launcher.h"

namespace penstock::tools {

Result<std::string> trainer_path(const std::string& verb) {
  std::error_code unknown;
  const std::filesystem::path command = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::filesystem::path trainer = command.parent_path() / "penstock-trainer";
  if (std::filesystem::exists(trainer, unknown)) return trainer.string();
  return Status(Code::kEnvironment, text(verb, ": ", trainer.string(), ": this build has no trainer"),
                "`tools/setup` installs PyTorch, whose C++ library it needs; then build again");
}

void let_trainer_threads_wait() {
  if (getenv("GOMP_SPINCOUNT") == nullptr) setenv("OMP_WAIT_POLICY", "PASSIVE", /*overwrite=*/0);
}

Status start_trainer(Session& session, const std::string& verb, uint64_t ranks) {
  PENSTOCK_TRY_ASSIGN(trainer, trainer_path(verb));
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (size_t at = 0; at < line.size(); at += words.back().size() + 1) words.emplace_back(line.c_str() + at);
  if (words.empty()) return Status(Code::kEnvironment, text(verb, ": /proc/self/cmdline: empty"), "mount /proc");
  words.front() = trainer;
  let_trainer_threads_wait();
  session.progress.clear();
  if (ranks == 0) return Status(Code::kUsage, "--ranks: 0: at least 1 expected", "leave --ranks out for one");
  if (ranks > 1 && getenv("RANK") == nullptr) {
    if (ranks > engine::kRanksMax)
      return Status(Code::kUsage, text("--ranks: ", ranks, ": at most ", engine::kRanksMax, " expected"));
    PENSTOCK_TRY_ASSIGN(code, run_ranks(static_cast<uint32_t>(ranks), words));
    std::exit(code);
  }
  // A rank whose torchrun is gone commits its step and ends, as it would if that had asked it to.
  if (getenv("TORCHELASTIC_RUN_ID") != nullptr) prctl(PR_SET_PDEATHSIG, SIGTERM);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(trainer.c_str(), arguments.data());
  return errno_status(text(verb, ": start ", trainer), errno, "`ldd` on it says which library is missing");
}

}  // namespace penstock::tools
