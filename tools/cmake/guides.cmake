# Guides become text in the command, so that it has them wherever it lies.
set(guides "")
foreach(name finetune ranks)
  set(file ${PROJECT_SOURCE_DIR}/tools/manual/penstock-${name}.1)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} page)
  string(APPEND guides "    {\"${name}\", R\"roff(${page})roff\"},\n")
endforeach()
file(CONFIGURE OUTPUT guides.cpp @ONLY CONTENT [[
#include "tools/penstock/guides.h"

namespace penstock::tools {
namespace {

constexpr Guide kGuides[] = {
@guides@};

}  // namespace

std::span<const Guide> guides() { return kGuides; }

}  // namespace penstock::tools
]])
target_sources(penstock_tools PRIVATE ${CMAKE_BINARY_DIR}/guides.cpp)
