include(tests/aio/crash_mutants.cmake)
include(tests/runtime/engine_crash_mutants.cmake)

# Processes for tests to kill.
add_executable(store_worker tests/aio/store_worker.cpp)
target_include_directories(store_worker PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(store_worker PRIVATE penstock_test_support)
set_property(SOURCE tests/aio/store_kill_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS STORE_WORKER="$<TARGET_FILE:store_worker>")
add_dependencies(tests_aio store_worker)

include(tests/cpu_optim/formula_mutants.cmake)
include(tests/cpu_optim/cpu_optim_tests.cmake)
