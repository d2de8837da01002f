#include "runtime/trainer/files/model_folder.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/trainer/files/file_io.h"

namespace penstock::trainer {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kSmallFileMostBytes = 256'000'000;

std::string partial(const std::string& folder) { return folder + ".partial"; }

// The name without the prefix that says which part of the whole model a tensor is of.
std::string bare(const std::string& name) {
  for (std::string_view prefix : {"transformer.", "model."})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

// What older files hold besides parameters: masks and frequencies that are computed.
bool is_computed(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

// The files that hold the folder's weights.
Result<std::vector<std::string>> weight_files(const std::string& folder) {
  const std::string index_path = folder + "/model.safetensors.index.json";
  std::error_code error;
  if (!fs::exists(index_path, error)) {
    const std::string single = folder + "/model.safetensors";
    if (fs::exists(single, error)) return std::vector<std::string>{single};
    return Status(Code::kUsage,
                  text("open ", folder, ": has neither model.safetensors nor model.safetensors.index.json"),
                  "save the model with safe_serialization (transformers' default)");
  }
  PENSTOCK_TRY_ASSIGN(words, read_small_file(index_path, kSmallFileMostBytes));
  const json index = json::parse(words, nullptr, false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    return Status(Code::kCorrupt, text("open ", index_path, ": has no weight_map"));
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos)
      return Status(Code::kCorrupt,
                    text("open ", index_path, ": '", tensor, "' is in ", file.dump(), ", a file's name expected"));
    names.insert(folder + "/" + file.get<std::string>());
  }
  return std::vector<std::string>(names.begin(), names.end());
}

// The overlap of a run of a unit's elements with a parameter.
struct Overlap {
  uint64_t begin = 0, end = 0;  // elements of the unit
};
Overlap overlap(const ModelParameter& parameter, uint64_t first, uint64_t count) {
  return {std::max(first, parameter.first_element),
          std::min(first + count, parameter.first_element + parameter.elements)};
}

bool belongs_to_tokenizer(const std::string& name) {
  static const std::set<std::string> names = {
      "generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
      "chat_template.jinja",    "chat_template.json"};
  return names.contains(name) || name.starts_with("tokenizer");
}

}  // namespace

Result<std::string> read_config_file(const std::string& folder) {
  return read_small_file(folder + "/config.json", kSmallFileMostBytes);
}

Result<std::unique_ptr<ModelFolder>> ModelFolder::open(const std::string& folder, const Model& model) {
  std::unique_ptr<ModelFolder> opened(new ModelFolder(model));
  PENSTOCK_TRY(opened->find_all(folder));
  return opened;
}

Status ModelFolder::find_all(const std::string& folder) {
  PENSTOCK_TRY_ASSIGN(paths, weight_files(folder));
  std::map<std::string, Source> by_name;
  for (const std::string& path : paths) {
    PENSTOCK_TRY_ASSIGN(file, SafetensorsFile::open(path));
    for (const auto& [name, tensor] : file->header().tensors)
      if (!by_name.emplace(bare(name), Source{file.get(), &tensor}).second)
        return Status(Code::kCorrupt, text("open ", path, ": '", name, "' is in the folder twice"));
    files_.push_back(std::move(file));
  }
  std::set<std::string> used;
  for (const ModelUnit& unit : model_.units) {
    sources_.emplace_back();
    for (const ModelParameter& parameter : unit.parameters) {
      if (parameter.factor != Factor::none) {
        sources_.back().emplace_back();
        continue;
      }
      const auto found = by_name.find(bare(parameter.name));
      if (found == by_name.end()) {
        for (const auto& file : files_)
          for (const auto& [name, dtype] : file->header().other_dtypes)
            if (bare(name) == bare(parameter.name))
              return Status(Code::kUsage,
                            text("open ", folder, ": '", name, "' holds ", dtype, ", F32, BF16, F16 or F64 expected"));
        return Status(Code::kUsage, text("open ", folder, ": has no '", parameter.name, "', ",
                                         shape_text(parameter.shape), " expected by its config.json"));
      }
      if (found->second.tensor->shape != parameter.shape)
        return Status(Code::kUsage,
                      text("open ", folder, ": '", parameter.name, "' is ", shape_text(found->second.tensor->shape),
                           ", ", shape_text(parameter.shape), " expected by its config.json"));
      used.insert(found->first);
      sources_.back().push_back(found->second);
    }
  }
  for (const auto& [name, source] : by_name)
    if (!used.contains(name) && !is_computed(name) && name != "lm_head.weight") unused_.push_back(name);
  return Status();
}

Status ModelFolder::read(uint32_t unit, uint64_t first, std::span<float> values) const {
  std::fill(values.begin(), values.end(), 0.0f);
  const std::vector<ModelParameter>& parameters = model_.units.at(unit).parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto [begin, end] = overlap(parameters[i], first, values.size());
    if (begin >= end || parameters[i].factor != Factor::none) continue;
    const Source& source = sources_[unit][i];
    PENSTOCK_TRY(source.file->read(*source.tensor, begin - parameters[i].first_element,
                                   values.subspan(begin - first, end - begin)));
  }
  return Status();
}

