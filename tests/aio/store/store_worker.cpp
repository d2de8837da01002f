// store_worker create|run FOLDER...: a process that makes a store, or opens one and trains for ever, to be killed at
// any moment. It writes a line for what is promised: "created", and every step whose root is durable.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "tests/aio/store/store_worker.h"
#include "tests/support/store_trainer.h"

namespace penstock::aio {
namespace {

void promise(const std::string& line) {
  const std::string whole = line + "\n";
  if (write(STDOUT_FILENO, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) _exit(3);
}

Status create(IoEngine& engine, const std::vector<std::shared_ptr<DriveFolder>>& folders) {
  Buffer memory = Buffer::on_heap(4 * kChunkBytes);
  CreateOptions options;
  options.existing = CreateOptions::Existing::replace;
  options.memory = memory.bytes();
  options.payload = TrainingNumbers{}.payload();
  PENSTOCK_TRY(TileStore::create(engine, folders, worker_shape(), options, initial_fill));
  promise("created");
  return Status();
}

Status run(IoEngine& engine, const std::vector<std::shared_ptr<DriveFolder>>& folders) {
  PENSTOCK_TRY_ASSIGN(store, TileStore::open(engine, folders, {}));
  StoreTrainer trainer(engine, *store);
  trainer.on_acknowledged([](uint64_t step) { promise(std::to_string(step)); });
  for (;;) PENSTOCK_TRY(trainer.step());
}

}  // namespace
}  // namespace penstock::aio

int main(int argc, char** argv) {
  using namespace penstock::aio;
  if (argc < 3) return 2;
  penstock::Result<MadeIoEngine> made = make_io_engine();
  if (!made.ok()) return 4;
  const auto folders = direct_folders({argv + 2, argv + argc});
  penstock::Status ended =
      std::string(argv[1]) == "create" ? create(*made->engine, folders) : run(*made->engine, folders);
  if (!ended.ok()) std::fprintf(stderr, "store_worker: %s\n", ended.message().c_str());
  return static_cast<int>(ended.code());
}
