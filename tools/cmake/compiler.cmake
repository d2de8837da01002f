# How every file of the project is compiled.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

function(penstock_compile_options)
  foreach(option IN LISTS ARGN)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endfunction()

# Numbers must not depend on what the compiler likes to contract: every fma is written out.
penstock_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -ffp-contract=off)
if(PENSTOCK_WARNINGS_ARE_ERRORS)
  penstock_compile_options(-Werror)
endif()

# Of files that are compiled as one, the names are one another's, and none is the main file.
if(CMAKE_UNITY_BUILD)
  penstock_compile_options(-Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()

# libFuzzer is led by which branches an input has taken: every file counts them, and is built for its sanitizers.
if(PENSTOCK_FUZZ)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer)
  check_cxx_source_compiles("#include <cstddef>
    extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, size_t) { return 0; }" PENSTOCK_HAS_LIBFUZZER)
  unset(CMAKE_REQUIRED_FLAGS)
  if(PENSTOCK_HAS_LIBFUZZER)
    set(PENSTOCK_SANITIZE address)
    penstock_compile_options(-fsanitize=fuzzer-no-link)
  else()
    message(STATUS "PENSTOCK_FUZZ is ON and ${CMAKE_CXX_COMPILER} has no libFuzzer, so nothing is built for it: use clang++-16 with libclang-rt-16-dev")
  endif()
endif()

if(PENSTOCK_SANITIZE STREQUAL "address")
  penstock_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  add_compile_definitions(PENSTOCK_DCHECKS)
elseif(PENSTOCK_SANITIZE STREQUAL "thread")
  penstock_compile_options(-fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    penstock_compile_options(-Wno-tsan)
  endif()
  add_link_options(-fsanitize=thread)
  add_compile_definitions(PENSTOCK_DCHECKS)
elseif(PENSTOCK_SANITIZE)
  message(FATAL_ERROR "PENSTOCK_SANITIZE is '${PENSTOCK_SANITIZE}'; it takes address, thread or nothing")
endif()

# A sanitizer's calls hide from GCC what has been assigned. The plain build keeps the warning.
if(PENSTOCK_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  penstock_compile_options(-Wno-maybe-uninitialized)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
