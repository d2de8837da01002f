// `penstock report` and `penstock watch`: runs to look at. What they do is in runtime/python/penstock.
#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/python_start.h"

namespace penstock::tools {

Verb report_verb() {
  struct Flags {
    std::string run, out, tensorboard, prometheus, wandb;
    bool force = false;
  };
  auto flags = std::make_shared<Flags>();
  return {
      "report",
      "Make a page about a run, to look at in a browser",
      "RUN is the folder that `penstock train --run` was given. The page is one HTML file that needs no network: loss\n"
      "and evaluation, rates, time predicted and actual, what was waited for, how busy each lane was, what would make\n"
      "it faster, bytes, what each tier holds, how drives wear, and the configuration. It can be made while the run\n"
      "goes on. It needs Python.",
      {{"penstock report ./gpt", "Make ./gpt/report.html"},
       {"penstock report ./gpt --tensorboard ./events", "The same numbers for TensorBoard too"}},
      [flags](Options& options) -> Action {
        options.path("RUN", flags->run, "Folder with log.jsonl and config.json");
        options.file("--out", flags->out, "The page; RUN/report.html if nothing is said");
        options.text("--tensorboard", flags->tensorboard, "PATH", "Folder that gets an event file");
        options.file("--prometheus", flags->prometheus, "File that gets the last step as Prometheus reads it");
        options.text("--wandb", flags->wandb, "PROJECT",
                     "Project of Weights & Biases that gets the steps and samples, where its package is installed");
        options.flag("--force", flags->force, "Replace a file that is no report");
        return [](Session& session) -> Result<Answer> { return start_python(session, "report", "penstock.report"); };
      }};
}

Verb watch_verb() {
  struct Flags {
    std::string run;
    bool once = false;
  };
  auto flags = std::make_shared<Flags>();
  return {
      "watch",
      "Show how a run stands, until it ends",
      "In a terminal a panel is drawn again after each step; in a pipe each new step is a line. It also ends where no "
      "process\nhas the run any more, because it was killed or stopped, and says how to go on; with --json, `running` "
      "says whether one\nhas, null where that cannot be known. It needs Python.",
      {{"penstock watch ./gpt", "Watch a run"}},
      [flags](Options& options) -> Action {
        options.path("RUN", flags->run, "Folder with log.jsonl and config.json");
        options.flag("--once", flags->once, "Show the panel once, and end");
        return [](Session& session) -> Result<Answer> { return start_python(session, "watch", "penstock.watch"); };
      }};
}

}  // namespace penstock::tools
