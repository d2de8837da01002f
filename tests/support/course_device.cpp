#include "tests/support/course_device.h"

#include "tests/support/capricious_device.h"

namespace penstock::engine {
namespace {

class SlowStream final : public TrainerStream {
 public:
  SlowStream(uint64_t seed, std::chrono::microseconds least) : stream_(seed, least) {}
  WorkStream work() override {
    return {stream_.handle(), [this](std::function<void()> work) { stream_.put(std::move(work)); }};
  }

 private:
  test::CapriciousStream stream_;
};

}  // namespace

CourseDevice course_device(std::chrono::microseconds least_computing) {
  return {test::open_capricious_device,
          [least_computing](uint64_t seed) { return std::make_unique<SlowStream>(seed, least_computing); }};
}

}  // namespace penstock::engine
