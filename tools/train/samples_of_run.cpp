#include "tools/train/samples_of_run.h"

#include <filesystem>

namespace penstock::tools {
namespace {

trainer::TokenWidth width_of(uint32_t token_bytes) {
  switch (token_bytes) {
    case 1:
      return trainer::TokenWidth::bytes_1;
    case 2:
      return trainer::TokenWidth::bytes_2;
    case 4:
      return trainer::TokenWidth::bytes_4;
    default:
      return trainer::TokenWidth::automatic;
  }
}

// The parts of a prepared set share its weight as its manifest says.
Status add_prepared(trainer::DataFile& data, uint32_t vocabulary, std::vector<trainer::DataSet>& into) {
  PENSTOCK_TRY_ASSIGN(opened, trainer::PreparedSet::open(data.path));
  PENSTOCK_TRY(opened->check(vocabulary));
  const std::shared_ptr<const trainer::PreparedSet> set = std::move(opened);
  const trainer::PreparedManifest& manifest = set->manifest();
  if (!data.hash.empty() && data.hash != manifest.hash)
    return Status(Code::kUsage,
                  text("data: ", data.path, ": has the hash ", manifest.hash, ", the run was told ", data.hash),
                  "the set that the run began with, or leave the hash out of the config to go on with this one");
  data.hash = manifest.hash;
  double weights = 0;
  for (const trainer::PreparedManifest::Part& part : manifest.parts) weights += part.weight;
  for (size_t i = 0; i < manifest.parts.size(); ++i)
    into.push_back(
        {.file = nullptr, .weight = data.weight * manifest.parts[i].weight / weights, .prepared = set, .part = i});
  return Status();
}

}  // namespace

std::string shipped_text() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "share/penstock/paradise-lost.txt";
  return fs::exists(installed, error) ? installed.string() : PENSTOCK_SHIPPED_TEXT;
}

Result<trainer::Samples> samples_of(trainer::TrainConfig& config, uint32_t vocabulary) {
  std::vector<trainer::DataFile> shipped = {{shipped_text()}};
  std::vector<trainer::DataFile>& files = config.data.empty() ? shipped : config.data;
  std::vector<trainer::DataSet> sets;
  for (trainer::DataFile& data : files) {
    if (trainer::PreparedSet::is_at(data.path)) {
      PENSTOCK_TRY(add_prepared(data, vocabulary, sets));
      continue;
    }
    PENSTOCK_TRY_ASSIGN(file, trainer::TokenFile::open(data.path, width_of(config.token_bytes)));
    PENSTOCK_TRY(file->check(vocabulary));
    sets.push_back({std::move(file), data.weight});
  }
  return trainer::Samples::make(
      std::move(sets),
      {.length = config.sequence_length, .seed = config.seed, .held_out_share = config.held_out_share});
}

}  // namespace penstock::tools
