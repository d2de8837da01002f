# Tests of the command as a program.
add_test(NAME Command.RefusesBadInputAndLeavesNothingBehind
         COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/tools/bad_input_test.py $<TARGET_FILE:penstock>)
set_tests_properties(Command.RefusesBadInputAndLeavesNothingBehind PROPERTIES TIMEOUT 600)

add_test(NAME Install.CanBeUsedByOthers
         COMMAND ${PROJECT_SOURCE_DIR}/tests/tools/install_test.sh ${CMAKE_BINARY_DIR} ${PROJECT_VERSION})
set_tests_properties(Install.CanBeUsedByOthers PROPERTIES TIMEOUT 300 LABELS install)
