// What must hold of the chosen plan whatever the model and the machine: choosing is never worse than being told, and
// more of anything never makes it slower.
#include "tests/support/instrumented.h"
#include "tests/support/random_plans.h"
#include "tiering/plan/plan_search.h"

namespace penstock {
namespace {

constexpr double kAllowed = 0.005;  // of the step's time: what is below is alike

double step_s(const ChosenPlan& chosen) { return chosen.durable.step_s; }

constexpr int kCases = test::kStride == 1 ? 100 : 20;  // instrumented builds are slow

// A training step with every choice open.
PlanRequest open_request(std::mt19937_64& random) {
  PlanRequest request = test::random_request(random);
  while (request.workload.pass != Pass::training) request = test::random_request(random);
  request.choices = {};
  request.durability = Durability{};
  return request;
}

// The same with some of its choices made, by chance.
PlanRequest with_choices_made(PlanRequest request, std::mt19937_64& random) {
  auto up_to = [&](uint64_t n) { return random() % (n + 1); };
  PlanChoices& choices = request.choices;
  if (up_to(1)) choices.host_state_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(1)) choices.retained_host_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(1)) choices.weights = up_to(1) ? WeightRest::host : WeightRest::nvme;
  if (up_to(1)) choices.micro_batch_group = 1 + static_cast<uint32_t>(up_to(request.workload.micro_batches - 1));
  if (up_to(1)) choices.activations = static_cast<ActivationChoice>(up_to(request.stores_activations ? 3 : 1));
  if (up_to(1)) choices.keep_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(2) == 0) choices.offload_host_share = static_cast<double>(up_to(4)) / 4;
  return request;
}

std::string words(const PlanChoices& choices) {
  auto number = [](const auto& choice) { return choice ? text(+*choice) : std::string("open"); };
  return text("state in host ", number(choices.host_state_share), ", retained ", number(choices.retained_host_share),
              ", weights ", static_cast<int>(choices.weights), ", group ", number(choices.micro_batch_group),
              ", activations ", choices.activations ? text(static_cast<int>(*choices.activations)) : "open", ", keep ",
              number(choices.keep_share), ", offload to host ", number(choices.offload_host_share));
}

TEST(ChosenPlans, AreNeitherRefusedNorSlowerWhereOneThatIsToldFits) {
  int told = 0;
  for (uint64_t seed = 1; told < kCases; ++seed) {
    std::mt19937_64 random(seed);
    const PlanRequest open = open_request(random);
    const PlanRequest fixed = with_choices_made(open, random);
    const Result<ChosenPlan> by_hand = choose_plan(fixed);
    if (!by_hand.ok()) continue;
    ++told;
    const Result<ChosenPlan> automatic = choose_plan(open);
    EXPECT_TRUE(automatic.ok()) << "seed " << seed << ": " << words(fixed.choices) << ": "
                                << automatic.status().message();
    if (!automatic.ok()) continue;
    EXPECT_LE(step_s(*automatic), step_s(*by_hand) * (1 + kAllowed)) << "seed " << seed << ": " << words(fixed.choices);
  }
}

TEST(ChosenPlans, AreNoSlowerWithMoreOfAnything) {
  int pairs = 0;
  for (uint64_t seed = 1; pairs < kCases; ++seed) {
    std::mt19937_64 random(seed);
    const PlanRequest less = open_request(random);
    const Result<ChosenPlan> smaller = choose_plan(less);
    if (!smaller.ok()) continue;
    const double factor = 1.0 + static_cast<double>(1 + random() % 8) / 4;
    auto times = [&](uint64_t bytes) { return static_cast<uint64_t>(static_cast<double>(bytes) * factor); };
    std::vector<std::pair<std::string, PlanRequest>> larger(3, {"", less});
    larger[0].first = "host memory";
    larger[0].second.budgets.host_bytes = times(less.budgets.host_bytes);
    larger[1].first = "drives";
    larger[1].second.machine.drives[0].burst = less.machine.drives[0].burst.scaled(factor);
    larger[2].first = "device memory";
    larger[2].second.budgets.device_bytes = times(less.budgets.device_bytes);
    for (const auto& [what, request] : larger) {
      const Result<ChosenPlan> chosen = choose_plan(request);
      EXPECT_TRUE(chosen.ok()) << "seed " << seed << ": " << factor << " times the " << what << ": "
                               << chosen.status().message();
      if (!chosen.ok()) continue;
      EXPECT_LE(step_s(*chosen), step_s(*smaller) * (1 + kAllowed))
          << "seed " << seed << ": " << factor << " times the " << what;
    }
    ++pairs;
  }
}

}  // namespace
}  // namespace penstock
