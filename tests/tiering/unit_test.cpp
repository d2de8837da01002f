#include "tiering/unit.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr StateForm kWords;
constexpr StateForm kBytes{.moments = MomentForm::int8};

std::vector<GroupRun> runs_of(std::vector<Parameter> parameters, const StateForm& form = kWords, uint32_t group = 0) {
  return group_runs({.name = "h.3", .elements = 10'000, .group = group, .parameters = std::move(parameters)}, form);
}

Status verdict(std::vector<Parameter> parameters, const StateForm& form = kWords, bool trainable = true) {
  Workload workload;
  workload.form = form;
  workload.units = {{.name = "h.3", .elements = 10'000, .trainable = trainable, .parameters = std::move(parameters)}};
  return validate(workload);
}

TEST(GroupRuns, AreOneWhereNothingSaysOtherwise) {
  using Runs = std::vector<GroupRun>;
  EXPECT_EQ(runs_of({}, kWords, 3), (Runs{{3, 10'000}}));
  EXPECT_EQ(runs_of({{"a", 0, 300}, {"b", 384, 500}}, kWords, 3), (Runs{{3, 10'000}}));
  EXPECT_EQ(runs_of({{"a", 0, 300, 3}, {"b", 5120, 4880, 3}}, kWords, 3), (Runs{{3, 10'000}}));
  EXPECT_EQ(group_runs({.name = "empty", .parameters = {}}, kWords), Runs{});
}

TEST(GroupRuns, EndWhereParametersOfOtherGroupsBegin) {
  using Runs = std::vector<GroupRun>;
  // Padding is in the group of what it pads; what no parameter names is in the unit's.
  EXPECT_EQ(runs_of({{"norm", 0, 300, 1}, {"weight", 384, 4000}, {"bias", 4480, 100, 1}}),
            (Runs{{1, 384}, {0, 4480}, {1, 4608}, {0, 10'000}}));
  EXPECT_EQ(runs_of({{"norm", 256, 300, 1}, {"weight", 640, 9360, 2}}), (Runs{{0, 256}, {1, 640}, {2, 10'000}}));
  EXPECT_EQ(runs_of({{"norm", 9984, 10, 1}}), (Runs{{0, 9984}, {1, 10'000}}));
  // A block of int8 moments has one group.
  EXPECT_EQ(runs_of({{"norm", 0, 300, 1}, {"scale", 384, 10, 1}, {"bias", 9984, 16, 1}}, kBytes),
            (Runs{{1, 512}, {0, 9984}, {1, 10'000}}));
}

TEST(Workload, RefusesParametersThatOverlapOrLieOutside) {
  auto expect_refused = [](const Status& status, const char* why) {
    EXPECT_EQ(status.code(), Code::kUsage);
    EXPECT_NE(status.message().find(text("unit h.3: parameter b: ", why)), std::string::npos) << status.message();
    EXPECT_NE(status.remedy(), "");
  };
  EXPECT_TRUE(verdict({{"a", 0, 200}, {"b", 256, 9744}}).ok());
  expect_refused(verdict({{"a", 0, 200}, {"b", 257, 10}}), "begins at element 257");
  expect_refused(verdict({{"a", 0, 200}, {"b", 128, 10}}),
                 "begins at element 128, before the end of the one before, 200");
  expect_refused(verdict({{"a", 256, 200}, {"b", 0, 10}}),
                 "begins at element 0, before the end of the one before, 456");
  expect_refused(verdict({{"b", 256, 9745}}), "9745 elements from 256 on, where the unit has 10000");
  expect_refused(verdict({{"b", 12'800, 1}}), "1 elements from 12800 on");
  expect_refused(verdict({{"b", 128, ~uint64_t{0}}}), "18446744073709551615 elements from 128 on");
  expect_refused(verdict({{"b", 0, 0}}), "has no elements");
}

TEST(Workload, RefusesAUnitOfNothing) {
  Workload workload;
  workload.units = {{.name = "h.0", .elements = 0, .parameters = {}}};
  EXPECT_EQ(validate(workload).message(), "unit h.0 has no elements");
}

TEST(Workload, RefusesAGroupThatBeginsInsideABlockOfInt8Moments) {
  const std::vector<Parameter> cut = {{"weight", 0, 384}, {"bias", 384, 100, 1}};
  EXPECT_TRUE(verdict(cut).ok());
  Status refused = verdict(cut, kBytes);
  EXPECT_EQ(refused.code(), Code::kUsage);
  EXPECT_EQ(refused.message(),
            "unit h.3: parameter bias: begins in group 1 at element 384, inside a block of 256 int8 moments with one "
            "scale, which begins in group 0");
  EXPECT_EQ(refused.remedy(),
            "let parameters whose group is another than that of those before begin at multiples of 256 elements");
  EXPECT_TRUE(verdict({{"weight", 0, 384}, {"bias", 512, 100, 1}}, kBytes).ok());
  EXPECT_TRUE(verdict({{"weight", 0, 384}, {"bias", 384, 100, 0}}, kBytes).ok());
  EXPECT_FALSE(verdict({{"bias", 128, 100, 1}}, kBytes).ok()) << "what no parameter names is in the unit's group";
  EXPECT_TRUE(verdict(cut, kBytes, /*trainable=*/false).ok()) << "a frozen unit has no moments";
}

TEST(Workload, RefusesCodesOfWhatIsTrainedAndThoseThatNobodyDequantises) {
  Workload workload;
  workload.units.push_back({.name = "h.3", .elements = 12'800, .parameters = {}});
  for (const BlockCode code : {BlockCode::int8, BlockCode::nf4}) {
    workload.units[0].code = code;
    workload.units[0].trainable = false;
    EXPECT_TRUE(validate(workload).ok());
    workload.units[0].trainable = true;
    EXPECT_EQ(validate(workload).message(), text("unit h.3: rests in ", name_of(code), " and is trainable"));
  }
  workload.units[0].trainable = false;
  workload.units[0].code = BlockCode::int4;
  EXPECT_EQ(validate(workload).message(), "unit h.3: rests in int4");
}

}  // namespace
}  // namespace penstock
