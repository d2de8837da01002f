# Stand-ins for NVIDIA's libcufile.so.0, loaded at run time as it is.
foreach(name stand_in_cufile stand_in_cufile_without_write)
  add_library(${name} SHARED tests/gpu/stand_in/libcufile.cpp)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/stand_in)
  # As NVIDIA's: a C library, whose functions say nothing of C++ types to a sanitizer.
  target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  string(TOUPPER ${name} variable)
  set_property(SOURCE tests/gpu/direct_storage_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS ${variable}="$<TARGET_FILE:${name}>")
  add_dependencies(tests_gpu ${name})
endforeach()
target_compile_definitions(stand_in_cufile_without_write PRIVATE WITHOUT_WRITE)
