#include "tools/train/loss_events.h"

namespace penstock::tools {
namespace {

const char* words_of(trainer::LossTrouble trouble) {
  switch (trouble) {
    case trainer::LossTrouble::none:
    case trainer::LossTrouble::not_finite:
      return "not_finite";
    case trainer::LossTrouble::spike:
      return "spike";
    case trainer::LossTrouble::gradients:
      return "gradients_not_finite";
  }
  return "";
}

Json event_json(const trainer::LossEvent& event) {
  Json json = {{"batch", event.batch},
               {"loss", event.loss},
               {"why", words_of(event.trouble)},
               {"action", name_of(event.action)},
               {"samples", event.samples}};
  if (event.micro_batch > 0) {
    json["micro_batch"] = event.micro_batch;
    json["micro_batch_loss"] = event.micro_batch_loss;
  }
  if (event.highest) json["highest"] = *event.highest;
  if (event.back_to) {
    json["step"] = event.step;
    json["back_to"] = *event.back_to;
    json["first_left_out"] = *event.first_left_out;
  }
  if (event.action == trainer::LossAction::lower_rate) json["rate_factor"] = event.rate_factor;
  return json;
}

}  // namespace

Json events_json(std::span<const trainer::LossEvent> events) {
  Json list = Json::array();
  for (const trainer::LossEvent& event : events) list.push_back(event_json(event));
  return list;
}

Json stopped_json(std::span<const trainer::LossEvent> events, const trainer::LossEvent& ended_by) {
  Json list = events_json(events);
  list.push_back(event_json(ended_by));
  return {{"step", ended_by.step},
          {"batch", ended_by.batch},
          {"loss", ended_by.loss},
          {"loss_events", list},
          {"stopped", true}};
}

}  // namespace penstock::tools
