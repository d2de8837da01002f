// Shared by the verbs that run steps on a store: its folders, the host budget, the rates of its drives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/drive_folder.h"
#include "aio/store/store_presence.h"
#include "tiering/plan/machine_profile.h"
#include "tiering/state_layout.h"
#include "tools/penstock/verb.h"
#include "tools/update/measured_machine.h"

namespace penstock::tools {

// "host=24GiB" as bytes. Refuses more than this machine has.
Result<uint64_t> host_budget(const std::string& budget);
Status refuse_more_than_memory(uint64_t host_bytes, const std::string& what);

// Folders of a store, created if missing. Those that were created and are still empty are removed at the end.
class MadeFolders {
 public:
  ~MadeFolders();
  // `what` names the flag or argument in a refusal.
  Status make(const std::string& folder, const std::string& what = "--store");

 private:
  std::vector<std::string> folders_;
};

// The profile at `path`; if that is empty, a short measurement of the drives. Drives too full for scratch files are
// noted, and the profile then has no drives.
Result<MachineProfile> machine_of(Session& session, const std::string& path, const std::vector<std::string>& folders,
                                  const MeasureOptions& options);

// Of a run's drives those that this rank's store lies on: not those that have other ranks' alone.
std::vector<std::shared_ptr<aio::DriveFolder>> drives_of_rank(
    const std::vector<std::shared_ptr<aio::DriveFolder>>& drives, uint32_t rank);

// What there is of this rank's.
Result<aio::StorePresence> find_store(const std::vector<std::string>& folders, uint32_t rank = 0);
// Another process may have this rank's, above all one that is about to end: says so, and waits as opening would.
Status wait_while_taken(Session& session, const std::vector<std::string>& folders, uint32_t rank = 0);
// Of this rank. Also true if that cannot be found out: opening the store then says why.
bool has_store(const std::vector<std::string>& folders, uint32_t rank = 0);

}  // namespace penstock::tools
