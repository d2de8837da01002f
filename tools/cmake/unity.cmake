# Files are compiled several at once: those that unity_groups.py finds to go together. That each compiles by itself is
# for a plain build to show.
file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     tiering/*.cpp aio/*.cpp cpu_optim/*.cpp gpu/*.cpp runtime/*.cpp tools/*.cpp tests/*.cpp bench/*.cpp)
execute_process(COMMAND ${Python3_EXECUTABLE} tools/cmake/unity_groups.py ${files}
                WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${lines}")
foreach(line IN LISTS lines)
  separate_arguments(line)
  list(GET line 0 group)
  list(GET line 1 file)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/${file} PROPERTIES UNITY_GROUP ${group})
endforeach()
get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
if(NOT CMAKE_UNITY_BUILD)
  list(FILTER targets INCLUDE REGEX "^tests_")  # mutants stand in for single objects of what tests share
  set_target_properties(${targets} PROPERTIES UNITY_BUILD ON)
endif()
set_target_properties(${targets} PROPERTIES UNITY_BUILD_MODE GROUP)
# The objects of plain_cuda stand in for some of penstock_gpu's, one by one, and another course_device() for that of tests.
set_target_properties(penstock_gpu PROPERTIES UNITY_BUILD OFF)
# The C functions are compiled into a shared library as well, which links the rest of penstock_cpu_optim.
set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/support/course_device.cpp ${PROJECT_SOURCE_DIR}/cpu_optim/penstock_optim.cpp
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
