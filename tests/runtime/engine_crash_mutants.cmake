# The engine's own rules of a step, broken one by one: the suite over the engine must catch each.

if(PENSTOCK_SANITIZE)
  return()  # the unbroken suite runs there
endif()

penstock_mutant(engine_crash write_over_before_it_is EveryEventIsACut*/EveryStep runtime/engine/executor_tiles.cpp
  "[this, ticket, place = writing->place](Status status) { write_ended(ticket, place, status); });"
  "[this, ticket, tile = move.tile](Status) { work(ticket, tile).window = Lease(); });
  write_ended(ticket, writing->place, Status());")

penstock_mutant(engine_crash commit_before_the_writes EveryEventIsACut*/EveryStep tiering/plan/plan_update.cpp
  ".kind = MoveKind::commit, .after = writes"
  ".kind = MoveKind::commit, .after = {plan_.verdict}")

penstock_mutant(engine_crash speculative_write_published EveryEventIsACut*/EveryStep runtime/engine/executor_tiles.cpp
  "revocable ? NewVersion::unconfirmed : NewVersion::final"
  "NewVersion::final")

penstock_mutant(engine_crash struck_update_confirmed EveryEventIsACut*/EveryStep runtime/engine/executor.cpp
  "    parts_.store.discard();
  }
  run_.give_verdict"
  "    parts_.store.confirm();
  }
  run_.give_verdict")

penstock_mutant(engine_crash write_before_the_root_is_durable EveryEventIsACut*/EveryStep tiering/plan/plan_update.cpp
  "plan_.moves[moves.write].after_previous = {plan_.commit};"
  "")

penstock_mutant(engine_crash slot_reused_early EveryEventIsACut*/EverySecondStep tiering/store/slot_table.cpp
  "if (slot == names.durable || slot == names.sealed) return false;"
  "")

penstock_mutant(engine_crash settled_before_it_is EveryEventIsACut*/EveryStep runtime/engine/engine_state.cpp
  "return when_idle([&](EngineCore& core) {
    PENSTOCK_TRY(core.executor().status());"
  "return wait_for([](EngineCore&) { return true; }, [&](EngineCore& core) {
    PENSTOCK_TRY(core.executor().status());")

penstock_mutant(engine_crash host_state_not_written_through EveryEventIsACut*/HalfInHost runtime/engine/executor_tiles.cpp
  "if (unwritten == unwritten_.end()) return ended(ticket, Status(), /*moved=*/false);"
  "return ended(ticket, Status());")

penstock_mutant(engine_crash no_data_flush EveryEventIsACut*/EveryStep aio/store/root_writer.cpp
  "on_every_drive(write_to, &RootWriter::flush_data,"
  "on_every_drive(write_to, &RootWriter::data_is_flushed,")

penstock_mutant(engine_crash no_root_flush EveryEventIsACut*/EveryStep aio/store/root_writer.cpp
  "on_every_drive(write_to, &RootWriter::flush_root,"
  "on_every_drive(write_to, &RootWriter::root_is_flushed,")

penstock_mutant(engine_crash one_drives_flush_missing EveryEventIsACut*/EveryStep aio/store/root_writer.cpp
  "return engine_.flush(file); }, &RootWriter::data_is_flushed,"
  "return engine_.flush(file.drive() == 1 ? *files_.front() : file); }, &RootWriter::data_is_flushed,")

penstock_mutant(engine_crash root_early EveryEventIsACut*/EveryStep aio/store/root_writer.cpp
  "on_every_drive([&](const File& file) { return engine_.flush(file); }, &RootWriter::data_is_flushed,
                 &RootWriter::data_is_flushed);"
  "for (const auto& file : files_) Transfer unawaited = engine_.flush(*file);
  data_is_flushed();")

penstock_mutant(engine_crash rng_captured_late EngineCrashRoot runtime/engine/executor.cpp
  "parts_.store.commit(open_steps_.at(ticket.step).payload,"
  "RootPayload payload = open_steps_.at(ticket.step).payload;
  payload.trainer_state = last_payload_.trainer_state;
  parts_.store.commit(std::move(payload),")

penstock_mutant(engine_crash state_page_in_place EveryEventIsACut*/EveryStep aio/store/tile_store.cpp
  "std::optional<uint32_t> slot = pages_.try_begin_write(number, NewVersion::final);"
  "const bool table = number < geometry.table_pages();
  std::optional<uint32_t> slot = table ? pages_.try_begin_write(number, NewVersion::final) : root.page_slots[number];"
  "pages_.end_write({number, *slot});"
  "if (table) pages_.end_write({number, *slot});")

penstock_mutant(engine_crash groups_of_parameters_ignored EveryEventIsACut*/EveryStep runtime/engine/engine.cpp
  "begin.groups[run.group]"
  "begin.groups[options_.request.workload.units[unit].group]")

penstock_mutant(engine_crash only_the_first_group_struck EveryEventIsACut*/EveryStep runtime/engine/executor.cpp
  "for (NumbersRun& run : unit) run.numbers.gradient_scale = scale;"
  "unit.front().numbers.gradient_scale = scale;")
