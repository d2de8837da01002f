# A crash suite is worth what it catches. Each mutant is one source with one rule of the commit protocol broken; the
# crash tests, linked with it in place of the real one, must fail, and say "caught".

if(PENSTOCK_SANITIZE)
  return()  # the unbroken suite runs there
endif()

# The suite over the store alone, the one over the engine, and that of whole training steps.
foreach(suite aio/store/crash runtime/engine_crash runtime/whole_step runtime/update_counts)
  get_filename_component(name ${suite} NAME)
  add_library(${name}_test_object OBJECT ${PROJECT_SOURCE_DIR}/tests/${suite}_test.cpp)
  target_include_directories(${name}_test_object PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name}_test_object PRIVATE penstock_test_support GTest::gtest)
  penstock_optimize_little(${name}_test_object)
endforeach()

# penstock_mutant(SUITE NAME TESTS FILE TEXT REPLACEMENT [TEXT REPLACEMENT]...): every TEXT must be there; TESTS is the
# part of the suite that is known to catch it.
function(penstock_mutant suite name tests file)
  penstock_read_source(source ${file})
  math(EXPR last "${ARGC} - 1")
  foreach(i RANGE 4 ${last} 2)
    math(EXPR j "${i} + 1")
    penstock_put_mistake(source ${name} ${file} "${ARGV${i}}" "${ARGV${j}}")
  endforeach()
  penstock_return_unless_in_part(${name})

  set(program ${suite}_mutant_${name})
  penstock_mutant_program(${program} ${suite}_test_object ${file} "${source}" penstock_test_support GTest::gtest GTest::gtest_main)
  set(test_name CrashMutant.${name})
  set(caught "caught: seed")
  if(suite STREQUAL "engine_crash")
    set(test_name EngineCrashMutant.${name})
    list(APPEND caught "that the pool does not have")  # a lease that has not come back
  elseif(suite STREQUAL "whole_step")
    set(test_name WholeStepMutant.${name})
    # A lease may refuse the bytes before a word is wrong.
    set(caught "FAILED TEST" "are asked for while" "a place that nobody has lent it")
  elseif(suite STREQUAL "update_counts")
    set(test_name UpdateCountsMutant.${name})
    set(caught "FAILED TEST")
  endif()
  # A failed CHECK ends the program by a signal, which ctest would take for a failure whatever was printed.
  add_test(NAME ${test_name} COMMAND sh -c "\"$0\" \"$@\" || true" $<TARGET_FILE:${program}> --gtest_fail_fast
           --gtest_filter=*${tests}*)
  set_tests_properties(${test_name} PROPERTIES PASS_REGULAR_EXPRESSION "${caught}"
    ENVIRONMENT CRASH_SEEDS=4 TIMEOUT 300)
endfunction()

penstock_mutant(crash no_data_flush EveryEventIsACut aio/store/root_writer.cpp
  "on_every_drive(write_to, &RootWriter::flush_data,"
  "on_every_drive(write_to, &RootWriter::data_is_flushed,")

penstock_mutant(crash one_drives_flush_missing EveryEventIsACut aio/store/root_writer.cpp
  "return engine_.flush(file); }, &RootWriter::data_is_flushed,"
  "return engine_.flush(file.drive() == 1 ? *files_.front() : file); }, &RootWriter::data_is_flushed,")

penstock_mutant(crash no_root_flush EveryEventIsACut aio/store/root_writer.cpp
  "on_every_drive(write_to, &RootWriter::flush_root,"
  "on_every_drive(write_to, &RootWriter::root_is_flushed,")

penstock_mutant(crash commit_before_tiles_have_landed EveryEventIsACut aio/store/tile_store.cpp
  "if (tiles_.landing() == 0) write_root();"
  "write_root();"
  "tiles_.landing() == 0 && !writer_.busy()"
  "false")

