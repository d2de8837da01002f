#include "tools/penstock/train_flags.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/penstock/quantity.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

using Overrides = std::vector<trainer::ConfigOverride>;

template <typename Value>
void add(const char* key, const std::optional<Value>& given, Overrides& into) {
  if (given) into.push_back({key, Json(*given).dump(-1, ' ', false, Json::error_handler_t::replace)});
}

Status add_budget(const std::string& budget, Overrides& into) {
  for (const std::string& part : split(budget, ',')) {
    const size_t equals = part.find('=');
    const std::string tier = part.substr(0, equals);
    if (equals == std::string::npos || (tier != "host" && tier != "nvme" && tier != "device")) {
      return Status(Code::kUsage, text("--budget: '", part, "': is not device=, host= or nvme= and a size"),
                    equals == std::string::npos && parse_bytes(part).ok() ? text("--budget host=", part)
                                                                          : "--budget host=24GiB,nvme=400GiB");
    }
    PENSTOCK_TRY(parse_bytes(std::string_view(part).substr(equals + 1)).status().within("--budget"));
    into.push_back({"penstock." + tier + "_budget", Json(part.substr(equals + 1)).dump()});
  }
  return Status();
}

}  // namespace

Result<Overrides> overrides_of(const TrainFlags& flags) {
  Overrides overrides;
  add("penstock.run", flags.run, overrides);
  add("model", flags.model, overrides);
  add("data", flags.data, overrides);
  if (flags.from_scratch) overrides.push_back({"from_scratch", "true"});
  if (flags.stores) {
    overrides.push_back({"penstock.stores", Json(split(*flags.stores, ',')).dump()});
  }
  if (flags.budget) PENSTOCK_TRY(add_budget(*flags.budget, overrides));
  add("penstock.machine", flags.machine, overrides);
  add("penstock.durability", flags.durability, overrides);
  add("penstock.activations", flags.activations, overrides);
  add("penstock.micro_batch_group", flags.group, overrides);
  add("penstock.threads", flags.threads, overrides);
  add("penstock.io_engine", flags.io_engine, overrides);
  add("max_steps", flags.steps, overrides);
  add("sequence_length", flags.sequence, overrides);
  add("train_micro_batch_size_per_gpu", flags.sequences, overrides);
  add("gradient_accumulation_steps", flags.micro_batches, overrides);
  // What a file says of their product is not so any more.
  if (flags.sequences || flags.micro_batches) overrides.push_back({"train_batch_size", "\"auto\""});
  add("optimizer.params.lr", flags.learning_rate, overrides);
  add("optimizer.params.weight_decay", flags.weight_decay, overrides);
  add("gradient_clipping", flags.clip, overrides);
  add("scheduler.type", flags.schedule, overrides);
  add("scheduler.params.warmup_steps", flags.warm_up, overrides);
  add("scheduler.params.warmup_num_steps", flags.warm_up, overrides);
  add("penstock.device", flags.device, overrides);
  add("seed", flags.seed, overrides);
  add("eval_every", flags.eval_every, overrides);
  add("sample_every", flags.sample_every, overrides);
  add("keep_every", flags.keep_every, overrides);
  add("keep_best", flags.keep_best, overrides);
  return overrides;
}

