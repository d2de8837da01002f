#include "aio/make_io_engine.h"

#include <iterator>
#include <utility>

#include "aio/libaio_backend.h"
#include "aio/thread_backend.h"
#include "aio/uring_backend.h"

namespace penstock::aio {
namespace {

constexpr IoEngineChoice kByPreference[] = {IoEngineChoice::io_uring, IoEngineChoice::libaio, IoEngineChoice::threads};

Result<std::unique_ptr<IoBackend>> make_backend(IoEngineChoice choice) {
  switch (choice) {
    case IoEngineChoice::io_uring:
      return make_uring_backend();
    case IoEngineChoice::libaio:
      return make_libaio_backend();
    default:
      return ThreadBackend::make();
  }
}

}  // namespace

const char* name_of(IoEngineChoice choice) {
  switch (choice) {
    case IoEngineChoice::automatic:
      return "auto";
    case IoEngineChoice::io_uring:
      return "io_uring";
    case IoEngineChoice::libaio:
      return "libaio";
    case IoEngineChoice::threads:
      return "threads";
  }
  return "?";
}

Result<IoEngineChoice> parse_engine_choice(const std::string& name) {
  for (IoEngineChoice choice :
       {IoEngineChoice::automatic, IoEngineChoice::io_uring, IoEngineChoice::libaio, IoEngineChoice::threads}) {
    if (name == name_of(choice)) return choice;
  }
  return Status(Code::kUsage, text("unknown engine '", name, "': auto, io_uring, libaio or threads expected"),
                "choose one of them");
}

Result<MadeIoEngine> make_io_engine(IoEngineChoice choice, IoEngineOptions options) {
  const bool any = choice == IoEngineChoice::automatic;
  std::string refusals;
  for (IoEngineChoice candidate : kByPreference) {
    if (!any && candidate != choice) continue;
    Result<std::unique_ptr<IoBackend>> backend = make_backend(candidate);
    if (backend.ok()) {
      auto engine = std::make_unique<QueuedIoEngine>(std::move(backend).value(), std::move(options));
      std::string reason = engine->description() + refusals;
      return MadeIoEngine{std::move(engine), std::move(reason)};
    }
    if (!any) return backend.status().within(text("engine ", name_of(choice)));
    refusals += "; " + backend.status().message();
  }
  return Status(Code::kEnvironment, "no I/O engine works on this machine" + refusals,
                "run `penstock doctor`, which explains each refusal");
}

}  // namespace penstock::aio
