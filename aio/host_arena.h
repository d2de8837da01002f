// HostArena is the one mapping from which all large host memory is taken. It lies on 2 MiB pages if the system has them
// (worth a factor of two on a virtual machine's disk), is populated at once, and is not inherited by fork().
//
// Created, used and destroyed by one thread. Memory taken from it lives as long as the arena.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "tiering/budget.h"
#include "tiering/status.h"

namespace penstock::aio {

enum class PageKind {
  explicit_huge,     // reserved by the administrator (vm.nr_hugepages)
  transparent_huge,  // assembled by the kernel; huge_bytes() says how many
  small,
};

const char* name_of(PageKind kind);

class HostArena {
 public:
  // Uses the best kind of page, up to `best`, of which there is enough. Refuses, before it takes anything, if the
  // machine or its control group has too little, and says how much was needed and available.
  // Addresses up to `most_bytes` are reserved, without memory, so that it can grow where it is.
  static Result<std::unique_ptr<HostArena>> make(uint64_t size_bytes, PageKind best = PageKind::explicit_huge,
                                                 uint64_t most_bytes = 0);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Takes memory and gives it a line of its own in the budget. 2 MiB and more start at a 2 MiB page.
  Result<std::span<std::byte>> take(const std::string& name, uint64_t bytes);

  // More memory behind what there is, whose addresses and bytes stay as they are. A refusal changes nothing: it says
  // how much was needed, and what there was of memory or of reserved addresses. REQUIRES: nothing was taken by take().
  Status grow(uint64_t size_bytes);

  std::span<std::byte> bytes() const { return memory_; }
  // What it can grow to.
  uint64_t most_bytes() const { return reserved_.size(); }
  const Budget& budget() const { return *budget_; }

  PageKind pages() const { return pages_; }
  // How many bytes lie on 2 MiB pages, according to the kernel.
  uint64_t huge_bytes() const { return huge_bytes_; }
  // "24.00 GiB on transparent 2 MiB pages (100 %)".
  std::string description() const;

 private:
  // `reserved`: the memory, and the addresses behind it.
  HostArena(std::span<std::byte> mapping, std::span<std::byte> reserved, uint64_t size_bytes, PageKind pages);

  const std::span<std::byte> mapping_;
  const std::span<std::byte> reserved_;
  std::span<std::byte> memory_;
  const PageKind pages_;
  uint64_t huge_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  std::optional<Budget> budget_;  // of the memory there is
};

}  // namespace penstock::aio
