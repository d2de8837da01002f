#include "tools/penstock/update_exit.h"

#include "tools/penstock/quantity.h"
#include "tools/penstock/step_json.h"

namespace penstock::tools {

ExitShare::ExitShare(const engine::Engine& engine, uint64_t steps, uint64_t last) : steps_(steps) {
  if (steps == 0 || engine.plan().durability.durable_after(last)) return;
  commit_ = commit_at_exit(engine.plan(), engine.request().machine);
}

double ExitShare::predicted_step_s() const { return commit_ ? commit_->seconds / static_cast<double>(steps_) : 0; }

std::string ExitShare::predicted_text() const {
  if (!commit_) return "";
  const std::string written = text("commit at exit: ", bytes_text(commit_->written_bytes), " written once, ");
  if (commit_->seconds == 0) return written + "in a time that is not predicted\n";
  return text(written, "predicted in ", seconds_text(commit_->seconds), ", ", fixed(predicted_step_s(), 3),
              " s for each of ", counted(steps_, "step"), "\n");
}

std::string ExitShare::taken_text(double seconds) const {
  if (!commit_) return "";
  std::string line =
      text("commit at exit: ", bytes_text(commit_->written_bytes), " written in ", seconds_text(seconds));
  if (commit_->seconds > 0) {
    line += text(", predicted in ", seconds_text(commit_->seconds), ", which is ", fixed(predicted_step_s(), 3),
                 " s of each step's predicted time");
  }
  return line + "\n";
}

Json ExitShare::json(double seconds) const {
  if (!commit_) return Json();
  return {{"written_bytes", commit_->written_bytes},
          {"commit_s", seconds},
          {"predicted_s", predicted_json(commit_->seconds)},
          {"predicted_step_share_s", predicted_json(predicted_step_s())}};
}

}  // namespace penstock::tools
