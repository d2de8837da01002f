#include "tests/support/course_device.h"

#include "tests/support/capricious_device.h"

namespace penstock::engine {
namespace {

class SlowStream final : public TrainerStream {
 public:
  explicit SlowStream(uint64_t seed) : stream_(seed) {}
  WorkStream work() override {
    return {stream_.handle(), [this](std::function<void()> work) { stream_.put(std::move(work)); }};
  }

 private:
  test::CapriciousStream stream_;
};

}  // namespace

CourseDevice course_device() {
  return {test::open_capricious_device, [](uint64_t seed) { return std::make_unique<SlowStream>(seed); }};
}

}  // namespace penstock::engine
