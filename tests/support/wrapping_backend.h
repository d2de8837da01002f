// WrappingBackend passes everything on to another backend; who derives from it says what is different.
#pragma once

#include <memory>
#include <utility>

#include "aio/backend.h"

namespace penstock::aio {

class WrappingBackend : public IoBackend {
 public:
  explicit WrappingBackend(std::unique_ptr<IoBackend> inner) : inner_(std::move(inner)) {}

  uint32_t capacity() const override { return inner_->capacity(); }
  void submit(const Piece& piece) override { inner_->submit(piece); }
  void start() override { inner_->start(); }
  size_t reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) override {
    return inner_->reap(ended, timeout);
  }
  Result<int> completion_fd() override { return inner_->completion_fd(); }
  uint64_t register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
  void register_file(const File& file) override { inner_->register_file(file); }
  void unregister_file(const File& file) override { inner_->unregister_file(file); }
  std::string description() const override { return inner_->description(); }

 protected:
  const std::unique_ptr<IoBackend> inner_;
};

}  // namespace penstock::aio
