// engine_worker create|run DURABILITY FOLDER...: a process that makes a store, or opens one and trains for ever, to be
// killed at any moment. It writes a line for what it begins (see kPhases) and for what is promised: "created",
// "durable N", "wrote N".
#include "tests/runtime/engine_worker.h"

#include <unistd.h>

#include <cstdio>

namespace penstock::engine {
namespace {

void say(const std::string& line) {
  const std::string whole = line + "\n";
  if (::write(STDOUT_FILENO, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) _exit(3);
}

Status create(WorkerWorld& world) {
  say("create");
  PENSTOCK_TRY(world.create());
  say("created");
  return Status();
}

Status run(WorkerWorld& world) {
  say("open");
  PENSTOCK_TRY_ASSIGN(engine, world.open([](uint64_t step) { say(text("durable ", step)); }));
  return world.live(*engine, ~uint64_t{0}, say);
}

}  // namespace
}  // namespace penstock::engine

int main(int argc, char** argv) {
  using namespace penstock::engine;
  if (argc < 4) return 2;
  WorkerWorld world(argv[2], {argv + 3, argv + argc});
  penstock::Status ended = std::string(argv[1]) == "create" ? create(world) : run(world);
  if (!ended.ok()) std::fprintf(stderr, "engine_worker: %s\n", ended.message().c_str());
  return static_cast<int>(ended.code());
}
