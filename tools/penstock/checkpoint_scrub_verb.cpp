#include "runtime/engine/step_before.h"
#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/command.h"
#include "tools/penstock/text_table.h"
#include "tools/penstock/way_back.h"
#include "tools/system/interrupt.h"

namespace penstock::tools {
namespace {

Status verdict_of(const aio::ScrubReport& report, uint32_t bad_copies) {
  const uint64_t unread = report.unread(), corrupt = report.bad.size() - unread;
  if (corrupt > 0) {
    return Status(Code::kComparison,
                  text("scrub: ", corrupt, " of ", report.blocks, " blocks do not match their checksums",
                       unread > 0 ? text(", and ", unread, " could not be read") : ""),
                  "restore a copy of the store's files, or start a new store with --force; the drive may be failing");
  }
  if (unread > 0) {
    return Status(Code::kEnvironment,
                  text("scrub: ", unread, " of ", report.blocks,
                       " blocks could not be read, the first: ", report.bad.front().unread.message()),
                  "check the kernel's log (dmesg) and the drive, then scrub again");
  }
  if (bad_copies > 0) {
    return Status(Code::kComparison,
                  text("scrub: every block is good, but ", bad_copies, bad_copies == 1 ? " copy" : " copies",
                       " of headers, descriptions, table pages or roots ", bad_copies == 1 ? "is" : "are", " damaged"),
                  "the next run on this store repairs them; the drive may be failing");
  }
  return Status();
}

Result<Answer> scrub(Session& session, const std::vector<std::string>& paths) {
  auto opened = InspectedStores::open(paths);
  if (!opened.ok()) return with_way_back(opened.status(), paths);
  const std::unique_ptr<InspectedStores> stores = *std::move(opened);
  const auto ranks = static_cast<double>(stores->ranks().size());
  uint64_t rank = 0;
  aio::ScrubReport all;
  for (const auto& store : stores->ranks()) {
    auto progress = [&](double share) {
      session.progress.update((static_cast<double>(rank) + share) / ranks, "scrub");
      return check_interrupted();
    };
    PENSTOCK_TRY_ASSIGN(report, store->scrub(stores->memory(), progress));
    all.blocks += report.blocks;
    all.bad.insert(all.bad.end(), report.bad.begin(), report.bad.end());
    ++rank;
  }
  Answer answer = answer_to_scrub(all, stores->report());
  if (answer.verdict.ok() || all.bad.size() == all.unread()) return answer;
  // Where the newest step has rotted, the one before may still be whole.
  const uint64_t newest = stores->ranks().front()->payload().step;
  const auto progress = [&](double share) {
    session.progress.update(share, "scrub the step before");
    return check_interrupted();
  };
  PENSTOCK_TRY_ASSIGN(before, engine::whole_step_before(newest, stores->folders(), progress));
  answer.json["whole_step_before"] = before ? Json(*before) : Json();
  if (!before) {
    answer.verdict = with_way_back(answer.verdict, stores->folders());
    return answer;
  }
  answer.text += text("step ", *before, ", before it, is whole\n");
  std::string command = "penstock checkpoint rollback";
  for (const std::string& folder : stores->folders()) command += " " + folder;
  answer.verdict =
      Status(answer.verdict.code(), answer.verdict.message(),
             text(command, " --step ", *before, ", before anything else runs on the store; the drive may be failing"));
  return answer;
}

}  // namespace

Answer answer_to_scrub(const aio::ScrubReport& report, const aio::OpenReport& opened) {
  Answer answer;
  answer.json = {
      {"blocks", report.blocks}, {"bad", Json::array()}, {"unread", report.unread()}, {"remarks", opened.notes}};
  TextTable table({"file", "offset", "what", "tensor"});  // the last, long as it may be, is not padded
  for (const aio::BadBlock& block : report.bad) {
    const bool corrupt = block.unread.ok();
    answer.json["bad"].push_back({{"file", block.file},
                                  {"offset_bytes", block.offset_bytes},
                                  {"tensor", block.tensor},
                                  {"what", corrupt ? "corrupt" : "unread"}});
    if (!corrupt) answer.json["bad"].back()["error"] = block.unread.message();
    table.add({block.file, text(block.offset_bytes), corrupt ? "corrupt" : "unread", block.tensor});
  }
  answer.text = report.bad.empty() ? text(report.blocks, " blocks, all match their checksums\n") : table.str();
  for (const std::string& note : opened.notes) answer.text += note + "\n";
  answer.verdict = verdict_of(report, opened.bad_copies);
  return answer;
}

Verb checkpoint_scrub_verb() {
  auto paths = std::make_shared<std::vector<std::string>>();
  return {
      "checkpoint scrub",
      "Verify every block of a store",
      "Reads the whole newest step and compares each block of 65536 elements with its checksum. Lists file, offset\n"
      "and tensor of each block that differs (corrupt) or that the drive cannot read (unread). Where the newest step "
      "is\n"
      "corrupt, the one before is verified too: it may still be whole. Changes nothing.",
      {{"penstock checkpoint scrub /mnt/nvme0/run", "Verify a store on one drive"}},
      [paths](Options& options) -> Action {
        options.paths("PATH", *paths, 1,
                      "The folders of the store, one on each drive, in any order; commas may join them");
        return [paths](Session& session) { return scrub(session, *paths); };
      }};
}

}  // namespace penstock::tools
