#include "tools/penstock/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "tools/penstock/quantity.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

// Adds an option whose written value `parse` turns into a Result.
template <typename T, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, T& into, const std::string& help, Parse parse) {
  return app.add_option_function<std::string>(
      name,
      [name, &into, parse](const std::string& written) {
        auto parsed = parse(written);
        if (!parsed.ok()) throw RefusedValue{parsed.status().within(name)};
        into = std::move(*parsed);
      },
      help);
}

Result<double> parse_share(std::string_view written) {
  double share = -1;
  const auto [rest, error] = std::from_chars(written.data(), written.data() + written.size(), share);
  if (error != std::errc() || rest != written.data() + written.size() || !(share >= 0 && share <= 1)) {
    return Status(Code::kUsage, penstock::text("share: '", written, "': is not a number from 0 to 1"),
                  "write 0.5 for half");
  }
  return share;
}

// Parses each of the words between commas.
template <typename T>
auto list_of(Result<T> (*parse)(std::string_view)) {
  return [parse](const std::string& written) -> Result<std::vector<T>> {
    std::vector<T> values;
    for (size_t begin = 0; begin <= written.size();) {
      const size_t end = std::min(written.find(',', begin), written.size());
      PENSTOCK_TRY_ASSIGN(value, parse(std::string_view(written).substr(begin, end - begin)));
      values.push_back(value);
      begin = end + 1;
    }
    return values;
  };
}

template <typename T, typename Show>
std::string shown(const std::vector<T>& values, Show show) {
  std::vector<std::string> words;
  for (const T& value : values) words.push_back(show(value));
  return joined(words, ",");
}

Result<double> parse_number(std::string_view written) {
  double value = -1;
  const auto [rest, error] = std::from_chars(written.data(), written.data() + written.size(), value);
  if (error != std::errc() || rest != written.data() + written.size() || !(value >= 0 && std::isfinite(value))) {
    return Status(Code::kUsage, penstock::text("number: '", written, "': is not a number of at least 0"),
                  "write 0.1 or 3e-4");
  }
  return value;
}

Result<std::string> as_written(const std::string& written) { return written; }

auto one_of(const std::vector<std::string>& choices) {
  return [choices](const std::string& written) -> Result<std::string> {
    for (const std::string& choice : choices) {
      // recompute-offload and recompute_offload are one.
      if (std::ranges::equal(
              choice, written, {}, [](char c) { return c == '-' ? '_' : c; },
              [](char c) { return c == '-' ? '_' : c; }))
        return choice;
    }
    return Status(Code::kUsage, penstock::text("choice: '", written, "': is not known"),
                  "one of " + joined(choices, ", "));
  };
}

// Refuses with the flag and a value that it takes: its default, where it has one that is not "choose for me".
auto count_for(const std::string& name, uint64_t otherwise) {
  return [name, otherwise](const std::string& written) -> Result<uint64_t> {
    Result<uint64_t> count = parse_count(written);
    if (count.ok()) return count;
    return Status(count.status().code(), count.status().message(),
                  penstock::text("a whole number, such as ", name, " ", otherwise > 0 ? otherwise : 8,
                                 " (3k, 7M and 7B stand for thousands, millions and billions)"));
  };
}

std::string share_text(double share) { return penstock::text(share); }
std::string count_text(uint64_t count) { return std::to_string(count); }

}  // namespace

void Options::path(const std::string& name, std::string& into, const std::string& help) {
  app_.add_option(name, into, help)->type_name("PATH")->required();
}

void Options::paths(const std::string& name, std::vector<std::string>& into, size_t at_least, const std::string& help) {
  CLI::Option* option = app_.add_option(name, into, help)->type_name("PATH");
  if (at_least > 0) option->required();
}

void Options::words(const std::string& name, std::vector<std::string>& into, const std::string& help) {
  app_.add_option(name, into, help)->type_name(name);
}

void Options::flag(const std::string& name, bool& into, const std::string& help) { app_.add_flag(name, into, help); }

void Options::text(const std::string& name, std::string& into, const std::string& value_name, const std::string& help) {
  app_.add_option(name, into, help)->type_name(value_name);
}

void Options::file(const std::string& name, std::string& into, const std::string& help) {
  app_.add_option(name, into, help)->type_name("FILE");
}

