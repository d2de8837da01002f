// HostArena is the one mapping that all large host memory is cut from: on 2 MiB pages where they can be had (worth a
// factor of two on a virtual machine's disk), populated at once, and kept out of children of fork().
//
// Made, cut and destroyed by one thread; what was cut lives as long as the arena.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tiering/budget.h"
#include "tiering/status.h"

namespace penstock::aio {

enum class PageKind {
  explicit_huge,     // reserved by the administrator (vm.nr_hugepages)
  transparent_huge,  // the kernel's own doing; huge_bytes() says how far it came
  small,
};

const char* name_of(PageKind kind);

class HostArena {
 public:
  // Takes the best kind of page that there is enough of, `best` at most. Refuses what machine and control group cannot
  // give, with needed and available, before anything is taken.
  static Result<std::unique_ptr<HostArena>> make(uint64_t size_bytes, PageKind best = PageKind::explicit_huge);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Cuts off a run, in a line of the budget of its own. Runs of 2 MiB and more start at a 2 MiB page.
  Result<std::span<std::byte>> take(const std::string& name, uint64_t bytes);

  std::span<std::byte> bytes() const { return memory_; }
  const Budget& budget() const { return budget_; }

  PageKind pages() const { return pages_; }
  // How many bytes really lie on 2 MiB pages, as the kernel tells.
  uint64_t huge_bytes() const { return huge_bytes_; }
  // "24.00 GiB on transparent 2 MiB pages (100 %)".
  std::string description() const;

 private:
  HostArena(std::span<std::byte> mapping, std::span<std::byte> memory, PageKind pages);

  const std::span<std::byte> mapping_;
  const std::span<std::byte> memory_;
  const PageKind pages_;
  uint64_t huge_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  Budget budget_;
};

}  // namespace penstock::aio