Result<std::unique_ptr<ModelFolderWriter>> ModelFolderWriter::create(const std::string& folder,
                                                                     const std::string& config, const Model& model,
                                                                     const Options& options) {
  std::error_code error;
  if (fs::exists(folder, error))
    return Status(Code::kUsage, text("create ", folder, ": exists"), "name another folder, or remove it");
  std::unique_ptr<ModelFolderWriter> writer(new ModelFolderWriter(folder, model));
  PENSTOCK_TRY(writer->begin(config, options));
  return writer;
}

Status ModelFolderWriter::begin(const std::string& config, const Options& options) {
  const std::string folder = partial(folder_);
  std::error_code error;
  fs::remove_all(folder, error);
  if (!fs::create_directories(folder, error)) return errno_status(text("create ", folder), error.value());

  // Parameters to shards, in order.
  std::vector<std::vector<SafetensorsWriter::Entry>> entries(1);
  uint64_t bytes = 0, all_bytes = 0;
  for (const ModelUnit& unit : model_.units) {
    shard_of_.emplace_back();
    for (const ModelParameter& parameter : unit.parameters) {
      const uint64_t own = parameter.elements * bytes_of(options.dtype);
      if (bytes > 0 && bytes + own > options.shard_bytes) entries.emplace_back(), bytes = 0;
      bytes += own, all_bytes += own;
      entries.back().push_back({parameter.name, parameter.shape});
      shard_of_.back().push_back(static_cast<uint32_t>(entries.size() - 1));
    }
  }
  json weight_map = json::object();
  for (size_t shard = 0; shard < entries.size(); ++shard) {
    char name[64] = "model.safetensors";
    if (entries.size() > 1)
      std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, entries.size());
    PENSTOCK_TRY_ASSIGN(writer, SafetensorsWriter::create(folder + "/" + name, entries[shard], options.dtype));
    shards_.push_back(std::move(writer));
    for (const SafetensorsWriter::Entry& entry : entries[shard]) weight_map[entry.name] = name;
  }
  if (entries.size() > 1) {
    const json index = {{"metadata", {{"total_size", all_bytes}}}, {"weight_map", weight_map}};
    PENSTOCK_TRY(write_small_file(folder + "/model.safetensors.index.json", index.dump(2) + "\n"));
  }

  nlohmann::ordered_json written = nlohmann::ordered_json::parse(config, nullptr, false);
  if (!written.is_object()) return Status(Code::kUsage, "config.json: is not a JSON object");
  const char* dtype = options.dtype == FileDtype::bf16  ? "bfloat16"
                      : options.dtype == FileDtype::f16 ? "float16"
                                                        : "float32";
  written.erase("torch_dtype");
  written["dtype"] = dtype;
  written["architectures"] = {model_.config.architecture};
  PENSTOCK_TRY(write_small_file(folder + "/config.json", written.dump(2) + "\n"));
  return options.carry_from.empty() ? Status() : carry(options.carry_from);
}

Status ModelFolderWriter::carry(const std::string& from) const {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    const std::string name = entry.path().filename();
    if (!entry.is_regular_file() || !belongs_to_tokenizer(name)) continue;
    fs::copy_file(entry.path(), partial(folder_) + "/" + name, error);
    if (error) return errno_status(text("copy ", entry.path().string(), " to ", partial(folder_)), error.value());
  }
  return error ? errno_status(text("open ", from), error.value()) : Status();
}

ModelFolderWriter::~ModelFolderWriter() {
  shards_.clear();
  std::error_code ignored;
  if (!finished_) fs::remove_all(partial(folder_), ignored);
}

Status ModelFolderWriter::write(uint32_t unit, uint64_t first, std::span<const float> values) {
  const std::vector<ModelParameter>& parameters = model_.units.at(unit).parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto [begin, end] = overlap(parameters[i], first, values.size());
    if (begin >= end) continue;
    PENSTOCK_TRY(shards_[shard_of_[unit][i]]->write(parameters[i].name, begin - parameters[i].first_element,
                                                    values.subspan(begin - first, end - begin)));
  }
  return Status();
}

Status ModelFolderWriter::finish() {
  for (const auto& shard : shards_) PENSTOCK_TRY(shard->finish());
  std::error_code error;
  fs::rename(partial(folder_), folder_, error);
  if (error) return errno_status(text("rename ", partial(folder_), " to ", folder_), error.value());
  finished_ = true;
  return Status();
}

}  // namespace penstock::trainer
