#include "tools/penstock/nvme_results.h"

#include <algorithm>

#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

constexpr const char* kReads = "  its reads";
constexpr const char* kWrites = "  its writes";

// The requests of one direction, or all.
struct Requests {
  uint64_t bytes;
  const LatencyHistogram& latency;
  double seconds;

  double gbps() const { return static_cast<double>(bytes) / seconds / 1e9; }
  double iops() const { return static_cast<double>(latency.count()) / seconds; }
};

Requests all_of(const JobResult& result) {
  return {result.read_bytes + result.written_bytes, result.latency, result.seconds};
}
Requests reads_of(const JobResult& result) { return {result.read_bytes, result.read_latency, result.seconds}; }
Requests writes_of(const JobResult& result) { return {result.written_bytes, result.write_latency, result.seconds}; }

std::vector<std::string> cells_of(const std::string& name, const Requests& requests) {
  const LatencyHistogram& latency = requests.latency;
  return {name,
          fixed(requests.gbps(), 2),
          fixed(requests.iops(), 0),
          microseconds(latency.mean_us()),
          microseconds(latency.percentile_us(0.5)),
          microseconds(latency.percentile_us(0.99)),
          microseconds(latency.percentile_us(0.999)),
          microseconds(latency.max_us())};
}

Json latency_json(const LatencyHistogram& latency) {
  return {{"p50", latency.percentile_us(0.5)},
          {"p99", latency.percentile_us(0.99)},
          {"p999", latency.percentile_us(0.999)},
          {"mean", latency.mean_us()},
          {"max", latency.max_us()}};
}

Json direction_json(const Requests& requests) {
  if (requests.latency.count() == 0) return Json();
  return {{"gbps", requests.gbps()}, {"iops", requests.iops()}, {"latency_us", latency_json(requests.latency)}};
}

size_t widest_name(const std::vector<Job>& jobs) {
  size_t width = std::string(kWrites).size();
  for (const Job& job : jobs) width = std::max(width, name_of(job).size());
  return width;
}

}  // namespace

std::string flush_left(std::string cell, size_t width) {
  cell.resize(std::max(cell.size(), width), ' ');
  return cell;
}

ResultTable::ResultTable(const std::vector<Job>& jobs)
    : name_width_(widest_name(jobs)),
      table_({flush_left("job", name_width_), "GB/s", "IOPS", "mean us", "p50 us", "p99 us", "p99.9 us", "max us",
              "CPU s/GB"}) {}

std::string ResultTable::rows(const Job& job, const JobResult& result) const {
  std::vector<std::string> all = cells_of(flush_left(name_of(job), name_width_), all_of(result));
  all.push_back(fixed(result.cpu_s_per_gb(), 4));
  if (job.read_share == 0 || job.read_share == 1) return table_.row(all);
  // The processor's time is that of both.
  return table_.row(all) + table_.row(cells_of(flush_left(kReads, name_width_), reads_of(result))) +
         table_.row(cells_of(flush_left(kWrites, name_width_), writes_of(result)));
}

Json result_json(const Job& job, const JobResult& result, const std::string& engine) {
  Json rate = Json::array(), histogram = Json::array();
  for (const RatePoint& point : result.rate) rate.push_back({point.at_s, point.gbps});
  for (const auto& [below_us, count] : result.latency.by_powers_of_two()) histogram.push_back({below_us, count});
  return {{"pattern", name_of(job.pattern)},
          {"read_share", job.read_share},
          {"block_bytes", job.block_bytes},
          {"depth", job.depth},
          {"engine", engine},
          {"gbps", result.gbps()},
          {"iops", result.iops()},
          {"latency_us", latency_json(result.latency)},
          {"read", direction_json(reads_of(result))},
          {"write", direction_json(writes_of(result))},
          {"cpu_s_per_gb", result.cpu_s_per_gb()},
          {"latency_histogram", histogram},
          {"rate_over_time", rate}};
}

}  // namespace penstock::tools
