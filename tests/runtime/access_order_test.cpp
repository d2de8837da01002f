#include "tests/support/access_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/support/ordered_device.h"

namespace penstock::test {
namespace {

using Failures = std::vector<std::string>;

// The one failure, of whose words `words` are a part.
testing::AssertionResult is_one(const Failures& failures, const std::string& words) {
  if (failures.size() == 1 && failures.front().find(words) != std::string::npos) return testing::AssertionSuccess();
  testing::AssertionResult wrong = testing::AssertionFailure() << "'" << words << "' expected, found:";
  for (const std::string& failure : failures) wrong << "\n" << failure;
  return wrong;
}

class Orders : public testing::Test {
 protected:
  void read(int& stream, uint64_t first, uint64_t bytes) { put(stream, "reader", first, bytes, false); }
  void write(int& stream, uint64_t first, uint64_t bytes) { put(stream, "writer", first, bytes, true); }
  Failures failures() { return order.take_failures(); }

  AccessOrder order;
  int one = 0, two = 0, three = 0;  // streams, by their addresses
  std::array<std::byte, 100> memory{};

 private:
  void put(int& stream, const char* what, uint64_t first, uint64_t bytes, bool writes) {
    const AccessOrder::Run run{memory.data() + first, bytes};
    const std::span<const AccessOrder::Run> runs(&run, 1), none;
    order.put(&stream, what, writes ? none : runs, writes ? runs : none);
  }
};

TEST_F(Orders, OfOneStreamAreItsOwn) {
  write(one, 0, 100);
  read(one, 0, 100);
  write(one, 50, 10);
  EXPECT_EQ(failures(), Failures());
}

TEST_F(Orders, NameBothWhereNothingOrdersThem) {
  write(one, 0, 40);
  read(two, 30, 20);
  EXPECT_EQ(failures(), Failures{"reader on stream 1 reads 20 B that writer on stream 0 writes, and nothing says "
                                 "which is first (1 x)"});
  read(two, 40, 20);  // nobody has written there
  EXPECT_EQ(failures(), Failures());
}

TEST_F(Orders, AreMadeByEvents) {
  write(one, 0, 100);
  const AccessOrder::Moment written = order.record(&one);
  write(one, 60, 10);  // behind the event
  order.make_wait(&two, written);
  read(two, 0, 60);
  EXPECT_EQ(failures(), Failures());
  read(two, 60, 1);
  EXPECT_TRUE(is_one(failures(), "reads 1 B"));
  // What a stream follows, those that follow it do as well.
  order.make_wait(&three, order.record(&two));
  write(three, 0, 60);
  EXPECT_EQ(failures(), Failures());
}

TEST_F(Orders, AreMadeByWhatTheHostHasSeen) {
  write(one, 0, 100);
  order.host_learned(order.record(&one));
  read(two, 0, 100);
  EXPECT_EQ(failures(), Failures());
}

TEST_F(Orders, HoldForEveryReaderBeforeAWrite) {
  write(one, 0, 100);
  const AccessOrder::Moment written = order.record(&one);
  order.make_wait(&two, written);
  order.make_wait(&three, written);
  read(two, 0, 50);
  read(three, 0, 100);
  order.make_wait(&one, order.record(&three));
  write(one, 0, 100);
  EXPECT_TRUE(is_one(failures(), "writes 100 B that reader on stream 1 reads"));
}

TEST_F(Orders, EndWithWhatIsGivenBack) {
  write(one, 0, 100);
  order.give_back(&one, {memory.data(), 100});
  read(one, 10, 10);
  EXPECT_TRUE(is_one(failures(), "reads 10 B that stream 0 has given back"));
  order.forget({memory.data(), 100});
  read(two, 10, 10);
  EXPECT_EQ(failures(), Failures());
}

constexpr uint64_t kBytes = 4096;

// The backend alone, whose finish() lets nothing run at once of which the order is wrong, and is no order that counts.
class OrdersOfADevice : public testing::Test {
 protected:
  void SetUp() override {
    arena = *backend.reserve(2 * kBytes);
    stream = *backend.make_stream();
  }
  void copy(Stream on) {
    ASSERT_TRUE(backend.copy(arena.data(), host.data(), kBytes, gpu::CopyWay::host_to_device, on).ok());
    ASSERT_TRUE(backend.finish().ok());
  }
  void cast(Stream on) {
    const kernel::Cast kernel{arena.data(), arena.data() + kBytes, Dtype::fp32, Dtype::bf16, kBytes / 4};
    ASSERT_TRUE(backend.launch(kernel, on).ok());
    ASSERT_TRUE(backend.finish().ok());
  }

  AccessOrder order;
  OrderedBackend backend{order, /*seed=*/1, /*arena_bytes=*/2 * kBytes};
  std::vector<std::byte> host = std::vector<std::byte>(kBytes);
  std::span<std::byte> arena;
  Stream stream;
};

TEST_F(OrdersOfADevice, AreThoseOfItsEvents) {
  const Stream other = *backend.make_stream();
  copy(stream);
  const Event copied = *backend.record(stream);
  ASSERT_TRUE(backend.make_wait(other, copied).ok());
  cast(other);
  EXPECT_EQ(order.take_failures(), Failures());
  copy(stream);  // which does not wait for its reader
  EXPECT_TRUE(is_one(order.take_failures(), "a copy to the device on stream 0 writes 4096 B that a cast on stream 1"));
}

TEST_F(OrdersOfADevice, AreThoseThatTheHostHasSeenReached) {
  copy(stream);
  const Event copied = *backend.record(stream);
  ASSERT_TRUE(backend.finish().ok());
  ASSERT_TRUE(*backend.reached(copied));
  cast(*backend.make_stream());
  EXPECT_EQ(order.take_failures(), Failures());
}

// As on a GPU, the null stream is no thread of the host.
TEST_F(OrdersOfADevice, DoNotHaveTheNullStreamForTheHost) {
  copy(stream);
  const Event copied = *backend.record(stream);
  ASSERT_TRUE(backend.make_wait(Stream(), copied).ok());
  cast(Stream());
  EXPECT_EQ(order.take_failures(), Failures());
  cast(*backend.make_stream());
  const Failures failures = order.take_failures();
  EXPECT_EQ(failures.size(), 2u);  // of what the copy and the other cast have written
}

}  // namespace
}  // namespace penstock::test
