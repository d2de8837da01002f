# The shared library for those who embed the engine, and what `cmake --install` puts where.
#
# libpenstock holds all folders' code and exports C functions alone, so that it can live in one process with any other
# build of the same libraries.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(public_headers)
foreach(header runtime/engine/penstock.h runtime/engine/penstock.hpp runtime/engine/penstock_version.h
        cpu_optim/penstock_optim.h)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${header})
    list(APPEND public_headers ${header})
  endif()
endforeach()

add_library(penstock_shared SHARED)
foreach(folder tiering aio cpu_optim gpu engine)
  get_target_property(kind penstock_${folder} TYPE)
  if(kind STREQUAL "STATIC_LIBRARY")
    # All of its code, whether something calls it or not, and then whatever other libraries it needs.
    target_sources(penstock_shared PRIVATE $<TARGET_OBJECTS:penstock_${folder}>)
    target_link_libraries(penstock_shared PRIVATE penstock_${folder})
  endif()
endforeach()
# Hidden visibility leaves out ours; the list leaves out what templates of other libraries would add.
file(WRITE ${CMAKE_BINARY_DIR}/exported.map "{ global: penstock_*; local: *; };\n")
target_link_options(penstock_shared PRIVATE -Wl,--version-script=${CMAKE_BINARY_DIR}/exported.map)
set_target_properties(penstock_shared PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME penstock EXPORT_NAME penstock
                      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_include_directories(penstock_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# Man pages and completions, out of the command itself.
set(documents ${CMAKE_BINARY_DIR}/documents)
add_custom_command(OUTPUT ${documents}/made
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${documents}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${documents}/man1
  COMMAND penstock manual --into ${documents}/man1
  COMMAND penstock completion --shell bash > ${documents}/penstock
  COMMAND penstock completion --shell zsh > ${documents}/_penstock
  COMMAND penstock completion --shell fish > ${documents}/penstock.fish
  COMMAND ${CMAKE_COMMAND} -E touch ${documents}/made
  DEPENDS penstock COMMENT "Man pages and shell completion" VERBATIM)
add_custom_target(penstock_documents ALL DEPENDS ${documents}/made)

# `pip install runtime/python` takes the library, under the name by which it is loaded, and the command.
if(SKBUILD)
  install(PROGRAMS $<TARGET_FILE:penstock_shared> DESTINATION penstock RENAME libpenstock.so.${PROJECT_VERSION_MAJOR}
          COMPONENT python)
  install(PROGRAMS $<TARGET_FILE:penstock> DESTINATION penstock/bin COMPONENT python)
endif()

install(TARGETS penstock_shared EXPORT penstock LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS penstock RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# What trains stands beside the command, and finds PyTorch's library where the build found it.
if(TARGET penstock-trainer)
  set_target_properties(penstock-trainer PROPERTIES INSTALL_RPATH ${torch_dir}/lib)
  install(TARGETS penstock-trainer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/tools/data/paradise-lost.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock)
endif()
# The verbs that are written in Python, for the command; `pip install runtime/python` is for Python's own programs.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime/python/penstock DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock/python
        FILES_MATCHING PATTERN "*.py")
install(FILES ${public_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/penstock)
install(DIRECTORY ${documents}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${documents}/penstock DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${documents}/_penstock DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${documents}/penstock.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
install(EXPORT penstock NAMESPACE penstock:: FILE penstock-config.cmake DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/penstock-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/penstock-config-version.cmake DESTINATION ${package})

file(CONFIGURE OUTPUT penstock.pc @ONLY CONTENT [[
prefix=${pcfiledir}/../..
Name: penstock
Description: @PROJECT_DESCRIPTION@
Version: @PROJECT_VERSION@
Cflags: -I${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L${prefix}/@CMAKE_INSTALL_LIBDIR@ -lpenstock
]])
install(FILES ${CMAKE_BINARY_DIR}/penstock.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
