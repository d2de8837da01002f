#include "runtime/trainer/files/adapter_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/trainer/config/adapters.h"
#include "runtime/trainer/files/file_io.h"

namespace penstock::trainer {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr uint64_t kConfigMostBytes = 1'000'000;
constexpr const char* kConfigName = "/adapter_config.json";
constexpr const char* kFileName = "/adapter_model.safetensors";

// PEFT wraps the model twice.
std::string name_in_file(const ModelParameter& parameter) { return "base_model.model." + parameter.name; }

bool asks_for_nothing(const json& value) {
  return value.is_null() || value == false || value == "none" || (value.is_structured() && value.empty());
}

// Both factors, trained or not, and modules that are trained whole.
bool is_of_adapter(const ModelParameter& parameter) { return parameter.factor != Factor::none || parameter.trainable; }

// Calls function(parameter, first element of it, elements of `values`) for what an adapter has of a run of a unit.
template <typename Values, typename Function>
Status for_adapter(const ModelUnit& unit, uint64_t first, Values values, Function function) {
  for (const ModelParameter& parameter : unit.parameters) {
    const uint64_t begin = std::max(first, parameter.first_element);
    const uint64_t end = std::min(first + values.size(), parameter.first_element + parameter.elements);
    if (begin >= end || !is_of_adapter(parameter)) continue;
    PENSTOCK_TRY(function(parameter, begin - parameter.first_element, values.subspan(begin - first, end - begin)));
  }
  return Status();
}

// Reads adapter_config.json key by key; the first refusal is remembered.
class ConfigReader {
 public:
  explicit ConfigReader(const json& file) : file_(file) {}

  Result<LoraConfig> read() {
    LoraConfig lora;
    // What changes the computation, and is not ours.
    for (const char* key : {"rank_pattern", "alpha_pattern", "use_dora", "bias", "lora_bias", "layers_to_transform",
                            "layer_replication", "exclude_modules", "target_parameters", "trainable_token_indices",
                            "use_qalora", "alora_invocation_tokens", "arrow_config"}) {
      if (const json* value = find(key); value != nullptr && !asks_for_nothing(*value))
        refuse(key, text("is ", value->dump(), ", which is not offered"));
    }
    if (const json* type = find("peft_type"); type == nullptr || *type != "LORA")
      refuse("peft_type", text("is ", type == nullptr ? "missing" : type->dump(), ", \"LORA\" expected"));
    const json* rank = find("r");
    if (rank == nullptr || !rank->is_number_unsigned() || rank->get<uint64_t>() == 0 || rank->get<uint64_t>() > 65536)
      refuse("r", "is not a rank from 1 to 65536");
    else
      lora.rank = rank->get<uint32_t>();
    lora.alpha = number("lora_alpha", 8);
    lora.dropout = number("lora_dropout", 0);
    if (!(lora.dropout >= 0 && lora.dropout < 1)) refuse("lora_dropout", "is not from 0 to 1");
    const json* rslora = find("use_rslora");
    lora.rslora = rslora != nullptr && *rslora == true;
    const json* targets = find("target_modules");
    if (targets == nullptr)
      refuse("target_modules", "is missing");
    else if (targets->is_string() && *targets != "all-linear")
      lora.target_pattern = targets->get<std::string>();
    else if (!targets->is_string())
      names("target_modules", *targets, lora.targets);
    if (const json* modules = find("modules_to_save")) names("modules_to_save", *modules, lora.modules_to_save);
    if (!status_.ok()) return status_;
    return lora;
  }

 private:
  const json* find(const char* key) const {
    const auto found = file_.find(key);
    return found == file_.end() || found->is_null() ? nullptr : &*found;
  }
  double number(const char* key, double otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_number() && value->get<double>() >= 0) return value->get<double>();
    refuse(key, text("is ", value->dump(), ", a number of at least 0 expected"));
    return otherwise;
  }
  void names(const char* key, const json& value, std::vector<std::string>& into) {
    bool good = value.is_array();
    for (const json& item : value) {
      good = good && item.is_string() && item != "";
      if (good) into.push_back(item.get<std::string>());
    }
    if (!good) refuse(key, text("is ", value.dump(), ", a list of modules' names expected"));
    std::sort(into.begin(), into.end());  // PEFT writes a set, in any order
  }
  void refuse(const char* key, const std::string& why) {
    if (status_.ok()) status_ = Status(Code::kUsage, text("adapter_config.json: ", key, ": ", why));
  }

