#include "runtime/engine/ranks/collective_lane.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

TEST(CollectiveLane, EndsWhatWasAnnouncedBehindARefusalWithoutWaitingForIt) {
  Watchdog watchdog(std::chrono::seconds(60), "what was announced behind a refused collective");
  const std::shared_ptr<CollectiveLane> lane = CollectiveLane::make().value();
  lane->post([] { return Status(Code::kEnvironment, "the first"); });
  bool begun = false;
  const CollectiveLane::Number announced = lane->announce([&] {
    begun = true;
    return Status();
  });
  EXPECT_EQ(lane->wait_for(announced).message(), "the first");
  lane->provide(announced, Status());
  EXPECT_EQ(lane->wait_for_all().message(), "the first");
  EXPECT_FALSE(begun);
}

TEST(CollectiveLane, BeginsWhatWasAnnouncedWhenItIsProvidedAndNothingBeforeIt) {
  Watchdog watchdog(std::chrono::seconds(60), "what was announced and provided");
  const std::shared_ptr<CollectiveLane> lane = CollectiveLane::make().value();
  std::vector<int> begun;
  const auto begins = [&](int number) {
    return [&begun, number] {
      begun.push_back(number);
      return Status();
    };
  };
  const CollectiveLane::Number first = lane->announce(begins(0));
  const CollectiveLane::Number second = lane->post(begins(1));
  EXPECT_FALSE(lane->has_ended(first));
  EXPECT_FALSE(lane->has_ended(second));
  lane->provide(first, Status());
  EXPECT_TRUE(lane->wait_for_all().ok());
  EXPECT_EQ(begun, (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace penstock::engine
