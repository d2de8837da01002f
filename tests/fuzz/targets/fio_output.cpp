#include <cmath>

#include "tests/fuzz/target.h"
#include "tools/nvme/fio.h"

namespace penstock::fuzz {
namespace {

std::vector<Bytes> seeds() {
  return {
      bytes_of(
          "note: something\n{\"jobs\": [{\"error\": 0, \"usr_cpu\": 2.0, \"sys_cpu\": 8.0, \"read\": {\"io_bytes\": "
          "4000000000, \"runtime\": 2000}, \"write\": {\"io_bytes\": 0, \"runtime\": 0}}]}"),
      bytes_of("{\"fio version\": \"fio-3.33\", \"jobs\": [{\"jobname\": \"penstock\", \"error\": 0, \"read\": "
               "{\"io_bytes\": "
               "1, \"runtime\": 1}, \"write\": {\"io_bytes\": 18446744073709551615, \"runtime\": 2000}, \"usr_cpu\": "
               "0.1, \"sys_cpu\": 99.9}, {}]}"),
      bytes_of("{\"jobs\": [{\"error\": 5}]}"), bytes_of("fio: failed")};
}

std::string run(std::span<const std::byte> input) {
  const Result<tools::FioResult> result = tools::parse_fio_output(text_of(input));
  if (!result.ok()) return result.status().code() == Code::kEnvironment ? "" : "refused as what it is not";
  const bool rates = std::isfinite(result->gbps) && result->gbps > 0 && std::isfinite(result->cpu_s_per_gb) &&
                     result->cpu_s_per_gb >= 0;
  return rates ? "" : "rates that are none";
}

constexpr std::string_view kWords[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"jobs\"",
                                       "\"error\"",
                                       "null",
                                       "true",
                                       "\"read\"",
                                       "\"write\"",
                                       "\"io_bytes\"",
                                       "\"runtime\"",
                                       "\"x\"",
                                       "{}",
                                       "[]",
                                       "\"usr_cpu\"",
                                       "\"sys_cpu\"",
                                       "\"error\": 0"};

}  // namespace

const Target fio_output{.name = "fio_output", .seeds = seeds, .run = run, .words = kWords, .rounds = 40000};

}  // namespace penstock::fuzz
