// Do ranks of one host gather and add up at the speed of memory, and how much faster than torch's gloo?
//
// On paper: a rank copies what it gathers once, from the memory of the other rank: (N-1)/N of the unit, as fast as
// plain copies of as many bytes by as many processes; 1.00, less two meetings of some 20 us. To add up its part of a
// unit of U bytes a rank reads U from N memories and writes U/N, once each; it is compared with copies that touch as
// many bytes, (U + U/N)/2 each, by as many processes. gloo sends the same through sockets: at least four copies.
//
//   build/bench/collective [--ranks 2] [--unit 64M] [--python .venv/bin/python] [--quick] [--json]
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "bench/figure.h"
#include "bench/support/flags.h"
#include "runtime/engine/ranks/ranks.h"

namespace penstock::bench {
namespace {

using engine::Ranks;

struct Settings {
  uint64_t ranks = 2;
  uint64_t unit_bytes = 64 * kMiB;
  int rounds = 9;
  int each = 8;  // operations of a round
};

// A process that is told what to do by lines, and answers with seconds.
class Served {
 public:
  explicit Served(const std::function<void()>& body) {
    int in[2], out[2];
    CHECK(::pipe(in) == 0 && ::pipe(out) == 0);
    process_ = ::fork();
    CHECK(process_ >= 0, "no process");
    if (process_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      for (int end : {in[0], in[1], out[0], out[1]}) ::close(end);
      body();
      ::_exit(0);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = ::fdopen(in[1], "w");
    from_ = ::fdopen(out[0], "r");
  }
  ~Served() {
    std::fclose(to_);
    std::fclose(from_);
    ::waitpid(process_, nullptr, 0);
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  void ask(const char* what) {
    std::fprintf(to_, "%s\n", what);
    std::fflush(to_);
  }
  // None where the process has ended.
  std::optional<std::string> answer() {
    char line[256];
    if (std::fgets(line, sizeof line, from_) == nullptr) return std::nullopt;
    return std::string(line);
  }

 private:
  pid_t process_ = 0;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

void serve(const Settings& settings, uint32_t rank, const std::string& meeting) {
  const uint64_t unit = settings.unit_bytes, shard = unit / settings.ranks;
  auto met = engine::meet({.place = {rank, static_cast<uint32_t>(settings.ranks), meeting}, .memory_bytes = 2 * unit});
  CHECK(met.ok(), met.status().message());
  Collective& passes = (*met)->passes();
  for (size_t i = 0; i < passes.memory().size(); ++i) passes.memory()[i] = static_cast<std::byte>(i * 7 % 60);
  std::vector<Collective::Shard> shards;
  Collective::Reduction reduction{.dtype = Dtype::fp32, .parts = {}, .target_dtype = Dtype::fp32, .target = {}};
  for (uint32_t other = 0; other < settings.ranks; ++other) {
    shards.push_back({other, other * shard, shard});
    reduction.parts.push_back({other * shard / 4, (other + 1) * shard / 4});
  }
  std::vector<std::byte> sums(shard, std::byte{1}), target(unit, std::byte{1});
  reduction.target = sums;
  auto wait = [](const std::function<void(Collective::Then)>& operation) {
    const Status status = engine::wait_for_end(operation);
    CHECK(status.ok(), status.message());
  };
  auto copy = [&](uint64_t bytes) {
    std::memcpy(target.data(), passes.memory().data() + unit, bytes);
    asm volatile("" ::"r"(target.data()) : "memory");
  };
  const std::map<std::string, std::function<void()>> works = {
      {"gather\n", [&] { wait([&](Collective::Then then) { passes.gather(shards, std::move(then)); }); }},
      {"reduce\n", [&] { wait([&](Collective::Then then) { passes.reduce(reduction, std::move(then)); }); }},
      {"copy_as_gather\n", [&] { copy(unit - shard); }},
      {"copy_as_reduce\n", [&] { copy((unit + shard) / 2); }},
  };
  std::printf("ready\n");
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    wait([&](Collective::Then then) { passes.barrier(Status(), std::move(then)); });
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < settings.each; ++i) works.at(line)();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%.9f\n", seconds / settings.each);
    std::fflush(stdout);
  }
}

// Ends the last one first: it has inherited the pipes of those before it, which see their end when it is gone.
class Group : public std::vector<std::unique_ptr<Served>> {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() { end_all(); }
  void end_all() {
    while (!empty()) pop_back();
  }
};

// The slowest rank's seconds.
double slowest(Group& group, const char* what) {
  for (auto& rank : group) rank->ask(what);
  double seconds = 0;
  for (auto& rank : group) {
    const std::optional<std::string> answer = rank->answer();
    CHECK(answer.has_value(), "a rank has ended before it answered ", what);
    seconds = std::max(seconds, std::strtod(answer->c_str(), nullptr));
  }
  return seconds;
}

bool are_ready(Group& group) {
  bool ready = true;
  for (auto& rank : group) ready = rank->answer() == "ready\n" && ready;
  return ready;
}

int run(int argc, char** argv) {
  Settings settings;
  std::string python;
  Flags flags("collective", "Do ranks of one host gather and add up at the speed of memory?");
  flags.options().count("--ranks", settings.ranks, "processes");
  flags.options().bytes("--unit", settings.unit_bytes, "of a unit");
  flags.options().text("--python", python, "PROGRAM", "a Python with torch, to compare with gloo");
  flags.parse(argc, argv);
  if (flags.quick()) {
    settings.unit_bytes = 1 * kMiB;
    settings.rounds = 3;
  }
  settings.unit_bytes = round_up(settings.unit_bytes, 4096ull * settings.ranks);
  const std::string meeting = text("bench.", ::getpid());
  Group ours, gloo;
  for (uint32_t rank = 0; rank < settings.ranks; ++rank) {
    ours.push_back(std::make_unique<Served>([&settings, rank, &meeting] { serve(settings, rank, meeting); }));
  }
  CHECK(are_ready(ours), "a rank did not start");
  for (uint32_t rank = 0; !python.empty() && rank < settings.ranks; ++rank) {
    gloo.push_back(std::make_unique<Served>([&, rank] {
      const std::string words[] = {text(rank), text(settings.ranks), text(29'000 + ::getppid() % 1000),
                                   text(settings.unit_bytes), text(settings.each)};
      ::execlp(python.c_str(), python.c_str(), "bench/collective_gloo.py", words[0].c_str(), words[1].c_str(),
               words[2].c_str(), words[3].c_str(), words[4].c_str(), static_cast<char*>(nullptr));
    }));
  }
  if (gloo.empty() || !are_ready(gloo)) {
    std::printf("gloo: left out: %s\n", python.empty() ? "no --python was given" : "torch's gloo did not start there");
    gloo.end_all();
  }
  const double unit = static_cast<double>(settings.unit_bytes), part = unit / settings.ranks;
  struct Case {
    const char *name, *copy;
    double bytes;
  };
  for (const Case& each :
       {Case{"gather", "copy_as_gather", unit - part}, Case{"reduce", "copy_as_reduce", (unit + part) / 2}}) {
    Figure copies{.bench = "collective",
                  .name = text(each.name, ", ", settings.ranks, " ranks"),
                  .unit = "GB/s",
                  .against = "plain copies",
                  .goal = 0.85,
                  .ours = {},
                  .theirs = {}};
    Figure peers = copies;
    peers.against = "gloo";
    peers.goal = 1.5;
    for (int round = 0; round < settings.rounds; ++round) {
      const double rate = each.bytes / slowest(ours, each.name) * 1e-9;
      copies.ours.push_back(rate);
      copies.theirs.push_back(each.bytes / slowest(ours, each.copy) * 1e-9);
      if (gloo.empty()) continue;
      peers.ours.push_back(rate);
      peers.theirs.push_back(each.bytes / slowest(gloo, each.name) * 1e-9);
    }
    print(copies, flags.json());
    if (!gloo.empty()) print(peers, flags.json());
  }
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) { return penstock::bench::run(argc, argv); }
