// The C functions of penstock.h: exceptions end here, and refusals become a code and a text.
#include "runtime/engine/penstock.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <new>

#include "runtime/engine/embedded_engine.h"
#include "runtime/engine/penstock_conversions.h"

using penstock::Code;
using penstock::Result;
using penstock::Status;
using penstock::text;
using penstock::engine::c_pass_of;
using penstock::engine::c_report_of;
using penstock::engine::ComputePass;
using penstock::engine::dtype_of;
using penstock::engine::EmbeddedEngine;
using penstock::engine::hypers_of;
using penstock::engine::options_of;
using penstock::engine::pass_of;
using penstock::engine::role_of;
using penstock::engine::usage;
using penstock::engine::weights_of;

struct penstock_engine {
  std::unique_ptr<EmbeddedEngine> engine;
  pid_t process = ::getpid();
  std::atomic<bool> called = false;  // by the call that is running
  std::string restored, description, id;
};

namespace {

struct Refusal {
  std::string message, remedy;
};

// How many engines are open, and in which process. A forked child has its parent's count, and none of its threads.
std::atomic<uint32_t> open_engines = 0;
std::atomic<pid_t> process_of_engines = 0;

Status check_threads() {
  const pid_t process = ::getpid();
  if (process_of_engines.exchange(process) == process || open_engines == 0) return Status();
  process_of_engines = 0;  // and so it is asked again
  return Status(Code::kUsage,
                "open: this process was forked while its parent had an engine open, whose threads it lacks",
                "fork before the first engine is opened, or start a program anew");
}

Refusal& last_refusal() {
  thread_local Refusal refusal;
  return refusal;
}

int code_of(const Status& status) noexcept {
  if (status.ok()) return PENSTOCK_OK;
  try {
    last_refusal() = {status.message(), status.remedy()};
  } catch (const std::bad_alloc&) {
    last_refusal() = {};  // nothing is left to say it with
  }
  return static_cast<int>(status.code());
}

// Runs `work`, whose Status becomes a code. No exception leaves it.
template <typename Work>
int guarded(Work work) noexcept {
  try {
    return code_of(work());
  } catch (const std::bad_alloc&) {
    return code_of(Status(Code::kDoesNotFit, "out of memory"));
  } catch (const std::exception& error) {
    return code_of(Status(Code::kEnvironment, error.what()));
  }
}

// The right to be the one call of an engine, while it lives.
class Turn {
 public:
  explicit Turn(penstock_engine& engine) : engine_(engine), taken_(!engine.called.exchange(true)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (taken_) engine_.called.store(false);
  }

  Status status() const {
    if (taken_) return Status();
    return Status(Code::kUsage, "another call of this engine is running",
                  "call it from one thread at a time, and not from its callbacks");
  }

 private:
  penstock_engine& engine_;
  const bool taken_;
};

Status check_caller(const penstock_engine* engine) {
  if (engine == nullptr) return usage("engine: NULL");
  if (engine->process != ::getpid()) {
    return Status(
        Code::kUsage, "this process was forked; the store belongs to its parent",
        "call from the parent; a child has engines of its own where it was forked before the parent opened one");
  }
  return Status();
}

Status check_usable(const penstock_engine* engine) {
  if (!engine->engine->is_open()) {
    return Status(Code::kEnvironment, "the store could not be opened again when it was rolled back",
                  "close the engine and open it again");
  }
  return engine->engine->failure();
}

// Of an engine that may be used.
template <typename Work>
int verb(penstock_engine* engine, Work work) noexcept {
  return guarded([&]() -> Status {
    PENSTOCK_TRY(check_caller(engine));
    const Turn turn(*engine);
    PENSTOCK_TRY(turn.status());
    PENSTOCK_TRY(check_usable(engine));
    return work(*engine->engine);
  });
}

void log_lines(const penstock_options& options, const penstock_engine& engine) {
  if (options.log == nullptr) return;
  size_t begin = 0;
  while (begin < engine.description.size()) {
    const size_t end = std::min(engine.description.find('\n', begin), engine.description.size());
    options.log(options.log_context, PENSTOCK_INFO, engine.description.substr(begin, end - begin).c_str());
    begin = end + 1;
  }
  for (const std::string& remark : engine.engine->engine().remarks()) {
    options.log(options.log_context, PENSTOCK_WARNING, remark.c_str());
  }
}

// What stays for the caller to look at until the store is opened anew.
void note_opened(penstock_engine& engine) {
  const penstock::engine::StepEngine& inner = engine.engine->engine();
  engine.restored = inner.restored_state();
  engine.description = inner.description();
  engine.id = inner.store_id();
}

// As many as there is room for, and how many there are.
template <typename T>
Status give_list(const std::vector<T>& values, T* out, size_t room, size_t* count) {
  if (count == nullptr || (out == nullptr && room > 0)) return usage("list: NULL");
  std::copy_n(values.begin(), std::min(room, values.size()), out);
  *count = values.size();
  return Status();
}

template <typename T>
Status give(const char* name, const Result<T>& result, T* out) {
  PENSTOCK_TRY(result.status());
  if (out == nullptr) return usage(text(name, ": NULL"));
  *out = *result;
  return Status();
}

}  // namespace

