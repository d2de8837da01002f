#include "tests/contracts/io_engine_contract.h"

#include "aio/make_io_engine.h"
#include "aio/write_once.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/memory_backend.h"
#include "tests/support/recording_backend.h"
#include "tests/support/throttled_backend.h"

namespace penstock::aio {
namespace {

using MadeFile = Result<std::unique_ptr<File>>;
using Made = Result<std::unique_ptr<IoEngine>>;

// Written once, as every file is before it is used.
MadeFile direct_file(const std::string& path, uint64_t size_bytes) {
  PENSTOCK_TRY_ASSIGN(file, DirectFile::create(path, size_bytes, Existing::refuse, {.in_memory = InMemory::allow}));
  PENSTOCK_TRY_ASSIGN(made, make_io_engine(IoEngineChoice::threads));
  OwnMemory memory(kMiB);
  BufferPool pool(Tier::host, memory.bytes(), kMiB);
  PENSTOCK_TRY(write_once(*file, *made.engine, pool));
  return MadeFile(std::move(file));
}

EngineUnderTest real(IoEngineChoice choice) {
  return {name_of(choice),
          [choice](IoEngineOptions options) -> Made {
            PENSTOCK_TRY_ASSIGN(made, make_io_engine(choice, std::move(options)));
            return Made(std::move(made.engine));
          },
          direct_file, false};
}

using Wrap = std::function<std::unique_ptr<IoBackend>(std::unique_ptr<IoBackend> inner)>;

EngineUnderTest in_memory(const std::string& name, Wrap wrap) {
  return {name,
          [wrap](IoEngineOptions options) -> Made {
            return Made(std::make_unique<QueuedIoEngine>(wrap(std::make_unique<MemoryBackend>()), std::move(options)));
          },
          [](const std::string& path, uint64_t size_bytes) -> MadeFile {
            return MadeFile(std::make_unique<MemoryFile>(path, size_bytes));
          },
          name == "faulty"};
}

std::unique_ptr<IoBackend> plain(std::unique_ptr<IoBackend> inner) { return inner; }

// Faults that an engine must get over without anybody noticing.
std::unique_ptr<IoBackend> faulty(std::unique_ptr<IoBackend> inner) {
  FaultOptions options{.seed = 7, .chance = {}, .delay_chance = 0.3};
  return std::make_unique<FaultyBackend>(std::move(inner),
                                         options.with(Fault::short_move, 0.1).with(Fault::eintr, 0.1));
}

std::unique_ptr<IoBackend> throttled(std::unique_ptr<IoBackend> inner) {
  return std::make_unique<ThrottledBackend>(std::move(inner),
                                            ThrottleOptions{.latency = std::chrono::microseconds(100)});
}

std::unique_ptr<IoBackend> recorded(std::unique_ptr<IoBackend> inner) {
  static IoLog log;  // nobody reads it here
  log.clear();
  return std::make_unique<RecordingBackend>(std::move(inner), log);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineContract,
                         ::testing::Values(real(IoEngineChoice::io_uring), real(IoEngineChoice::libaio),
                                           real(IoEngineChoice::threads), in_memory("memory", plain),
                                           in_memory("faulty", faulty), in_memory("throttled", throttled),
                                           in_memory("recorded", recorded)),
                         [](const auto& engine) { return engine.param.name; });

}  // namespace
}  // namespace penstock::aio
