#include "runtime/trainer/config/parameter_groups.h"

#include <gtest/gtest.h>

namespace penstock::trainer {
namespace {

Model small_model() {
  return make_model(
      *parse_model_config(R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4,
                              "vocab_size": 131, "n_positions": 64})"),
      Dtype::bf16);
}

TrainConfig config_with(std::vector<ParameterRule> rules) {
  TrainConfig config;
  config.hyper.lr = 1e-3;
  config.hyper.weight_decay = 0.1;
  config.rules = std::move(rules);
  return config;
}

// The group of the first parameter whose name has `part`.
ParameterGroup group_of(const Model& model, const ParameterGroups& groups, const std::string& part) {
  for (size_t unit = 0; unit < model.units.size(); ++unit)
    for (size_t i = 0; i < model.units[unit].parameters.size(); ++i)
      if (model.units[unit].parameters[i].name.find(part) != std::string::npos)
        return groups.groups[groups.of[unit][i]];
  ADD_FAILURE() << part;
  return {};
}

TEST(ParameterGroups, PatternsStandAnywhereInANameAndStarsForAnything) {
  const std::string name = "transformer.h.11.attn.c_attn.weight";
  for (const char* fits : {"attn", "h.11.", "h.*.attn", "*", "", "tr*h*weight", "c_attn.weight", "*weight*"})
    EXPECT_TRUE(name_fits(fits, name)) << fits;
  for (const char* other : {"h.1.", "mlp", "attn*h.11", "weights", "weight*c_attn", "attn.attn"})
    EXPECT_FALSE(name_fits(other, name)) << other;
}

TEST(ParameterGroups, MatricesDecayAndVectorsDoNotUnlessARuleSaysSo) {
  Model model = small_model();
  const auto usual = group_parameters(config_with({}), model);
  ASSERT_TRUE(usual.ok());
  EXPECT_EQ(group_of(model, *usual, "wte").weight_decay, 0.1);
  EXPECT_EQ(group_of(model, *usual, "ln_1.weight").weight_decay, 0);
  EXPECT_EQ(group_of(model, *usual, "c_fc.bias").weight_decay, 0);
  const auto all = group_parameters(config_with({{.pattern = "*", .weight_decay = 0.5}}), model);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(group_of(model, *all, "wte").weight_decay, 0.5);
  EXPECT_EQ(group_of(model, *all, "ln_1.weight").weight_decay, 0.5);
}

TEST(ParameterGroups, TheFirstRuleThatFitsCounts) {
  Model model = small_model();
  const auto groups = group_parameters(
      config_with(
          {{.pattern = "h.0.", .lr = 0.5}, {.pattern = "attn", .lr = 0.25}, {.pattern = "wpe", .frozen = true}}),
      model);
  ASSERT_TRUE(groups.ok()) << groups.status().message();
  EXPECT_EQ(group_of(model, *groups, "h.0.attn.c_attn.weight").lr, 0.5);
  EXPECT_EQ(group_of(model, *groups, "h.1.attn.c_attn.weight").lr, 0.25);
  EXPECT_EQ(group_of(model, *groups, "h.1.mlp").lr, 1e-3);
  EXPECT_EQ(group_of(model, *groups, "wpe"), ParameterGroup());
  for (const ModelUnit& unit : model.units)
    for (const ModelParameter& parameter : unit.parameters)
      EXPECT_EQ(parameter.trainable, parameter.name != "transformer.wpe.weight") << parameter.name;
}

TEST(ParameterGroups, RefusesRulesThatDoNothingAndRulesThatLeaveNothing) {
  Model model = small_model();
  const auto nothing = group_parameters(config_with({{.pattern = "lora"}}), model);
  ASSERT_FALSE(nothing.ok());
  EXPECT_NE(nothing.status().message().find("'lora' is in no parameter's name"), std::string::npos)
      << nothing.status().message();
  EXPECT_FALSE(group_parameters(config_with({{.pattern = "*", .frozen = true}}), model).ok());
}

TEST(ParameterGroups, EveryGroupFollowsTheSchedule) {
  Model model = small_model();
  TrainConfig config = config_with({{.pattern = "attn", .lr = 2e-3}, {.pattern = "wpe", .frozen = true}});
  config.schedule = {.kind = ScheduleKind::linear, .warmup_steps = 2, .total_steps = 10};
  const auto groups = group_parameters(config, model);
  ASSERT_TRUE(groups.ok());
  for (uint64_t step : {1, 2, 5, 10}) {
    const std::vector<Hyper> hypers = hypers_of(config, *groups, step);
    for (size_t i = 0; i < hypers.size(); ++i) {
      EXPECT_EQ(hypers[i].lr, rate_of(config.schedule, groups->groups[i].lr, step).lr);
      EXPECT_EQ(hypers[i].weight_decay, groups->groups[i].weight_decay);
    }
  }
  // A schedule with rates of its own keeps the proportion, and what is frozen stays so.
  config.schedule = {.kind = ScheduleKind::one_cycle, .cycle_min_lr = 0.1, .cycle_max_lr = 0.2};
  const std::vector<Hyper> hypers = hypers_of(config, *groups, 7);
  const double usual = rate_of(config.schedule, 1, 7).lr;
  for (size_t i = 0; i < hypers.size(); ++i) {
    EXPECT_DOUBLE_EQ(hypers[i].lr, usual * (groups->groups[i].lr / 1e-3));
    EXPECT_EQ(hypers[i].beta1, rate_of(config.schedule, 1, 7).betas->first);
    EXPECT_EQ(hypers[i].momentum, hypers[i].beta1) << "SGD's, as DeepSpeed cycles it";
    EXPECT_EQ(hypers[i].beta2, rate_of(config.schedule, 1, 7).betas->second);
  }
  // Of no usual rate there is no proportion.
  config.hyper.lr = 0;
  const Hyper of_rule = hypers_of(config, {.groups = {{0, 0}, {2e-3, 0}}, .of = {}}, 7)[1];
  EXPECT_EQ(of_rule.lr, 0);
}

}  // namespace
}  // namespace penstock::trainer
