// C++ over penstock.h: types that own, spans, and a Status that may be refused. Header-only, so that the C functions
// are all that a program is bound to.
//
//   auto opened = penstock::Store::open(options, parameters);
//   if (!opened) return fail(opened.status().message);
//   penstock::Store store = std::move(*opened);
//
// The rules are penstock.h's: threads, forks, and what a refusal means. Nothing throws but std::bad_alloc.
#ifndef PENSTOCK_HPP
#define PENSTOCK_HPP

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
  void* weights_into = nullptr;
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
  // Of parameters without values of their own: fills [first, first + values.size()). Must not throw.
  std::function<void(uint32_t parameter, uint64_t first, std::span<float> values)> initial;
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
    c.initial_context = const_cast<Options*>(&options);
    if (options.initial) {
      c.initial = [](void* context, uint32_t parameter, uint64_t first, uint64_t count, float* values) {
        static_cast<const Options*>(context)->initial(parameter, first, {values, count});
        return 0;
      };
    }
    penstock_engine* engine = nullptr;
    Status status = Status::of(penstock_open(&c, all.data(), static_cast<uint32_t>(all.size()), &engine));
    if (!status) return status;
    return Store(engine);
  }

  // What the destructor does, too, but says whether the last step is durable.
  Status close() { return Status::of(penstock_close(engine_.release())); }

  Status begin(std::span<const penstock_rates> groups, uint32_t micro_batches = 1, double loss_scale = 1) {
    const auto count = static_cast<uint32_t>(groups.size());
    return Status::of(penstock_begin(get(), groups.data(), count, micro_batches, loss_scale));
  }
  // As many values as the parameter has.
  Status gradient(uint32_t parameter, std::span<const float> values, uint32_t micro_batch = 0) {
    return Status::of(penstock_gradient(get(), parameter, micro_batch, PENSTOCK_FP32, values.data()));
  }
  Status absent(uint32_t parameter) { return Status::of(penstock_absent(get(), parameter)); }
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

  Status read(uint32_t parameter, penstock_role role, uint64_t first, std::span<float> values) {
    return Status::of(penstock_read(get(), parameter, role, first, values.size(), PENSTOCK_FP32, values.data()));
  }
  Status write(uint32_t parameter, penstock_role role, uint64_t first, std::span<const float> values) {
    return Status::of(penstock_write(get(), parameter, role, first, values.size(), PENSTOCK_FP32, values.data()));
  }
  Status settle() { return Status::of(penstock_settle(get())); }
  // The step that is kept.
  Result<uint64_t> keep() {
    uint64_t step = 0;
    if (Status status = Status::of(penstock_keep(get(), &step)); !status) return status;
    return step;
  }
  Status roll_back(uint64_t step) { return Status::of(penstock_roll_back(get(), step)); }
  Status drop(uint64_t step) { return Status::of(penstock_drop(get(), step)); }

  uint64_t steps() {
    uint64_t steps = 0;
    return penstock_steps(get(), &steps) == PENSTOCK_OK ? steps : 0;
  }
  penstock_statistics statistics() {
    penstock_statistics statistics{};
    return penstock_get_statistics(get(), &statistics) == PENSTOCK_OK ? statistics : penstock_statistics{};
  }
  std::string description() { return penstock_description(get()); }

  penstock_engine* get() { return engine_.get(); }

 private:
  struct Close {
    void operator()(penstock_engine* engine) const { penstock_close(engine); }
  };
  explicit Store(penstock_engine* engine) : engine_(engine) {}

  std::unique_ptr<penstock_engine, Close> engine_;
};

}  // namespace embedding
}  // namespace penstock

#endif
