// C++ over penstock.h: types that own, spans, and a Status that may be refused. Header-only, so that the C functions
// are all that a program is bound to.
//
//   auto opened = penstock::Store::open(options, parameters);
//   if (!opened) return fail(opened.status().message);
//   penstock::Store store = std::move(*opened);
//
// The rules are penstock.h's: threads, forks, and what a refusal means. Nothing throws but std::bad_alloc. A Store that
// was moved from, or closed, refuses every verb.
#ifndef PENSTOCK_HPP
#define PENSTOCK_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#if __has_include("penstock.h")
#include "penstock.h"
#else
#include "runtime/engine/penstock.h"
#endif

namespace penstock {
inline namespace embedding {

struct [[nodiscard]] Status {
  int code = PENSTOCK_OK;
  std::string message, remedy;

  bool ok() const { return code == PENSTOCK_OK; }
  explicit operator bool() const { return ok(); }

  // Of a C function's return.
  static Status of(int returned) {
    return returned == PENSTOCK_OK ? Status() : Status{returned, penstock_message(), penstock_remedy()};
  }
};

// A value, or the refusal instead of one.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  explicit operator bool() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // REQUIRES: it has a value.
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

struct Parameter {
  std::string name;
  uint64_t elements = 0;
  uint32_t group = 0;
  uint32_t unit = PENSTOCK_UNIT_AUTO;
  int dtype = PENSTOCK_FP32;      // of the two that follow
  const void* initial = nullptr;  // while the store is made
  void* weights_into = nullptr;   // or PENSTOCK_WEIGHTS_OUT
};

struct Options {
  std::vector<std::string> drives;
  uint64_t host_bytes = 0;
  penstock_optimizer optimizer = PENSTOCK_ADAMW;
  penstock_existing existing = PENSTOCK_OPEN_OR_CREATE;
  penstock_durability durability = PENSTOCK_EACH_STEP;
  uint32_t durable_every = 1;
  uint32_t micro_batches = 1;
  double clip_norm = 0;
  bool skip_overflow = false;
  bool whole_steps = false;
  uint32_t threads = 0;
  uint32_t slots = 0;
  uint64_t initial_step = 0;
  bool ranks_of_environment = false;
  penstock_sharing sharing = PENSTOCK_SHARE_WEIGHTS;
  double hangs_after_s = 0;
  // Hears what was decided at opening, line by line. Must not throw.
  std::function<void(penstock_level level, const char* line)> log;
  // Of parameters without values of their own: fills [first, first + values.size()). Must not throw.
  std::function<void(uint32_t parameter, uint64_t first, std::span<float> values)> initial;
  // Of parameters with PENSTOCK_WEIGHTS_OUT: their new weights, from `first` on. `false` is a failure of the engine. The
  // store has a copy of it. Must not throw.
  std::function<bool(uint32_t parameter, uint64_t first, int dtype, std::span<const std::byte> values)> weights_out;
};

class Store {
 public:
  static Result<Store> open(const Options& options, std::span<const Parameter> parameters) {
    std::vector<const char*> drives;
    for (const std::string& drive : options.drives) drives.push_back(drive.c_str());
    std::vector<penstock_parameter> all;
    for (const Parameter& of : parameters) {
      all.push_back({of.name.c_str(), of.elements, of.group, of.dtype, of.initial, of.weights_into, of.unit});
    }
    penstock_options c{};
    c.size = sizeof(c);
    c.drives = drives.data();
    c.drive_count = static_cast<uint32_t>(drives.size());
    c.threads = options.threads;
    c.host_bytes = options.host_bytes;
    c.optimizer = options.optimizer;
    c.existing = options.existing;
    c.durability = options.durability;
    c.durable_every = options.durable_every;
    c.micro_batches = options.micro_batches;
    c.skip_overflow = options.skip_overflow;
    c.clip_norm = options.clip_norm;
    c.whole_steps = options.whole_steps;
    c.slots = options.slots;
    c.initial_step = options.initial_step;
    c.ranks_of_environment = options.ranks_of_environment;
    c.sharing = options.sharing;
    c.hangs_after_s = options.hangs_after_s;
    c.log_context = const_cast<Options*>(&options);
    if (options.log) {
      c.log = [](void* context, int level, const char* line) {
        static_cast<const Options*>(context)->log(static_cast<penstock_level>(level), line);
      };
    }
    c.initial_context = const_cast<Options*>(&options);
    if (options.initial) {
      c.initial = [](void* context, uint32_t parameter, uint64_t first, uint64_t count, float* values) {
        static_cast<const Options*>(context)->initial(parameter, first, {values, count});
        return 0;
      };
    }
    auto out = std::make_unique<WeightsOut>(options.weights_out);
    if (options.weights_out) {
      c.weights_out_context = out.get();
      c.weights_out = [](void* context, uint32_t parameter, uint64_t first, uint64_t count, int dtype,
                         const void* values) {
        const size_t bytes = count * (dtype == PENSTOCK_FP32 ? 4 : 2);
        const std::span run(static_cast<const std::byte*>(values), bytes);
        return (*static_cast<WeightsOut*>(context))(parameter, first, dtype, run) ? 0 : 1;
      };
    }
    penstock_engine* engine = nullptr;
    Status status = Status::of(penstock_open(&c, all.data(), static_cast<uint32_t>(all.size()), &engine));
    if (!status) return status;
    std::vector<uint64_t> elements;
    for (const Parameter& of : parameters) elements.push_back(of.elements);
    return Store(engine, std::move(out), std::move(elements));
  }
  Store(Store&&) = default;
  // The engine goes before what it calls.
  Store& operator=(Store&& other) noexcept {
    engine_ = std::move(other.engine_);
    weights_out_ = std::move(other.weights_out_);
    elements_ = std::move(other.elements_);
    return *this;
  }

  // What the destructor does, too, but says whether the last step is durable. Refused, and still open, while another
  // thread is in a verb.
  Status close() {
    const Status closed = Status::of(penstock_close(engine_.get()));
    if (closed.code != PENSTOCK_USAGE) (void)engine_.release();
    return closed;
  }

  Status begin(std::span<const penstock_rates> groups, uint32_t micro_batches = 1, double loss_scale = 1) {
    const auto count = static_cast<uint32_t>(groups.size());
    return Status::of(penstock_begin(get(), groups.data(), count, micro_batches, loss_scale));
  }
  // As many values as the parameter has; others are refused.
  Status gradient(uint32_t parameter, std::span<const float> values, uint32_t micro_batch = 0) {
    return gradient(parameter, PENSTOCK_FP32, std::as_bytes(values), micro_batch);
  }
  // Of any dtype.
  Status gradient(uint32_t parameter, int dtype, std::span<const std::byte> values, uint32_t micro_batch = 0) {
    const uint64_t size = dtype == PENSTOCK_FP32 ? 4 : 2;
    if (parameter < elements_.size() && values.size() != elements_[parameter] * size) {
      return {PENSTOCK_USAGE,
              "gradient: " + std::to_string(values.size() / size) + " values of parameter " +
                  std::to_string(parameter) + ", which has " + std::to_string(elements_[parameter]),
              "hand over all of them, or pieces by gradient_part()"};
    }
    return Status::of(penstock_gradient(get(), parameter, micro_batch, dtype, values.data()));
  }
  // Values from `first` on; from the first to the last in order.
  Status gradient_part(uint32_t parameter, uint64_t first, std::span<const float> values, uint32_t micro_batch = 0) {
    return Status::of(penstock_gradient_part(get(), parameter, micro_batch, first, values.size(), PENSTOCK_FP32,
                                             values.data()));
  }
  Status absent(uint32_t parameter) { return Status::of(penstock_absent(get(), parameter)); }
  Status publish() { return Status::of(penstock_publish(get())); }
  Result<penstock_report> step(std::span<const std::byte> state = {}) {
    penstock_report report{};
    Status status = Status::of(penstock_step(get(), state.data(), state.size(), &report));
    if (!status) return status;
    return report;
  }
  Status discard() { return Status::of(penstock_discard(get())); }

  // Of the step that has begun, in the order in which they must be acquired.
  Result<std::vector<penstock_pass>> passes() {
    size_t count = 0;
    if (Status status = Status::of(penstock_passes(get(), nullptr, 0, &count)); !status) return status;
    std::vector<penstock_pass> all(count);
    if (Status status = Status::of(penstock_passes(get(), all.data(), count, &count)); !status) return status;
    return all;
  }
  Status acquire(const penstock_pass& pass) { return Status::of(penstock_acquire(get(), &pass)); }
  Status release(const penstock_pass& pass) { return Status::of(penstock_release(get(), &pass)); }
  // Of the unit that is acquired.
  Result<const float*> weight(uint32_t parameter) {
    const float* values = nullptr;
    if (Status status = Status::of(penstock_weight(get(), parameter, &values)); !status) return status;
    return values;
  }

  // Forward passes that change nothing, between the two.
  Status begin_forward() { return Status::of(penstock_begin_forward(get())); }
  Status end_forward() { return Status::of(penstock_end_forward(get())); }

  Status read(uint32_t parameter, penstock_role role, uint64_t first, std::span<float> values) {
    return Status::of(penstock_read(get(), parameter, role, first, values.size(), PENSTOCK_FP32, values.data()));
  }
  Status write(uint32_t parameter, penstock_role role, uint64_t first, std::span<const float> values) {
    return Status::of(penstock_write(get(), parameter, role, first, values.size(), PENSTOCK_FP32, values.data()));
  }
  // What is written, adopted and counted between the two becomes durable together.
  Status begin_writes() { return Status::of(penstock_begin_writes(get())); }
  Status end_writes() { return Status::of(penstock_end_writes(get())); }
  // Weights that somebody else may have written; how many masters became them.
  Result<uint64_t> adopt(uint32_t parameter, uint64_t first, std::span<const float> weights) {
    uint64_t changed = 0;
    Status status = Status::of(
        penstock_adopt(get(), parameter, first, weights.size(), PENSTOCK_FP32, weights.data(), &changed));
    if (!status) return status;
    return changed;
  }
  Result<uint64_t> count(uint32_t parameter) {
    uint64_t count = 0;
    if (Status status = Status::of(penstock_count(get(), parameter, &count)); !status) return status;
    return count;
  }
  Status set_count(uint32_t parameter, uint64_t count) {
    return Status::of(penstock_set_count(get(), parameter, count));
  }
  Status set_weights_into(uint32_t parameter, int dtype, void* weights_into) {
    return Status::of(penstock_set_weights_into(get(), parameter, dtype, weights_into));
  }
  Status settle() { return Status::of(penstock_settle(get())); }
  // The step that is kept.
  Result<uint64_t> keep() {
    uint64_t step = 0;
    if (Status status = Status::of(penstock_keep(get(), &step)); !status) return status;
    return step;
  }
  // Ascending.
  Result<std::vector<uint64_t>> kept() {
    size_t count = 0;
    if (Status status = Status::of(penstock_kept(get(), nullptr, 0, &count)); !status) return status;
    std::vector<uint64_t> steps(count);
    if (Status status = Status::of(penstock_kept(get(), steps.data(), count, &count)); !status) return status;
    return steps;
  }
  Result<uint64_t> mark(uint64_t step) {
    uint64_t mark = 0;
    if (Status status = Status::of(penstock_mark(get(), step, &mark)); !status) return status;
    return mark;
  }
  Status roll_back(uint64_t step) { return Status::of(penstock_roll_back(get(), step)); }
  Status drop(uint64_t step) { return Status::of(penstock_drop(get(), step)); }

  // Which of how many: 0 of 1 where it is alone.
  struct Place {
    uint32_t rank = 0, ranks = 1;
  };
  Place place() {
    Place place;
    return penstock_rank(get(), &place.rank, &place.ranks) == PENSTOCK_OK ? place : Place();
  }
  uint64_t steps() {
    uint64_t steps = 0;
    return penstock_steps(get(), &steps) == PENSTOCK_OK ? steps : 0;
  }
  penstock_statistics statistics() {
    penstock_statistics statistics{};
    return penstock_get_statistics(get(), &statistics) == PENSTOCK_OK ? statistics : penstock_statistics{};
  }
  // What step() was given with the step that the store was opened at, or rolled back to; until the next of the two, or
  // close().
  std::span<const std::byte> restored_state() {
    const void* state = nullptr;
    size_t bytes = 0;
    if (penstock_restored_state(get(), &state, &bytes) != PENSTOCK_OK) return {};
    return {static_cast<const std::byte*>(state), bytes};
  }
  std::string id() { return penstock_store_id(get()); }
  std::string description() { return penstock_description(get()); }

  penstock_engine* get() { return engine_.get(); }

 private:
  struct Close {
    void operator()(penstock_engine* engine) const { penstock_close(engine); }
  };
  using WeightsOut = decltype(Options::weights_out);
  Store(penstock_engine* engine, std::unique_ptr<WeightsOut> out, std::vector<uint64_t> elements)
      : elements_(std::move(elements)), weights_out_(std::move(out)), engine_(engine) {}

  std::vector<uint64_t> elements_;           // by parameter
  std::unique_ptr<WeightsOut> weights_out_;  // outlives the engine
  std::unique_ptr<penstock_engine, Close> engine_;
};

}  // namespace embedding
}  // namespace penstock

#endif
