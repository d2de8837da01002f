#include "bench/support/flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "tools/system/words.h"

namespace penstock::bench {
namespace {

[[noreturn]] void refuse(const std::string& bench, const std::string& why, const std::string& remedy) {
  std::fprintf(stderr, "penstock: bench %s: %s\ntry: %s\n", bench.c_str(), why.c_str(), remedy.c_str());
  std::exit(static_cast<int>(Code::kUsage));
}

}  // namespace

Flags::Flags(const std::string& bench, const std::string& question)
    : app_(std::make_unique<CLI::App>(question, bench)), options_(*app_) {
  options_.flag("--quick", quick_, "A small size that takes seconds and shows that it runs, not how fast");
  options_.flag("--json", json_, "Print one JSON object per line");
}

Flags::~Flags() = default;

void Flags::folder(std::string& into, const std::string& help) {
  app_->add_option("FOLDER", into, help)->type_name("PATH")->capture_default_str();
}

void Flags::folders(const std::string& name, std::vector<std::string>& into, const std::string& help) {
  app_->add_option(name, into, help)->type_name("PATH")->delimiter(',')->default_str(tools::joined(into, ","));
}

void Flags::numbers(const std::string& name, std::vector<double>& into, const std::map<std::string, double>& words,
                    const std::string& help) {
  app_->add_option(name, into, help)->delimiter(',')->transform(CLI::CheckedTransformer(words).description(""));
}

void Flags::parse(int argc, char** argv) {
  const std::string help = app_->get_name() + " --help";
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app_->help().c_str());
    std::exit(0);
  } catch (const tools::RefusedValue& refused) {
    refuse(app_->get_name(), refused.status.message(), refused.status.remedy());
  } catch (const CLI::ParseError& error) {
    refuse(app_->get_name(), error.what(), help);
  }
}

}  // namespace penstock::bench
