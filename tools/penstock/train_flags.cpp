#include "tools/penstock/train_flags.h"

#include <memory>

#include "tools/penstock/nvme_common.h"

namespace penstock::tools {

Verb train_verb_with(std::function<Result<Answer>(Session&, const TrainFlags&)> train) {
  auto flags = std::make_shared<TrainFlags>();
  return {
      "train",
      "Train a model whose state rests in a store",
      "Weights, masters and moments rest in host memory and on drives as the budget allows, and move while forward\n"
      "and backward run on the CPU. Without --model it trains a small GPT, without --data on a text that ships with\n"
      "Penstock, byte by byte. The run's folder gets log.jsonl, one object a step. A run that was stopped or killed\n"
      "goes on from its last committed step when it is started again.",
      {{"penstock train --store /mnt/nvme0/gpt --run ./gpt", "A small GPT on the shipped text"},
       {"penstock train --model ./Qwen3-0.6B/config.json --data book.txt --store /mnt/nvme0/qwen --budget host=4GiB",
        "A model of that shape from scratch"}},
      [flags, train = std::move(train)](Options& options) -> Action {
        options.text("--run", flags->run, "FOLDER", "Gets log.jsonl; made where missing. None: no log");
        options.file("--model", flags->model,
                     "config.json of a GPT-2, Llama, Mistral or Qwen model, trained from scratch");
        options.file(
            "--data", flags->data,
            "Tokens: nanoGPT's or llm.c's .bin, Megatron's .bin beside its .idx, or a .txt whose bytes are tokens");
        options.text("--store", flags->stores, "PATH[,PATH]",
                     "Folders of the store, one on each drive; made where missing");
        options.text("--budget", flags->budget, "host=SIZE", "Host memory for everything, the program included");
        options.file(
            "--machine", flags->machine,
            "Profile that `penstock nvme probe` left, of the store's drives; else they are measured for some seconds");
        options.durability("--durability", flags->durability);
        options.count("--steps", flags->steps, "Train until this step");
        options.count("--seq", flags->sequence, "Tokens of a sequence");
        options.count("--sequences", flags->sequences, "Sequences of a micro-batch");
        options.count("--micro-batches", flags->micro_batches, "Micro-batches of a step");
        options.count("--group", flags->group,
                      "Micro-batches that pass through a unit before the next is fetched; 0: the planner chooses");
        options.choice("--activations", flags->activations, {"recompute", "keep"},
                       "Compute forward again in backward, or keep what it made");
        options.rate("--lr", flags->learning_rate, "Learning rate of AdamW");
        options.rate("--weight-decay", flags->weight_decay, "Of matrices; norms and biases have none");
        options.rate("--clip", flags->clip, "Norm of all gradients together, at most; 0: not clipped");
        options.choice("--schedule", flags->schedule, {"constant", "linear", "cosine"},
                       "Of the learning rate after the warm-up: down to a tenth at --steps, or as it is");
        options.count("--warm-up", flags->warm_up, "Steps in which the learning rate rises");
        options.count("--seed", flags->seed, "Seed of weights, dropout and the order of samples");
        options.count("--threads", flags->threads, "Threads that update; 0: one for each processor");
        engine_option(options, flags->engine);
        options.flag("--force", flags->force, "Replace a store that is there");
        return [flags, train](Session& session) { return train(session, *flags); };
      }};
}

}  // namespace penstock::tools
