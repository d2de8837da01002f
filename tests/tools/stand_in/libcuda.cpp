// A CUDA driver that refuses: libcuda.so.1 with as much in it as doctor and the CUDA runtime ask before they are told
// no. PRETEND_CUDA says what it is: "version=12080 init=100 devices=1 major=9 minor=0".
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

int pretended(const char* key, int otherwise) {
  const char* all = std::getenv("PRETEND_CUDA");
  const std::string wanted = std::string(key) + "=";
  const char* found = all == nullptr ? nullptr : std::strstr(all, wanted.c_str());
  return found == nullptr ? otherwise : std::atoi(found + wanted.size());
}

}  // namespace

extern "C" {
int cuInit(unsigned) { return pretended("init", 0); }
int cuDriverGetVersion(int* version) {
  *version = pretended("version", 13000);
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = pretended("devices", 1);
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, static_cast<size_t>(size), "stand-in");
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{8} << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? pretended("major", 9) : attribute == 76 ? pretended("minor", 0) : 0;
  return 0;
}
int cuGetErrorString(int error, const char** words) {
  *words = error == 803 ? "system has unsupported display driver / cuda driver combination" : "as the test asked";
  return 0;
}

}  // extern "C"
