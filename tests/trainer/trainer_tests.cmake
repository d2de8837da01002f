# What computes is tested where LibTorch is.
if(PENSTOCK_HAS_LIBTORCH AND TARGET tests_trainer)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/trainer/torch/*.cpp)
  target_sources(tests_trainer PRIVATE ${sources})
  target_link_libraries(tests_trainer PRIVATE penstock_trainer)
endif()
