#include "runtime/trainer/torch/training_device.h"

#include <algorithm>

#include "runtime/trainer/torch/cuda_accelerator.h"
#include "runtime/trainer/torch/dry_step.h"
#include "runtime/trainer/torch/generation.h"
#include "runtime/trainer/torch/host_accelerator.h"
#include "runtime/trainer/torch/training_batches.h"

namespace penstock::trainer {
namespace {

// What threads, rings and malloc take besides what is planned.
constexpr uint64_t kOverheadBytes = 16 * kMiB;
// A table of pages for each large page, which a control group counts.
constexpr uint64_t kLargePageBytes = 2 * kMiB, kPageTableBytes = 4 * kKiB;
// Of a device, where nobody says a budget: for what CUDA takes itself as kernels are first used.
constexpr uint64_t kDeviceReserveBytes = 512 * kMiB;

// What the tensors leave is the engine's arena.
Status divide_device(TrainingSettings& settings) {
  PlanRequest& request = settings.engine.request;
  const uint64_t tensor_bytes = settings.tensor_bytes;
  if (tensor_bytes >= settings.device_bytes) {
    return Status(Code::kDoesNotFit,
                  text("config: penstock.device_budget: ", bytes_text(settings.device_bytes),
                       ": tensors of a step need ", bytes_text(tensor_bytes), ", and nothing is left for weights"),
                  "a larger budget, smaller micro-batches or a smaller \"head_tokens\"");
  }
  request.budgets.device_bytes = request.machine.device_bytes = settings.device_bytes - tensor_bytes;
  return Status();
}

}  // namespace

std::shared_ptr<Accelerator> accelerator_of(const TrainingSettings& settings) {
  return settings.accelerator ? settings.accelerator : std::make_shared<HostAccelerator>();
}

Status open_accelerator(TrainingSettings& settings) {
  if (settings.device.kind != ComputeDevice::Kind::cuda) {
    settings.accelerator = std::make_shared<HostAccelerator>();
    return Status();
  }
  const TrainConfig& config = settings.config;
  PENSTOCK_TRY_ASSIGN(
      accelerator, open_cuda_accelerator(
                       {.index = settings.device.index, .deterministic = config.deterministic, .tf32 = config.tf32}));
  settings.accelerator = std::move(accelerator);
  return give_budget(settings);
}

Status give_budget(TrainingSettings& settings) {
  const uint64_t free_bytes = settings.accelerator->free_bytes();
  uint64_t& budget = settings.engine.request.budgets.device_bytes;
  if (settings.config.device_budget.empty()) budget = free_bytes - std::min(free_bytes, kDeviceReserveBytes);
  settings.device_bytes = budget;
  if (budget > 0 && budget <= free_bytes) return Status();
  return Status(Code::kDoesNotFit,
                text("config: penstock.device_budget: ", bytes_text(budget), ": ", settings.accelerator->description(),
                     " has ", bytes_text(free_bytes), " free"),
                "a smaller budget, or end what else uses this device (nvidia-smi)");
}

Status measure_step(TrainingSettings& settings) {
  settings.accelerator = accelerator_of(settings);
  PlanRequest& request = settings.engine.request;
  const ComputeChoices choices = choices_of(settings);
  const std::vector<MicroBatch> batches = micro_batches_of(settings, settings.config.leave_out.batch_of(1));
  std::vector<Use>& uses = request.workload.uses;
  PENSTOCK_TRY_ASSIGN(dry, dry_step(settings.model, *settings.accelerator, choices, batches, settings.keeping()));
  for (size_t use = 0; use < uses.size(); ++use) {
    uses[use].forward_s = dry.uses[use].forward_s;
    uses[use].backward_s = dry.uses[use].backward_s;
    uses[use].activation_bytes = dry.uses[use].activation_bytes;
    uses[use].boundary_bytes = dry.uses[use].boundary_bytes;
  }
  settings.product_flops = dry.product_flops;
  settings.tensor_bytes = dry.tensor_bytes + settings.accelerator->left_between_tensors(dry.tensor_bytes);
  if (settings.config.eval_every > 0) {
    // What forward made of the micro-batches that are evaluated together, beyond those of a step.
    const uint64_t together = evaluation_group(settings);
    const uint64_t more = together - std::min(together, settings.config.accumulation);
    settings.tensor_bytes += more * settings.config.micro_batch * settings.config.sequence_length *
                             settings.model.config.hidden * bytes_of(settings.model.dtype);
  }
  settings.tensor_bytes +=
      generation_bytes(settings.model, settings.prompts.prompts, settings.config.samples.max_new_tokens).all;
  request.process_bytes =
      dry.process_bytes + kOverheadBytes + request.budgets.host_bytes / kLargePageBytes * kPageTableBytes;
  if (settings.device_bytes > 0) return divide_device(settings);
  request.process_bytes += settings.tensor_bytes;
  return Status();
}

}  // namespace penstock::trainer
