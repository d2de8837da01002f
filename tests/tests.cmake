include(tests/aio/crash_mutants.cmake)
