# Tests of the sources themselves: layers, formatting, scripts, and that every header compiles alone.

function(penstock_source_test name)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300 LABELS source)
endfunction()
penstock_source_test(Source.IncludesFollowTheArrows ${Python3_EXECUTABLE} tools/check_layers.py)
penstock_source_test(Source.LayerCheckCatchesEachKindOfBreach ${Python3_EXECUTABLE} tests/tools/check_layers_test.py)
penstock_source_test(Source.NoTwoTypesHaveOneName ${Python3_EXECUTABLE} tools/check_names.py)
penstock_source_test(Source.GpuCheckSaysWhatWentWrong ${Python3_EXECUTABLE} tests/tools/gpu_check_test.py)
penstock_source_test(Source.IsFormatted tools/check_format)
penstock_source_test(Source.ScriptsPassShellcheck tools/check_scripts)

# Headers are looked at once, not again in every other build of the same sources.
if(PENSTOCK_SANITIZE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  return()
endif()

# A header that compiles as the whole of a file needs nothing before it. Included twice, it is guarded. One that its own
# .cpp includes before all others was seen to compile there. Those of tests and benchmarks are for a few files each.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     tiering/*.h aio/*.h cpu_optim/*.h gpu/*.h runtime/*.h tools/*.h)
# These compile under their instruction set's flags alone, in one kernels_ISA.cpp each.
list(FILTER headers EXCLUDE REGEX "cpu_optim/lanes/(avx2|avx512|neon)_lanes")
# These need LibTorch, with which a header takes seconds to compile; their own .cpp includes each first.
list(FILTER headers EXCLUDE REGEX "trainer/torch/|tools/train/")
if(NOT PENSTOCK_HAS_CUDA)
  list(FILTER headers EXCLUDE REGEX "gpu/cuda/")
endif()
if(NOT PENSTOCK_HAS_LIBTORCH)
  list(FILTER headers EXCLUDE REGEX "trainer/torch/")
endif()
set(lone_headers)
foreach(header IN LISTS headers)
  string(REGEX REPLACE "h$" "cpp" own ${header})
  if(EXISTS ${PROJECT_SOURCE_DIR}/${own})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${own} first_include REGEX "^#include" LIMIT_COUNT 1)
    if(first_include STREQUAL "#include \"${header}\"")
      continue()
    endif()
  endif()
  set(lone ${CMAKE_BINARY_DIR}/headers/${header}.cpp)
  if(NOT EXISTS ${lone})
    file(WRITE ${lone} "#include \"${header}\"\n#include \"${header}\"\n")
  endif()
  list(APPEND lone_headers ${lone})
endforeach()
add_library(headers_alone OBJECT ${lone_headers})
target_compile_options(headers_alone PRIVATE -O0 -g0)
target_link_libraries(headers_alone PRIVATE penstock_tools)
if(PENSTOCK_HAS_LIBTORCH)
  target_link_libraries(headers_alone PRIVATE penstock_libtorch)
endif()
