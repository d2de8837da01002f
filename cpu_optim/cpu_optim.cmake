# Each kernels_ISA.cpp is compiled for its instruction set; which one runs is decided by CPUID. Everything in them is
# forced inline, so that nothing compiled for a newer processor can be linked into code for an older one.
# GCC 12 takes its own AVX-512 headers' undefined operands for a mistake.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(PENSTOCK_AVX2_FLAGS -mavx2 -mfma -mf16c)
  set(PENSTOCK_AVX512_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mfma -mf16c)
endif()
function(penstock_kernel_flags isa)
  if(PENSTOCK_SANITIZE)
    # Thousands of inlined temporaries, each poisoned at the end of its scope, take GCC five times as long.
    list(APPEND ARGN -O1 $<$<STREQUAL:${PENSTOCK_SANITIZE},address>:-fno-sanitize-address-use-after-scope>)
  endif()
  set_source_files_properties(${PROJECT_SOURCE_DIR}/cpu_optim/kernels_${isa}.cpp PROPERTIES COMPILE_OPTIONS "${ARGN}")
endfunction()
penstock_kernel_flags(scalar -O2)
penstock_kernel_flags(sse2 -O3)
penstock_kernel_flags(avx2 -O3 ${PENSTOCK_AVX2_FLAGS})
penstock_kernel_flags(avx512 -O3 ${PENSTOCK_AVX512_FLAGS}
                      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>)
penstock_kernel_flags(neon -O3)

find_package(TBB REQUIRED)
find_path(PENSTOCK_XSIMD_INCLUDE xsimd/xsimd.hpp REQUIRED)
target_include_directories(penstock_cpu_optim SYSTEM PRIVATE ${PENSTOCK_XSIMD_INCLUDE})
target_link_libraries(penstock_cpu_optim PRIVATE TBB::tbb)
