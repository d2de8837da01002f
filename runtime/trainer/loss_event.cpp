#include "runtime/trainer/loss_event.h"

#include <cmath>

namespace penstock::trainer {
namespace {

std::string loss_text(double loss) {
  if (std::isnan(loss)) return "nan";
  return std::isinf(loss) ? "infinite" : text(loss);
}

std::string what_was_done(const LossEvent& event) {
  switch (event.action) {
    case LossAction::ignore:
    case LossAction::stop:
      return "";
    case LossAction::skip:
      return "; it is left out";
    case LossAction::lower_rate:
      return text("; it is left out, and learning rates are ", event.rate_factor, " of the schedule's");
    case LossAction::rollback:
      return event.back_to ? text("; back to step ", *event.back_to, ", batches ", *event.first_left_out, " to ",
                                  event.batch, " are left out")
                           : "";
  }
  return "";
}

}  // namespace

std::string words_of(const LossEvent& event) {
  std::string words = text("step ", event.step, ": the ");
  if (event.trouble == LossTrouble::gradients) {
    words += text("gradients of batch ", event.batch, " are not finite, where its loss is ", event.loss, ": ");
  } else {
    words += text("loss of batch ", event.batch, " is ", loss_text(event.loss));
    if (event.highest) words += text(", a spike: more than ", *event.highest);
    words += text("; micro-batch ", event.micro_batch, " of it has ", loss_text(event.micro_batch_loss), ": ");
  }
  for (size_t i = 0; i < event.samples.size(); ++i) words += (i == 0 ? "" : "; ") + event.samples[i];
  return words + what_was_done(event);
}

Status refusal_of(const LossEvent& event, const LossRules& rules, const std::string& committed) {
  const char* key = event.trouble == LossTrouble::spike ? "spike" : "not_finite";
  if (event.named != LossAction::stop && event.action == LossAction::stop) {
    return Status(Code::kComparison,
                  text("train: ", words_of(event), "; rules about the loss have left out batches ", rules.at_most,
                       " times already; ", committed),
                  "look at log.jsonl for what they were: where it is the weights that are broken, `penstock checkpoint "
                  "rollback` goes back to a snapshot; a larger loss_rules.at_most goes on");
  }
  return Status(Code::kComparison, text("train: ", words_of(event), "; ", committed),
                text("look at these samples, and run it again with \"leave_out\": [", event.batch,
                     "], or with \"loss_rules\": {\"", key, "\": \"skip\"}, which leaves such batches out by itself"));
}

}  // namespace penstock::trainer
