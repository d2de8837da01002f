// What must hold of the chosen plan whatever the model and the machine: choosing is never worse than being told, more
// of anything never makes it slower, and of plans that are alike the one that takes less is chosen.
//
// PENSTOCK_PLAN_CASES sets how many random requests each test takes: the tests take few, a long run thousands.
#include <cstdlib>

#include "tests/support/instrumented.h"
#include "tests/support/random_plans.h"
#include "tiering/plan/plan_search.h"

namespace penstock {
namespace {

constexpr double kAllowed = 0.005;  // of the step's time: what is below is alike

int cases() {
  const char* const told = std::getenv("PENSTOCK_PLAN_CASES");
  return told != nullptr ? std::atoi(told) : static_cast<int>(test::fewer(8));
}

// A training step with every choice open: few large units mostly, sometimes hundreds of small ones.
PlanRequest open_request(std::mt19937_64& random) {
  PlanRequest request = test::random_request(random);
  while (request.workload.scope != StepScope::training) request = test::random_request(random);
  request.choices = {};
  if (random() % 16 == 0) {
    Workload& work = request.workload;
    const Unit unit{.name = "small", .elements = 1 + random() % kBlockElements, .parameters = {}};
    const Use use = work.uses.front();
    work.units.assign(10 + random() % 391, unit);
    work.uses = uses_in_turn(work.units);
    for (Use& one : work.uses) {
      one.forward_s = use.forward_s / 8;
      one.backward_s = use.backward_s / 8;
      one.activation_bytes = use.activation_bytes;
      one.boundary_bytes = use.boundary_bytes;
    }
    request.budgets.host_bytes *= 4;
  }
  if (random() % 3 == 0) request.durability.reset();
  return request;
}

// The same with one of its choices made, by chance.
PlanRequest with_a_choice_made(PlanRequest request, std::mt19937_64& random) {
  auto up_to = [&](uint64_t n) { return random() % (n + 1); };
  const double share = static_cast<double>(up_to(4)) / 4;
  PlanChoices& choices = request.choices;
  switch (up_to(8)) {
    case 0:
      choices.host_state_share = share;
      break;
    case 1:
      choices.retained_host_share = share;
      break;
    case 2:
      choices.weights = up_to(1) ? WeightTier::host : WeightTier::nvme;
      break;
    case 3:
      choices.micro_batch_group = 1 + static_cast<uint32_t>(up_to(request.workload.micro_batches - 1));
      break;
    case 4:
      choices.activations = static_cast<ActivationChoice>(up_to(request.stores_activations ? 3 : 1));
      break;
    case 5:
      choices.keep_share = share;
      break;
    case 6:
      choices.offload_host_share = share;
      break;
    case 7:
      choices.device_share = share;
      break;
    default:
      choices.window_tiles = 3 + static_cast<uint32_t>(up_to(9));
  }
  return request;
}

std::string words(const PlanChoices& choices) {
  auto number = [](const auto& choice) { return choice ? text(+*choice) : std::string("open"); };
  return text("state in host ", number(choices.host_state_share), ", retained ", number(choices.retained_host_share),
              ", weights ", static_cast<int>(choices.weights), ", group ", number(choices.micro_batch_group),
              ", activations ", choices.activations ? text(static_cast<int>(*choices.activations)) : "open", ", keep ",
              number(choices.keep_share), ", offload to host ", number(choices.offload_host_share), ", on the device ",
              number(choices.device_share), ", windows ", number(choices.window_tiles));
}

TEST(ChosenPlans, AreNeitherRefusedNorSlowerWhereOneThatIsToldFits) {
  int told = 0;
  for (uint64_t seed = 1; told < cases(); ++seed) {
    std::mt19937_64 random(seed);
    const PlanRequest open = open_request(random);
    const PlanRequest fixed = with_a_choice_made(open, random);
    const Result<ChosenPlan> by_hand = choose_plan(fixed);
    if (!by_hand.ok()) continue;
    ++told;
    const Result<ChosenPlan> automatic = choose_plan(open);
    EXPECT_TRUE(automatic.ok()) << "seed " << seed << ": " << words(fixed.choices) << ": "
                                << automatic.status().message();
    if (!automatic.ok()) continue;
    EXPECT_LE(automatic->step_s(), by_hand->step_s() * (1 + kAllowed))
        << "seed " << seed << ": " << words(fixed.choices);
  }
}

TEST(ChosenPlans, AreNoSlowerWithMoreOfAnything) {
  int pairs = 0;
  for (uint64_t seed = 1; pairs < cases(); ++seed) {
    std::mt19937_64 random(seed);
    const PlanRequest less = open_request(random);
    const Result<ChosenPlan> smaller = choose_plan(less);
    if (!smaller.ok()) continue;
    ++pairs;
    const double factor = 1.0 + static_cast<double>(1 + random() % 8) / 4;
    auto times = [&](uint64_t bytes) { return static_cast<uint64_t>(static_cast<double>(bytes) * factor); };
    std::vector<std::pair<std::string, PlanRequest>> larger(4, {"", less});
    larger[0].first = "host memory";
    larger[0].second.budgets.host_bytes = times(less.budgets.host_bytes);
    larger[1].first = "drives";
    larger[1].second.machine.drives[0].burst = less.machine.drives[0].burst.scaled(factor);
    larger[2].first = "device memory";
    larger[2].second.budgets.device_bytes = times(less.budgets.device_bytes);
    larger[3].first = "link";
    larger[3].second.machine.host_to_device_gbps *= factor;
    larger[3].second.machine.device_to_host_gbps *= factor;
    for (const auto& [what, request] : larger) {
      const Result<ChosenPlan> chosen = choose_plan(request);
      EXPECT_TRUE(chosen.ok()) << "seed " << seed << ": " << factor << " times the " << what << ": "
                               << chosen.status().message();
      if (!chosen.ok()) continue;
      EXPECT_LE(chosen->step_s(), smaller->step_s() * (1 + kAllowed))
          << "seed " << seed << ": " << factor << " times the " << what;
    }
  }
}

}  // namespace
}  // namespace penstock
