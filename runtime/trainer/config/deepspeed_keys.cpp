// DeepSpeed's keys.
#include "runtime/trainer/config/key_rule_macros.h"

namespace penstock::trainer {
namespace {

using json = nlohmann::ordered_json;
using enum KeyFate;

std::string read_stage(const json& value, uint32_t& into) {
  const std::string wrong = read_whole(value, 0, into);
  return wrong.empty() && into > 3 ? text("is ", into, ", 0 to 3 expected") : wrong;
}

// By either of two keys.
std::string read_shard_ranks(const json& value, TrainConfig& config) {
  const uint32_t before = config.shard_ranks;
  const std::string wrong = read_whole(value, 0, config.shard_ranks);
  if (!wrong.empty() || before == 0 || before == config.shard_ranks) return wrong;
  return text("is ", value.dump(), ", and mics_shard_size and zero_hpz_partition_size are one: ", before,
              " is said too");
}

std::string read_precision(const json& value, TrainConfig& config, Dtype dtype) {
  bool on = false;
  const std::string wrong = read_flag(value, on);
  if (on) config.precision = dtype;
  return wrong;
}

std::string read_betas(const json& value, TrainConfig& config) {
  if (!value.is_array() || value.size() != 2) return text("is ", value.dump(), ", two numbers expected");
  const std::string wrong = read_number(value[0], 0, 1, config.hyper.beta1);
  return wrong.empty() ? read_number(value[1], 0, 1, config.hyper.beta2) : wrong;
}

// A drive that DeepSpeed's file names is used unless the file says where ours are.
std::string read_nvme_path(const json& value, TrainConfig& config) {
  std::string path;
  const std::string wrong = read_words(value, path);
  if (wrong.empty() && config.stores.empty()) config.stores.push_back(path);
  return wrong;
}

constexpr const char* kPlanned = "the planner chooses by budgets: penstock.host_budget and so on";
constexpr const char* kNoFiles = "the run's log.jsonl has what there is";
constexpr const char* kProbed = "drives are measured, and the I/O engine is chosen by what they give";
constexpr const char* kOneRank = "one process has nothing to communicate";

const KeyRule kRules[] = {
    {"train_batch_size", honoured, "", PENSTOCK_WHOLE(train_batch, 1)},
    {"train_micro_batch_size_per_gpu", honoured, "", PENSTOCK_WHOLE(micro_batch, 1)},
    {"gradient_accumulation_steps", honoured, "", PENSTOCK_WHOLE(accumulation, 1)},
    {"steps_per_print", honoured, "", PENSTOCK_WHOLE(steps_per_print, 1)},
    {"gradient_clipping", honoured, "exact, by the global norm", PENSTOCK_NUMBER(gradient_clipping, 0, kNoLimit)},
    {"optimizer.type", honoured, "",
     [](const json& value, TrainConfig& config) {
       using enum OptimizerKind;
       return read_choice<OptimizerKind>(
           value, {{"AdamW", adamw}, {"Adam", adam}, {"Adagrad", adagrad}, {"Lion", lion}, {"SGD", sgd}},
           config.optimizer);
     }},
    {"optimizer.params.lr", honoured, "", PENSTOCK_NUMBER(hyper.lr, 0, 1e9)},
    {"optimizer.params.betas", honoured, "", read_betas},
    {"optimizer.params.eps", honoured, "", PENSTOCK_NUMBER(hyper.eps, 0, 1)},
    {"optimizer.params.weight_decay", honoured,
     "of matrices; norms and biases have none, unless a rule of `parameters` says so",
     PENSTOCK_NUMBER(hyper.weight_decay, 0, 1e9)},
    {"optimizer.params.momentum", honoured, "", PENSTOCK_NUMBER(hyper.momentum, 0, 1)},
    {"optimizer.params.dampening", honoured, "", PENSTOCK_NUMBER(hyper.dampening, 0, 1)},
    {"optimizer.params.nesterov", honoured, "", PENSTOCK_FLAG(hyper.nesterov)},
    {"optimizer.params.lr_decay", honoured, "", PENSTOCK_NUMBER(hyper.lr_decay, 0, 1e9)},
    {"optimizer.params.torch_adam", no_effect,
     "there is one implementation, and it computes what torch's fused one does"},
    {"optimizer.params.adam_w_mode", refused, "name the optimizer: AdamW, or Adam for decay that joins the gradient"},
    {"optimizer.params.bias_correction", refused, "the bias is always corrected"},
    {"optimizer.params.amsgrad", refused, "not offered"},
    {"optimizer.legacy_fusion", no_effect, "there is one implementation of each optimizer"},
    {"scheduler.type", honoured, "",
     [](const json& value, TrainConfig& config) {
       using enum ScheduleKind;
       return read_choice<ScheduleKind>(value,
                                        {{"LRRangeTest", lr_range_test},
                                         {"OneCycle", one_cycle},
                                         {"WarmupLR", warmup},
                                         {"WarmupDecayLR", warmup_decay},
                                         {"WarmupCosineLR", warmup_cosine},
                                         {"constant", constant},
                                         {"linear", linear},
                                         {"cosine", cosine}},
                                        config.schedule.kind);
     }},
    {"scheduler.params.warmup_steps", honoured, "constant, linear, cosine", PENSTOCK_WHOLE(schedule.warmup_steps, 0)},
    {"scheduler.params.total_steps", honoured, "linear, cosine", PENSTOCK_WHOLE(schedule.total_steps, 1)},
    {"scheduler.params.end_ratio", honoured, "linear, cosine", PENSTOCK_NUMBER(schedule.end_ratio, 0, 1)},
    {"scheduler.params.lr_range_test_min_lr", honoured, "", PENSTOCK_NUMBER(schedule.range_min_lr, 0, kNoLimit)},
    {"scheduler.params.lr_range_test_step_size", honoured, "", PENSTOCK_NUMBER(schedule.range_step_size, 1, kNoLimit)},
    {"scheduler.params.lr_range_test_step_rate", honoured, "", PENSTOCK_NUMBER(schedule.range_step_rate, 0, kNoLimit)},
    {"scheduler.params.lr_range_test_staircase", honoured, "", PENSTOCK_FLAG(schedule.range_staircase)},
    {"scheduler.params.cycle_min_lr", honoured, "", PENSTOCK_NUMBER(schedule.cycle_min_lr, 0, kNoLimit)},
    {"scheduler.params.cycle_max_lr", honoured, "", PENSTOCK_NUMBER(schedule.cycle_max_lr, 0, kNoLimit)},
    {"scheduler.params.cycle_first_step_size", honoured, "",
     PENSTOCK_NUMBER(schedule.cycle_first_step_size, 1, kNoLimit)},
    {"scheduler.params.cycle_second_step_size", honoured, "",
     PENSTOCK_OPTIONAL_NUMBER(schedule.cycle_second_step_size)},
    {"scheduler.params.cycle_first_stair_count", honoured, "", PENSTOCK_WHOLE(schedule.cycle_first_stair_count, 0)},
    {"scheduler.params.cycle_second_stair_count", honoured, "",
     [](const json& value, TrainConfig& config) {
       return read_whole(value, 0, config.schedule.cycle_second_stair_count.emplace());
     }},
    {"scheduler.params.decay_step_size", honoured, "", PENSTOCK_NUMBER(schedule.decay_step_size, 0, kNoLimit)},
    {"scheduler.params.decay_lr_rate", honoured, "", PENSTOCK_NUMBER(schedule.decay_lr_rate, 0, kNoLimit)},
    {"scheduler.params.cycle_momentum", honoured, "", PENSTOCK_FLAG(schedule.cycle_momentum)},
    {"scheduler.params.cycle_min_mom", honoured, "", PENSTOCK_NUMBER(schedule.cycle_min_mom, 0, 1)},
    {"scheduler.params.cycle_max_mom", honoured, "", PENSTOCK_NUMBER(schedule.cycle_max_mom, 0, 1)},
    {"scheduler.params.decay_mom_rate", honoured, "", PENSTOCK_NUMBER(schedule.decay_mom_rate, 0, kNoLimit)},
    {"scheduler.params.warmup_min_lr", honoured, "", PENSTOCK_NUMBER(schedule.warmup_min_lr, 0, kNoLimit)},
    {"scheduler.params.warmup_max_lr", honoured, "", PENSTOCK_OPTIONAL_NUMBER(schedule.warmup_max_lr)},
    {"scheduler.params.warmup_num_steps", honoured, "", PENSTOCK_WHOLE(schedule.warmup_num_steps, 1)},
    {"scheduler.params.warmup_type", honoured, "",
     [](const json& value, TrainConfig& config) {
       return read_choice<WarmupType>(value, {{"log", WarmupType::log}, {"linear", WarmupType::linear}},
                                      config.schedule.warmup_type);
     }},
    {"scheduler.params.total_num_steps", honoured, "", PENSTOCK_WHOLE(schedule.total_num_steps, 1)},
    {"scheduler.params.warmup_min_ratio", honoured, "", PENSTOCK_NUMBER(schedule.warmup_min_ratio, 0, 1)},
    {"scheduler.params.cos_min_ratio", honoured, "", PENSTOCK_NUMBER(schedule.cos_min_ratio, 0, 1)},
    {"scheduler.params.last_batch_iteration", no_effect, "the store knows the step"},
    {"fp16.enabled", honoured, "",
     [](const json& value, TrainConfig& config) { return read_precision(value, config, Dtype::fp16); }},
    {"fp16.loss_scale", honoured, "", PENSTOCK_NUMBER(loss_scaling.scale, 0, kNoLimit)},
    {"fp16.initial_scale_power", honoured, "",
     [](const json& value, TrainConfig& config) {
       constexpr uint32_t kPowerMax = 100;
       return read_whole_up_to(value, 0, kPowerMax, config.loss_scaling.initial_scale_power);
     }},
    {"fp16.loss_scale_window", honoured, "", PENSTOCK_WHOLE(loss_scaling.window, 1)},
    {"fp16.hysteresis", honoured, "", PENSTOCK_WHOLE(loss_scaling.hysteresis, 1)},
    {"fp16.consecutive_hysteresis", honoured, "", PENSTOCK_FLAG(loss_scaling.consecutive_hysteresis)},
    {"fp16.min_loss_scale", honoured, "", PENSTOCK_NUMBER(loss_scaling.least, 1e-30, kNoLimit)},
    {"fp16.auto_cast", no_effect, "inputs are tokens"},
    {"fp16.fp16_master_weights_and_grads", refused, "masters are fp32; use penstock.moments to save memory"},
    {"bf16.enabled", honoured, "or bfloat16.enabled; where it is false and fp16.enabled too, all is fp32",
     [](const json& value, TrainConfig& config) { return read_precision(value, config, Dtype::bf16); }},
    {"bf16.immediate_grad_update", no_effect, "gradients are always consumed as they come"},
    {"bf16.check_grad_overflow", honoured, "the same as skip_overflow",
     [](const json& value, TrainConfig& config) { return read_flag(value, config.skip_overflow.emplace()); }},
    {"bf16.bf16_master_weights_and_grads", refused, "masters are fp32; use penstock.moments to save memory"},
    {"bf16.bf16_optimizer_states", honoured, "the same as penstock.moments bf16",
     [](const json& value, TrainConfig& config) {
       bool on = false;
       const std::string wrong = read_flag(value, on);
       if (on) config.moments = MomentForm::bf16;
       return wrong;
     }},
    {"data_types.grad_accum_dtype", no_effect, "gradients are always added up in fp32"},
    {"communication_data_type", no_effect, kOneRank},
    {"prescale_gradients", no_effect, kOneRank},
    {"gradient_predivide_factor", no_effect, kOneRank},
    {"gradient_allreduce_op", no_effect, kOneRank},
    {"sparse_gradients", no_effect, "gradients are dense"},
    {"disable_allgather", no_effect, kOneRank},
    {"zero_allow_untested_optimizer", no_effect, "every optimizer offered is tested"},
    {"zero_force_ds_cpu_optimizer", no_effect, "there is one implementation of each optimizer"},
    {"zero_optimization.offload_optimizer.nvme_path", honoured, "a store, where penstock.stores names none",
     read_nvme_path},
    {"zero_optimization.offload_param.nvme_path", honoured, "a store, where penstock.stores names none",
     read_nvme_path},
    {"zero_optimization.offload_optimizer.super_offload", no_effect, "updates are always speculative, and exact"},
    {"zero_optimization.offload_optimizer.device", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.buffer_count", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.pin_memory", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.pipeline", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.pipeline_read", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.pipeline_write", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.fast_init", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.ratio", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.max_in_cpu", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer", no_effect, kPlanned},
    {"zero_optimization.offload_param.device", no_effect, kPlanned},
    {"zero_optimization.offload_param.buffer_count", no_effect, kPlanned},
    {"zero_optimization.offload_param.buffer_size", no_effect, kPlanned},
    {"zero_optimization.offload_param.max_in_cpu", no_effect, kPlanned},
    {"zero_optimization.offload_param.pin_memory", no_effect, kPlanned},
    {"zero_optimization.offload_param", no_effect, kPlanned},
    {"zero_optimization.zero_quantized_weights", honoured,
     "several ranks gather weights in int8, and compute with what that stands for", PENSTOCK_FLAG(codes.weights)},
    {"zero_optimization.zero_quantized_nontrainable_weights", honoured, "the same of frozen weights alone",
     PENSTOCK_FLAG(codes.frozen_weights)},
    {"zero_optimization.zero_quantized_gradients", honoured,
     "several ranks send their gradients in int4 to the one that adds them up", PENSTOCK_FLAG(codes.gradients)},
    {"zero_optimization.zenflow", refused, "it trains on old gradients; updates are hidden without that here"},
    {"zero_optimization.zenflow.*", refused, "it trains on old gradients; updates are hidden without that here"},
    {"zero_optimization.zeropp_loco_param.*", refused,
     "what int4 loses of a gradient is not kept for the next step; zero_quantized_gradients alone"},
    {"zero_optimization.stage", honoured,
     "what each of several ranks keeps; where nothing is said, the fastest that fits; changes no bit",
     [](const json& value, TrainConfig& config) { return read_stage(value, config.zero_stage.emplace()); }},
    {"zero_optimization.contiguous_gradients", no_effect, kPlanned},
    {"zero_optimization.reduce_scatter", no_effect, kPlanned},
    {"zero_optimization.reduce_bucket_size", no_effect, kPlanned},
    {"zero_optimization.use_multi_rank_bucket_allreduce", no_effect, kPlanned},
    {"zero_optimization.allgather_partitions", no_effect, kPlanned},
    {"zero_optimization.allgather_bucket_size", no_effect, kPlanned},
    {"zero_optimization.overlap_comm", no_effect, kPlanned},
    {"zero_optimization.load_from_fp32_weights", no_effect, kPlanned},
    {"zero_optimization.elastic_checkpoint", no_effect, kPlanned},
    {"zero_optimization.sub_group_size", no_effect, kPlanned},
    {"zero_optimization.cpu_offload", no_effect, kPlanned},
    {"zero_optimization.cpu_offload_param", no_effect, kPlanned},
    {"zero_optimization.cpu_offload_params", no_effect, kPlanned},
    {"zero_optimization.cpu_offload_use_pin_memory", no_effect, kPlanned},
    {"zero_optimization.stage3_max_live_parameters", no_effect, kPlanned},
    {"zero_optimization.stage3_max_reuse_distance", no_effect, kPlanned},
    {"zero_optimization.stage3_prefetch_bucket_size", no_effect, kPlanned},
    {"zero_optimization.stage3_param_persistence_threshold", no_effect, kPlanned},
    {"zero_optimization.stage3_model_persistence_threshold", no_effect, kPlanned},
    {"zero_optimization.stage3_module_granularity_threshold", no_effect, kPlanned},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", no_effect, kPlanned},
    {"zero_optimization.stage3_allgather_sequential", no_effect, kPlanned},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", no_effect, kPlanned},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", no_effect, kPlanned},
    {"zero_optimization.ignore_unused_parameters", no_effect, kPlanned},
    {"zero_optimization.legacy_stage1", no_effect, kPlanned},
    {"zero_optimization.round_robin_gradients", no_effect, kPlanned},
    {"zero_optimization.zero_hpz_partition_size", honoured,
     "the same as mics_shard_size: a node keeps its copy of the state too; 1: not asked for",
     [](const json& value, TrainConfig& config) { return value == 1 ? "" : read_shard_ranks(value, config); }},
    {"zero_optimization.mics_shard_size", honoured,
     "ranks, neighbours, that share one copy of the model and its state, those of a node for instance; 0: all",
     [](const json& value, TrainConfig& config) {
       // DeepSpeed's -1: not asked for.
       return value == -1 ? "" : read_shard_ranks(value, config);
     }},
    {"zero_optimization.mics_hierarchical_params_gather", no_effect, kPlanned},
    {"zero_optimization.memory_efficient_linear", no_effect, kPlanned},
    {"zero_optimization.pipeline_loading_checkpoint", no_effect, kPlanned},
    {"zero_optimization.override_module_apply", no_effect, kPlanned},
    {"zero_optimization.log_trace_cache_warnings", no_effect, kPlanned},
    {"zero_optimization.leaf_module.*", no_effect, kPlanned},
    {"zero_optimization", no_effect, kPlanned},
    {"aio.*", no_effect, kProbed},
    {"activation_checkpointing.*", no_effect, "the planner chooses by unit; penstock.activations overrides it"},
    {"checkpoint.*", no_effect, "the store is the checkpoint; `penstock checkpoint export` writes safetensors"},
    {"data_efficiency.*", refused, "not offered"},
    {"wall_clock_breakdown", no_effect, kNoFiles},
    {"dump_state", no_effect, kNoFiles},
    {"memory_breakdown", no_effect, kNoFiles},
    {"flops_profiler.*", no_effect, kNoFiles},
    {"comms_logger.*", no_effect, kNoFiles},
    {"tensorboard.*", no_effect, kNoFiles},
    {"wandb.*", no_effect, kNoFiles},
    {"comet.*", no_effect, kNoFiles},
    {"csv_monitor.*", no_effect, kNoFiles},
    {"autotuning.*", no_effect, "the planner chooses by measured rates"},
    {"dataloader_drop_last", no_effect, "samples are drawn endlessly"},
    {"amp.*", refused, "use bf16.enabled or fp16.enabled"},
    {"torch_autocast.*", refused, "use bf16.enabled or fp16.enabled"},
    {"elasticity.*", refused, "give the batch as micro-batch and accumulation"},
    {"sparse_attention.*", refused, "models compute the attention of their config.json"},
    {"curriculum_learning.*", refused, "not offered"},
    {"progressive_layer_drop.*", refused, "not offered"},
    {"compression_training.*", refused, "not offered"},
    {"quantize_training.*", refused, "not offered"},
    {"hybrid_engine.*", refused, "not offered"},
    {"eigenvalue.*", refused, "not offered"},
    {"tensor_parallel.*", refused, "not offered"},
    {"pipeline.*", refused, "not offered"},
};

}  // namespace

std::span<const KeyRule> deepspeed_keys() { return kRules; }

}  // namespace penstock::trainer
