// A job's result for people and for programs: rows of a table that is printed as jobs end, and one object each.
#pragma once

#include <string>
#include <vector>

#include "tools/nvme/job.h"
#include "tools/penstock/text_table.h"
#include "tools/penstock/verb.h"

namespace penstock::tools {

// A cell that lies flush left in a RunningTable's column of that width.
std::string flush_left(std::string cell, size_t width);

class ResultTable {
 public:
  explicit ResultTable(const std::vector<Job>& jobs);

  std::string heads() const { return table_.heads(); }
  // One line; of a mixed job two more, its reads and its writes.
  std::string rows(const Job& job, const JobResult& result) const;

 private:
  const size_t name_width_;
  const RunningTable table_;
};

// `read` and `write` have each direction's own figures, null where the job has no such requests.
Json result_json(const Job& job, const JobResult& result, const std::string& engine);

}  // namespace penstock::tools
