# What adapters and their base in codes are, broken at one place each: a test that is named must fail.

if(NOT PENSTOCK_HAS_LIBTORCH)
  return()
endif()

add_library(lora_test_object OBJECT
            ${PROJECT_SOURCE_DIR}/tests/trainer/adapters_test.cpp
            ${PROJECT_SOURCE_DIR}/tests/trainer/torch/lora_test.cpp)
target_include_directories(lora_test_object PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(lora_test_object PRIVATE penstock_trainer_torch GTest::gtest)
penstock_optimize_little(lora_test_object)

# penstock_lora_mutant(NAME TEST FILE TEXT REPLACEMENT): TEST is the one that must fail.
function(penstock_lora_mutant name test file text replacement)
  penstock_read_source(source ${file})
  penstock_put_mistake(source ${name} ${file} "${text}" "${replacement}")
  penstock_return_unless_in_part(${name})
  penstock_mutant_program(lora_mutant_${name} lora_test_object ${file} "${source}" penstock_trainer_torch GTest::gtest GTest::gtest_main)
  add_test(NAME LoraMutant.${name} COMMAND lora_mutant_${name} --gtest_fail_fast --gtest_filter=*${test}*)
  set_tests_properties(LoraMutant.${name} PROPERTIES PASS_REGULAR_EXPRESSION "1 FAILED TEST" TIMEOUT 300
                       ENVIRONMENT OMP_NUM_THREADS=1)
endfunction()

# The block's computation.

penstock_lora_mutant(scale_dropped Lora.LossAndGradientsAreThoseOfAutograd runtime/trainer/torch/block.cpp
  "at::linear(inner, weights_.adapter_b[role]) * weights_.adapters.scale"
  "at::linear(inner, weights_.adapter_b[role])")
penstock_lora_mutant(dropped_while_it_is_evaluated Lora.BackwardDropsWhatForwardDropped runtime/trainer/torch/block.cpp
  "const double dropout = keys_.training ? weights_.adapters.dropout : 0;"
  "const double dropout = weights_.adapters.dropout;")
penstock_lora_mutant(one_mask_for_all_micro_batches Lora.BackwardDropsWhatForwardDropped runtime/trainer/torch/block.cpp
  "stream_key(seed, step, micro_batch, use, site)"
  "stream_key(seed, step, 0, use, site)")
penstock_lora_mutant(mask_of_another_pass Lora.BackwardDropsWhatForwardDropped runtime/trainer/torch/train_step.cpp
  "const DropoutKeys keys = way.keys_of(micro_batch);
    const UseFunction function = [&]("
  "const DropoutKeys keys = way.keys_of(0);
    const UseFunction function = [&](")
penstock_lora_mutant(gradients_of_factors_transposed Lora.LossAndGradientsAreThoseOfAutograd runtime/trainer/torch/train_step.cpp
  "const at::Tensor values = std::move(*next++);"
  "at::Tensor values = std::move(*next++);
      if (values.defined() && values.dim() == 2) values = values.t().contiguous();")

# What is added to weights for an export, and the files.

penstock_lora_mutant(merged_without_scale Merging.AddsTheProductOfTheFactors runtime/trainer/adapter_merge.cpp
  "for (float& x : product.left) x *= scale;"
  "")
penstock_lora_mutant(merged_transposed Merging.AddsTheProductOfTheFactors runtime/trainer/adapter_merge.cpp
  "model_.config.block == BlockKind::gpt2"
  "model_.config.block != BlockKind::gpt2")
penstock_lora_mutant(scale_of_alpha_alone Adapters.CountByAlphaAndRank runtime/trainer/config/adapters.cpp
  "alpha / std::sqrt(rank) : alpha / rank;"
  "alpha / std::sqrt(rank) : alpha;")
penstock_lora_mutant(factors_swapped Adapters.AreAUnitOfTheirOwn runtime/trainer/config/adapters.cpp
  "(is_a ? \".lora_A.weight\" : \".lora_B.weight\")"
  "(is_a ? \".lora_B.weight\" : \".lora_A.weight\")")
penstock_lora_mutant(a_begins_with_zeros Adapters.ABeginsUniform runtime/trainer/config/adapters.cpp
  "is_a ? Initial::uniform : Initial::zeros"
  "Initial::zeros")
penstock_lora_mutant(norms_in_codes Adapters.WhatRestsInCodesIsMatricesAlone runtime/trainer/config/adapters.cpp
  "is_matrix(parameter) ? unit : others"
  "unit")

