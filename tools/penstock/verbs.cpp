// The verbs of the command. A new verb is a file that defines its function, and one line here.
#include "tools/penstock/command.h"

#define PENSTOCK_VERBS(VERB) \
  VERB(doctor)               \
  VERB(nvme_probe)           \
  VERB(nvme_bench)           \
  VERB(nvme_tune)            \
  VERB(nvme_compare)         \
  VERB(plan)                 \
  VERB(data)                 \
  VERB(data_show)            \
  VERB(config_check)         \
  VERB(config_keys)          \
  VERB(train)                \
  VERB(generate)             \
  VERB(report)               \
  VERB(watch)                \
  VERB(update)               \
  VERB(verify)               \
  VERB(checkpoint_ls)        \
  VERB(checkpoint_scrub)     \
  VERB(checkpoint_export)    \
  VERB(checkpoint_import)    \
  VERB(checkpoint_snapshot)  \
  VERB(checkpoint_rollback)  \
  VERB(checkpoint_rm)        \
  VERB(checkpoint_reshard)   \
  VERB(completion)           \
  VERB(manual)

namespace penstock::tools {

#define PENSTOCK_DECLARE(name) Verb name##_verb();
PENSTOCK_VERBS(PENSTOCK_DECLARE)
#undef PENSTOCK_DECLARE

std::vector<Verb> all_verbs() {
#define PENSTOCK_MAKE(name) name##_verb(),
  return {PENSTOCK_VERBS(PENSTOCK_MAKE)};
#undef PENSTOCK_MAKE
}

}  // namespace penstock::tools
