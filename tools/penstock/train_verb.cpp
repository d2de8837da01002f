#include "tools/penstock/command.h"
#include "tools/penstock/train_flags.h"

namespace penstock::tools {

Verb train_verb() {
  return train_verb_with([](Session& session, const TrainFlags& flags) -> Result<Answer> {
    return start_trainer(session, "train", flags.ranks.value_or(1));
  });
}

}  // namespace penstock::tools
