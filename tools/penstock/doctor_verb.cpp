#include <memory>

#include "tools/doctor/checks.h"
#ifdef PENSTOCK_STEPS
#include "tools/doctor/measured_rates.h"
#include "tools/nvme/profile_file.h"
#endif
#include "tools/penstock/command.h"
#include "tools/penstock/quantity.h"
#include "tools/system/interrupt.h"

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

struct Flags {
  std::vector<std::string> paths;
  bool measure = false;
  std::string profile;
};

#ifdef PENSTOCK_STEPS
std::string compute_text(const MeasuredRates& rates) {
  if (!rates.compute) return text("not measured: ", rates.compute_unmeasured);
  auto gflops = [](double flops) { return fixed(flops / 1e9, 0); };
  return text(gflops(rates.compute->flops), " Gflop/s in bf16, ", gflops(rates.compute->flops_least), " to ",
              gflops(rates.compute->flops_most), " (forward and backward of a block)");
}

Status add_rates(Session& session, const std::string& asked_path, Answer& answer) {
  PENSTOCK_TRY_ASSIGN(path, profile_path_to_write(asked_path));
  PENSTOCK_TRY_ASSIGN(profile, load_or_begin_profile(path));
  session.progress.note("measuring compute, updates and copies for some seconds");
  PENSTOCK_TRY_ASSIGN(rates, measure_rates());
  PENSTOCK_TRY(check_interrupted());
  put_rates(profile, rates);
  PENSTOCK_TRY(save_profile(profile, path));
  answer.text += text("\ncompute: ", compute_text(rates), "\nupdates: ", fixed(rates.update_gbps, 1), " GB/s\n");
  Json json = {{"update_gbps", rates.update_gbps}, {"devices", rates.devices}, {"profile_path", path}};
  json["device_flops"] = rates.compute ? Json(rates.compute->flops) : Json();
  if (rates.compute) json["device_flops_range"] = {rates.compute->flops_least, rates.compute->flops_most};
  if (rates.copies) {
    answer.text += text("copies: ", fixed(rates.copies->host_to_device_gbps, 1), " GB/s to the device, ",
                        fixed(rates.copies->device_to_host_gbps, 1), " GB/s from it\n");
    json["host_to_device_gbps"] = rates.copies->host_to_device_gbps;
    json["device_to_host_gbps"] = rates.copies->device_to_host_gbps;
    answer.text += text("updates on the device: ", fixed(rates.device_update_gbps, 1), " GB/s\n");
    json["device_gbps"] = rates.device_update_gbps;
  }
  answer.text += "profile: " + path + "\n";
  answer.json["measured"] = std::move(json);
  return {};
}
#endif

Result<Answer> examine(Session& session, const Flags& flags) {
  const std::vector<std::string> here{"."};
  PENSTOCK_TRY_ASSIGN(drives, examine_drives(flags.paths.empty() ? here : flags.paths));
  Answer answer = answer_of(examine_all(drives));
  answer.verdict = verdict_on(drives);
#ifdef PENSTOCK_STEPS
  if (!flags.measure && !flags.profile.empty()) {
    return Status(Code::kUsage, text("--profile: ", flags.profile, ": nothing to keep there without --measure"),
                  text("--measure --profile ", flags.profile));
  }
  if (flags.measure) PENSTOCK_TRY(add_rates(session, flags.profile, answer));
#else
  static_cast<void>(session);
#endif
  return answer;
}

}  // namespace

Verb doctor_verb() {
  auto flags = std::make_shared<Flags>();
  return {
      "doctor",
      "Check this machine, and say how to fix what is missing or slow",
      "Checks io_uring and libaio, memory limits, huge pages, drives, the CUDA driver, the processor and the\n"
      "software that some verbs use. Changes nothing. Exit code 4: a drive cannot hold training state.\n\n"
      "With --measure it also measures how fast a block is computed, state is updated and a GPU's memory is reached,\n"
      "and keeps that in the machine's profile, from which `penstock plan` predicts steps; `penstock nvme probe`\n"
      "does the same for drives.",
      {{"penstock doctor /mnt/nvme0 /mnt/nvme1", "Check the machine and two drives"},
       {"penstock doctor --measure", "Measure what plans need besides drives"}},
      [flags](Options& options) -> Action {
        options.paths("PATH", flags->paths, 0, "Folders on the drives to check; default: the current one");
#ifdef PENSTOCK_STEPS
        options.flag("--measure", flags->measure, "Measure compute, updates and copies, for the machine's profile");
        options.file("--profile", flags->profile,
                     "Profile to keep the rates in; default: ~/.config/penstock/profile.json, made if missing");
#endif
        return [flags](Session& session) { return examine(session, *flags); };
      }};
}

}  // namespace penstock::tools
