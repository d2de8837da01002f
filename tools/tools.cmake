# The `penstock` command: everything but main() is a library, so that tests can reach it.
find_package(CLI11 REQUIRED)
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/penstock/*.cpp ${PROJECT_SOURCE_DIR}/tools/doctor/*.cpp
     ${PROJECT_SOURCE_DIR}/tools/machine/*.cpp ${PROJECT_SOURCE_DIR}/tools/nvme/*.cpp ${PROJECT_SOURCE_DIR}/tools/plan/*.cpp ${PROJECT_SOURCE_DIR}/tools/system/*.cpp
     ${PROJECT_SOURCE_DIR}/tools/update/*.cpp)
list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
if(PENSTOCK_STEPS)
  list(FILTER sources EXCLUDE REGEX "/unavailable_[a-z_]+\\.cpp$")
else()
  list(FILTER sources EXCLUDE REGEX "/tools/update/|/tools/doctor/measured_rates\\.cpp|/(config|train|update|verify|checkpoint|store)_[a-z_]+\\.cpp$")
endif()
if(PENSTOCK_STEPS)
  foreach(subject config gathering model samples settings stage store)
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tools/train/${subject}_of_run.cpp)
  endforeach()
endif()
add_library(penstock_tools STATIC ${sources})
target_include_directories(penstock_tools PUBLIC ${PROJECT_SOURCE_DIR})
target_compile_definitions(penstock_tools PUBLIC PENSTOCK_VERSION="${PROJECT_VERSION}")
target_compile_definitions(penstock_tools PRIVATE $<$<BOOL:${PENSTOCK_STEPS}>:PENSTOCK_STEPS>
                           PENSTOCK_PYTHON_FOLDER="${PROJECT_SOURCE_DIR}/runtime/python"
                           PENSTOCK_SHIPPED_TEXT="${PROJECT_SOURCE_DIR}/tools/data/paradise-lost.txt")
target_link_libraries(penstock_tools PUBLIC penstock_aio $<$<BOOL:${PENSTOCK_STEPS}>:penstock_trainer_core> PRIVATE nlohmann_json::nlohmann_json CLI11::CLI11 ${CMAKE_DL_LIBS})
if(PENSTOCK_SANITIZE AND NOT PENSTOCK_FUZZ)
  target_compile_options(penstock_tools PRIVATE -O0)  # flags and tables: to be compiled soon is worth more here
endif()

penstock_precompile(penstock_tools <nlohmann/json.hpp>)
include(tools/cmake/guides.cmake)

add_executable(penstock tools/penstock/main.cpp)
target_link_libraries(penstock PRIVATE penstock_tools)

# The part of it that stands on LibTorch is a program of its own, so that the command starts without.
if(PENSTOCK_HAS_LIBTORCH)
  add_library(penstock_train_command STATIC tools/train/tiered_steps.cpp
              tools/train/plain_training.cpp tools/train/plain_words.cpp tools/train/placements.cpp)
  target_link_libraries(penstock_train_command PUBLIC penstock_tools penstock_trainer_torch)
  add_executable(penstock-trainer tools/train/main.cpp tools/train/generate.cpp tools/train/loss_events.cpp
                 tools/train/measure_compute.cpp tools/train/roll_back.cpp tools/train/run_prompts.cpp
                 tools/train/run_folder.cpp tools/train/run_log.cpp tools/train/run_plan.cpp tools/train/run_report.cpp tools/train/run_start.cpp tools/train/step_progress.cpp
                 tools/train/snapshots.cpp tools/train/store_link.cpp tools/train/train_loop.cpp
                 tools/train/verify_training.cpp)
  target_link_libraries(penstock-trainer PRIVATE penstock_train_command nlohmann_json::nlohmann_json)
  penstock_precompile(penstock-trainer <nlohmann/json.hpp> ${PROJECT_SOURCE_DIR}/runtime/trainer/torch/autograd.h)
endif()
