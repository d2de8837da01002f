#include "tools/plan/output_words.h"

namespace penstock::tools {

const std::vector<OutputWord>& words_of_forecasts() {
  static const std::vector<OutputWord> kWords{
      {"MODEL:", "The model's size as counted from its configuration."},
      {"trained:", "With --lora-rank: what is trained, and what the frozen matrices rest in."},
      {"MACHINE:", "What the profile says of the drives together, how many devices there are, and how many ranks."},
      {"step:",
       "The time of one step once the pipeline is full, averaged over durable, other, clipped and unclipped steps; "
       "what it is bound by is the resource whose relief would shorten it most."},
      {"drives:",
       "What one step moves to and from the drives, by parameter of the model and in all, and how long their "
       "rated endurance lasts at that rate without a pause."},
      {"plan:",
       "What the planner chose: micro-batches that pass a unit together, how backward gets the activations, tiles, "
       "and how often a step is made durable."},
      {"codes:",
       "With --quantized-weights and --quantized-gradients: what a rank sends in fewer bits, and how many bytes a step "
       "that saves."},
      {"commit at exit:",
       "What rests in host memory or on a device and no durable step has written is written once when the run ends: "
       "these bytes in this time, which the time and bytes of a step do not include."},
      {"a step that clips:",
       "The time of a step whose updates were begun before the norm was known and had to be redone."},
      {"compute-bound from about", "The tokens in a step from which on compute takes longer than the drives."},
      {"lane", "Heads the table of lanes: the resources that carry moves in order."},
      {"drives", "The time in which the drives read, write or both."},
      {"nvme_read", "The time in which the drives read, be they writing besides or not."},
      {"nvme_write", "The time in which the drives write, be they reading besides or not."},
      {"host_to_device", "The time of copies from host memory to the device: weights, and activations that come back."},
      {"device_to_host",
       "The time of copies from the device to host memory: gradients, activations that wait there, and what rests on "
       "the device, before it is written."},
      {"update", "The time in which the CPU updates tiles."},
      {"collective", "The time in which ranks gather weights and reduce gradients."},
      {"compute", "The time of forward and backward, recomputation included, and of updates on the device."},
      {"memory", "Heads the table of memory, in which every line is part of a budget."},
      {"tier", "Heads the columns: a tier, what is held there, what that takes, and the tier's budget."},
      {"units under way", "Weights on their way to where they are used, or used there now."},
      {"forward passes within steps", "Room for the weights of an evaluation that comes in the middle of a step."},
      {"gradients under way", "Gradients of the units of one use, added up in fp32 on the device."},
      {"activations", "What backward needs of forward, where it is computed with."},
      {"unit being computed", "What forward or backward of one unit allocates while it runs."},
      {"program", "The program and its libraries, before any model."},
      {"plan and tables", "The plan itself, the tables of the store and what the engine notes of each tile."},
      {"tile window", "Tiles that are being read, updated or written."},
      {"tiles ahead of a verdict",
       "Tiles that a step reads while backward runs, where it updates nothing before its gradients' norm is known."},
      {"gradient backlog", "Gradients that wait for their update."},
      {"deferred gradients", "Gradients whose update waits until the next forward comes near."},
      {"leaving gradients", "Gradients on their way to the drives."},
      {"retained gradients", "Gradients that are kept until it is decided whether the step is clipped."},
      {"fetched gradients", "Gradients that were kept on the drives and have been read again."},
      {"accumulated gradients", "Sums over micro-batches that are not complete."},
      {"gathered weights", "Weights of all ranks where a rank computes with them, in memory that the ranks share."},
      {"gradients of all ranks",
       "Where the CPU computes: a rank's sums over its micro-batches, its gradients as the other ranks read them, and "
       "what it has added up."},
      {"codes of all ranks",
       "Where the CPU computes: weights in int8 before they are what a rank computes with, and gradients in int4 "
       "before "
       "they are added up."},
      {"downloaded gradients", "Gradients that have come from the device and are not yet taken in."},
      {"offloaded activations", "Activations of a device that wait in host memory."},
      {"resting weights",
       "Weights that stay in host memory, or on the device, between steps, in the precision that they are used in."},
      {"resting state", "Masters and moments that stay in host memory, or on the device, between steps."},
      {"resting gradients", "Gradients of what rests on the device, which stay there until they have updated it."},
      {"rounding to 2 MiB pages", "What is lost where a part of the arena begins at a huge page."},
      {"slots",
       "The store on the drives: two or three places for each tile, so that no step overwrites the last; with --space "
       "single one."},
      {"spilled gradients", "Room on the drives for gradients that are kept until clipping is decided."},
      {"spilled activations", "Room on the drives for activations that host memory cannot hold."},
      {"all", "The sum of the tier's lines, beside its budget; in the table of state, the sum of its roles."},
      {"state at rest",
       "Heads the table of bytes that each parameter of the model weighs between steps, by tier; what rests "
       "in host memory or on the device is on the drives too, as of the last durable step."},
      {"weight", "What forward and backward use; in split form also the high half of the fp32 master."},
      {"weight_scale", "The scales of weights that rest in codes, one for each block of them."},
      {"master", "The fp32 master beside a 16-bit weight."},
      {"master_low", "The low 16 bits of a split fp32 master."},
      {"momentum", "The first moment."},
      {"momentum_scale", "The scales of an int8 momentum, one for each block of it."},
      {"variance", "The second moment, or Adagrad's sum of squares."},
      {"variance_scale", "The scales of an int8 variance, one for each block of it."},
      {"state, by ZeRO",
       "Heads the table of what each rank, and the node, holds of that state in each stage, how long a step takes, and "
       "what a rank sends to others in it, and of that to other nodes; it takes as much from them."},
      {"stage 0", "Every rank holds everything; gradients alone pass between ranks."},
      {"stages 1 and 2",
       "Every rank holds its share of masters and moments, and all weights from the first pass that needs them until "
       "the step ends; gradients do not rest here."},
      {"hybrid", "Every node holds everything, and shares it among its ranks as stage 3 does."},
      {"stage 3", "Every rank holds its share of everything, and weights are gathered for each pass."},
      {"what would change", "Heads the table of --advise: each row is planned anew with more of one thing."},
      {"as it is", "The plan above."},
      {"drives: one more", "With one more drive like the last."},
      {"host memory:", "With more host memory."},
      {"updates on the CPU:", "With memory that lets the CPU update twice as fast."},
      {"compute:", "With devices that compute twice as fast."},
      {"device memory:", "With more memory on every device."},
      {"links to devices:", "With twice the rate between host and devices."},
      {"network:", "With twice the rate between nodes."},
      {"links between devices:", "With twice the rate among devices."},
      {"aim:", "The least that reaches --step-time or --drive-life, or why nothing does."},
      {"lanes over time:", "Where --gantt has drawn the step."},
      {"trace:",
       "Where --trace has written every move of the simulated steps, for ui.perfetto.dev or chrome://tracing."},
      {"Does not fit.", "The budgets cannot hold even the smallest plan, whose memory follows."},
      {"note:", "What the forecast could not know, or what may surprise."},
  };
  return kWords;
}

}  // namespace penstock::tools