extern "C" {

const char* penstock_message(void) { return last_refusal().message.c_str(); }
const char* penstock_remedy(void) { return last_refusal().remedy.c_str(); }

int penstock_open(const penstock_options* options, const penstock_parameter* parameters, uint32_t parameter_count,
                  penstock_engine** engine) {
  if (engine != nullptr) *engine = nullptr;
  return guarded([&]() -> Status {
    if (options == nullptr || engine == nullptr) return usage("open: NULL");
    if (options->size != sizeof(penstock_options)) {
      return usage(text("open: options of ", options->size, " B, ", sizeof(penstock_options), " B expected"));
    }
    PENSTOCK_TRY(check_threads());
    PENSTOCK_TRY_ASSIGN(wanted, options_of(*options, parameters, parameter_count));
    auto opened = std::make_unique<penstock_engine>();
    PENSTOCK_TRY_ASSIGN(inner, EmbeddedEngine::open(std::move(wanted)));
    opened->engine = std::move(inner);
    note_opened(*opened);
    log_lines(*options, *opened);
    *engine = opened.release();
    ++open_engines;
    return Status();
  });
}

int penstock_close(penstock_engine* engine) {
  if (engine == nullptr || engine->process != ::getpid()) return PENSTOCK_OK;
  if (engine->called.exchange(true)) {
    return guarded([] { return usage("close: another call of this engine is running"); });
  }
  const int code = guarded([&] { return engine->engine->close(); });
  delete engine;
  --open_engines;
  return code;
}

int penstock_begin(penstock_engine* engine, const penstock_rates* groups, uint32_t group_count, uint32_t micro_batches,
                   double loss_scale) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    if (groups == nullptr && group_count > 0) return usage("begin: groups: NULL");
    return inner.begin(hypers_of({groups, group_count}), micro_batches, loss_scale);
  });
}

int penstock_gradient(penstock_engine* engine, uint32_t parameter, uint32_t micro_batch, int dtype,
                      const void* values) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(type, dtype_of(dtype));
    return inner.gradient(parameter, micro_batch, type, static_cast<const std::byte*>(values));
  });
}

int penstock_gradient_part(penstock_engine* engine, uint32_t parameter, uint32_t micro_batch, uint64_t first,
                           uint64_t count, int dtype, const void* values) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(type, dtype_of(dtype));
    return inner.gradient_part(parameter, micro_batch, first, count, type, static_cast<const std::byte*>(values));
  });
}

int penstock_absent(penstock_engine* engine, uint32_t parameter) {
  return verb(engine, [&](EmbeddedEngine& inner) { return inner.absent(parameter); });
}

int penstock_publish(penstock_engine* engine) {
  return verb(engine, [](EmbeddedEngine& inner) { return inner.publish(); });
}

int penstock_step(penstock_engine* engine, const void* state, size_t state_bytes, penstock_report* report) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    if (state == nullptr && state_bytes > 0) return usage("step: state: NULL");
    std::string bytes(state_bytes > 0 ? static_cast<const char*>(state) : "", state_bytes);
    PENSTOCK_TRY_ASSIGN(done, inner.step(std::move(bytes)));
    if (report != nullptr) *report = c_report_of(done);
    return Status();
  });
}

int penstock_discard(penstock_engine* engine) {
  return verb(engine, [](EmbeddedEngine& inner) { return inner.discard(); });
}

int penstock_passes(penstock_engine* engine, penstock_pass* passes, size_t room, size_t* count) {
  return verb(engine, [&](EmbeddedEngine& inner) {
    std::vector<penstock_pass> all;
    for (const ComputePass& pass : inner.passes()) all.push_back(c_pass_of(pass));
    return give_list(all, passes, room, count);
  });
}

int penstock_acquire(penstock_engine* engine, const penstock_pass* pass) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(wanted, pass_of(pass));
    return inner.acquire(wanted);
  });
}

int penstock_release(penstock_engine* engine, const penstock_pass* pass) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(held, pass_of(pass));
    return inner.release(held);
  });
}

int penstock_weight(penstock_engine* engine, uint32_t parameter, const float** values) {
  return verb(engine, [&](EmbeddedEngine& inner) { return give("weight", inner.weight(parameter), values); });
}

int penstock_begin_forward(penstock_engine* engine) {
  return verb(engine, [](EmbeddedEngine& inner) { return inner.begin_forward(); });
}

int penstock_end_forward(penstock_engine* engine) {
  return verb(engine, [](EmbeddedEngine& inner) { return inner.end_forward(); });
}

int penstock_read(penstock_engine* engine, uint32_t parameter, int role, uint64_t first, uint64_t count, int dtype,
                  void* values) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(plane, role_of(role));
    PENSTOCK_TRY_ASSIGN(type, dtype_of(dtype));
    if (values == nullptr && count > 0) return usage("read: values: NULL");
    return inner.read(parameter, plane, first, count, type, static_cast<std::byte*>(values));
  });
}

