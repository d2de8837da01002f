# The CUDA device over a runtime in plain memory: every call of gpu/cuda/cuda_backend.cpp runs on any machine that has
# CUDA's headers, under the sanitizers too. Only gpu/cuda/kernels.cu, the launches, stays out.
find_program(PENSTOCK_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
get_filename_component(cuda_bin "${PENSTOCK_NVCC}" DIRECTORY)
find_path(PENSTOCK_CUDA_INCLUDE cuda_runtime_api.h HINTS "${cuda_bin}/../include" /usr/local/cuda/include)
if(NOT PENSTOCK_CUDA_INCLUDE)
  message(STATUS "tests of the CUDA device in plain memory: left out: cuda_runtime_api.h was not found")
  return()
endif()

# In place of penstock_gpu: what is linked as an object comes before what is in a library.
file(GLOB device_sources CONFIGURE_DEPENDS gpu/*.cpp)
add_library(plain_cuda OBJECT ${device_sources} gpu/cuda/cuda_backend.cpp tests/gpu/cuda/plain_runtime.cpp)
target_include_directories(plain_cuda PUBLIC ${PROJECT_SOURCE_DIR})
target_include_directories(plain_cuda SYSTEM PUBLIC ${PENSTOCK_CUDA_INCLUDE})
penstock_optimize_little(plain_cuda)

add_executable(tests_gpu_plain_cuda
  $<TARGET_OBJECTS:plain_cuda> tests/gpu/cuda/cuda_backend_test.cpp tests/gpu/device_contract_test.cpp tests/gpu/optimizer_on_device_test.cpp tests/gpu/shared_arena_test.cpp)
target_include_directories(tests_gpu_plain_cuda PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(tests_gpu_plain_cuda SYSTEM PRIVATE ${PENSTOCK_CUDA_INCLUDE})
target_link_libraries(tests_gpu_plain_cuda PRIVATE penstock_aio penstock_cpu_optim GTest::gtest GTest::gtest_main)
# What is asked of the driver is looked up by name.
set_target_properties(tests_gpu_plain_cuda PROPERTIES ENABLE_EXPORTS ON)
penstock_optimize_little(tests_gpu_plain_cuda)
gtest_discover_tests(tests_gpu_plain_cuda TEST_PREFIX "PlainMemory." TEST_FILTER "CudaOnPlainMemory*:CudaDevice*"
                     DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 600 ENVIRONMENT DEVICE_ELEMENTS=20000)

# Whole steps of the engine over it.
add_executable(tests_engine_plain_cuda $<TARGET_OBJECTS:plain_cuda> tests/gpu/cuda/whole_step_on_cuda_test.cpp)
target_include_directories(tests_engine_plain_cuda PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(tests_engine_plain_cuda SYSTEM PRIVATE ${PENSTOCK_CUDA_INCLUDE})
target_link_libraries(tests_engine_plain_cuda PRIVATE penstock_test_support GTest::gtest GTest::gtest_main)
set_target_properties(tests_engine_plain_cuda PROPERTIES ENABLE_EXPORTS ON)
penstock_optimize_little(tests_engine_plain_cuda)
gtest_discover_tests(tests_engine_plain_cuda TEST_PREFIX "PlainMemory." DISCOVERY_TIMEOUT 120
                     PROPERTIES TIMEOUT 600)
