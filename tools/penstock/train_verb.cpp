#include "tools/penstock/command.h"
#include "tools/penstock/train_flags.h"
#include "tools/penstock/train_start.h"

namespace penstock::tools {

Verb train_verb() {
  return train_verb_with([](Session& session, const TrainFlags& flags) -> Result<Answer> {
    return start_trainer(session, "train", flags.ranks.value_or(1));
  });
}

Verb generate_verb() {
  return generate_verb_with(
      [](Session& session, const GenerateFlags&) -> Result<Answer> { return start_trainer(session, "generate"); });
}

}  // namespace penstock::tools