void Options::bytes(const std::string& name, uint64_t& into, const std::string& help) {
  add_parsed(app_, name, into, help, parse_bytes)->type_name("SIZE")->default_str(bytes_flag_text(into));
}

void Options::seconds(const std::string& name, double& into, const std::string& help) {
  CLI::Option* option = add_parsed(app_, name, into, help, parse_seconds)->type_name("TIME");
  if (into > 0) option->default_str(fixed(into, 0) + "s");
}

void Options::count(const std::string& name, uint64_t& into, const std::string& help) {
  add_parsed(app_, name, into, help, count_for(name, into))->type_name("N")->default_str(std::to_string(into));
}

void Options::rate(const std::string& name, double& into, const std::string& help) {
  add_parsed(app_, name, into, help, parse_rate)->type_name("N");
}

void Options::share(const std::string& name, double& into, const std::string& help) {
  add_parsed(app_, name, into, help, parse_share)->type_name("SHARE")->default_str(share_text(into));
}

void Options::bytes_list(const std::string& name, std::vector<uint64_t>& into, const std::string& help) {
  add_parsed(app_, name, into, help, list_of(parse_bytes))
      ->type_name("SIZE,...")
      ->default_str(shown(into, bytes_flag_text));
}

void Options::count_list(const std::string& name, std::vector<uint64_t>& into, const std::string& help) {
  add_parsed(app_, name, into, help, list_of(parse_count))->type_name("N,...")->default_str(shown(into, count_text));
}

void Options::share_list(const std::string& name, std::vector<double>& into, const std::string& help) {
  add_parsed(app_, name, into, help, list_of(parse_share))
      ->type_name("SHARE,...")
      ->default_str(shown(into, share_text));
}

void Options::choice(const std::string& name, std::string& into, const std::vector<std::string>& choices,
                     const std::string& help) {
  add_parsed(app_, name, into, help, one_of(choices))->type_name(joined(choices, "|"))->default_str(into);
}

void Options::durability(const std::string& name, std::optional<Durability>& into) {
  const char* help =
      "From when a step survives a crash: step, every:N, exit, or auto: every step, but what rests in host memory only "
      "as often as costs at most 3 %";
  add_parsed(app_, name, into, help, parse_durability)->type_name("WHEN")->default_str(into ? text_of(*into) : "auto");
}

void Options::number(const std::string& name, std::optional<double>& into, const std::string& help) {
  add_parsed(app_, name, into, help, parse_number)->type_name("N");
}

void Options::text(const std::string& name, std::optional<std::string>& into, const std::string& value_name,
                   const std::string& help) {
  add_parsed(app_, name, into, help, as_written)->type_name(value_name);
}

void Options::file(const std::string& name, std::optional<std::string>& into, const std::string& help) {
  add_parsed(app_, name, into, help, as_written)->type_name("FILE");
}

void Options::path(const std::string& name, std::optional<std::string>& into, const std::string& help) {
  add_parsed(app_, name, into, help, as_written)->type_name("PATH");
}

void Options::count(const std::string& name, std::optional<uint64_t>& into, const std::string& help) {
  add_parsed(app_, name, into, help, count_for(name, 0))->type_name("N");
}

void Options::choice(const std::string& name, std::optional<std::string>& into, const std::vector<std::string>& choices,
                     const std::string& help) {
  add_parsed(app_, name, into, help, one_of(choices))->type_name(joined(choices, "|"));
}

void Options::anything() { app_.allow_extras(); }

Result<std::optional<Durability>> parse_durability(std::string_view written) {
  using Kind = Durability::Kind;
  constexpr std::string_view kEvery = "every:";
  if (written == "auto") return std::optional<Durability>();
  if (written == "step") return std::optional<Durability>({Kind::step, 1});
  if (written == "exit") return std::optional<Durability>({Kind::exit, 1});
  if (written.starts_with(kEvery)) {
    PENSTOCK_TRY_ASSIGN(steps, parse_count(written.substr(kEvery.size())));
    if (steps > 0 && steps <= UINT32_MAX) return std::optional<Durability>({Kind::every, static_cast<uint32_t>(steps)});
  }
  return Status(Code::kUsage, penstock::text("'", written, "': is not known"), "step, every:N, exit or auto");
}

}  // namespace penstock::tools
