#include <algorithm>

#include "aio/direct_file.h"
#include "tools/doctor/checks.h"
#include "tools/nvme/scratch.h"

namespace penstock::tools {
namespace {

// Below this even a small model's state does not fit.
constexpr uint64_t kLittleSpace = 10 * kGiB;
constexpr double kHotCelsius = 70;

Finding place_finding(const std::string& path, const aio::DriveInfo& drive) {
  const std::string found =
      text(drive.file_system.empty() ? "file system unknown" : drive.file_system, " on ",
           drive.device.empty() ? "no device" : drive.device, drive.beneath.empty() ? "" : " (" + drive.beneath + ")",
           ", ", bytes_text(drive.free_bytes), " of ", bytes_text(drive.total_bytes), " free");
  if (drive.free_bytes >= kLittleSpace) return {path, Level::good, found, "", ""};
  return {path, Level::note, found, "each parameter kept on drives takes 24 bytes there",
          "free some space, or use a folder on a larger drive"};
}

Finding direct_finding(const std::string& path, const aio::DirectFile& file) {
  const std::string subject = path + ", direct I/O";
  const std::string found = text("works, in multiples of ", file.alignment_bytes(), " B");
  if (file.note().empty()) return {subject, Level::good, found, "", ""};
  return {subject, Level::note, found, file.note(), ""};
}

// Virtual disks call themselves spinning ones unless told otherwise.
bool is_virtual(const aio::DriveInfo& drive) {
  for (const char* prefix : {"vd", "xvd", "loop"}) {
    if (drive.device.starts_with(prefix)) return true;
  }
  return false;
}

Finding hardware_finding(const std::string& path, const aio::DriveInfo& drive) {
  const std::string subject = path + ", drive";
  const std::string found = text(drive.model.empty() ? drive.device : drive.model,
                                 drive.pcie_link.empty() ? ", no PCIe link found" : ", link " + drive.pcie_link,
                                 ", scheduler ", drive.scheduler.empty() ? "unknown" : drive.scheduler,
                                 ", requests up to ", bytes_text(drive.request_bytes_max));
  if (drive.rotational && !is_virtual(drive)) {
    return {subject, Level::note, found + ", a spinning disk",
            "a spinning disk is a hundred times too slow to train from", "use a folder on an NVMe drive"};
  }
  if (drive.temperature_celsius && *drive.temperature_celsius > kHotCelsius) {
    return {subject, Level::note, text(found, ", ", *drive.temperature_celsius, " degrees Celsius"),
            "drives slow down when they are hot", "improve its cooling"};
  }
  return {subject, Level::good, found, "", ""};
}

// What a refusal means for training: a drive that cannot be used.
Finding refused(const std::string& path, const Status& why) {
  return {path, Level::problem, why.message(), "it cannot hold training state", why.remedy()};
}

}  // namespace

Result<Findings> check_drive(const std::string& path) {
  Result<std::unique_ptr<ScratchFolder>> folder = ScratchFolder::open(path);
  if (!folder.ok()) {
    if (folder.status().code() == Code::kUsage) return folder.status();
    return Findings{refused(path, folder.status())};
  }
  Findings findings{place_finding(path, (*folder)->drive())};
  const Status made = (*folder)->make_file(ScratchFolder::kUnitBytes, ScratchFolder::kUnitBytes);
  findings.push_back(made.ok() ? direct_finding(path, (*folder)->file()) : refused(path + ", direct I/O", made));
  if (!(*folder)->drive().device.empty()) findings.push_back(hardware_finding(path, (*folder)->drive()));
  return findings;
}

}  // namespace penstock::tools
