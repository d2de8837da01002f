#include "aio/make_engine.h"

#include <iterator>
#include <utility>

#include "aio/libaio_backend.h"
#include "aio/thread_backend.h"
#include "aio/uring_backend.h"

namespace penstock::aio {
namespace {

constexpr EngineChoice kByPreference[] = {EngineChoice::io_uring, EngineChoice::libaio, EngineChoice::threads};

Result<std::unique_ptr<IoBackend>> make_backend(EngineChoice choice) {
  switch (choice) {
    case EngineChoice::io_uring:
      return make_uring_backend();
    case EngineChoice::libaio:
      return make_libaio_backend();
    default:
      return ThreadBackend::make();
  }
}

}  // namespace

const char* name_of(EngineChoice choice) {
  switch (choice) {
    case EngineChoice::automatic:
      return "auto";
    case EngineChoice::io_uring:
      return "io_uring";
    case EngineChoice::libaio:
      return "libaio";
    case EngineChoice::threads:
      return "threads";
  }
  return "?";
}

Result<EngineChoice> parse_engine_choice(const std::string& name) {
  for (EngineChoice choice :
       {EngineChoice::automatic, EngineChoice::io_uring, EngineChoice::libaio, EngineChoice::threads}) {
    if (name == name_of(choice)) return choice;
  }
  return Status(Code::kUsage, text("unknown engine '", name, "': auto, io_uring, libaio or threads expected"),
                "choose one of them");
}

Result<MadeEngine> make_engine(EngineChoice choice, IoEngineOptions options) {
  const bool any = choice == EngineChoice::automatic;
  std::string refusals;
  for (EngineChoice candidate : kByPreference) {
    if (!any && candidate != choice) continue;
    Result<std::unique_ptr<IoBackend>> backend = make_backend(candidate);
    if (backend.ok()) {
      auto engine = std::make_unique<QueuedIoEngine>(std::move(backend).value(), std::move(options));
      std::string reason = engine->description() + refusals;
      return MadeEngine{std::move(engine), std::move(reason)};
    }
    if (!any) return backend.status().within(text("engine ", name_of(choice)));
    refusals += "; " + backend.status().message();
  }
  return Status(Code::kEnvironment, "no I/O engine works on this machine" + refusals,
                "run `penstock doctor`, which explains each refusal");
}

}  // namespace penstock::aio