  const json& file_;
  Status status_;
};

}  // namespace

Result<LoraConfig> parse_adapter_config(const std::string& words) {
  const json file = json::parse(words, nullptr, false);
  if (!file.is_object()) return Status(Code::kUsage, "adapter_config.json: is not a JSON object");
  return ConfigReader(file).read();
}

Result<LoraConfig> read_adapter_config(const std::string& folder) {
  PENSTOCK_TRY_ASSIGN(words, read_small_file(folder + kConfigName, kConfigMostBytes));
  Result<LoraConfig> lora = parse_adapter_config(words);
  if (!lora.ok()) return lora.status().within(folder);
  return lora;
}

Status resolve_adapter(LoraConfig& lora) {
  if (lora.adapter.empty() || lora.rank > 0) return Status();
  const LoraConfig bare{.dropout = lora.dropout, .base = lora.base, .adapter = lora.adapter};
  if (lora != bare) {
    return Status(
        Code::kUsage, "config: lora.adapter: its adapter_config.json says what of lora is said here, too",
        "leave out all but lora.adapter, lora.base and lora.dropout, or say lora.rank as well: the config counts then");
  }
  Result<LoraConfig> found = read_adapter_config(lora.adapter);
  if (!found.ok()) return found.status().within("config: lora.adapter");
  const LoraConfig given = lora;
  lora = std::move(*found);
  lora.adapter = given.adapter;
  lora.base = given.base;
  if (given.dropout > 0) lora.dropout = given.dropout;
  return Status();
}

