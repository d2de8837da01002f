// Drives are those of a run: one I/O engine and the store's folders, made on the decision thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/drive_folder.h"
#include "aio/make_io_engine.h"

namespace penstock::engine {

struct Drives {
  std::unique_ptr<IoEngine> io;
  std::vector<std::shared_ptr<aio::DriveFolder>> folders;
  std::string description;
};
using MakeDrives = std::function<Result<Drives>()>;

// Real files in these folders, one for each drive.
MakeDrives direct_drives(std::vector<std::string> paths, aio::IoEngineChoice choice = aio::IoEngineChoice::automatic);

}  // namespace penstock::engine
