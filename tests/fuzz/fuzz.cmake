# The parsers' targets: one test program for all, and with PENSTOCK_FUZZ a libFuzzer program for each.
if(PENSTOCK_SANITIZE STREQUAL "thread")
  return()  # a parser starts no thread
endif()
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/targets/*.cpp)
add_library(penstock_fuzz_targets STATIC ${sources} ${CMAKE_CURRENT_LIST_DIR}/target.cpp ${CMAKE_CURRENT_LIST_DIR}/mutation.cpp
            ${CMAKE_CURRENT_LIST_DIR}/memory_limit.cpp)
target_include_directories(penstock_fuzz_targets PUBLIC ${PROJECT_SOURCE_DIR})
target_link_libraries(penstock_fuzz_targets PUBLIC penstock_tools penstock_test_support)
target_link_options(penstock_fuzz_targets INTERFACE -Wl,--wrap=aligned_alloc)
penstock_optimize_little(penstock_fuzz_targets)
penstock_tests(fuzz penstock_fuzz_targets)

if(PENSTOCK_FUZZ AND PENSTOCK_HAS_LIBFUZZER)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(fuzz_${name} ${CMAKE_CURRENT_LIST_DIR}/libfuzzer_entry.cpp)
    target_compile_definitions(fuzz_${name} PRIVATE PENSTOCK_FUZZ_TARGET=${name})
    target_link_libraries(fuzz_${name} PRIVATE penstock_fuzz_targets)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()
