#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/command.h"
#include "tools/penstock/text_table.h"
#include "tools/system/interrupt.h"

namespace penstock::tools {
namespace {

Status verdict_of(uint64_t blocks, size_t bad, size_t notes) {
  if (bad > 0) {
    return Status(Code::kComparison, text("scrub: ", bad, " of ", blocks, " blocks are not what was written"),
                  "restore the store from an export; the drive may be failing");
  }
  if (notes > 0) {
    return Status(Code::kComparison,
                  text("scrub: every block is good, but ", notes, " copies of roots or tables are not"),
                  "the next run that opens the store sets them right; the drive may be failing");
  }
  return Status();
}

Result<Answer> scrub(Session& session, const std::vector<std::string>& paths) {
  PENSTOCK_TRY_ASSIGN(stores, InspectedStores::open(paths));
  const auto ranks = static_cast<double>(stores->ranks().size());
  uint64_t blocks = 0, rank = 0;
  std::vector<aio::BadBlock> bad;
  for (const auto& store : stores->ranks()) {
    auto progress = [&](double share) {
      session.progress.update((static_cast<double>(rank) + share) / ranks, "scrub");
      return check_interrupted();
    };
    PENSTOCK_TRY_ASSIGN(report, store->scrub(stores->memory(), progress));
    blocks += report.blocks;
    bad.insert(bad.end(), report.bad.begin(), report.bad.end());
    ++rank;
  }
  const std::vector<std::string> notes = stores->notes();
  Answer answer;
  answer.json = {{"blocks", blocks}, {"bad", Json::array()}, {"remarks", notes}};
  TextTable table({"file", "offset", "tensor"});
  for (const aio::BadBlock& block : bad) {
    answer.json["bad"].push_back(
        {{"file", block.file}, {"offset_bytes", block.offset_bytes}, {"tensor", block.tensor}});
    table.add({block.file, text(block.offset_bytes), block.tensor});
  }
  answer.text = bad.empty() ? text(blocks, " blocks, all as they were written\n") : table.str();
  for (const std::string& note : notes) answer.text += note + "\n";
  answer.verdict = verdict_of(blocks, bad.size(), notes.size());
  return answer;
}

}  // namespace

Verb checkpoint_scrub_verb() {
  auto paths = std::make_shared<std::vector<std::string>>();
  return {"checkpoint scrub",
          "Verify every block of a store",
          "Reads everything that the newest step consists of and compares each block of 65536 elements with its\n"
          "checksum. Names file, offset and tensor of each that differs. Changes nothing.",
          {{"penstock checkpoint scrub /mnt/nvme0/run", "Verify a store on one drive"}},
          [paths](Options& options) -> Action {
            options.paths("PATH", *paths, 1,
                          "The folders of the store, one on each drive, in any order; commas may join them");
            return [paths](Session& session) { return scrub(session, *paths); };
          }};
}

}  // namespace penstock::tools
