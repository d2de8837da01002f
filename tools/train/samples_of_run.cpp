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

// The run goes on only with the data that it was told of.
Status name_by_hash(trainer::DataFile& data, const std::string& found, bool is_alone) {
  if (!data.hash.empty() && data.hash != found)
    return Status(
        Code::kUsage, text("data: ", data.path, ": has the hash ", found, ", the run was told ", data.hash),
        text("the data that the run began with, or ",
             is_alone ? text("--data ", data.path) : text("\"hash\": \"", found, "\" beside it in the config"),
             " to go on with this"));
  data.hash = found;
  return Status();
}

// The parts of a prepared set share its weight as its manifest says.
Status add_prepared(trainer::DataFile& data, uint32_t vocabulary, bool is_alone, std::vector<trainer::DataSet>& into) {
  PENSTOCK_TRY_ASSIGN(opened, trainer::PreparedSet::open(data.path));
  PENSTOCK_TRY(opened->check(vocabulary));
  const std::shared_ptr<const trainer::PreparedSet> set = std::move(opened);
  const trainer::PreparedManifest& manifest = set->manifest();
  PENSTOCK_TRY(name_by_hash(data, manifest.hash, is_alone));
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
  const bool is_alone = files.size() == 1;
  std::vector<trainer::DataSet> sets;
  for (trainer::DataFile& data : files) {
    if (trainer::PreparedSet::is_at(data.path)) {
      PENSTOCK_TRY(add_prepared(data, vocabulary, is_alone, sets));
      continue;
    }
    PENSTOCK_TRY_ASSIGN(file, trainer::TokenFile::open(data.path, width_of(config.token_bytes)));
    PENSTOCK_TRY(file->check(vocabulary));
    PENSTOCK_TRY(name_by_hash(data, file->hash(), is_alone));
    sets.push_back({std::move(file), data.weight});
  }
  return trainer::Samples::make(
      std::move(sets),
      {.length = config.sequence_length, .seed = config.seed, .held_out_share = config.held_out_share});
}

}  // namespace penstock::tools
