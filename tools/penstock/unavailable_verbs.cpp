// For a build with PENSTOCK_STEPS=OFF: stand-ins for the missing verbs, which accept any arguments and say how to get
// them.
#include "tools/penstock/command.h"

namespace penstock::tools {
namespace {

Verb unavailable(const std::string& name) {
  return {
      name, "Left out of this build", "Compiled only with PENSTOCK_STEPS=ON.", {}, [name](Options& options) -> Action {
        options.anything();
        return [name](Session&) -> Result<Answer> {
          return Status(Code::kEnvironment, name + ": not in this build of penstock, which cannot run steps",
                        "cmake -S . -B build -DPENSTOCK_STEPS=ON && cmake --build build");
        };
      }};
}

}  // namespace

Verb config_check_verb() { return unavailable("config check"); }
Verb config_keys_verb() { return unavailable("config keys"); }
Verb train_verb() { return unavailable("train"); }
Verb generate_verb() { return unavailable("generate"); }
Verb update_verb() { return unavailable("update"); }
Verb verify_verb() { return unavailable("verify"); }
Verb checkpoint_ls_verb() { return unavailable("checkpoint ls"); }
Verb checkpoint_export_verb() { return unavailable("checkpoint export"); }
Verb checkpoint_import_verb() { return unavailable("checkpoint import"); }
Verb checkpoint_snapshot_verb() { return unavailable("checkpoint snapshot"); }
Verb checkpoint_rollback_verb() { return unavailable("checkpoint rollback"); }
Verb checkpoint_rm_verb() { return unavailable("checkpoint rm"); }
Verb checkpoint_reshard_verb() { return unavailable("checkpoint reshard"); }
Verb checkpoint_scrub_verb() { return unavailable("checkpoint scrub"); }

}  // namespace penstock::tools
