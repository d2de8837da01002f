# The trainer: what computes stands on LibTorch, that of the torch package which Python finds; all else of it does not,
# so that a config can be checked where LibTorch is absent.
target_link_libraries(penstock_trainer_core PRIVATE nlohmann_json::nlohmann_json)

set(PENSTOCK_TORCH_DIR "" CACHE PATH "Folder of a torch package, site-packages/torch; empty: that of .venv or of Python")
set(PENSTOCK_HAS_LIBTORCH OFF)
set(torch_absent "")
set(torch_dir "${PENSTOCK_TORCH_DIR}")
if(NOT PENSTOCK_LIBTORCH)
  set(torch_absent "PENSTOCK_LIBTORCH is OFF")
elseif(PENSTOCK_SANITIZE)
  set(torch_absent "LibTorch is not instrumented for the ${PENSTOCK_SANITIZE} sanitizer")
elseif(NOT torch_dir)
  foreach(python ${PROJECT_SOURCE_DIR}/.venv/bin/python python3)
    # Finding the package does not import it, which would take seconds.
    execute_process(COMMAND ${python} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      break()
    endif()
    set(torch_dir "")
  endforeach()
  if(NOT torch_dir)
    set(torch_absent "neither .venv nor python3 has torch (tools/setup installs it), and PENSTOCK_TORCH_DIR is empty")
  endif()
endif()
if(NOT torch_absent AND NOT EXISTS ${torch_dir}/lib/libtorch_cpu.so)
  set(torch_absent "${torch_dir}/lib has no libtorch_cpu.so")
endif()
if(NOT torch_absent)
  file(STRINGS ${torch_dir}/include/torch/headeronly/version.h torch_version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
  if(NOT torch_version_lines)
    file(STRINGS ${torch_dir}/include/torch/csrc/api/include/torch/version.h torch_version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
  endif()
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" torch_version "${torch_version_lines}")
  if(torch_version VERSION_LESS 2.7)
    set(torch_absent "${torch_dir} has torch ${torch_version}, 2.7 or newer is needed")
  endif()
endif()
if(torch_absent)
  message(STATUS "LibTorch: left out: ${torch_absent}; everything but training builds")
  return()
endif()
message(STATUS "LibTorch: torch ${torch_version} of ${torch_dir}")
set(PENSTOCK_HAS_LIBTORCH ON)

# find_package(Torch) would change flags of everything, and demand a whole CUDA toolkit of a CUDA build.
add_library(penstock_libtorch INTERFACE)
target_include_directories(penstock_libtorch SYSTEM INTERFACE ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(penstock_libtorch INTERFACE AT_PER_OPERATOR_HEADERS)
# libtorch.so brings libtorch_cuda.so where there is one; nothing refers to it, so that the linker has to be told. What
# that needs in turn may be absent where it is only linked.
target_link_libraries(penstock_libtorch INTERFACE -Wl,--push-state,--no-as-needed ${torch_dir}/lib/libtorch.so -Wl,--pop-state
                      ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so)
target_link_options(penstock_libtorch INTERFACE -Wl,--unresolved-symbols=ignore-in-shared-libs)

penstock_library(penstock_trainer_torch runtime/trainer/torch penstock_trainer_core)
target_link_libraries(penstock_trainer_torch PUBLIC penstock_libtorch)
penstock_precompile(penstock_trainer_torch ${PROJECT_SOURCE_DIR}/runtime/trainer/torch/autograd.h)
