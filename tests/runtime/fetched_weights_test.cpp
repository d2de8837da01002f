// Weights that come from the drives for a pass are compared with their checksums before the pass has them: in a step
// and between steps, in place and on a device, wherever in a unit a bit is another.
#include <gtest/gtest.h>

#include "tests/support/course_device.h"
#include "tests/support/training_world.h"

namespace penstock::engine {
namespace {

const std::string kFile = aio::store_file_name(0);

class FetchedWeights : public testing::TestWithParam<bool> {
 protected:
  FetchedWeights() : world_(23, 2, {5'000, 300'003}) {
    world_.set_uses({{0}, {1}});
    PlanRequest& request = world_.options.request;
    request.choices.host_state_share = 0;
    request.choices.weights = WeightTier::nvme;
    request.choices.tile_elements = 2 * kBlockElements;
    if (GetParam()) compute_on(course_device(), /*seed=*/5, /*streams=*/1, world_, streams_);
    CHECK(world_.create().ok());
  }

  // What a run that begins now says: of a step, or of passes between steps.
  Status run(bool steps) {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    if (!engine.ok()) return engine.status();
    if (!steps) return world_.evaluate(**engine).status();
    return world_.train(**engine, 1, 1, {}).status();
  }

  std::vector<std::unique_ptr<TrainerStream>> streams_;
  TrainingWorld world_;
};

TEST_P(FetchedWeights, AreComparedWithTheirChecksumsBeforeAPassHasThem) {
  ASSERT_TRUE(run(/*steps=*/false).ok());
  // Unit 0 is one tile; unit 1 has three, of two blocks, two and one.
  for (const TileId tile : {0u, 1u, 3u}) {
    const std::vector<StoreLayout::FileRange> pieces = world_.pieces_of(tile, Role::weight);
    const std::string unit = tile == 0 ? "unit0" : "unit1";
    for (const StoreLayout::FileRange& piece : pieces) {
      // What fills the plane up behind its last element is no part of it.
      for (const uint64_t at : {uint64_t{0}, piece.length_bytes / 2}) {
        std::byte& damaged = world_.folder(piece.drive).bytes(kFile)[piece.file_offset_bytes + at];
        damaged ^= std::byte{8};
        for (const bool steps : {false, true}) {
          SCOPED_TRACE(testing::Message() << "tile " << tile << ", " << at << " B behind " << piece.file_offset_bytes
                                          << " of drive " << piece.drive << (steps ? ", a step" : ", between steps"));
          const Status told = run(steps);
          EXPECT_EQ(told.code(), Code::kCorrupt) << told.message();
          EXPECT_NE(told.message().find("fail the checksum they were written with"), std::string::npos)
              << told.message();
          EXPECT_NE(told.message().find(unit), std::string::npos) << told.message();
        }
        damaged ^= std::byte{8};
      }
    }
  }
  const Status whole = run(/*steps=*/true);
  EXPECT_TRUE(whole.ok()) << whole.message();
}

INSTANTIATE_TEST_SUITE_P(Weights, FetchedWeights, testing::Bool(),
                         [](const auto& on_device) { return on_device.param ? "OnADevice" : "InPlace"; });

}  // namespace
}  // namespace penstock::engine