void train_options(Options& options, TrainFlags& flags, TrainOptions which) {
  options.path("CONFIG", flags.config, "JSON with comments, a file of DeepSpeed's for one, or YAML");
  options.text("--run", flags.run, "FOLDER",
               "Gets log.jsonl, config.json and plan.json; made where missing. None: no file");
  options.text("--model", flags.model, "PATH",
               "A model's folder as Hugging Face has it, or a config.json, which is trained from scratch");
  options.flag("--from-scratch", flags.from_scratch, "Of the model's folder, use config.json alone");
  options.file(
      "--data", flags.data,
      "A set that `penstock data` made, or tokens: nanoGPT's or llm.c's .bin, Megatron's .bin beside its .idx, or "
      "a .txt whose bytes are tokens");
  options.text("--store", flags.stores, "PATH[,PATH]", "Folders of the store, one on each drive; made where missing");
  options.text("--budget", flags.budget, "host=SIZE[,nvme=SIZE][,device=SIZE]",
               "Host memory for everything, the program included; room on the drives; memory of the host device, which "
               "computes where that is given");
  options.text("--device", flags.device, "DEVICE",
               "What computes: cpu, in place; host, in memory of its own; cuda or cuda:N; auto: what can be used");
  options.file(
      "--machine", flags.machine,
      "Profile that `penstock nvme probe` left, of the store's drives; else they are measured for some seconds");
  options.text("--durability", flags.durability, "WHEN",
               "From when a step survives a crash: step, every:N, exit, or auto: every step, but what rests in "
               "host memory only as often as costs at most 3 %");
  options.count(
      "--ranks", flags.ranks,
      "Processes of this node that train together, each with its part of the state and of the budget; torchrun "
      "and Slurm start them likewise, on several nodes too");
  options.count("--steps", flags.steps, "Train until this step; 100 of the small GPT");
  options.count("--seq", flags.sequence, "Tokens of a sequence");
  options.count("--sequences", flags.sequences, "Sequences of a micro-batch");
  options.count("--micro-batches", flags.micro_batches, "Micro-batches of a step");
  options.count("--group", flags.group,
                "Micro-batches that pass through a unit before the next is fetched; 0: the planner chooses");
  options.choice(
      "--activations", flags.activations, {"auto", "recompute", "keep", "offload", "recompute_offload"},
      "Compute forward again in backward, keep what it made, or keep that (or its input alone) on the drives");
  options.number("--lr", flags.learning_rate, "Learning rate of the optimizer");
  options.number("--weight-decay", flags.weight_decay, "Of matrices; norms and biases have none");
  options.number("--clip", flags.clip, "Norm of all gradients together, at most; 0: not clipped");
  options.choice("--schedule", flags.schedule, {"constant", "linear", "cosine"},
                 "Of the learning rate after the warm-up");
  options.count("--warm-up", flags.warm_up, "Steps in which the learning rate rises");
  options.count("--seed", flags.seed, "Seed of weights, dropout and the order of samples");
  options.count("--eval-every", flags.eval_every, "Steps after which the held-out share is evaluated; 0: never");
  options.count("--sample-every", flags.sample_every,
                "Steps after which the prompts of CONFIG, samples.prompts, are answered; 0: never");
  options.count("--keep-every", flags.keep_every,
                "Steps after which a snapshot of the store stays; 0: none. See `penstock checkpoint rollback`");
  options.count("--keep-best", flags.keep_best, "Snapshots that stay, of the steps whose evaluation was best");
  options.count("--threads", flags.threads, "Threads that update; 0: one for each processor");
  options.choice("--engine", flags.io_engine, {"auto", "io_uring", "libaio", "threads"},
                 "How I/O is submitted; auto: the best that works here");
  if (which == TrainOptions::of_steps) return;
  options.flag("--dry-run", flags.dry_run,
               "Say what would be done: the config, the plan, its memory and its time; change nothing");
  options.flag("--force", flags.force, "Replace a store that is there");
}

