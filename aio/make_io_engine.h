// make_io_engine() returns the best I/O engine that this machine allows, or the one that the user chose.
#pragma once

#include <memory>
#include <string>

#include "aio/queued_io_engine.h"
#include "tiering/status.h"

namespace penstock::aio {

enum class IoEngineChoice { automatic, io_uring, libaio, threads };

// "auto", "io_uring", "libaio" or "threads".
Result<IoEngineChoice> parse_engine_choice(const std::string& name);
const char* name_of(IoEngineChoice choice);

struct MadeIoEngine {
  std::unique_ptr<IoEngine> engine;
  // What runs, and why nothing better does: "libaio; io_uring: EPERM (Operation not permitted)".
  std::string reason;
};

// `automatic` takes the first of io_uring, libaio and threads that works. Any other choice is refused if it does not.
Result<MadeIoEngine> make_io_engine(IoEngineChoice choice = IoEngineChoice::automatic, IoEngineOptions options = {});

}  // namespace penstock::aio
