#include "tools/penstock/command.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "tools/penstock/command_line.h"
#include "tools/system/interrupt.h"

namespace penstock::tools {
namespace {

std::string schema_of(const std::string& verb) {
  std::string name = verb.empty() ? "penstock" : "penstock." + verb;
  std::replace(name.begin(), name.end(), ' ', '.');
  return name + "/1";
}

void add_error(Json& object, const Status& status) {
  object["error"] = {
      {"code", static_cast<int>(status.code())}, {"message", status.message()}, {"try", status.remedy()}};
}

// Results that could not be written are a failure. A reader who closed the pipe has seen enough: that is none.
Status print_results(const std::string& results) {
  errno = 0;
  if (std::fputs(results.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return Status();
  if (errno == EPIPE) return Status();
  return errno_status("print results: stdout", errno,
                      "redirect stdout to a file system with free space, and run it again");
}

std::string json_answer(const std::string& verb, const Json& fields, const Status& verdict) {
  Json object{{"schema", schema_of(verb)}};
  object.update(fields);
  if (!verdict.ok()) add_error(object, verdict);
  // Paths need not be UTF-8; what is not is shown as such instead of refused.
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// A refusal of what was asked for always has a way out: what gives none leads to where the verb explains itself.
Status with_way_out(const std::string& verb, const Status& status) {
  if (status.code() != Code::kUsage || !status.remedy().empty()) return status;
  return Status(status.code(), status.message(), text("penstock ", verb, verb.empty() ? "" : " ", "--help"));
}

void print_refusal(const Status& status) {
  std::fprintf(stderr, "penstock: %s\n", status.message().c_str());
  if (!status.remedy().empty()) std::fprintf(stderr, "try: %s\n", status.remedy().c_str());
}

}  // namespace

int run_command(const std::vector<Verb>& verbs, const std::vector<std::string>& arguments) {
  CommandLine line(verbs);
  Result<CommandLine::Parsed> parsed = line.parse(arguments);
  if (parsed.ok() && parsed->verb == nullptr) {
    const Status printed = print_results(parsed->help);
    if (!printed.ok()) print_refusal(printed);
    return static_cast<int>(printed.code());
  }
  // A line that cannot be parsed may still have asked for JSON.
  const bool json =
      parsed.ok() ? parsed->json : std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();

  Status verdict = parsed.status();
  Json fields = Json::object();
  bool is_silent = false;
  Status printed;
  if (parsed.ok()) {
    Progress progress(parsed->json_progress ? Progress::Where::json : Progress::where_of_stderr());
    Session session{progress};
    if (json) {
      session.interrupted_answer = json_answer(parsed->verb->name, Json::object(), interrupted_unchanged());
    } else {
      session.print = [&](const std::string& part) {
        progress.clear();
        const Status status = print_results(part);
        if (printed.ok()) printed = status;
      };
    }
    Result<Answer> answer = parsed->action(session);
    progress.clear();
    verdict = answer.ok() ? answer->verdict : answer.status();
    is_silent = answer.ok() && answer->is_for_rank_0;
    if (answer.ok()) fields = std::move(answer->json);
    if (answer.ok() && !json && !is_silent) session.print(answer->text);
  }
  const std::string name = parsed.ok() ? parsed->verb->name : line.verb_named(arguments);
  verdict = with_way_out(name, verdict);
  if (json && !is_silent) printed = print_results(json_answer(name, fields, verdict));
  if (verdict.ok()) verdict = printed;
  if (!verdict.ok()) print_refusal(verdict);
  return static_cast<int>(verdict.code());
}

}  // namespace penstock::tools
