#include "runtime/engine/scratch_files.h"

#include <utility>

namespace penstock::engine {

ScratchFiles::ScratchFiles(aio::DriveFolders folders, std::string name)
    : name_(std::move(name)), folders_(folders.begin(), folders.end()) {}

Result<std::unique_ptr<ScratchFiles>> ScratchFiles::make(aio::DriveFolders folders, uint32_t rank, const char* what,
                                                         const std::vector<uint64_t>& bytes) {
  auto made = std::unique_ptr<ScratchFiles>(new ScratchFiles(folders, text("rank", rank, ".", what, ".scratch")));
  for (size_t drive = 0; drive < folders.size(); ++drive) {
    PENSTOCK_TRY(folders[drive]->remove_file(made->name_));
    std::unique_ptr<File> file;
    if (bytes[drive] > 0) {
      PENSTOCK_TRY_ASSIGN(created, folders[drive]->create_file(made->name_, bytes[drive]));
      file = std::move(created);
    }
    made->views_.push_back(file.get());
    made->files_.push_back(std::move(file));
  }
  return made;
}

ScratchFiles::~ScratchFiles() {
  for (size_t drive = 0; drive < files_.size(); ++drive) {
    if (!files_[drive]) continue;
    files_[drive].reset();
    (void)folders_[drive]->remove_file(name_);  // what stays behind is removed by the next run
  }
}

}  // namespace penstock::engine
