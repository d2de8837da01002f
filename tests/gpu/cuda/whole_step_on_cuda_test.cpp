// Whole training steps by the engine on the CUDA device, over a runtime in plain memory.
#include <gtest/gtest.h>

#include "tests/gpu/cuda/cuda_course.h"
#include "tests/support/whole_step_course.h"

namespace penstock::engine {
namespace {

TEST(WholeStepsOnCuda, LeaveTheBitsOfAPlainLoop) {
  test::set_up({});
  const CourseDevice device = cuda_course_device();
  leave_the_bits_of_a_plain_loop(&device);
  EXPECT_EQ(test::left_over(), "");
}

TEST(WholeStepsOnCuda, LeaveTheBitsOfAPlainLoopWithNewPlans) {
  test::set_up({});
  const CourseDevice device = cuda_course_device();
  leave_the_bits_with_new_plans(&device);
  EXPECT_EQ(test::left_over(), "");
}

// Whatever the device refuses, and whenever: a verb says so, the engine ends, and what it had is given back.
void compute_on_cuda(TrainingWorld& world) {
  PlanRequest& request = world.options.request;
  request.machine.devices = 1;
  request.machine.host_to_device_gbps = request.machine.device_to_host_gbps = 25;
  request.budgets.device_bytes = kMiB;
  request.workload.micro_batches = 2;
  request.choices.activations = ActivationChoice::offload;
  world.options.device = [](uint64_t arena_bytes) {
    return gpu::open_cuda_device({.index = 0, .arena_bytes = arena_bytes});
  };
}

TEST(WholeStepsOnCuda, EndWithWhatTheDeviceRefuses) {
  for (const char* call : {"launch", "cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventQuery"}) {
    for (int good : {0, 1, 3, 7, 12}) {
      SCOPED_TRACE(text(call, " after ", good));
      test::set_up({});
      {
        TrainingWorld world(3, 1, {5000, 6000, 7000});
        world.set_uses({{0}, {1}, {2}});
        compute_on_cuda(world);
        ASSERT_TRUE(world.create().ok());
        CudaStream stream;
        world.computing = stream.work();
        Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
        ASSERT_TRUE(engine.ok()) << engine.status().message();
        test::refuse_after(call, good);
        Status refused;
        for (int step = 0; step < 3 && refused.ok(); ++step) {
          refused = world.train(**engine, 2, 1, {.puts = true}).status();
        }
        EXPECT_NE(refused.message().find("cudaErrorUnknown"), std::string::npos) << refused.message();
        // Every verb answers so from now on.
        EXPECT_EQ((*engine)->begin({.groups = world.groups}).message(), refused.message());
        test::set_up({});
        // What it was given still uses the engine's memory, and no event will tell the engine of its end.
        stream.synchronize();
      }
      EXPECT_EQ(test::left_over(), "");
    }
  }
}

// One unit, so that no copy is under way any more that would find out by itself.
TEST(WholeStepsOnCuda, EndWhereTheDeviceRefusesAsAStepIsGivenUp) {
  test::set_up({});
  TrainingWorld world(3, 1, {5000});
  world.set_uses({{0}});
  compute_on_cuda(world);
  ASSERT_TRUE(world.create().ok());
  CudaStream stream;
  world.computing = stream.work();
  Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ASSERT_TRUE((*engine)->begin({.groups = world.groups}).ok());
  ASSERT_TRUE((*engine)->acquire((*engine)->passes().front(), world.computing.stream).ok());
  stream.synchronize();
  test::refuse_after("cudaEventRecord", 0);
  const Status refused = (*engine)->discard();
  EXPECT_NE(refused.message().find("cudaErrorUnknown"), std::string::npos) << refused.message();
  EXPECT_EQ((*engine)->begin({.groups = world.groups}).message(), refused.message());
  test::set_up({});
}

}  // namespace
}  // namespace penstock::engine