penstock_mutant(crash flush_before_tiles_have_ended EveryEventIsACut tests/support/store_trainer.cpp
  "engine_.write(writing->extents,"
  "store_.written(writing->place, sums);
  engine_.write(writing->extents,"
  "if (written.ok()) return store_.written(place, sums);"
  "if (written.ok()) return;")

penstock_mutant(crash root_early EveryEventIsACut aio/store/root_writer.cpp
  "on_every_drive([&](const File& file) { return engine_.flush(file); }, &RootWriter::data_is_flushed,
                 &RootWriter::data_is_flushed);"
  "for (const auto& file : files_) Transfer unawaited = engine_.flush(*file);
  data_is_flushed();")

penstock_mutant(crash slot_reused_early EveryEventIsACut tiering/store/slot_table.cpp
  "slot == names.durable || slot == names.sealed"
  "slot == names.sealed")

penstock_mutant(crash unconfirmed_tile_published EveryEventIsACut*/2drives tiering/store/slot_table.cpp
  "names.sealed = names.current;"
  "names.sealed = names.next != kNoSlot ? names.next : names.current;")

penstock_mutant(crash rng_captured_late EveryEventIsACut*/2drives tests/support/store_trainer.cpp
  "store_.commit(*std::exchange(held_, std::nullopt),"
  "held_->trainer_state = numbers_.payload().trainer_state;
  store_.commit(*std::exchange(held_, std::nullopt),")

# The state beside the tiles, in pages of its own.
penstock_mutant(crash state_page_in_place EveryEventIsACut*/1drives aio/store/tile_store.cpp
  "std::optional<uint32_t> slot = pages_.try_begin_write(number, NewVersion::final);"
  "const bool table = number < geometry.table_pages();
  std::optional<uint32_t> slot = table ? pages_.try_begin_write(number, NewVersion::final) : root.page_slots[number];"
  "pages_.end_write({number, *slot});"
  "if (table) pages_.end_write({number, *slot});")

penstock_mutant(crash state_page_forgotten EveryEventIsACut aio/store/tile_store.cpp
  "  pages_.seal();
  return placed;"
  "  pages_.seal();
  std::erase_if(placed, [&](const auto& page) { return page.number >= geometry.table_pages(); });
  return placed;")

penstock_mutant(crash state_of_the_step_before EveryEventIsACut aio/store/tile_store.cpp
  "encode_state(*payload_under_way_,"
  "encode_state(parts_->payload,")

# The last page, which is one of the state's, is written beside the root instead of before it.
penstock_mutant(crash root_before_the_state_page EveryEventIsACut*/1drives aio/store/root_writer.cpp
  "for (size_t i = 0; i < page_offsets_.size(); ++i) {
      bool goes_on"
  "for (size_t i = 0; i + 1 < page_offsets_.size(); ++i) {
      bool goes_on"
  "void RootWriter::write_root() {"
  "void RootWriter::write_root() {
  const uint64_t size = layout_.table().page_bytes(), last = page_offsets_.size() - 1;
  for (const auto& file : files_) {
    const Extent extent{file.get(), page_offsets_[last], last * size, size};
    Transfer unawaited = engine_.write({&extent, 1}, Lease::over(Tier::host, bytes_.bytes()), IoEngine::kWhenever);
  }")

# Beyond the protocol's eight: what a killed process leaves is not durable until the next one has flushed it.
penstock_mutant(crash opened_without_flush WhatAKilledProcessLeft aio/store/store_repairs.cpp
  "PENSTOCK_TRY(flush_all(engine, files));"
  "")

penstock_mutant(crash root_under_way_forgotten EveryEventIsACut*/2drives tiering/store/slot_table.cpp
  "slot == names.durable || slot == names.sealed"
  "slot == names.durable")

penstock_mutant(crash complete_before_it_is AHalfCreatedStore tiering/store/store_header.cpp
  "out.put(static_cast<uint8_t>(state));"
  "out.put(static_cast<uint8_t>(State::complete));")
