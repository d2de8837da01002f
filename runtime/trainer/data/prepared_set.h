// PreparedSet: a folder that `penstock data` made, its files mapped: documents with marks of what is learnt, in rows.
// What it looks like on the drive is said in runtime/python/penstock/data/prepared.py.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock::trainer {

// What of manifest.json is needed to train.
struct PreparedManifest {
  struct Rows {
    uint64_t first = 0, count = 0;
  };
  struct Part {
    std::string name;
    double weight = 1;
    Rows training, held_out;
  };
  std::string hash;
  uint64_t length = 0;  // places of a row
  int32_t padding = 0;
  uint64_t tokens_bytes = 0, learnt_bytes = 0, documents_bytes = 0, order_bytes = 0, rows_bytes = 0;
  std::vector<Part> parts;
};
// Refuses what is not a manifest; whether it agrees with the files, open() says.
Result<PreparedManifest> parse_prepared_manifest(const std::string& json);

// Where a row goes: spans of one length.
struct RowPlaces {
  std::span<int32_t> tokens, targets, positions;
};

class PreparedSet {
 public:
  // Whether the path is such a folder, or looks like one.
  static bool is_at(const std::string& path);
  // Reads the tables of documents and rows, and refuses what would lead out of the files.
  static Result<std::unique_ptr<PreparedSet>> open(const std::string& folder);
  ~PreparedSet();
  PreparedSet(const PreparedSet&) = delete;
  PreparedSet& operator=(const PreparedSet&) = delete;

  const std::string& path() const { return path_; }
  const PreparedManifest& manifest() const { return manifest_; }
  // Its documents one after another, then padding. REQUIRES: the row is there, and has length() places or more.
  void read_row(uint64_t row, const RowPlaces& into) const;
  // Refuses the set if it has a token outside the vocabulary: all tokens are read.
  Status check(uint32_t vocabulary) const;

 private:
  struct Mapped {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
    uint64_t number(uint64_t index) const;  // of 8 B
    uint64_t numbers() const { return bytes / 8; }
  };

  explicit PreparedSet(std::string path) : path_(std::move(path)) {}
  Status map(const char* name, uint64_t bytes_expected, Mapped& into);
  Status map_all();
  Status check_tables() const;
  int32_t token(uint64_t at) const;

  const std::string path_;
  PreparedManifest manifest_;
  Mapped tokens_, learnt_, documents_, order_, rows_;
};

}  // namespace penstock::trainer
