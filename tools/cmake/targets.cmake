# One library per folder, one test program per folder of tests, one program per benchmark: a new file needs no line here.

# FOLDER/*.cpp of every folder of the list become the library NAME; the rest of the arguments is what it may include.
function(penstock_library name folders)
  set(patterns ${folders})
  list(TRANSFORM patterns PREPEND ${PROJECT_SOURCE_DIR}/)
  list(TRANSFORM patterns APPEND /*.cpp)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(sources)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} PUBLIC ${ARGN})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} INTERFACE ${ARGN})
  endif()
endfunction()

# Headers of others that most files of a target include, and that are half of the time or more that such a file takes. Our
# own are not among them: that each file includes what it uses of ours is for the compiler to say.
function(penstock_precompile target)
  if(NOT PENSTOCK_FUZZ)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# What tests alone are made of runs once or twice for each time that it is compiled: less optimized, all is done sooner.
# What they share, above all the plain loop beside an engine, runs for most of a test's time: see penstock_test_support.
function(penstock_optimize_little target)
  if(PENSTOCK_FUZZ)
    return()  # there it runs for hours
  endif()
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo,Release>:-O1>
                         $<$<STREQUAL:${PENSTOCK_SANITIZE},address>:-O0>)
endfunction()

# Fakes and contracts that the tests of several folders share.
function(penstock_test_support)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.cpp)
  if(sources)
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tools/update/plain_loop.cpp)  # without the tools
    add_library(penstock_test_support STATIC ${sources})
    target_link_libraries(penstock_test_support PUBLIC penstock_engine GTest::gtest)
    target_compile_options(penstock_test_support PRIVATE $<$<CONFIG:RelWithDebInfo,Release>:-O1>)
  else()
    add_library(penstock_test_support INTERFACE)
    target_link_libraries(penstock_test_support INTERFACE penstock_engine GTest::gtest)
  endif()
endfunction()

# A test program NAME of SOURCES, linked with the rest of the arguments.
function(penstock_test_program name sources)
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest GTest::gtest_main)
  penstock_optimize_little(${name})
  penstock_precompile(${name} <gtest/gtest.h>)
  # Tests run beside one another, and a matrix product waits for the slowest of its threads.
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 600 ENVIRONMENT OMP_NUM_THREADS=1)
endfunction()

# tests/FOLDER/*_test.cpp, those of its floors included, become build/bin/tests_FOLDER, linked with the rest of the
# arguments.
function(penstock_tests folder)
  set(tests ${PROJECT_SOURCE_DIR}/tests/${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${tests}/*_test.cpp ${tests}/plan/*_test.cpp ${tests}/store/*_test.cpp
       ${tests}/arithmetic/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  penstock_test_program(tests_${folder} "${sources}" ${ARGN})
endfunction()

# bench/NAME.cpp becomes build/bench/NAME. Its small size runs with the tests.
function(penstock_benches)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/support/*.cpp)
  add_library(penstock_bench_support STATIC ${sources})
  target_link_libraries(penstock_bench_support PUBLIC penstock_tools)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.cpp)
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    message(STATUS "bench/micro: left out: Google Benchmark was not found (tools/setup --checks installs it)")
    list(REMOVE_ITEM sources ${PROJECT_SOURCE_DIR}/bench/micro.cpp)
  endif()
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(bench_${name} ${source})
    target_link_libraries(bench_${name} PRIVATE penstock_bench_support)
    set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  endforeach()
  if(TARGET bench_micro)
    target_link_libraries(bench_micro PRIVATE benchmark::benchmark)
  endif()
endfunction()
