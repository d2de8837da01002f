#include "tools/penstock/way_back.h"

#include "aio/store/tile_store.h"
#include "tiering/store/store_record.h"
#include "tools/penstock/checkpoint_common.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

// A header that is none is a refusal of the path where nothing speaks for a store, as a snapshot does.
bool is_damage(const Status& status) {
  return is_no_record(status) || status.code() == Code::kCorrupt || status.code() == Code::kComparison;
}

// Whether a copy has all of a store: what steps never update is in the store alone.
bool is_whole(const engine::KeptSteps& kept, uint64_t step) {
  const auto made = aio::make_io_engine();
  if (!made.ok()) return false;
  const auto copy = kept.open_copy(*made->engine, step);
  if (!copy.ok()) return false;
  const StoreShape& shape = (*copy)->shape();
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    if (!shape.kind(tile).updated) return false;
  }
  return true;
}

std::string copied_back(const std::string& folder, uint64_t step) {
  const std::string file = aio::store_file_name(0), store = shell_word(folder + "/" + file);
  const std::string kept = shell_word(text(folder, "/kept/", step, "/", file));
  return text("mv ", store, " ", shell_word(folder + "/" + file + ".damaged"), " && cp ", kept, " ", store);
}

}  // namespace

Status with_way_back(const Status& status, const std::vector<std::string>& paths) {
  // Advice that goes back already knows more of it.
  if (!is_damage(status) || status.remedy().find("go back to") != std::string::npos) return status;
  std::vector<std::string> folders;
  for (const std::string& path : paths) {
    for (const std::string& folder : split(path, ',')) folders.push_back(folder);
  }
  if (folders.empty()) return status;
  const engine::KeptSteps kept(folders);
  const std::vector<uint64_t> steps = kept.steps();
  if (steps.empty()) return status;
  const uint64_t step = steps.back();
  const auto store = InspectedStores::open(folders);
  if (store.ok()) {
    if ((*store)->ranks().front()->layout().slots() == 1) return status;
    return Status(
        status.code(), status.message(),
        text("`penstock checkpoint rollback ", shell_words(folders), " --step ", step, "`, a snapshot that is kept"));
  }
  if (!is_damage(store.status()) || !is_whole(kept, step)) return status;
  std::string commands;
  for (const std::string& folder : folders) commands += text(commands.empty() ? "" : " && ", copied_back(folder, step));
  return Status(status.code(), status.message(),
                text("`", commands, "`: the snapshot of step ", step, " is a whole store"));
}

}  // namespace penstock::tools
