// LossEvent is what a rule did about a batch because of its loss, and which batch that was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/trainer/loss_rules.h"
#include "tiering/status.h"

namespace penstock::trainer {

struct LossEvent {
  uint64_t step = 0;   // that would have taken the batch
  uint64_t batch = 0;  // in the order of samples
  double loss = 0;
  LossTrouble trouble = LossTrouble::not_finite;
  std::optional<double> highest = {};           // that it might have been, where it is a spike
  LossAction named = LossAction::stop;          // by the rules
  LossAction action = LossAction::stop;         // `stop` instead of what is named, where that was done too often
  uint64_t micro_batch = 0;                     // of the batch, from 1: the one with the highest loss, or the first
  double micro_batch_loss = 0;                  // that is not finite; 0: it is the batch's gradients that are not
  std::vector<std::string> samples = {};        // of that micro-batch, or of the batch: where they are
  double rate_factor = 1;                       // of the learning rates from now on
  std::optional<uint64_t> back_to = {};         // rollback: the step that the run goes on from
  std::optional<uint64_t> first_left_out = {};  // rollback: the first of the batches, up to this one
};

// "step 12: the loss of batch 14 is nan: ...": which batch, why, where its worst samples are, what was done.
std::string words_of(const LossEvent& event);

// The end of a run by `stop`. `committed`: what there is of it now, "step 11 is committed".
Status refusal_of(const LossEvent& event, const LossRules& rules, const std::string& committed);

}  // namespace penstock::trainer
