include(tests/aio/store/crash_mutants.cmake)
include(tests/runtime/engine_crash_mutants.cmake)
include(tests/runtime/whole_step_mutants.cmake)
include(tests/runtime/update_counts_mutants.cmake)

# Processes for tests to kill.
foreach(worker aio/store/store runtime/engine)
  get_filename_component(name ${worker} NAME)
  string(REGEX REPLACE "/.*" "" folder ${worker})
  string(TOUPPER ${name}_WORKER variable)
  add_executable(${name}_worker tests/${worker}_worker.cpp)
  target_include_directories(${name}_worker PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name}_worker PRIVATE penstock_test_support)
  penstock_compile_soon(${name}_worker)
  set_property(SOURCE tests/${worker}_kill_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS ${variable}="$<TARGET_FILE:${name}_worker>")
  add_dependencies(tests_${folder} ${name}_worker)
endforeach()

# The command as a process.
set_property(SOURCE tests/tools/update_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS PENSTOCK="$<TARGET_FILE:penstock>")
add_dependencies(tests_tools penstock)

include(tests/ranks/ranks_tests.cmake)
include(tests/cpu_optim/formula_mutants.cmake)
include(tests/cpu_optim/cpu_optim_tests.cmake)
include(tests/gpu/plain_cuda.cmake)
include(tests/fuzz/fuzz.cmake)
include(tests/trainer/trainer_tests.cmake)
include(tests/python/python_tests.cmake)
