#include "tools/penstock/command_line.h"

#include <algorithm>

#include "tests/fuzz/target.h"
#include "tools/penstock/command.h"

namespace penstock::fuzz {
namespace {

using namespace tools;

// One argument a line.
std::vector<Bytes> seeds() {
  return {bytes_of("plan\n--params\n7e9\n--layers\n32\n--machine\nrtx4090-2gen4\n--durability\nevery:3"),
          bytes_of("nvme\nbench\n/a\n/b\n--block\n1MiB,2MiB\n--read-share=0.5,1\n--json\n--duration\n10s"),
          bytes_of("update\n--params\n10M\n--store\n/a,/b\n--budget\nhost=192MiB\n--strike-share\n0.1\n--force"),
          bytes_of("checkpoint\nscrub\n/a"),
          bytes_of("--help"),
          bytes_of("nvme\nprob"),
          bytes_of("")};
}

std::vector<std::string> arguments_of(const std::string& lines) {
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    arguments.push_back(lines.substr(begin, end - begin));
    begin = end + 1;
  }
  return arguments;
}

std::string run(std::span<const std::byte> input) {
  const std::vector<std::string> arguments = arguments_of(text_of(input));
  CommandLine line(all_verbs());
  (void)line.verb_named(arguments);
  const Result<CommandLine::Parsed> parsed = line.parse(arguments);
  if (!parsed.ok()) {
    const Status& why = parsed.status();
    if (why.code() != Code::kUsage || why.message().empty() || why.remedy().empty()) return "refused without a way out";
    return "";
  }
  if (parsed->verb == nullptr) return parsed->help.empty() ? "neither a verb nor help" : "";
  return parsed->action ? "" : "a verb that does nothing";
}

constexpr std::string_view kWords[] = {"\n",
                                       "=",
                                       ",",
                                       "--",
                                       "-",
                                       "--json",
                                       "--help",
                                       "--version",
                                       "plan",
                                       "nvme",
                                       "probe",
                                       "bench",
                                       "tune",
                                       "compare",
                                       "doctor",
                                       "update",
                                       "verify",
                                       "checkpoint",
                                       "ls",
                                       "scrub",
                                       "manual",
                                       "completion",
                                       "--block",
                                       "--depth",
                                       "--duration",
                                       "--engine",
                                       "--budget",
                                       "--store",
                                       "--durability",
                                       "every:",
                                       "auto",
                                       "step",
                                       "exit",
                                       "--threads",
                                       "--seed",
                                       "--params",
                                       "--size",
                                       "--read-share",
                                       "--flops",
                                       "--profile",
                                       "\n\n",
                                       "%",
                                       "[]",
                                       "{}",
                                       "''",
                                       "\"",
                                       "++",
                                       "@file"};

}  // namespace

const Target command_line{.name = "command_line", .seeds = seeds, .run = run, .words = kWords, .rounds = 1500};

}  // namespace penstock::fuzz
