# What needs more than this build: another torch, another processor. Each skips visibly where that is not to be had.

# The C functions as a shared library, which Python loads.
add_library(penstock_optim SHARED ${PROJECT_SOURCE_DIR}/cpu_optim/penstock_optim.cpp)
target_link_libraries(penstock_optim PRIVATE penstock_cpu_optim)

add_test(NAME TorchExactness
         COMMAND ${PROJECT_SOURCE_DIR}/tests/cpu_optim/torch_exactness.sh $<TARGET_FILE:penstock_optim>)
set_tests_properties(TorchExactness PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 LABELS uninstrumented)

add_test(NAME NeonUnderQemu
         COMMAND ${PROJECT_SOURCE_DIR}/tests/cpu_optim/neon_under_qemu.sh ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/neon
                 ${PENSTOCK_XSIMD_INCLUDE})
set_tests_properties(NeonUnderQemu PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 LABELS uninstrumented)

# Kernels of newer instruction sets must not hand the linker a function that other code might be given.
if(CMAKE_NM AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT PENSTOCK_SANITIZE)
  add_test(NAME KernelsShareNoSymbols
           COMMAND ${PROJECT_SOURCE_DIR}/tests/cpu_optim/kernels_share_no_symbols.sh ${CMAKE_NM}
                   $<TARGET_FILE:penstock_cpu_optim>)
endif()
