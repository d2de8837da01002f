#include "runtime/engine/drives.h"

#include <utility>

#include "aio/direct_folder.h"

namespace penstock::engine {

MakeDrives direct_drives(std::vector<std::string> paths, aio::IoEngineChoice choice) {
  return [paths = std::move(paths), choice]() -> Result<Drives> {
    PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine(choice));
    Drives drives;
    drives.io = std::move(made.engine);
    drives.description = made.reason;
    drives.folders = aio::direct_folders(paths);
    return Result<Drives>(std::move(drives));
  };
}

}  // namespace penstock::engine