int penstock_write(penstock_engine* engine, uint32_t parameter, int role, uint64_t first, uint64_t count, int dtype,
                   const void* values) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(plane, role_of(role));
    PENSTOCK_TRY_ASSIGN(type, dtype_of(dtype));
    if (values == nullptr && count > 0) return usage("write: values: NULL");
    return inner.write(parameter, plane, first, count, type, static_cast<const std::byte*>(values));
  });
}

int penstock_begin_writes(penstock_engine* engine) {
  return verb(engine, [](EmbeddedEngine& inner) { return inner.begin_writes(); });
}

int penstock_end_writes(penstock_engine* engine) {
  return verb(engine, [](EmbeddedEngine& inner) { return inner.end_writes(); });
}

int penstock_adopt(penstock_engine* engine, uint32_t parameter, uint64_t first, uint64_t count, int dtype,
                   const void* weights, uint64_t* changed) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(type, dtype_of(dtype));
    if (weights == nullptr && count > 0) return usage("adopt: weights: NULL");
    PENSTOCK_TRY_ASSIGN(adopted, inner.adopt(parameter, first, count, type, static_cast<const std::byte*>(weights)));
    if (changed != nullptr) *changed = adopted;
    return Status();
  });
}

int penstock_count(penstock_engine* engine, uint32_t parameter, uint64_t* count) {
  return verb(engine, [&](EmbeddedEngine& inner) { return give("count", inner.count(parameter), count); });
}

int penstock_set_count(penstock_engine* engine, uint32_t parameter, uint64_t count) {
  return verb(engine, [&](EmbeddedEngine& inner) { return inner.set_count(parameter, count); });
}

int penstock_set_weights_into(penstock_engine* engine, uint32_t parameter, int dtype, void* weights_into) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(type, dtype_of(dtype));
    return inner.set_weights(parameter, type, weights_of(weights_into));
  });
}

int penstock_settle(penstock_engine* engine) {
  return verb(engine, [](EmbeddedEngine& inner) { return inner.settle(); });
}

int penstock_keep(penstock_engine* engine, uint64_t* step) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY_ASSIGN(kept, inner.keep());
    if (step != nullptr) *step = kept;
    return Status();
  });
}

int penstock_kept(penstock_engine* engine, uint64_t* steps, size_t room, size_t* count) {
  return verb(engine, [&](EmbeddedEngine& inner) { return give_list(inner.kept(), steps, room, count); });
}

int penstock_mark(penstock_engine* engine, uint64_t step, uint64_t* mark) {
  return verb(engine, [&](EmbeddedEngine& inner) { return give("mark", inner.mark(step), mark); });
}

int penstock_roll_back(penstock_engine* engine, uint64_t step) {
  return verb(engine, [&](EmbeddedEngine& inner) -> Status {
    PENSTOCK_TRY(inner.roll_back(step));
    note_opened(*engine);
    return Status();
  });
}

int penstock_drop(penstock_engine* engine, uint64_t step) {
  return verb(engine, [&](EmbeddedEngine& inner) { return inner.drop(step); });
}

int penstock_rank(penstock_engine* engine, uint32_t* rank, uint32_t* ranks) {
  return verb(engine, [&](EmbeddedEngine& inner) {
    if (rank != nullptr) *rank = inner.place().rank;
    if (ranks != nullptr) *ranks = inner.place().ranks;
    return Status();
  });
}

int penstock_steps(penstock_engine* engine, uint64_t* steps) {
  return verb(engine, [&](EmbeddedEngine& inner) {
    return give("steps", Result<uint64_t>(inner.engine().steps_done()), steps);
  });
}

int penstock_restored_state(penstock_engine* engine, const void** state, size_t* state_bytes) {
  return verb(engine, [&](EmbeddedEngine&) {
    if (state == nullptr || state_bytes == nullptr) return usage("restored state: NULL");
    *state = engine->restored.data();
    *state_bytes = engine->restored.size();
    return Status();
  });
}

const char* penstock_store_id(penstock_engine* engine) { return engine == nullptr ? "" : engine->id.c_str(); }

int penstock_get_statistics(penstock_engine* engine, penstock_statistics* statistics) {
  return verb(engine, [&](EmbeddedEngine& inner) {
    if (statistics == nullptr) return usage("statistics: NULL");
    const penstock::engine::DriveBytes moved = inner.engine().drive_bytes();
    *statistics = {.parameters = inner.model().places.size(),
                   .elements = inner.elements(),
                   .host_bytes = needed_bytes(inner.engine().plan().budget_lines, penstock::Tier::host),
                   .read_bytes = moved.read_bytes,
                   .written_bytes = moved.written_bytes};
    return Status();
  });
}

const char* penstock_description(penstock_engine* engine) {
  return engine == nullptr ? "" : engine->description.c_str();
}

}  // extern "C"
