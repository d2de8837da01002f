// Options declares the flags and arguments of one verb. Each names where its value goes; what stands there before is
// its default. The place must outlive the verb's action (the action usually holds it in a shared struct).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tiering/plan/durability.h"
#include "tiering/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace penstock::tools {

class Options {
 public:
  explicit Options(CLI::App& app) : app_(app) {}

  // Positional arguments, completed as paths.
  void path(const std::string& name, std::string& into, const std::string& help);
  void paths(const std::string& name, std::vector<std::string>& into, size_t at_least, const std::string& help);

  // Positional words that are no paths; none is needed.
  void words(const std::string& name, std::vector<std::string>& into, const std::string& help);

  void flag(const std::string& name, bool& into, const std::string& help);
  void text(const std::string& name, std::string& into, const std::string& value_name, const std::string& help);
  void file(const std::string& name, std::string& into, const std::string& help);
  void bytes(const std::string& name, uint64_t& into, const std::string& help);
  void seconds(const std::string& name, double& into, const std::string& help);
  void count(const std::string& name, uint64_t& into, const std::string& help);
  void rate(const std::string& name, double& into, const std::string& help);
  // Several values, separated by commas.
  void bytes_list(const std::string& name, std::vector<uint64_t>& into, const std::string& help);
  void count_list(const std::string& name, std::vector<uint64_t>& into, const std::string& help);
  void share_list(const std::string& name, std::vector<double>& into, const std::string& help);
  // A number between 0 and 1.
  void share(const std::string& name, double& into, const std::string& help);
  void choice(const std::string& name, std::string& into, const std::vector<std::string>& choices,
              const std::string& help);
  // When a step is durable; none is automatic.
  void durability(const std::string& name, std::optional<Durability>& into);
  // A number of at least 0.
  void number(const std::string& name, std::optional<double>& into, const std::string& help);
  // The same kinds where it matters whether a flag was given at all. They have no default to show.
  void text(const std::string& name, std::optional<std::string>& into, const std::string& value_name,
            const std::string& help);
  void file(const std::string& name, std::optional<std::string>& into, const std::string& help);
  void count(const std::string& name, std::optional<uint64_t>& into, const std::string& help);
  void choice(const std::string& name, std::optional<std::string>& into, const std::vector<std::string>& choices,
              const std::string& help);
  // A path that may be left out.
  void path(const std::string& name, std::optional<std::string>& into, const std::string& help);
  // Words that nothing declares are no mistake.
  void anything();

 private:
  CLI::App& app_;
};

// "step", "every:3", "exit" or "auto", which is none.
Result<std::optional<Durability>> parse_durability(std::string_view written);

// A flag's or argument's value is refused. CLI11 reports by exceptions; this one goes no further than parse().
struct RefusedValue {
  Status status;
};

}  // namespace penstock::tools
