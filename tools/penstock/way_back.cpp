#include "tools/penstock/way_back.h"

#include "aio/store/tile_store.h"
#include "tools/penstock/checkpoint_common.h"
#include "tools/system/words.h"

namespace penstock::tools {

Status with_way_back(const Status& status, const std::vector<std::string>& folders, engine::RankOfRun of) {
  const bool is_corrupt =
      status.code() == Code::kCorrupt || status.code() == Code::kComparison || status.code() == Code::kUsage;
  if (!is_corrupt || folders.empty()) return status;
  const engine::KeptSteps kept(folders, of);
  const std::vector<uint64_t> steps = kept.steps();
  const bool has_headers = kept.store_has_headers();
  // Advice that goes back already knows more of it.
  const auto advises = [&](const char* words) { return status.remedy().find(words) != std::string::npos; };
  const bool gives_all_up = !has_headers || (advises("--force") && !advises("go back to"));
  if (!gives_all_up || steps.empty()) return status;
  const uint64_t step = steps.back();
  if (has_headers && InspectedStores::open(folders).ok()) {
    return Status(status.code(), status.message(),
                  text("`penstock checkpoint rollback ", joined(folders, " "), " --step ", step,
                       "`, a snapshot that is kept; the drive may be failing"));
  }
  const std::string file = aio::store_file_name(of.rank);
  std::string copies;
  for (const std::string& folder : folders) {
    copies += text(copies.empty() ? "" : " && ", "cp ", folder, "/kept/",
                   of.ranks > 1 ? text("rank", of.rank, "/") : "", step, "/", file, " ", folder, "/");
  }
  return Status(status.code(), status.message(),
                text("`", copies, "`: the snapshot of step ", step,
                     " is a whole store, but for weights that never "
                     "change; the drive may be failing"));
}

}  // namespace penstock::tools
