#include "tools/nvme/profile_file.h"

#include "tests/fuzz/target.h"
#include "tests/fuzz/targets/scratch.h"
#include "tools/machine/machine_file.h"
#include "tools/machine/shipped_machines.h"
#include "tools/plan/machine_choice.h"

namespace penstock::fuzz {
namespace {

using namespace tools;

std::vector<Bytes> seeds() {
  std::vector<Bytes> all{bytes_of("")};
  for (MachineProfile& machine : shipped_profiles()) {
    machine.drives.resize(1);
    all.push_back(bytes_of(to_json(machine)));
  }
  return all;
}

std::string run(std::span<const std::byte> input) {
  static const aio::ScratchFolder scratch(quick_folder());
  const std::string path = scratch / "profile.json";
  write_file(path, input);
  (void)choose_machine(path);
  Result<MachineProfile> profile = load_or_begin_profile(path);
  if (!profile.ok()) return profile.status().remedy().empty() ? "refused without a way out" : "";
  // What `nvme probe` does then. A folder may have any name.
  DriveRates drive;
  drive.path = "/mnt/" + text_of(input.first(std::min<size_t>(input.size(), 8)));
  drive.burst = MixCurve({{0, 4}, {1, 6}});
  put_host(*profile, 20);
  put_drive(*profile, drive);
  if (const Status saved = save_profile(*profile, path); !saved.ok()) return "cannot be saved: " + saved.message();
  const Result<MachineProfile> again = load_or_begin_profile(path);
  if (!again.ok()) return "saved and refused: " + again.status().message();
  return again->drives.size() == profile->drives.size() ? "" : "lost a drive";
}

constexpr std::string_view kWords[] = {"\"penstock.machine/1\"",
                                       "schema",
                                       "drives",
                                       "path",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       ",",
                                       ":",
                                       "\"x\"",
                                       "mix_curve",
                                       "\xff",
                                       "\"\\u0000\"",
                                       "sustained_mix_curve",
                                       "null"};

}  // namespace

const Target profile_file{.name = "profile_file", .seeds = seeds, .run = run, .words = kWords, .rounds = 2000};

}  // namespace penstock::fuzz
