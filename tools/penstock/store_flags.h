// What verbs that run steps on a store share: its folders, the host budget, the rates of its drives.
#pragma once

#include <string>
#include <vector>

#include "tiering/plan/machine_profile.h"
#include "tiering/state_layout.h"
#include "tools/penstock/verb.h"
#include "tools/update/measured_machine.h"

namespace penstock::tools {

// "host=24GiB" as bytes.
Result<uint64_t> host_budget(const std::string& budget);

// Folders of a store, made where they are missing. A run that comes to nothing leaves none of those behind.
class MadeFolders {
 public:
  ~MadeFolders();
  Status make(const std::string& folder);

 private:
  std::vector<std::string> folders_;
};

// The profile at `path`, or where that is empty what the drives give when they are measured for a moment. Drives too
// full to be measured are a note, and a profile that knows none.
Result<MachineProfile> machine_of(Session& session, const std::string& path, const std::vector<std::string>& folders,
                                  const MeasureOptions& options);

// Also where it is not known: whoever opens it will be told why.
bool has_store(const std::vector<std::string>& folders);

}  // namespace penstock::tools
