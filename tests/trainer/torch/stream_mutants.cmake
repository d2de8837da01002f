# The order of a training step's streams, broken in one place each: the suite on a device of streams must tell.

if(PENSTOCK_SANITIZE)
  return()  # the unbroken suite runs there
endif()

# penstock_stream_mutant(NAME FILE TEXT REPLACEMENT)
function(penstock_stream_mutant name file text replacement)
  penstock_read_source(source ${file})
  penstock_put_mistake(source ${name} ${file} "${text}" "${replacement}")
  penstock_return_unless_in_part(${name})
  set(program on_a_stream_mutant_${name})
  penstock_mutant_program(${program} on_a_stream_objects ${file} "${source}" penstock_train_command penstock_test_support GTest::gtest
                          GTest::gtest_main)
  add_test(NAME StreamMutant.${name} COMMAND ${program} --gtest_filter=*EveryPlacement*)
  set_tests_properties(StreamMutant.${name} PROPERTIES PASS_REGULAR_EXPRESSION "nothing says which is first;has given back"
                       ENVIRONMENT OMP_NUM_THREADS=1 TIMEOUT 300)
endfunction()

penstock_stream_mutant(acquired_on_another_stream runtime/trainer/engine_link.cpp
  "engine_.acquire(pass, accelerator_.stream())"
  "engine_.acquire(pass, Stream())")

# Of a gradient, another stream than the pass's is no mistake: the engine orders it with the pass's, before and behind
# what it puts there. That is broken here.
penstock_stream_mutant(gradient_added_on_another_stream runtime/engine/device_sums.cpp
  "memory_.device().launch(kernel, stream)"
  "memory_.device().launch(kernel, Stream())")

penstock_stream_mutant(released_before_its_last_reader runtime/engine/engine_pass.cpp
  "done = *event;"
  "")

penstock_stream_mutant(acquired_before_its_copy runtime/engine/engine_pass.cpp
  "for (const Event& event : before) PENSTOCK_TRY("
  "for (const Event& event : std::vector<Event>()) PENSTOCK_TRY(")
