# NCCL in plain memory, a library that is loaded as the real one is.
if(NOT PENSTOCK_CUDA_INCLUDE)
  message(STATUS "tests of NCCL in plain memory: left out: cuda_runtime_api.h was not found")
  return()
endif()

add_library(plain_nccl MODULE tests/ranks/nccl/plain_nccl.cpp)
set_target_properties(plain_nccl PROPERTIES OUTPUT_NAME nccl PREFIX lib SUFFIX .so.2 CXX_VISIBILITY_PRESET hidden
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plain_nccl)
target_include_directories(plain_nccl PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(plain_nccl SYSTEM PRIVATE ${PENSTOCK_CUDA_INCLUDE})
target_link_libraries(plain_nccl PRIVATE Threads::Threads)
penstock_optimize_little(plain_nccl)
add_dependencies(tests_ranks plain_nccl)
set_property(SOURCE tests/ranks/nccl_library_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS PLAIN_NCCL="$<TARGET_FILE:plain_nccl>")

# Ranks that have it, and CUDA in plain memory.
add_executable(nccl_worker $<TARGET_OBJECTS:plain_cuda> $<TARGET_OBJECTS:collective_worker_object>)
target_link_libraries(nccl_worker PRIVATE penstock_test_support)
# plain_nccl looks up by name what it calls of CUDA.
set_target_properties(nccl_worker PROPERTIES ENABLE_EXPORTS ON)
add_dependencies(tests_ranks nccl_worker)
set_property(SOURCE tests/ranks/nccl_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
             PLAIN_NCCL="$<TARGET_FILE:plain_nccl>" NCCL_WORKER="$<TARGET_FILE:nccl_worker>")

# Ranks whose engines compute on the CUDA device in plain memory, and gather there.
add_executable(ranked_cuda_worker $<TARGET_OBJECTS:plain_cuda> $<TARGET_OBJECTS:ranked_worker_object> tests/ranks/nccl/ranked_cuda.cpp)
target_include_directories(ranked_cuda_worker PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(ranked_cuda_worker SYSTEM PRIVATE ${PENSTOCK_CUDA_INCLUDE})
target_link_libraries(ranked_cuda_worker PRIVATE penstock_test_support)
set_target_properties(ranked_cuda_worker PROPERTIES ENABLE_EXPORTS ON)
penstock_optimize_little(ranked_cuda_worker)
add_dependencies(tests_ranks ranked_cuda_worker)
set_property(SOURCE tests/ranks/ranked_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
             RANKED_CUDA_WORKER="$<TARGET_FILE:ranked_cuda_worker>" PLAIN_NCCL="$<TARGET_FILE:plain_nccl>")

if(PENSTOCK_SANITIZE)
  return()
endif()

# As penstock_rank_mutant(), of ranks that gather on devices.
function(penstock_device_rank_mutant name tests file from to)
  penstock_rank_mutant(${name} ${tests} ${file} "${from}" "${to}")
  penstock_return_unless_in_part(${name})
  set(program ranks_mutant_${name})
  target_sources(${program} PRIVATE $<TARGET_OBJECTS:plain_cuda> tests/ranks/nccl/ranked_cuda.cpp)
  target_include_directories(${program} SYSTEM PRIVATE ${PENSTOCK_CUDA_INCLUDE})
  set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON)
endfunction()

penstock_device_rank_mutant(gathered_under_what_is_computed *DevicesThatGatherComputeForLong runtime/engine/ranks/rank_device.cpp
  "std::vector<Event> after(readers.begin(), readers.end());"
  "readers = {}; std::vector<Event> after;")

penstock_device_rank_mutant(own_shard_left_out *StagesAmongDevices*two_stage_3 runtime/engine/ranks/ranked_engine_lane.cpp
  "PENSTOCK_TRY(passed_on(weights_device_->copy_within(own, gathering.written, gathering.readers)));"
  "PENSTOCK_TRY(passed_on(weights_device_->copy_within({}, gathering.written, gathering.readers)));")

penstock_device_rank_mutant(added_up_before_it_is_given *StagesAmongDevices*two_stage_3 runtime/engine/ranks/ranked_engine_lane.cpp
  "if (device_sums_) PENSTOCK_TRY(passed_on(gradients_device_->wait_for(reducing->given)));"
  "")

penstock_device_rank_mutant(sums_of_one_use *StagesAmongDevices*two_stage_3 runtime/engine/ranks/rank_device_sums.cpp
  "for (size_t use = 1; use < layout_"
  "for (size_t use = 1; use < 0 * layout_")
