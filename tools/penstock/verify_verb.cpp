#include <memory>

#include "aio/available_memory.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/train_flags.h"
#include "tools/penstock/train_start.h"
#include "tools/penstock/update_common.h"
#include "tools/update/plain_run.h"

namespace penstock::tools {
namespace {

// Asked before the first step, not after the last.
Status refuse_what_does_not_fit(uint64_t parameters) {
  const aio::AvailableMemory available = aio::AvailableMemory::now();
  const uint64_t needed_bytes = PlainRun::bytes_needed(parameters);
  if (needed_bytes <= available.bytes) return Status();
  return Status(Code::kDoesNotFit,
                text("verify: the plain loop over ", parameters, " parameters needs ", bytes_text(needed_bytes),
                     " of memory beside the budget, ", bytes_text(available.bytes), " are available (",
                     available.limited_by, ")"),
                "verify a smaller model; `penstock checkpoint scrub` checks a large one against its checksums");
}

Result<Answer> verify(Session& session, const UpdateFlags& flags) {
  PENSTOCK_TRY_ASSIGN(parameters, parameters_of_run(session, flags));
  PENSTOCK_TRY(refuse_what_does_not_fit(parameters));
  PENSTOCK_TRY_ASSIGN(run, open_update_run(session, flags));
  if (run->engine().steps_done() > flags.steps) {
    return Status(Code::kUsage,
                  text("--steps: ", flags.steps, ": the store is already at step ", run->engine().steps_done()),
                  text("--steps ", run->engine().steps_done(), " or more, or --force to start again"));
  }
  PENSTOCK_TRY(run_steps(session, *run, flags.steps));
  PlainRun plain(*run);
  const Tick tick = ticking(session, "plain loop");
  while (plain.steps_done() < flags.steps) {
    PENSTOCK_TRY(tick(static_cast<double>(plain.steps_done()) / static_cast<double>(flags.steps)));
    plain.step();
  }
  PENSTOCK_TRY_ASSIGN(comparison, plain.compare(run->engine()));

  return answer_to_comparison(comparison, flags.steps);
}

}  // namespace

Answer answer_to_comparison(const Comparison& comparison, uint64_t steps) {
  Answer answer;
  answer.json = {{"steps", steps},
                 {"tensors", comparison.tensors},
                 {"words_compared", comparison.words_compared},
                 {"words_different", comparison.words_different},
                 {"first_difference", nullptr}};
  answer.text = text(steps, " steps tiered against ", steps, " plain steps in memory: ", comparison.words_different,
                     " of ", comparison.words_compared, " words differ\n");
  if (comparison.first) {
    const Comparison::Difference& first = *comparison.first;
    answer.json["first_difference"] = {{"tensor", first.tensor},
                                       {"index", first.index},
                                       {"step", steps},
                                       {"tiered", first.tiered},
                                       {"plain", first.plain}};
    answer.verdict = Status(Code::kComparison,
                            text("verify: ", first.tensor, "[", first.index, "]: tiered ", first.tiered, ", plain ",
                                 first.plain, ", and ", comparison.words_different - 1, " more words differ"),
                            "run `penstock checkpoint scrub` on the store, and report it: this must not happen");
  }
  return answer;
}

namespace {

struct VerifyFlags {
  UpdateFlags update;
  std::optional<std::string> config, model, data;  // of a training run, which another program takes
  std::optional<uint64_t> ranks;                   // likewise
  bool grid = false;                               // likewise

  bool of_training() const { return config || model || data || ranks || grid; }
};

}  // namespace

Verb verify_verb() {
  auto flags = std::make_shared<VerifyFlags>();
  return {"verify",
          "Compare tiered steps with plain steps in memory, bit for bit",
          "With CONFIG, --model or --data: the first steps of that training run, on a new store beside the run's own,\n"
          "against the same steps of a plain loop in memory: no tiers, no plan, no drives, and the scalar optimizer. "
          "Every\n"
          "bit of weights, masters and moments is compared. The flags are those of `penstock train`.\n"
          "Without them: the steps of `penstock update`, or those of an existing store continued, against a plain loop "
          "that\n"
          "takes 14 bytes of memory for each parameter. Exit code 6: a word differs.",
          {{"penstock verify --params 250M --store /mnt/nvme0/demo --budget host=256MiB --steps 6",
            "Six steps; those of an existing store count"},
           {"penstock verify ds_config.json --store /mnt/nvme0/qwen --steps 3", "The run that this file describes"}},
          [flags](Options& options) -> Action {
            options.path("CONFIG", flags->config, "A training run's config");
            options.text("--model", flags->model, "PATH", "A model to train, as `penstock train` takes it");
            options.file("--data", flags->data, "What to train it on");
            options.flag("--grid", flags->grid,
                         "Of a training run: in every placement of its state, weights, gradients and activations, in "
                         "place and on the host device");
            options.count(
                "--ranks", flags->ranks,
                "Of a training run: by so many processes, in every stage, against a plain loop of as many ranks");
            update_options(options, flags->update);
            return [flags](Session& session) -> Result<Answer> {
              if (flags->of_training()) return start_trainer(session, "verify", flags->ranks.value_or(1));
              return verify(session, flags->update);
            };
          }};
}

}  // namespace penstock::tools
