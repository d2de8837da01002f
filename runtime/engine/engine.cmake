# NCCL is loaded while a program runs. Where a build finds its header, what nccl_library.h declares is compared with it;
# where pip has the library, the build remembers its place.
file(GLOB nccl_wheels ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl)
find_path(PENSTOCK_NCCL_INCLUDE nccl.h HINTS ${nccl_wheels} PATH_SUFFIXES include)
if(nccl_wheels)
  list(GET nccl_wheels 0 nccl_wheel)
  set_property(SOURCE runtime/engine/ranks/nccl_library.cpp APPEND PROPERTY COMPILE_DEFINITIONS
               PENSTOCK_NCCL_LIBRARY="${nccl_wheel}/lib/libnccl.so.2")
endif()
if(NOT PENSTOCK_NCCL_INCLUDE)
  message(STATUS "NCCL: nccl.h was not found; what is declared of it is not compared")
elseif(NOT PENSTOCK_HAS_CUDA)
  message(STATUS "NCCL: nccl.h of ${PENSTOCK_NCCL_INCLUDE} needs CUDA's headers; what is declared of it is not compared")
else()
  message(STATUS "NCCL: what is declared of it is compared with ${PENSTOCK_NCCL_INCLUDE}/nccl.h")
  set_property(SOURCE runtime/engine/ranks/nccl_header_check.cpp APPEND PROPERTY COMPILE_OPTIONS -isystem ${PENSTOCK_NCCL_INCLUDE})
endif()
