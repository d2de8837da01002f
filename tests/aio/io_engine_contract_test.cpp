#include "tests/contracts/io_engine_contract.h"

#include "aio/make_engine.h"
#include "aio/memory_backend.h"

namespace penstock::aio {
namespace {

using MadeFile = Result<std::unique_ptr<File>>;
using Made = Result<std::unique_ptr<IoEngine>>;

// Written once, as every file is before it is used.
MadeFile direct_file(const std::string& path, uint64_t size_bytes) {
  PENSTOCK_TRY_ASSIGN(file, DirectFile::create(path, size_bytes, Existing::refuse, {.in_memory = InMemory::allow}));
  PENSTOCK_TRY_ASSIGN(made, make_engine(EngineChoice::threads));
  OwnMemory memory(kMiB);
  BufferPool pool(Tier::host, memory.bytes(), kMiB);
  PENSTOCK_TRY(write_once(*file, *made.engine, pool));
  return MadeFile(std::move(file));
}

EngineUnderTest real(EngineChoice choice) {
  return {name_of(choice),
          [choice](EngineOptions options) -> Made {
            PENSTOCK_TRY_ASSIGN(made, make_engine(choice, std::move(options)));
            return Made(std::move(made.engine));
          },
          direct_file};
}

EngineUnderTest in_memory() {
  return {"memory",
          [](EngineOptions options) -> Made {
            return Made(std::make_unique<Engine>(std::make_unique<MemoryBackend>(), std::move(options)));
          },
          [](const std::string& path, uint64_t size_bytes) -> MadeFile {
            return MadeFile(std::make_unique<MemoryFile>(path, size_bytes));
          }};
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineContract,
                         ::testing::Values(real(EngineChoice::io_uring), real(EngineChoice::libaio),
                                           real(EngineChoice::threads), in_memory()),
                         [](const auto& engine) { return engine.param.name; });

}  // namespace
}  // namespace penstock::aio
