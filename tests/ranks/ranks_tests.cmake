# Ranks for tests to start.
foreach(worker collective ranked)
  string(TOUPPER ${worker}_WORKER variable)
  add_library(${worker}_worker_object OBJECT tests/ranks/${worker}_worker.cpp)
  target_link_libraries(${worker}_worker_object PRIVATE penstock_test_support)
  penstock_optimize_little(${worker}_worker_object)
  add_executable(${worker}_worker $<TARGET_OBJECTS:${worker}_worker_object>)
  target_link_libraries(${worker}_worker PRIVATE penstock_test_support)
  set_property(SOURCE tests/ranks/${worker}_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS ${variable}="$<TARGET_FILE:${worker}_worker>")
  add_dependencies(tests_ranks ${worker}_worker)
endforeach()
# Ranks whose engines compute on GPUs.
add_executable(ranked_gpu_worker $<TARGET_OBJECTS:ranked_worker_object> tests/ranks/ranked_gpu.cpp)
target_include_directories(ranked_gpu_worker PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(ranked_gpu_worker PRIVATE penstock_test_support)
penstock_optimize_little(ranked_gpu_worker)
add_dependencies(tests_ranks ranked_gpu_worker)
set_property(SOURCE tests/ranks/nccl_on_gpu_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
             COLLECTIVE_WORKER="$<TARGET_FILE:collective_worker>" RANKED_GPU_WORKER="$<TARGET_FILE:ranked_gpu_worker>")
set_property(SOURCE tests/ranks/tcp_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
             COLLECTIVE_WORKER="$<TARGET_FILE:collective_worker>" RANKED_WORKER="$<TARGET_FILE:ranked_worker>")
set_property(SOURCE tests/ranks/kept_together_test.cpp tests/ranks/ranked_kill_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS RANKED_WORKER="$<TARGET_FILE:ranked_worker>")

# The rules of several ranks, broken one by one: the suites must catch each.

if(PENSTOCK_SANITIZE)
  return()  # the unbroken suites run there
endif()

# A worker whose FILE has FROM replaced by TO, under the TESTS that must fail with it.
function(penstock_rank_mutant name tests file from to)
  penstock_read_source(source ${file})
  penstock_put_mistake(source ${name} ${file} "${from}" "${to}")
  penstock_return_unless_in_part(${name})
  set(program ranks_mutant_${name})
  penstock_mutant_program(${program} ranked_worker_object ${file} "${source}" penstock_test_support)
  add_test(NAME RanksMutant.${name} COMMAND sh -c "\"$0\" \"$@\" || true" $<TARGET_FILE:tests_ranks> --gtest_fail_fast --gtest_filter=${tests})
  set_tests_properties(RanksMutant.${name} PROPERTIES PASS_REGULAR_EXPRESSION "FAILED TEST"
    ENVIRONMENT PENSTOCK_RANK_MUTANT=$<TARGET_FILE:${program}> TIMEOUT 120)
endfunction()

penstock_rank_mutant(local_norm *Stages*two_stage_3 runtime/engine/ranks/ranked_engine.cpp
  "for (uint32_t member : map_.group(rank())) {
      const uint64_t count"
  "for (uint32_t member : {rank()}) {
      const uint64_t count")

penstock_rank_mutant(verdict_of_one_rank *Stages*two_stage_3 runtime/engine/engine.cpp
  "squares = of_all;"
  "squares = std::isfinite(of_all) ? of_all : squares;")

penstock_rank_mutant(absences_of_one_rank *Stages*two_stage_3 runtime/engine/ranks/ranked_engine_lane.cpp
  "PENSTOCK_TRY(passed_on(all_of_all(ranks_, absent)));"
  "")

penstock_rank_mutant(shard_of_another_rank *Stages*two_stage_3 runtime/engine/ranks/ranked_engine_lane.cpp
  "shards.push_back({member, gathered_at"
  "shards.push_back({map_.group(rank()).front(), gathered_at")

penstock_rank_mutant(pieces_not_shared_with_twins *Stages*four_hybrid runtime/engine/ranks/ranked_engine_lane.cpp
  "for (uint32_t twin : map_.twins(rank())) pieces"
  "for (uint32_t twin : {rank()}) pieces")

penstock_rank_mutant(weights_of_the_step_before *Stages*two_stage_2 runtime/engine/ranks/ranked_engine.cpp
  "  is_gathered_.assign(model().units.size(), false);
  skips_.clear();"
  "  is_gathered_.resize(model().units.size());
  skips_.clear();")

penstock_rank_mutant(gathered_when_acquired RankedSteps* runtime/engine/ranks/ranked_engine_lane.cpp
  "next_visit_ <= visit + (next_is_ahead ? 1 : 0)"
  "next_visit_ <= visit")

penstock_rank_mutant(waits_for_reductions RankedSteps* runtime/engine/ranks/ranked_engine.cpp
  "if (reducing_ && (!may_be_late ||"
  "if (reducing_ && (may_be_late ||")

penstock_rank_mutant(gathered_over_what_is_held RankedSteps* runtime/engine/ranks/ranked_engine_lane.cpp
  "for (uint64_t& place : places) place += there - all;"
  "")

penstock_rank_mutant(root_before_the_barrier *BringsAllRanks*/two runtime/engine/ranks/rank_commits.cpp
  ".data_flushed = pass"
  ".data_flushed = {}")

penstock_rank_mutant(reuse_before_the_second_barrier *BringsAllRanks*/two runtime/engine/ranks/rank_commits.cpp
  ".root_flushed = pass"
  ".root_flushed = {}")

penstock_rank_mutant(each_rank_at_its_newest_step *BringsAllRanks*/two runtime/engine/ranks/ranked_engine_open.cpp
  "if (common == std::max_element"
  "if (common <= std::max_element")

penstock_rank_mutant(uploaded_under_what_is_computed *WhereADeviceComputesForLong runtime/engine/ranks/ranked_engine.cpp
  "PENSTOCK_TRY(end_reading());
  PENSTOCK_TRY(passed_on(here_->release(pass)));"
  "PENSTOCK_TRY(passed_on(here_->release(pass)));")

penstock_rank_mutant(kept_before_all_have_copied KeptByRanks.AStepIs* runtime/engine/ranks/kept_together.cpp
  "agreed(each([&](KeptSteps& kept) { return kept.prepare(step, runs[store++], note); }));"
  "each([&](KeptSteps& kept) { return kept.prepare(step, runs[store++], note); });")

penstock_rank_mutant(goes_back_before_all_have_marked KeptByRanks.GoBack* runtime/engine/ranks/kept_together.cpp
  "agreed(each([&](KeptSteps& kept) { return kept.mark_rollback(step); }))"
  "each([&](KeptSteps& kept) { return kept.mark_rollback(step); })")

penstock_rank_mutant(own_shard_not_through_codes InCodes/*two_stage_3 runtime/engine/ranks/ranked_engine_lane.cpp
  "for (const Gathering::Place& place : gathering.places) decode(place);"
  "for (const Gathering::Place& place : gathering.places) {
    decode(place);
    for (const UnitWeights& view : gathering.views) {
      if (shards_.unit_here[place.unit] != view.unit) continue;
      std::memcpy(place.own.data(), view.bytes.data(), place.own.size());
    }
  }")

penstock_rank_mutant(codes_of_another_rank InCodes/*two_stage_3 runtime/engine/ranks/ranked_engine_lane.cpp
  "collected_at_ + other * bytes"
  "collected_at_ + rank() * bytes")
