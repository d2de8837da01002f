#include "tools/penstock/python_start.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tools/system/subprocess.h"

namespace penstock::tools {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (size_t at = 0; at < line.size(); at += words.back().size() + 1) words.emplace_back(line.c_str() + at);
  return words;
}

// The folder that has the package: installed beside the command, or the source's.
fs::path package_folder() {
  std::error_code unknown;
  const fs::path command = fs::read_symlink("/proc/self/exe", unknown);
  const fs::path installed = command.parent_path().parent_path() / "share/penstock/python";
  return fs::exists(installed / "penstock", unknown) ? installed : fs::path(PENSTOCK_PYTHON_FOLDER);
}

std::string python_of(const fs::path& package) {
  if (const char* named = std::getenv("PENSTOCK_PYTHON"); named != nullptr && *named != '\0') return named;
  std::error_code unknown;
  const fs::path own = package.parent_path().parent_path() / ".venv/bin/python";
  return fs::exists(own, unknown) ? own.string() : "python3";
}

// What Python is to find the package by.
std::string path_with(const fs::path& package) {
  const char* before = std::getenv("PYTHONPATH");
  return package.string() + (before != nullptr && *before != '\0' ? text(":", before) : "");
}

}  // namespace

std::string python_of_command() { return python_of(package_folder()); }

Result<Json> ask_python(const std::string& module, const std::vector<std::string>& words) {
  const fs::path package = package_folder();
  std::vector<std::string> all = {"env", "PYTHONPATH=" + path_with(package), python_of(package), "-m", module};
  all.insert(all.end(), words.begin(), words.end());
  Result<std::string> said = run_program(all);
  if (!said.ok())
    return Status(Code::kEnvironment, said.status().within(module).message(),
                  "install Python 3.10 or newer, or name one in PENSTOCK_PYTHON");
  Json answer = Json::parse(*said, nullptr, false);
  if (!answer.is_object()) return Status(Code::kEnvironment, text(module, ": an answer that is not JSON"));
  if (!answer.contains("error")) return Result<Json>(std::move(answer));
  const Json& refusal = answer["error"];
  return Status(static_cast<Code>(refusal.value("code", static_cast<int>(Code::kEnvironment))),
                refusal.value("message", module), refusal.value("try", ""));
}

Status start_python(Session& session, const std::string& verb, const std::string& module) {
  const fs::path package = package_folder();
  const std::string python = python_of(package);
  std::vector<std::string> own = own_arguments();
  std::vector<std::string> words = {python, "-m", module};
  // The verb's words are the module's name, but for those that the module tells apart itself.
  const std::string first = verb.substr(0, verb.find(' '));
  const auto at = std::find(own.begin(), own.end(), first);
  if (at == own.end()) return Status(Code::kEnvironment, text(verb, ": /proc/self/cmdline: unreadable"), "mount /proc");
  words.insert(words.end(), at + 1, own.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  setenv("PYTHONPATH", path_with(package).c_str(), /*overwrite=*/1);
  session.progress.clear();
  execvp(python.c_str(), arguments.data());
  return errno_status(text(verb, ": start ", python), errno,
                      "install Python 3.10 or newer, or name one in PENSTOCK_PYTHON");
}

}  // namespace penstock::tools
