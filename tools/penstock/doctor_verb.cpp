#include <memory>

#include "tools/doctor/checks.h"
#include "tools/penstock/command.h"
#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

const char* mark_of(Level level) { return level == Level::good ? "ok  " : level == Level::note ? "note" : "FAIL"; }

std::string text_of(const Finding& finding) {
  std::string out = text(mark_of(finding.level), "  ", finding.subject, ": ", finding.found, "\n");
  if (!finding.follows.empty()) out += text("        ", finding.follows, "\n");
  if (!finding.fix.empty()) out += text("        fix: ", finding.fix, "\n");
  return out;
}

Json json_of(const Finding& finding) {
  return {{"subject", finding.subject},
          {"level", name_of(finding.level)},
          {"found", finding.found},
          {"follows", finding.follows},
          {"fix", finding.fix}};
}

// Only the folders decide the exit code: the user asked about them.
Status verdict_on(const Findings& drives) {
  for (const Finding& finding : drives) {
    if (finding.level == Level::problem) return Status(Code::kEnvironment, finding.found, finding.fix);
  }
  return {};
}

Result<Findings> examine_drives(const std::vector<std::string>& paths) {
  Findings all;
  for (const std::string& path : paths) {
    PENSTOCK_TRY_ASSIGN(findings, check_drive(path));
    all.insert(all.end(), findings.begin(), findings.end());
  }
  return all;
}

Findings examine_all(const Findings& drives) {
  const SystemFiles files;
  Findings all;
  auto add = [&all](Findings more) { all.insert(all.end(), more.begin(), more.end()); };
  add(check_kernel(files));
  add(check_cpu(files));
  add(check_memory(files));
  add(drives);
  add(check_cuda(files));
  add(check_software());
  return all;
}

Answer answer_of(const Findings& findings) {
  Answer answer;
  size_t notes = 0, problems = 0;
  answer.json["findings"] = Json::array();
  for (const Finding& finding : findings) {
    answer.text += text_of(finding);
    answer.json["findings"].push_back(json_of(finding));
    notes += finding.level == Level::note;
    problems += finding.level == Level::problem;
  }
  answer.text +=
      text(counted(findings.size(), "check"), ", ", counted(notes, "note"), ", ", counted(problems, "failure"), "\n");
  answer.json["notes"] = notes;
  answer.json["problems"] = problems;
  return answer;
}

}  // namespace

Verb doctor_verb() {
  auto paths = std::make_shared<std::vector<std::string>>();
  return {"doctor",
          "Check this machine, and say how to fix what is missing or slow",
          "Checks io_uring and libaio, memory limits, huge pages, drives, the CUDA driver, the processor and the\n"
          "software that some verbs use. Changes nothing. Exit code 4: a drive cannot hold training state.",
          {{"penstock doctor /mnt/nvme0 /mnt/nvme1", "Check the machine and two drives"}},
          [paths](Options& options) -> Action {
            options.paths("PATH", *paths, 0, "Folders on the drives to check; default: the current one");
            return [paths](Session&) -> Result<Answer> {
              if (paths->empty()) paths->push_back(".");
              PENSTOCK_TRY_ASSIGN(drives, examine_drives(*paths));
              Answer answer = answer_of(examine_all(drives));
              answer.verdict = verdict_on(drives);
              return answer;
            };
          }};
}

}  // namespace penstock::tools
