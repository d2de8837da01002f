# What a suite is worth is shown by mutants: sources with one mistake put in. A suite says beside its own tests which
# mistakes it must catch, and how that is seen.

# PENSTOCK_MUTANTS is `all` or K/N: the Kth of N parts, into which names are dealt by what they hash to.
if(NOT PENSTOCK_MUTANTS STREQUAL "all" AND NOT PENSTOCK_MUTANTS MATCHES "^[1-9][0-9]*/[1-9][0-9]*$")
  message(FATAL_ERROR "PENSTOCK_MUTANTS is '${PENSTOCK_MUTANTS}'; it takes all, or K/N: the Kth of N parts")
endif()

# Leaves the function that calls it where the mutant NAME is in another part. That its text is still there has been seen.
macro(penstock_return_unless_in_part name)
  if(NOT PENSTOCK_MUTANTS STREQUAL "all")
    string(MD5 dealt ${name})
    string(SUBSTRING ${dealt} 0 6 dealt)
    string(REPLACE "/" ";" part ${PENSTOCK_MUTANTS})
    list(GET part 0 turn)
    list(GET part 1 parts)
    math(EXPR dealt "(0x${dealt} + ${parts} - ${turn}) % ${parts}")
    if(NOT dealt EQUAL 0)
      return()
    endif()
  endif()
endmacro()

# FILE's content in VARIABLE. CMake runs again when the file changes.
function(penstock_read_source variable file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
  file(READ ${PROJECT_SOURCE_DIR}/${file} source)
  set(${variable} "${source}" PARENT_SCOPE)
endfunction()

# Puts REPLACEMENT in place of TEXT, which must be there.
function(penstock_put_mistake variable mutant file text replacement)
  string(FIND "${${variable}}" "${text}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "mutant ${mutant}: ${file} no longer has: ${text}")
  endif()
  string(REPLACE "${text}" "${replacement}" source "${${variable}}")
  set(${variable} "${source}" PARENT_SCOPE)
endfunction()

# PROGRAM: what the target OBJECTS has, linked with SOURCE in place of what the LIBRARIES have of FILE.
# penstock_mutant_program(PROGRAM OBJECTS FILE SOURCE LIBRARIES...)
function(penstock_mutant_program program objects file source)
  set(mutant ${CMAKE_BINARY_DIR}/mutants/${program}/${file})
  file(CONFIGURE OUTPUT ${mutant} CONTENT "${source}" @ONLY)
  # The mutant's object defines what the library's would, so the linker never takes the latter.
  add_executable(${program} $<TARGET_OBJECTS:${objects}> ${mutant})
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${program} PRIVATE -g0 -Wno-unused -Wno-unused-but-set-variable)
  target_link_options(${program} PRIVATE -Wl,--strip-debug)  # nobody looks for the mistake
  target_link_libraries(${program} PRIVATE ${ARGN})
  penstock_optimize_little(${program})
endfunction()
