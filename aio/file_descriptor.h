// FileDescriptor owns a descriptor of the kernel's, or -1, and closes it.
#pragma once

#include <unistd.h>

namespace penstock::aio {

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor() {
    if (number_ >= 0) ::close(number_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  const int number_;
};

}  // namespace penstock::aio