std::string adapter_config_json(const LoraConfig& lora, const Model& model, const std::string& base) {
  json targets = lora.target_pattern;
  if (lora.target_pattern.empty()) {
    // "all-linear" said by name, as PEFT itself does.
    std::set<std::string> names(lora.targets.begin(), lora.targets.end());
    for (const ModelUnit& unit : model.units) {
      for (const ModelParameter& parameter : unit.parameters) {
        if (!lora.targets.empty() || parameter.factor != Factor::a) continue;
        std::string module = module_of(parameter);
        module.resize(module.rfind('.'));
        names.insert(module.substr(module.rfind('.') + 1));
      }
    }
    targets = names;
  }
  json file = {{"peft_type", "LORA"},
               {"task_type", "CAUSAL_LM"},
               {"base_model_name_or_path", base.empty() ? json() : json(base)},
               {"inference_mode", true},
               {"r", lora.rank},
               {"lora_alpha", lora.alpha.value_or(lora.rank)},
               {"lora_dropout", lora.dropout},
               {"use_rslora", lora.rslora},
               {"target_modules", targets},
               {"modules_to_save", lora.modules_to_save.empty() ? json() : json(lora.modules_to_save)},
               {"bias", "none"},
               {"fan_in_fan_out", model.config.block == BlockKind::gpt2},
               {"init_lora_weights", true}};
  // A whole alpha is a whole number there.
  if (const double alpha = file["lora_alpha"]; alpha == static_cast<double>(static_cast<int64_t>(alpha)))
    file["lora_alpha"] = static_cast<int64_t>(alpha);
  return file.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<std::unique_ptr<AdapterFolder>> AdapterFolder::open(const std::string& folder, const Model& model) {
  std::unique_ptr<AdapterFolder> opened(new AdapterFolder(model));
  PENSTOCK_TRY(opened->find_all(folder));
  return opened;
}

Status AdapterFolder::find_all(const std::string& folder) {
  const std::string path = folder + kFileName;
  std::error_code error;
  if (!fs::exists(path, error)) {
    return Status(Code::kUsage, text("open ", folder, ": has no adapter_model.safetensors"),
                  "save the adapter with safe_serialization (PEFT's default)");
  }
  PENSTOCK_TRY_ASSIGN(file, SafetensorsFile::open(path));
  file_ = std::move(file);
  std::set<std::string> used;
  for (const ModelUnit& unit : model_.units) {
    std::vector<const StoredTensor*>& sources = sources_.emplace_back();
    for (const ModelParameter& parameter : unit.parameters) {
      sources.push_back(nullptr);
      if (!is_of_adapter(parameter)) continue;
      const std::string name = name_in_file(parameter);
      const auto found = file_->header().tensors.find(name);
      if (found == file_->header().tensors.end()) {
        return Status(Code::kUsage,
                      text("open ", path, ": has no '", name, "', ", shape_text(parameter.shape), " expected"));
      }
      if (found->second.shape != parameter.shape) {
        return Status(Code::kUsage, text("open ", path, ": '", name, "' is ", shape_text(found->second.shape), ", ",
                                         shape_text(parameter.shape), " expected"));
      }
      used.insert(name);
      sources.back() = &found->second;
    }
  }
  for (const auto& [name, tensor] : file_->header().tensors) {
    if (!used.contains(name)) {
      return Status(Code::kUsage, text("open ", path, ": '", name, "' belongs to nothing that is trained here"),
                    "lora.targets and lora.modules_to_save as its adapter_config.json has them");
    }
  }
  return Status();
}

Status AdapterFolder::read(uint32_t unit, uint64_t first, std::span<float> values) const {
  const ModelUnit& shape = model_.units.at(unit);
  return for_adapter(shape, first, values, [&](const ModelParameter& parameter, uint64_t from, std::span<float> into) {
    return file_->read(*sources_[unit][static_cast<size_t>(&parameter - shape.parameters.data())], from, into);
  });
}

Result<std::unique_ptr<AdapterFolderWriter>> AdapterFolderWriter::create(const std::string& folder,
                                                                         const std::string& config, const Model& model,
                                                                         FileDtype dtype) {
  std::error_code error;
  if (fs::exists(folder, error))
    return Status(Code::kUsage, text("create ", folder, ": exists"), "name another folder, or remove it");
  std::unique_ptr<AdapterFolderWriter> writer(new AdapterFolderWriter(folder, model));
  PENSTOCK_TRY(writer->begin(config, dtype));
  return writer;
}

Status AdapterFolderWriter::begin(const std::string& config, FileDtype dtype) {
  const std::string partial = folder_ + ".partial";
  std::error_code error;
  fs::remove_all(partial, error);
  if (!fs::create_directories(partial, error)) return errno_status(text("create ", partial), error.value());
  std::vector<SafetensorsWriter::Entry> entries;
  for (const ModelUnit& unit : model_.units)
    for (const ModelParameter& parameter : unit.parameters)
      if (is_of_adapter(parameter)) entries.push_back({name_in_file(parameter), parameter.shape});
  PENSTOCK_TRY_ASSIGN(file, SafetensorsWriter::create(partial + kFileName, entries, dtype));
  file_ = std::move(file);
  return write_small_file(partial + kConfigName, config);
}

AdapterFolderWriter::~AdapterFolderWriter() {
  file_.reset();
  std::error_code ignored;
  if (!finished_) fs::remove_all(folder_ + ".partial", ignored);
}

Status AdapterFolderWriter::write(uint32_t unit, uint64_t first, std::span<const float> values) {
  return for_adapter(model_.units.at(unit), first, values,
                     [&](const ModelParameter& parameter, uint64_t from, std::span<const float> part) {
                       return file_->write(name_in_file(parameter), from, part);
                     });
}

Status AdapterFolderWriter::finish() {
  PENSTOCK_TRY(file_->finish());
  std::error_code error;
  fs::rename(folder_ + ".partial", folder_, error);
  if (error) return errno_status(text("rename ", folder_, ".partial to ", folder_), error.value());
  finished_ = true;
  return Status();
}

}  // namespace penstock::trainer
