# What computes is tested where LibTorch is.
if(PENSTOCK_HAS_LIBTORCH AND TARGET tests_trainer)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/trainer/torch/*.cpp)
  file(GLOB of_streams CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/trainer/torch/stream_*.cpp)
  list(REMOVE_ITEM sources ${of_streams})
  # A program of their own: each test is a process, and LibTorch takes longer to load than most of the others take.
  penstock_test_program(tests_trainer_torch "${sources}" penstock_train_command penstock_test_support)
  penstock_precompile(tests_trainer_torch ${PROJECT_SOURCE_DIR}/runtime/trainer/torch/autograd.h)

  # LibTorch has one device of this kind for a whole process, and others' tests would be seeded on it too.
  add_library(on_a_stream_objects OBJECT ${of_streams})
  target_include_directories(on_a_stream_objects PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(on_a_stream_objects PRIVATE penstock_train_command penstock_test_support GTest::gtest)
  penstock_optimize_little(on_a_stream_objects)
  add_executable(tests_trainer_on_a_stream $<TARGET_OBJECTS:on_a_stream_objects>)
  target_link_libraries(tests_trainer_on_a_stream PRIVATE penstock_train_command penstock_test_support GTest::gtest GTest::gtest_main)
  gtest_discover_tests(tests_trainer_on_a_stream DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 600 ENVIRONMENT OMP_NUM_THREADS=1)
  include(tests/trainer/torch/stream_mutants.cmake)
endif()

# Against transformers itself, where .venv has it.
if(PENSTOCK_HAS_LIBTORCH AND TARGET tests_trainer)
  add_executable(model_probe tests/trainer/model_probe.cpp)
  target_include_directories(model_probe PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(model_probe PRIVATE penstock_trainer_torch nlohmann_json::nlohmann_json)
  penstock_optimize_little(model_probe)
  set(torch_python ${Python3_EXECUTABLE})
  if(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    set(torch_python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  endif()
  add_test(NAME Trainer.ComputesWhatTransformersComputes
           COMMAND ${torch_python} ${PROJECT_SOURCE_DIR}/tests/trainer/transformers_test.py $<TARGET_FILE:model_probe>)
  set_tests_properties(Trainer.ComputesWhatTransformersComputes PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 ENVIRONMENT OMP_NUM_THREADS=1)
endif()

# The command, as a user runs it.
if(PENSTOCK_HAS_LIBTORCH)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  set(train_python ${Python3_EXECUTABLE})
  if(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    set(train_python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  endif()
  # penstock_train_test(PREFIX FILE CLASS...): each class of the file is a test.
  function(penstock_train_test prefix file)
    foreach(subject IN LISTS ARGN)
      add_test(NAME ${prefix}.${subject}
               COMMAND ${train_python} ${PROJECT_SOURCE_DIR}/tests/tools/${file} $<TARGET_FILE:penstock> ${subject})
      set_tests_properties(${prefix}.${subject} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
    endforeach()
  endfunction()
  penstock_train_test(Train.AsAUserRunsIt train_test.py Configs)
  penstock_train_test(Train.AsAUserRunsIt train_doctor_test.py Doctor)
  penstock_train_test(Train.AsAUserRunsIt train_evaluation_test.py Evaluation)
  penstock_train_test(Train.AsAUserRunsIt train_folders_test.py Folders)
  penstock_train_test(Train.AsAUserRunsIt train_hugging_face_test.py HuggingFace)
  penstock_train_test(Train.AsAUserRunsIt train_samples_test.py Samples)
  penstock_train_test(Train.AsAUserRunsIt train_kept_test.py Snapshots)
  penstock_train_test(Train.AsAUserRunsIt train_verify_test.py Verify)
  penstock_train_test(Train.LossRules loss_rules_test.py LeaveOut Rules Rollback)
  penstock_train_test(Train.Lora lora_test.py FollowsPeft Tiers Words)
  penstock_train_test(Train.InSeveralRanks ranks_test.py Stages Choice Lora)
  penstock_train_test(Train.InSeveralRanks ranks_kept_test.py Snapshots Reshard)
  penstock_train_test(Train.InSeveralRanks ranks_ends_test.py Ends Refusals)
  penstock_train_test(Train.InSeveralRanks ranks_hosts_test.py Hosts)
  penstock_train_test(Train.InSeveralRanks ranks_manual_test.py Readme ManualPage)
  add_test(NAME Train.ReshardStaysBelow300MB
           COMMAND ${train_python} ${PROJECT_SOURCE_DIR}/bench/reshard.py $<TARGET_FILE:penstock> ${CMAKE_BINARY_DIR} --quick)
  set_tests_properties(Train.ReshardStaysBelow300MB PROPERTIES TIMEOUT 300 ENVIRONMENT OMP_NUM_THREADS=1)
  add_test(NAME Train.StaysInAControlGroupThatIsItsBudget
           COMMAND ${train_python} ${PROJECT_SOURCE_DIR}/bench/train_memory.py $<TARGET_FILE:penstock> . --params tiny --memory 400MiB --steps 2 --probe 1s --clipping always
                   --share 0 --weights nvme)
  set_tests_properties(Train.StaysInAControlGroupThatIsItsBudget PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 ENVIRONMENT OMP_NUM_THREADS=1)
  add_test(NAME Train.EachRankStaysInAControlGroupThatIsItsPart
           COMMAND ${train_python} ${PROJECT_SOURCE_DIR}/bench/rank_memory.py $<TARGET_FILE:penstock> . --params tiny --memory 540MiB --steps 5 --probe 1s
                   --clipping never --within 0.04)
  set_tests_properties(Train.EachRankStaysInAControlGroupThatIsItsPart PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 ENVIRONMENT
                       "OMP_NUM_THREADS=1;PYTHONDONTWRITEBYTECODE=1")
  add_test(NAME Train.ReadsAFrozenBaseOnceForEachPass
           COMMAND ${train_python} ${PROJECT_SOURCE_DIR}/bench/finetune.py $<TARGET_FILE:penstock> . --params tiny --memory 500MiB --base bf16
                   --steps 1 --rounds 1 --probe 1s)
  set_tests_properties(Train.ReadsAFrozenBaseOnceForEachPass PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 ENVIRONMENT
                       "OMP_NUM_THREADS=1;PYTHONDONTWRITEBYTECODE=1")
  add_test(NAME Train.KilledAgainAndAgainEndsWithTheSameBits
           COMMAND ${train_python} ${PROJECT_SOURCE_DIR}/tests/tools/train_kills.py $<TARGET_FILE:penstock> --steps 8 --every 0)
  set_tests_properties(Train.KilledAgainAndAgainEndsWithTheSameBits PROPERTIES TIMEOUT 900)
  add_test(NAME Train.KilledAroundARollbackOfItsOwnEndsWithTheSameBits
           COMMAND ${train_python} ${PROJECT_SOURCE_DIR}/tests/tools/train_kills.py $<TARGET_FILE:penstock> --steps 13 --every 0 --rule rollback)
  set_tests_properties(Train.KilledAroundARollbackOfItsOwnEndsWithTheSameBits PROPERTIES TIMEOUT 900)
  add_test(NAME Train.SnapshotsAreWhatWasPredictedAndSurviveKills
           COMMAND ${train_python} ${PROJECT_SOURCE_DIR}/tests/tools/train_snapshots.py $<TARGET_FILE:penstock> --steps 6 --every 2 --kills 3)
  set_tests_properties(Train.SnapshotsAreWhatWasPredictedAndSurviveKills PROPERTIES TIMEOUT 900)
endif()
