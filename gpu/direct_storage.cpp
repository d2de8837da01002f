#include "gpu/direct_storage.h"

#include <dlfcn.h>

#include <cerrno>
#include <string_view>
#include <utility>

namespace penstock::gpu {

// As cufile.h has them; declared here, so that a build needs no header and a run no library.
struct CuFile {
  struct Error {
    int operation = 0;  // 0, or one of 5001 and more
    int driver = 0;     // a CUresult, where the operation is kDriverError
  };
  struct Description {
    int kind = kDescriptor;
    union {
      int descriptor;
      void* handle;
    } file = {};
    const void* operations = nullptr;
  };
  static constexpr int kDescriptor = 1;
  static constexpr int kDriverError = 5011;

  void* library = nullptr;
  Error (*driver_open)() = nullptr;
  Error (*driver_close)() = nullptr;
  Error (*handle_register)(void**, Description*) = nullptr;
  void (*handle_deregister)(void*) = nullptr;
  ssize_t (*read)(void* handle, void* memory, size_t bytes, off_t file_offset, off_t memory_offset) = nullptr;
  ssize_t (*write)(void* handle, const void* memory, size_t bytes, off_t file_offset, off_t memory_offset) = nullptr;

  CuFile() = default;
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;
  ~CuFile() {
    if (library != nullptr) dlclose(library);
  }

  // The name of the first call that is missing; empty if none is.
  std::string load() {
    std::string missing;
    auto find = [&](auto& call, const char* name) {
      call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, name));
      if (call == nullptr && missing.empty()) missing = name;
    };
    find(driver_open, "cuFileDriverOpen");
    find(driver_close, "cuFileDriverClose");
    find(handle_register, "cuFileHandleRegister");
    find(handle_deregister, "cuFileHandleDeregister");
    find(read, "cuFileRead");
    find(write, "cuFileWrite");
    return missing;
  }
};

namespace {

std::string words_for(int operation, int driver = 0) {
  auto known = [&]() -> const char* {
    switch (operation) {
      case 5001:
        return "the nvidia-fs driver is not loaded";
      case 5004:
        return "the nvidia-fs driver has another version";
      case 5007:
        return "not supported on this machine";
      case 5008:
        return "not supported for this file";
      case 5009:
        return "not supported by this GPU";
      case CuFile::kDriverError:
        return "the CUDA driver refuses";
      default:
        return nullptr;
    }
  }();
  std::string words = text("cuFile error ", operation);
  if (known != nullptr) words += text(" (", known, operation == CuFile::kDriverError ? text(": ", driver) : "", ")");
  return words;
}

Status refusal(const std::string& what, const std::string& why) {
  return Status(Code::kEnvironment, text(what, ": ", why),
                "nothing needs to be done: drives reach the GPU through pinned host memory");
}

}  // namespace

DirectStorage::DirectStorage(std::unique_ptr<CuFile> library) : library_(std::move(library)) {}

Result<std::unique_ptr<DirectStorage>> DirectStorage::open(const std::string& library) {
  auto loaded = std::make_unique<CuFile>();
  loaded->library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded->library == nullptr) return refusal("GPUDirect Storage", library + " is not installed");
  if (std::string missing = loaded->load(); !missing.empty()) {
    return refusal("GPUDirect Storage", text(library, " has no ", missing));
  }
  if (CuFile::Error error = loaded->driver_open(); error.operation != 0) {
    return refusal("GPUDirect Storage", text(library, ": ", words_for(error.operation, error.driver)));
  }
  return std::unique_ptr<DirectStorage>(new DirectStorage(std::move(loaded)));
}

DirectStorage::~DirectStorage() {
  for (const auto& [file, handle] : handles_) library_->handle_deregister(handle);
  library_->driver_close();
}

Result<void*> DirectStorage::handle_of(const File& file) {
  std::lock_guard lock(mutex_);
  if (auto found = handles_.find(&file); found != handles_.end()) return found->second;
  CuFile::Description description;
  description.file.descriptor = file.descriptor();
  void* handle = nullptr;
  if (CuFile::Error error = library_->handle_register(&handle, &description); error.operation != 0) {
    return refusal("GPUDirect Storage of " + file.path(), words_for(error.operation, error.driver));
  }
  handles_.emplace(&file, handle);
  return handle;
}

void DirectStorage::forget(const File& file) {
  std::lock_guard lock(mutex_);
  if (auto found = handles_.find(&file); found != handles_.end()) {
    library_->handle_deregister(found->second);
    handles_.erase(found);
  }
}

Status DirectStorage::read(const File& file, uint64_t offset_bytes, std::span<std::byte> memory) {
  return move("read", file, offset_bytes, memory.data(), memory.size());
}

Status DirectStorage::write(const File& file, uint64_t offset_bytes, std::span<const std::byte> memory) {
  return move("write", file, offset_bytes, const_cast<std::byte*>(memory.data()), memory.size());
}

Status DirectStorage::move(const char* what, const File& file, uint64_t offset_bytes, std::byte* memory,
                           uint64_t bytes) {
  CHECK(offset_bytes + bytes <= file.size_bytes(), what, " of ", bytes, " B at ", offset_bytes, " of ",
        file.size_bytes(), " B");
  PENSTOCK_TRY_ASSIGN(handle, handle_of(file));
  const bool is_read = std::string_view(what) == "read";
  for (uint64_t at = 0; at < bytes;) {
    const auto offset = static_cast<off_t>(offset_bytes + at);
    const auto memory_offset = static_cast<off_t>(at);
    errno = 0;
    const ssize_t moved = is_read ? library_->read(handle, memory, bytes - at, offset, memory_offset)
                                  : library_->write(handle, memory, bytes - at, offset, memory_offset);
    if (moved == -1 && errno == EINTR) continue;
    if (moved <= 0) {
      const std::string where = text(what, " ", bytes, " B at ", offset_bytes, " of ", file.path(), " by cuFile");
      if (moved == -1) return errno_status(where, errno == 0 ? EIO : errno);
      return Status(Code::kEnvironment,
                    text(where, ": ", moved == 0 ? "no byte arrived" : words_for(static_cast<int>(-moved))));
    }
    at += static_cast<uint64_t>(moved);
  }
  return Status();
}

}  // namespace penstock::gpu
