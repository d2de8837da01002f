// The optimizer's steps of a whole Device, GPU or host, against those of cpu_optim: equal in every byte, in every form,
// over many elements.
//
// DEVICE_ELEMENTS says how many of each of the 180 forms. On a GPU 20 million are the default, which are 240 million of
// each optimizer with each form of moments.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <tuple>

#include "tests/gpu/device_cases.h"
#include "tests/gpu/update_tile.h"

namespace penstock::gpu {
namespace {

constexpr uint64_t kTileElements = 3'999'997;
constexpr uint64_t kSteps[] = {1, 2, 3, 10, 1000};  // of one tile: its states become what steps make of them
constexpr uint64_t kArenaBytes = 128 * kMiB;

uint64_t elements_of_a_form(const Device& device) {
  const char* asked = std::getenv("DEVICE_ELEMENTS");
  if (asked != nullptr) return std::strtoull(asked, nullptr, 10);
  return device.facts().is_host ? 20'000 : 20'000'000;
}

// A tile's bytes on the device: weight, gradient, then the slot.
class TileOnDevice {
 public:
  TileOnDevice(Device& device, const Tile& tile)
      : device_(device),
        gradient_at_(round_up(tile.weight.size(), kAlignmentBytes)),
        slot_at_(gradient_at_ + round_up(tile.gradient.size(), kAlignmentBytes)) {}

  void bring_state(Tile& tile) {
    bring(0, tile.weight);
    bring(slot_at_, tile.slot);
  }
  void bring_gradient(Tile& tile) { bring(gradient_at_, tile.gradient); }
  void fetch_state(std::vector<std::byte>& weight, std::vector<std::byte>& slot) {
    fetch(0, weight);
    fetch(slot_at_, slot);
  }

  void update(const Tile& tile, const StepNumbers& numbers, uint64_t first_element) {
    kernel::UpdateTile update;
    update.form = tile.form;
    update.numbers = numbers;
    update.weight = device_.memory().data();
    update.gradient = device_.memory().data() + gradient_at_;
    for (size_t i = 0; i < tile.layout.places.size(); ++i) {
      update.planes[i] = device_.memory().data() + slot_at_ + tile.layout.places[i].offset_bytes;
    }
    update.elements = tile.elements;
    update.first_element = first_element;
    ASSERT_TRUE(device_.make_wait(device_.kernel_stream(), arrived_).ok());
    Status launched = device_.launch(update, device_.kernel_stream());
    ASSERT_TRUE(launched.ok()) << launched.message();
    Result<Event> done = device_.record(device_.kernel_stream());
    ASSERT_TRUE(done.ok()) << done.status().message();
    updated_ = *done;
  }

 private:
  Lease place(uint64_t offset_bytes, uint64_t length_bytes) {
    return Lease::over(Tier::device, device_.memory().subspan(offset_bytes, length_bytes));
  }
  void bring(uint64_t offset_bytes, std::vector<std::byte>& bytes) {
    Copy copy = device_.copy(Lease::over(Tier::host, bytes), place(offset_bytes, bytes.size()), {&updated_, 1});
    arrived_ = copy.done;
    ASSERT_TRUE(std::move(copy.transfer).wait().ok());
  }
  void fetch(uint64_t offset_bytes, std::vector<std::byte>& bytes) {
    Copy copy = device_.copy(place(offset_bytes, bytes.size()), Lease::over(Tier::host, bytes), {&updated_, 1});
    ASSERT_TRUE(std::move(copy.transfer).wait().ok());
  }

  Device& device_;
  const uint64_t gradient_at_, slot_at_;
  Event arrived_, updated_;
};

void expect_equal(const std::vector<std::byte>& on_cpu, const std::vector<std::byte>& on_device, const char* what) {
  ASSERT_EQ(on_cpu.size(), on_device.size());
  if (std::memcmp(on_cpu.data(), on_device.data(), on_cpu.size()) == 0) return;
  auto [a, b] = std::mismatch(on_cpu.begin(), on_cpu.end(), on_device.begin());
  FAIL() << what << " differs first at byte " << a - on_cpu.begin() << " of " << on_cpu.size();
}

class OptimizerOnDevice : public testing::TestWithParam<std::tuple<DeviceCase, OptimizerKind>> {
 protected:
  void SetUp() override {
    if (std::string absent = std::get<0>(GetParam()).absent(); !absent.empty()) GTEST_SKIP() << absent;
  }
};

TEST_P(OptimizerOnDevice, LeavesTheBytesThatTheCpuLeaves) {
  const auto& [device_case, kind] = GetParam();
  std::unique_ptr<Device> device = device_case.open(kArenaBytes).value();
  const uint64_t wanted = elements_of_a_form(*device);
  const std::vector<Hyper> hyper = hypers();
  uint64_t seed = 1, compared = 0;
  for (const StateForm& form : all_forms(kind)) {
    for (uint64_t done = 0; done < wanted;) {
      uint64_t elements = std::min(kTileElements, ceil_div(wanted - done, std::size(kSteps)));
      // The index passes 2^32 within the tile, where a counter of 32 bits would begin anew.
      uint64_t first_element = (1ull << 32) - round_up(elements / 2, kMomentBlockElements);
      seed += 10;
      Tile tile(form, elements, 0, seed);
      TileOnDevice on_device(*device, tile);
      on_device.bring_state(tile);
      std::vector<std::byte> weight(tile.weight.size()), slot(tile.slot.size());
      for (uint64_t step : kSteps) {
        SCOPED_TRACE(text(name(form), ", ", elements, " elements, step ", step, ", seed ", seed));
        StepNumbers numbers{make_coefficients(kind, hyper[seed / 10 % hyper.size()], step),
                            step % 2 == 0 ? 0.37f : 1.0f, seed, step};
        tile.gradient = bytes_in(form.gradient, adversarial_floats(elements, seed + step, 1e-3f, Tiny::kept));
        on_device.bring_gradient(tile);
        on_device.update(tile, numbers, first_element);
        update_on_cpu(tile, numbers, first_element, cpu_optim::best_isa());
        on_device.fetch_state(weight, slot);
        expect_equal(tile.weight, weight, "weight");
        expect_equal(tile.slot, slot, "state");
        if (HasFatalFailure()) return;
        done += elements;
      }
      compared += elements * std::size(kSteps);
    }
  }
  RecordProperty("elements", std::to_string(compared));
  std::printf("%s on %s: %llu elements in %zu forms, last seed %llu\n", name_of(kind), device->facts().name.c_str(),
              static_cast<unsigned long long>(compared), all_forms(kind).size(), static_cast<unsigned long long>(seed));
}

const auto kOptimizers = testing::Values(OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::adagrad,
                                         OptimizerKind::lion, OptimizerKind::sgd);

std::string optimizer_name(const testing::TestParamInfo<OptimizerOnDevice::ParamType>& info) {
  return name_of(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(HostDevice, OptimizerOnDevice, testing::Combine(testing::Values(host_case()), kOptimizers),
                         optimizer_name);
INSTANTIATE_TEST_SUITE_P(CudaDevice, OptimizerOnDevice, testing::Combine(testing::Values(cuda_case()), kOptimizers),
                         optimizer_name);

}  // namespace
}  // namespace penstock::gpu
