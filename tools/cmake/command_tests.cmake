# Tests of the command as a program.
foreach(subject Drives Stores)
  string(TOLOWER ${subject} file)
  add_test(NAME Command.RefusesBadInputAndLeavesNothingBehind.${subject}
           COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/bad_input_${file}_test.py $<TARGET_FILE:penstock>)
  set_tests_properties(Command.RefusesBadInputAndLeavesNothingBehind.${subject} PROPERTIES TIMEOUT 600
                       ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endforeach()

# Shapes of jobs, run in fio as they are. How fast they are is for a quiet machine to say.
add_test(NAME Command.EmitsJobsThatFioRuns
         COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/bench/fio_jobs.py $<TARGET_FILE:penstock> ${CMAKE_BINARY_DIR} --seconds 0.05
                 --size 64MiB --turns 1)
set_tests_properties(Command.EmitsJobsThatFioRuns PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300 LABELS uninstrumented)

# Whatever `try:` says is done, and helps. With transformers for what prepares data.
set(advice_python ${Python3_EXECUTABLE})
if(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(advice_python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
foreach(subject Command Python)
  add_test(NAME Command.GivesAdviceThatWorks.${subject}
           COMMAND ${advice_python} ${PROJECT_SOURCE_DIR}/tests/tools/advice_test.py $<TARGET_FILE:penstock> ${subject})
  set_tests_properties(Command.GivesAdviceThatWorks.${subject} PROPERTIES TIMEOUT 600 LABELS uninstrumented
                       ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endforeach()

add_test(NAME Command.MeasuresDrives COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/nvme_measuring_test.py
         $<TARGET_FILE:penstock>)
set_tests_properties(Command.MeasuresDrives PROPERTIES TIMEOUT 300 LABELS uninstrumented ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)

add_test(NAME Command.PlansAsItDid COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/plan_answers_test.py
         $<TARGET_FILE:penstock>)
set_tests_properties(Command.PlansAsItDid PROPERTIES TIMEOUT 600 LABELS uninstrumented)

# A driver that refuses, in place of the machine's.
add_library(stand_in_cuda SHARED ${PROJECT_SOURCE_DIR}/tests/tools/stand_in/libcuda.cpp)
set_target_properties(stand_in_cuda PROPERTIES CXX_VISIBILITY_PRESET default OUTPUT_NAME cuda VERSION 1 SOVERSION 1
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/stand_in)
add_test(NAME Command.SaysWhatACudaDriverRefuses
         COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/cuda_refusals_test.py $<TARGET_FILE:penstock>
                 $<TARGET_FILE:tests_gpu> ${CMAKE_BINARY_DIR}/stand_in)

add_test(NAME Install.CanBeUsedByOthers
         COMMAND ${PROJECT_SOURCE_DIR}/tests/tools/install_test.sh ${CMAKE_BINARY_DIR} ${PROJECT_VERSION})
set_tests_properties(Install.CanBeUsedByOthers PROPERTIES TIMEOUT 300 LABELS install)

# The verbs that a build with PENSTOCK_STEPS=OFF leaves out: defined first, they keep the library's own from being linked.
# That takes a library of which each file is an object.
if(NOT CMAKE_UNITY_BUILD)
  add_executable(command_without_steps ${PROJECT_SOURCE_DIR}/tools/penstock/main.cpp
                 ${PROJECT_SOURCE_DIR}/tools/penstock/unavailable_verbs.cpp)
  target_link_libraries(command_without_steps PRIVATE penstock_tools)
  foreach(verb "update --params 10M" "verify --steps 6" "checkpoint ls ." "checkpoint scrub ." "checkpoint export . out"
               "checkpoint import ." "checkpoint reshard a b" "config keys" "train" "generate")
    separate_arguments(line UNIX_COMMAND "${verb}")
    add_test(NAME "Command.SaysThatItWasBuiltWithout (${verb})" COMMAND command_without_steps ${line})
    set_tests_properties("Command.SaysThatItWasBuiltWithout (${verb})" PROPERTIES
                         PASS_REGULAR_EXPRESSION "^penstock: [a-z ]+: not in this build of penstock, which cannot run steps\ntry: cmake ")
  endforeach()
endif()

add_test(NAME Command.PlansTheTableOfTheReadme COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/memory_table.py
         $<TARGET_FILE:penstock> --check ${PROJECT_SOURCE_DIR}/README.md)
set_tests_properties(Command.PlansTheTableOfTheReadme PROPERTIES LABELS uninstrumented)
