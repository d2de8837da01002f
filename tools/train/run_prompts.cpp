#include "tools/train/run_prompts.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

#include "runtime/trainer/config/sample_prompt.h"
#include "runtime/trainer/data/token_file.h"
#include "runtime/trainer/files/file_io.h"
#include "runtime/trainer/torch/training_run.h"
#include "tiering/plan/plan_search.h"
#include "tools/penstock/python_start.h"
#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

using trainer::Prompt;
using trainer::Prompts;
using trainer::TokenTexts;

std::string tokenizer_of(const TrainingSettings& settings) {
  namespace fs = std::filesystem;
  if (!settings.config.samples.tokenizer.empty()) return settings.config.samples.tokenizer;
  std::error_code unknown;
  for (const std::string& folder : {settings.model_folder, settings.config.model}) {
    if (folder.empty()) continue;
    for (const char* name : {"tokenizer.json", "tokenizer.model"})
      if (fs::exists(fs::path(folder) / name, unknown)) return folder;
  }
  return "";
}

constexpr uint64_t kFileMostBytes = 262'144;  // which the tokenizer's process gets as its words

// Those of the config, and behind them those of its file.
Result<std::vector<std::string>> written_prompts(const trainer::SampleConfig& samples) {
  std::vector<std::string> all = samples.prompts;
  if (samples.file.empty()) return all;
  Result<std::string> read = trainer::read_small_file(samples.file, kFileMostBytes);
  if (!read.ok()) return read.status().within("config: samples.file");
  std::istringstream lines(*read);
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const std::string where = text("config: samples.file: ", samples.file, ": line ", number, ": ");
    const bool is_json = line.front() == '{' || line.front() == '"';
    if (!is_json) line = Json(line).dump(-1, ' ', false, Json::error_handler_t::replace);
    const Result<std::string> prompt = trainer::parse_prompt(line);
    if (!prompt.ok()) return Status(Code::kUsage, where + prompt.status().message());
    all.push_back(*prompt);
  }
  if (all.empty()) return Status(Code::kUsage, text("config: samples.file: ", samples.file, ": has no prompts"));
  return all;
}

Result<Prompts> byte_by_byte(const TrainingSettings& settings, std::span<const std::string> asked) {
  if (settings.model.config.vocab != trainer::kByteVocabulary) {
    return Status(Code::kUsage, "config: samples.tokenizer: missing, and the model's folder has none",
                  "\"samples\": {\"tokenizer\": \"FOLDER\"}, with a tokenizer as Hugging Face has it");
  }
  Prompts found{.prompts = {}, .ends = {trainer::kByteEndOfText}, .texts = TokenTexts::of_bytes()};
  for (const std::string& written : asked) {
    const Json item = Json::parse(written, nullptr, false);
    if (item.is_object() && !item.contains("text")) {
      return Status(
          Code::kUsage,
          text("config: samples.prompts: ", written, ": a model without a tokenizer takes plain strings, not messages"),
          "give a string, which the model continues");
    }
    Prompt prompt{.text = item.is_string() ? item.get<std::string>() : item["text"].get<std::string>(), .tokens = {}};
    for (const char byte : prompt.text) prompt.tokens.push_back(static_cast<unsigned char>(byte));
    found.prompts.push_back(std::move(prompt));
  }
  return found;
}

// Base64, as ask_python() has it. What is not of the alphabet counts for nothing.
std::string decoded(const std::string& written) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int, 256> value;
  value.fill(-1);
  for (size_t i = 0; i < kLetters.size(); ++i) value[static_cast<unsigned char>(kLetters[i])] = static_cast<int>(i);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char letter : written) {
    const int six = value[static_cast<unsigned char>(letter)];
    if (six < 0) continue;
    bits = bits << 6 | static_cast<uint32_t>(six);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return bytes;
}

Result<Prompts> by_tokenizer(const std::string& folder, std::span<const std::string> asked) {
  std::vector<std::string> words = {folder};
  words.insert(words.end(), asked.begin(), asked.end());
  PENSTOCK_TRY_ASSIGN(answer, ask_python("penstock.prompts", words));
  Prompts found;
  try {
    for (const Json& prompt : answer.at("prompts"))
      found.prompts.push_back({prompt.at("text"), prompt.at("tokens").get<std::vector<int32_t>>()});
    found.ends = answer.at("ends").get<std::vector<int32_t>>();
    found.texts = TokenTexts(decoded(answer.at("bytes")), answer.at("lengths").get<std::vector<uint32_t>>());
  } catch (const Json::exception& error) {
    return Status(Code::kEnvironment, text("samples: what Python answered: ", error.what()));
  }
  return found;
}

