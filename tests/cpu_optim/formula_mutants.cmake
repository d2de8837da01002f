# A suite that passes with a sign flipped or a tail element skipped is a defect. Each mutant is one source with one
# mistake in it; the tests, linked with it in place of the real one, must fail.

if(PENSTOCK_SANITIZE)
  return()  # the unbroken suite runs there
endif()

add_library(formula_test_object OBJECT
            ${PROJECT_SOURCE_DIR}/tests/cpu_optim/block_codes_test.cpp
            ${PROJECT_SOURCE_DIR}/tests/cpu_optim/definition_test.cpp
            ${PROJECT_SOURCE_DIR}/tests/cpu_optim/isa_equality_test.cpp
            ${PROJECT_SOURCE_DIR}/tests/cpu_optim/low_bit_moments_test.cpp
            ${PROJECT_SOURCE_DIR}/tests/cpu_optim/numbers_runs_test.cpp
            ${PROJECT_SOURCE_DIR}/tests/cpu_optim/textbook_test.cpp
            ${PROJECT_SOURCE_DIR}/tests/cpu_optim/tile_notes_test.cpp)
target_include_directories(formula_test_object PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(formula_test_object PRIVATE penstock_cpu_optim GTest::gtest)
penstock_optimize_little(formula_test_object)

# penstock_formula_mutant(NAME TESTS SOURCE FILE TEXT REPLACEMENT): SOURCE is what is compiled anew, FILE the one that is
# changed: SOURCE itself or a header that it includes.
function(penstock_formula_mutant name tests source file text replacement)
  penstock_read_source(content ${file})
  penstock_put_mistake(content ${name} ${file} "${text}" "${replacement}")
  penstock_return_unless_in_part(${name})
  set(program formula_mutant_${name})
  set(folder ${CMAKE_BINARY_DIR}/mutants/${program})
  if(NOT file STREQUAL source)
    file(CONFIGURE OUTPUT ${folder}/${file} CONTENT "${content}" @ONLY)
    penstock_read_source(content ${source})  # a copy, so that its flags are its own
  endif()
  penstock_mutant_program(${program} formula_test_object ${source} "${content}" penstock_cpu_optim GTest::gtest GTest::gtest_main)
  # A kernel's source takes half as long to compile, and is wrong all the same.
  target_compile_options(${program} PRIVATE -O0)
  if(source MATCHES "avx2")
    set_source_files_properties(${folder}/${source} PROPERTIES COMPILE_OPTIONS "-O2;${PENSTOCK_AVX2_FLAGS}")
  endif()
  target_include_directories(${program} BEFORE PRIVATE ${folder})
  target_include_directories(${program} SYSTEM PRIVATE ${PENSTOCK_XSIMD_INCLUDE})
  add_test(NAME FormulaMutant.${name} COMMAND formula_mutant_${name} --gtest_fail_fast --gtest_filter=*${tests}*)
  set_tests_properties(FormulaMutant.${name} PROPERTIES PASS_REGULAR_EXPRESSION "1 FAILED TEST" TIMEOUT 300)
endfunction()

set(formula tiering/arithmetic/optimizer.h)
set(scalar cpu_optim/kernels_scalar.cpp)

penstock_formula_mutant(sign_flipped Textbook ${scalar} ${formula}
  "p = counted<N>(p + counted<N>(N::quotient(N::normal(N::all(c.step_size)" "p = counted<N>(p - counted<N>(N::quotient(N::normal(N::all(c.step_size)")
penstock_formula_mutant(weight_decay_twice Textbook ${scalar} ${formula}
  "p = N::normal(p * N::all(c.decay))" "p = N::normal(p * N::all(c.decay) * N::all(c.decay))")
penstock_formula_mutant(momentum_after_gradient Textbook ${scalar} ${formula}
  "c.momentum_from_gradient ? g : m" "c.momentum_from_gradient ? m : g")
penstock_formula_mutant(eps_inside_the_root Textbook ${scalar} ${formula}
  "N::quotient(N::root(v), N::all(c.variance_correction)) + N::all(c.eps)"
  "N::quotient(N::root(v + N::all(c.eps)), N::all(c.variance_correction))")
penstock_formula_mutant(nesterov_forgotten Textbook ${scalar} ${formula}
  "c.nesterov ? counted<N>(N::fused(m, N::all(c.momentum), g)) : m" "m")
penstock_formula_mutant(resting_momentum_lost Textbook ${scalar} ${formula}
  "m = flushed_momentum<N, M>(m * N::all(scales.momentum));" "m = g;")
penstock_formula_mutant(moments_not_flushed HardwareFlushing ${scalar} ${formula}
  "M == Moments::divided ? kMomentTiny : kLowBitTiny" "0.0f")
penstock_formula_mutant(tiny_low_bit_momenta_counted HardwareFlushing ${scalar} ${formula}
  "m = N::zero_below(m, kLowBitTiny)" "m = N::zero_below(m, 0.0f)")
penstock_formula_mutant(tiny_blocks_coded IsZero ${scalar} tiering/arithmetic/byte_moments.h
  "if (largest_rounded < kByteTinyHalf) return 0;" "")
penstock_formula_mutant(sign_of_tiny_gradients HardwareFlushing ${scalar} ${formula}
  "g = N::normal(g)" "")
penstock_formula_mutant(denormal_steps_counted EdgesOfHyper ${scalar} ${formula}
  "N::normal(N::all(c.step_size) * m)" "N::all(c.step_size) * m")
penstock_formula_mutant(denormal_quotients_counted EdgesOfHyper ${scalar} ${formula}
  "N::normal(N::quotient(m, denominator))" "N::quotient(m, denominator)")
penstock_formula_mutant(denormal_momenta_counted EdgesOfHyper ${scalar} ${formula}
  "m = N::normal(m)" "m = N::flushed(m, 0.0f)")
penstock_formula_mutant(denormal_weights_counted EdgesOfHyper ${scalar} ${formula}
  "p = N::normal(p * N::all(c.decay))" "p = p * N::all(c.decay)")
penstock_formula_mutant(denormal_weights_of_lion_counted EdgesOfHyper ${scalar} ${formula}
  "counted<N>(N::normal(p * N::all(c.decay))" "counted<N>(p * N::all(c.decay)")
penstock_formula_mutant(denormal_rates_counted NoDenormalCoefficients tiering/hyper.cpp tiering/hyper.cpp
  "std::abs(value) < kLeastNormal" "std::abs(value) < 0")
penstock_formula_mutant(gradient_scaled_twice RoundedMoments ${scalar} ${formula}
  "c.beta2_rest_root * scales.gradient" "c.beta2_rest_root * scales.gradient * scales.gradient")

penstock_formula_mutant(root_not_squared RoundedMoments ${scalar} ${formula}
  "N::fused(v * v, N::all(kept)" "N::fused(v, N::all(kept)")
penstock_formula_mutant(rounded_past_the_neighbour RoundedMoments ${scalar} cpu_optim/byte_update_kernel.h
  "turn.at[k] >> (32 - arithmetic::kMomentumCode.shift)" "turn.at[k] >> (30 - arithmetic::kMomentumCode.shift)")

penstock_formula_mutant(lr_tripled Textbook tiering/hyper.cpp tiering/hyper.cpp
  "-hyper.lr / (1 - std::pow(hyper.beta1, count))" "-3 * hyper.lr / (1 - std::pow(hyper.beta1, count))")
penstock_formula_mutant(bias_correction_dropped Textbook tiering/hyper.cpp tiering/hyper.cpp
  "std::sqrt(1 - std::pow(hyper.beta2, count))" "std::sqrt(1 - 0 * count)")

penstock_formula_mutant(tail_element_skipped IsTheSameOnEveryIsa cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "std::memcpy(run.planes[i].target, scratch[i], planes_[i].bytes(run.elements))"
  "std::memcpy(run.planes[i].target, scratch[i], planes_[i].bytes(run.elements - (kernels_.isa != Isa::scalar)))")
penstock_formula_mutant(random_numbers_of_the_tile CutsAndAlignment cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "run.random_index = static_cast<uint32_t>(index)" "run.random_index = static_cast<uint32_t>(first)")
penstock_formula_mutant(last_checksum_part_skipped Checksums cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "if (!wants_target()) return" "if (!wants_target() || elements < kNotedElements) return")

penstock_formula_mutant(groups_of_a_tile_ignored RunsOfForm cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "std::min({end - first, until_key, end_element - index})" "std::min(end - first, until_key)")
penstock_formula_mutant(group_one_element_longer RunsOfForm cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "end_element - index})" "end_element - index + (end_element - index < 5000)})")
penstock_formula_mutant(groups_counted_from_the_tile RunsOfForm cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "const uint64_t index = tile_.first_element + first;
    const auto&" "const uint64_t index = first;
    const auto&")
penstock_formula_mutant(ragged_rest_of_another_group RunsOfForm cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "here - whole, numbers), numbers.coefficients)" "here - whole, numbers), runs_.back().numbers.coefficients)")
penstock_formula_mutant(seed_of_another_group RunsOfForm cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "random_key(numbers.seed," "random_key(runs_.back().numbers.seed,")
penstock_formula_mutant(last_group_begins_early RunsOfForm cpu_optim/tile_sweep.cpp cpu_optim/tile_sweep.cpp
  "numbers_at(index);
    const uint64_t until_key"
  "runs_[numbers_at(index).end_element > 0 && runs_.size() == 2];
    const uint64_t until_key")

penstock_formula_mutant(split_never_rounds_up SplitMaster ${scalar} cpu_optim/lanes/order.h
  "L::add16(packed_upper(x), L::shift_right16(low, 15))" "packed_upper(x)")
if(PENSTOCK_AVX2_FLAGS)
  penstock_formula_mutant(fma_rounds_twice IsTheSameOnEveryIsa cpu_optim/kernels_avx2.cpp cpu_optim/lanes/avx2_lanes.h
    "return _mm256_fmadd_ps(a, b, c)" "return a * b + c")
endif()

# Frozen weights in codes.

set(avx2 cpu_optim/kernels_avx2.cpp)
penstock_formula_mutant(block_scale_dropped BlockCodes.AreTheSameBits ${scalar} cpu_optim/dequantise_kernel.h
  "L::load(kQuantiles.data() + at) * L::all(scale)" "L::load(kQuantiles.data() + at)")
penstock_formula_mutant(scale_of_the_first_block BlockCodes.AreTheSameBits ${scalar} cpu_optim/dequantise_kernel.h
  "--blocks, codes += kCodeBytes, ++scales, target" "--blocks, codes += kCodeBytes, target")
penstock_formula_mutant(halves_of_a_byte_swapped BlockCodes.AreTheSameBits ${avx2} cpu_optim/lanes/avx2_lanes.h
  "first = _mm256_and_si256(_mm256_srli_epi16(pair, 4), half), second = _mm256_and_si256(pair, half)"
  "second = _mm256_and_si256(_mm256_srli_epi16(pair, 4), half), first = _mm256_and_si256(pair, half)")
penstock_formula_mutant(scales_from_the_run_that_was_asked_for BlockCodes.AreTheSameBits cpu_optim/block_codes.cpp cpu_optim/block_codes.cpp
  "run.scales + first, blocks" "run.scales, blocks")