Verb train_verb_with(std::function<Result<Answer>(Session&, const TrainFlags&)> train) {
  auto flags = std::make_shared<TrainFlags>();
  return {
      "train",
      "Train a model whose state rests in a store",
      "Weights, masters and moments rest in host memory and on drives as the budget allows, and move while forward\n"
      "and backward run on the CPU. CONFIG is JSON with comments, or YAML; a file of DeepSpeed's is such a file, and\n"
      "`penstock config check` says what becomes of each of its keys. Flags change what CONFIG says. Without CONFIG a "
      "run on a\n"
      "store that is there goes on as the run before did, and a new store gets a small GPT, trained on a text that\n"
      "ships with Penstock, byte by byte: --budget host=1GiB, --steps 100, --seq 128, --sequences 4, --micro-batches "
      "4,\n"
      "--lr 1e-3, --weight-decay 0.1, --clip 1, --warm-up 10, --schedule constant and --seed 1 where nothing else is "
      "said.\n"
      "With a section \"lora\" in CONFIG adapters are trained over the model's frozen\n"
      "weights; penstock-finetune(1) shows one. A run that was stopped or killed goes on from its last committed step\n"
      "when it is started again.\n\n"
      "The run's folder gets config.json, the config as it is followed; plan.json, what the planner says of it; and\n"
      "log.jsonl, one object a step; one run at a time writes there. There busy_s is how long each lane had something "
      "under way, floor_share the part\n"
      "of the step that its computing or its bytes would take alone, whichever takes longer, and tflops the model's\n"
      "operations in a second, in 10^12, without those that are done twice; mfu is the share of what large products "
      "of\n"
      "its type reach here by themselves, as measured before the first step.\n\n"
      "Several ranks train together: --ranks starts them on this node, torchrun and Slurm on several, which need\n"
      "MASTER_ADDR and MASTER_PORT (`torchrun --no-python ... -- penstock train ...`: without -- torchrun takes --run "
      "for its\n"
      "own); penstock-ranks(1) says how to choose stage and drives. Each node has its own\n"
      "CONFIG, data, stores and budget; rank 0 has the log. Nodes speak TCP, not encrypted: where PENSTOCK_SECRET is "
      "set,\n"
      "ranks of other nodes are let in only with the same.",
      {{"penstock train --store /mnt/nvme0/gpt --run ./gpt", "A small GPT on the shipped text"},
       {"penstock train --model ./Qwen3-0.6B --data book.bin --store /mnt/nvme0/qwen --budget host=4GiB",
        "Train a model of Hugging Face's further"},
       {"penstock train ds_config.json --model ./Qwen3-0.6B/config.json --data book.bin --store /mnt/nvme0/qwen",
        "A model of that shape from scratch, as a DeepSpeed file says"}},
      [flags, train = std::move(train)](Options& options) -> Action {
        train_options(options, *flags, TrainOptions::all);
        return [flags, train](Session& session) { return train(session, *flags); };
      }};
}

Verb generate_verb_with(std::function<Result<Answer>(Session&, const GenerateFlags&)> generate) {
  auto flags = std::make_shared<GenerateFlags>();
  return {
      "generate",
      "Let a run's model answer, as it is now",
      "RUN is the folder that `penstock train --run` was given, or the config of a run. The store's last step "
      "answers;\n"
      "nothing is changed. A PROMPT is asked by the tokenizer's chat template where there is one, and continued "
      "elsewhere;\n"
      "without any, the config's samples.prompts are. All prompts are answered together: the weights pass by once for\n"
      "each token. Keys and values of what came before lie in the run's host budget. Of a run in several ranks one "
      "process\n"
      "reads all their stores. While a run goes on its store is taken; \"sample_every\" in its config answers then.",
      {{"penstock generate ./run \"Where does the owl sleep?\"", "Ask what has been trained"},
       {"penstock generate finetune.json --temperature 0.8 --new-tokens 200", "The config's own prompts, by chance"}},
      [flags, generate = std::move(generate)](Options& options) -> Action {
        options.path("RUN", flags->source, "Folder with config.json, or a config");
        options.words("PROMPT", flags->prompts, "What is asked");
        options.text("--tokenizer", flags->tokenizer, "PATH", "Folder with the tokenizer, where the model's has none");
        options.count("--new-tokens", flags->new_tokens, "Of an answer, at most");
        options.number("--temperature", flags->temperature, "0: always the likeliest token");
        options.count("--top-k", flags->top_k, "Choose among so many of the likeliest tokens; 0: all");
        options.count("--seed", flags->seed, "Of the choice");
        return [flags, generate](Session& session) { return generate(session, *flags); };
      }};
}

}  // namespace penstock::tools