Status check(const TrainingSettings& settings, const Prompts& prompts) {
  const trainer::ModelConfig& model = settings.model.config;
  const uint64_t together = trainer::prompt_tokens_together(settings);
  for (const Prompt& prompt : prompts.prompts) {
    const uint64_t tokens = prompt.tokens.size(), most = tokens + settings.config.samples.max_new_tokens;
    const std::string what = text("config: samples.prompts: '", prompt.text.substr(0, 60), "': ");
    if (tokens == 0) return Status(Code::kUsage, what + "has no tokens");
    if (tokens > together) {
      return Status(Code::kUsage,
                    text(what, tokens, " tokens, at most those of a micro-batch expected, which are ", together));
    }
    if (model.block == trainer::BlockKind::gpt2 && most - 1 > model.positions) {
      return Status(Code::kUsage,
                    text(what, tokens, " tokens and ", settings.config.samples.max_new_tokens,
                         " of an answer, the model has ", model.positions, " positions"),
                    "a shorter prompt, or a smaller samples.max_new_tokens");
    }
    for (const int32_t token : prompt.tokens) {
      if (token >= 0 && static_cast<uint64_t>(token) < model.vocab) continue;
      return Status(Code::kUsage, text(what, "token ", token, ", the model's vocabulary has ", model.vocab),
                    "the model's own tokenizer in samples.tokenizer");
    }
  }
  return Status();
}

// What a model writes does nothing to the terminal, and may end within a character.
std::string visible(const std::string& written) {
  const std::string valid = Json(written).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string text = Json::parse(valid).get<std::string>();
  for (char& letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if ((byte < 0x20 && letter != '\n' && letter != '\t') || byte == 0x7f) letter = '?';
  }
  return text;
}

}  // namespace

Status find_prompts(TrainingSettings& settings) {
  const trainer::SampleConfig& samples = settings.config.samples;
  if (samples.prompts.empty() && samples.file.empty()) {
    return Status(Code::kUsage, "config: samples.prompts: missing",
                  R"("samples": {"prompts": ["What is a penstock?"]})");
  }
  PENSTOCK_TRY_ASSIGN(asked, written_prompts(samples));
  const std::string folder = tokenizer_of(settings);
  PENSTOCK_TRY_ASSIGN(found, folder.empty() ? byte_by_byte(settings, asked) : by_tokenizer(folder, asked));
  PENSTOCK_TRY(check(settings, found));
  settings.prompts = std::move(found);
  return Status();
}

Status refuse_prompts_without_room(const TrainingSettings& settings) {
  const Prompts& prompts = settings.prompts;
  if (prompts.prompts.empty()) return Status();
  PlanRequest request = settings.engine.request;
  if (settings.place.ranks > 1) {
    // Of several ranks each computes all answers: a rank's weights are everybody's.
    PENSTOCK_TRY_ASSIGN(of_rank, engine::RankedEngine::request_of(settings.ranked(), settings.place));
    request = std::move(of_rank);
  }
  const Result<ChosenPlan> with = choose_plan(request);
  if (with.ok() || with.status().code() != Code::kDoesNotFit) return Status();
  const uint64_t new_tokens = settings.config.samples.max_new_tokens;
  const trainer::GenerationBytes bytes = trainer::generation_bytes(settings.model, prompts.prompts, new_tokens);
  request.process_bytes -= bytes.all;
  if (!choose_plan(request).ok()) return Status();
  return Status(Code::kDoesNotFit,
                text("samples: keys and values of ", prompts.prompts.size(),
                     prompts.prompts.size() == 1 ? " prompt" : " prompts", " of up to ", prompts.most_tokens(),
                     " tokens with ", new_tokens, " new ones need ", bytes_text(bytes.key_values), " of host memory, ",
                     bytes_text(bytes.all), " with what is computed; the budget of ",
                     bytes_text(settings.memory_bytes()), " has room for training alone"),
                "fewer or shorter prompts, a smaller samples.max_new_tokens, or a larger budget");
}

Json answers_json(const TrainingSettings& settings, std::span<const trainer::Continuation> answers) {
  Json list = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    list.push_back({{"prompt", settings.prompts.prompts[i].text},
                    {"text", settings.prompts.texts.text_of(answers[i].tokens)},
                    {"tokens", answers[i].tokens},
                    {"ended", answers[i].ended}});
  }
  return list;
}

std::string answers_text(const TrainingSettings& settings, std::span<const trainer::Continuation> answers) {
  std::string all;
  for (size_t i = 0; i < answers.size(); ++i) {
    all += visible(text(settings.prompts.prompts[i].text, " => ", settings.prompts.texts.text_of(answers[i].tokens),
                        answers[i].ended ? "" : " ...", "\n"));
  }
  return all;
}

}  // namespace penstock::tools
