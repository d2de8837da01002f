// DirectStorage: drives fill device memory, and are written from it, without a stop in host memory: NVIDIA's cuFile
// ("GPUDirect Storage"). The library is looked for at run time, and that there is none is the normal case. Where there
// is one, probe_direct_storage() says whether it gains anything over the way through pinned host memory.
//
// The library keeps a cufile.log where the program runs, unless CUFILE_LOGFILE_PATH names another place.
//
// Every call blocks until its bytes have arrived; any number of threads that have entered the device
// (Device::enter_thread()) may read and write at once. A process that has opened it must not fork.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "tiering/io_engine.h"

namespace penstock::gpu {

struct CuFile;  // the library's calls

class DirectStorage {
 public:
  // Refused where the library, one of its calls or its driver is missing; the sentence says which.
  static Result<std::unique_ptr<DirectStorage>> open(const std::string& library = "libcufile.so.0");
  ~DirectStorage();
  DirectStorage(const DirectStorage&) = delete;
  DirectStorage& operator=(const DirectStorage&) = delete;

  // `memory` is a device's. Short transfers are continued here.
  // REQUIRES: the run lies inside the file; offsets and lengths are multiples of file.alignment_bytes().
  Status read(const File& file, uint64_t offset_bytes, std::span<std::byte> memory);
  Status write(const File& file, uint64_t offset_bytes, std::span<const std::byte> memory);

  // Before a file that was read or written here is closed.
  void forget(const File& file);

 private:
  explicit DirectStorage(std::unique_ptr<CuFile> library);
  Result<void*> handle_of(const File& file);
  Status move(const char* what, const File& file, uint64_t offset_bytes, std::byte* memory, uint64_t bytes);

  const std::unique_ptr<CuFile> library_;
  std::mutex mutex_;
  // GUARDED_BY(mutex_)
  std::map<const File*, void*> handles_;
};

}  // namespace penstock::gpu
