# The CUDA device is built where a toolkit is found; else gpu/cuda/absent.cpp says at run time that there is none.
set(PENSTOCK_HAS_CUDA OFF)
set(PENSTOCK_CUDA_OLDEST 12.4)
set(cuda_absent "")

if(NOT PENSTOCK_CUDA)
  set(cuda_absent "PENSTOCK_CUDA is OFF")
else()
  find_program(PENSTOCK_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT PENSTOCK_NVCC)
    set(cuda_absent "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda")
  else()
    execute_process(COMMAND ${PENSTOCK_NVCC} --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" ignored "${nvcc_says}")
    set(cuda_version "${CMAKE_MATCH_1}")
    if(NOT cuda_version OR cuda_version VERSION_LESS PENSTOCK_CUDA_OLDEST)
      set(cuda_absent "${PENSTOCK_NVCC} is ${cuda_version}, ${PENSTOCK_CUDA_OLDEST} or newer is needed")
    endif()
  endif()
endif()

if(NOT cuda_absent)
  # Machine code for every architecture from Ampere on that the toolkit knows; PTX for those that come later. Code of
  # one major version runs on its later minor ones (8.6 on Orin, 12.0 on GB10).
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90)
    if(cuda_version VERSION_GREATER_EQUAL 12.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 100-real 120)
    endif()
  endif()
  set(CMAKE_CUDA_COMPILER ${PENSTOCK_NVCC})
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})  # it links too, and must be the one that compiled the rest
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)               # so that a machine without CUDA can run what was built here
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(cuda_absent "${PENSTOCK_NVCC} does not compile with ${CMAKE_CXX_COMPILER}")
  endif()
endif()

if(cuda_absent)
  message(STATUS "CUDA device: left out: ${cuda_absent}; the host device runs the same engine")
  target_sources(penstock_gpu PRIVATE gpu/cuda/absent.cpp)
else()
  enable_language(CUDA)
  set(PENSTOCK_HAS_CUDA ON)
  set_target_properties(penstock_gpu PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CUDA_STANDARD 20
                        CUDA_STANDARD_REQUIRED ON CUDA_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  string(REPLACE ";" " " architectures "${CMAKE_CUDA_ARCHITECTURES}")
  message(STATUS "CUDA device: ${cuda_version}, architectures ${architectures}")
  target_sources(penstock_gpu PRIVATE gpu/cuda/cuda_backend.cpp gpu/cuda/kernels.cu)
  target_include_directories(penstock_gpu SYSTEM PUBLIC ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_compile_definitions(penstock_gpu PUBLIC PENSTOCK_HAS_CUDA)
  # The same numbers as the CPU: nothing contracted, division and root correctly rounded, denormals kept.
  target_compile_options(penstock_gpu PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false> $<$<COMPILE_LANGUAGE:CUDA>:--prec-div=true>
    $<$<COMPILE_LANGUAGE:CUDA>:--prec-sqrt=true> $<$<COMPILE_LANGUAGE:CUDA>:--ftz=false>
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr> $<$<COMPILE_LANGUAGE:CUDA>:--threads=2>)
  # A kernel keeps what it works on in registers; local memory would take part of the bandwidth.
  if(PENSTOCK_WARNINGS_ARE_ERRORS)
    target_compile_options(penstock_gpu PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-warn-lmem-usage,-warn-spills,-Werror>)
  endif()
endif()
