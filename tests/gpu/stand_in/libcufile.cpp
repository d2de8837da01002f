// A cuFile over plain memory, where a host device's arena lies, that can refuse, be slow, cut transfers short and bring
// wrong bytes. PRETEND_CUFILE says how: "open=5001 register=5008 read=5011 sleep_us=20000 most=4096 wrong=1".
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Error {
  int operation;
  int driver;
};

struct Description {
  int kind;
  union {
    int descriptor;
    void* handle;
  } file;
  const void* operations;
};

long pretended(const char* key) {
  const char* all = std::getenv("PRETEND_CUFILE");
  const std::string wanted = std::string(key) + "=";
  const char* found = all == nullptr ? nullptr : std::strstr(all, wanted.c_str());
  return found == nullptr ? 0 : std::atol(found + wanted.size());
}

int handles = 0;

int descriptor_of(void* handle) { return static_cast<int>(reinterpret_cast<intptr_t>(handle)) - 1; }

size_t as_much_as(size_t bytes) {
  const long most = pretended("most");
  if (const long sleep_us = pretended("sleep_us"); sleep_us > 0) usleep(static_cast<useconds_t>(sleep_us));
  return most > 0 && static_cast<size_t>(most) < bytes ? static_cast<size_t>(most) : bytes;
}

}  // namespace

extern "C" {

Error cuFileDriverOpen() { return {static_cast<int>(pretended("open")), 0}; }
Error cuFileDriverClose() {
  if (handles != 0) abort();  // a handle was kept
  return {0, 0};
}
Error cuFileHandleRegister(void** handle, Description* description) {
  if (const long refused = pretended("register"); refused != 0) return {static_cast<int>(refused), 35};
  if (description->kind != 1) return {5022, 0};
  *handle = reinterpret_cast<void*>(static_cast<intptr_t>(description->file.descriptor) + 1);
  ++handles;
  return {0, 0};
}
void cuFileHandleDeregister(void*) { --handles; }
ssize_t cuFileRead(void* handle, void* memory, size_t bytes, off_t file_offset, off_t memory_offset) {
  if (const long refused = pretended("read"); refused != 0) return -refused;
  auto* target = static_cast<char*>(memory) + memory_offset;
  const ssize_t got = pread(descriptor_of(handle), target, as_much_as(bytes), file_offset);
  if (got > 0 && pretended("wrong") != 0) target[got - 1] = static_cast<char>(target[got - 1] ^ 1);
  return got;
}
#ifndef WITHOUT_WRITE
ssize_t cuFileWrite(void* handle, const void* memory, size_t bytes, off_t file_offset, off_t memory_offset) {
  return pwrite(descriptor_of(handle), static_cast<const char*>(memory) + memory_offset, as_much_as(bytes),
                file_offset);
}
#endif

}  // extern "C"
