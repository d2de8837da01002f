#include "tiering/check.h"
#include "tools/doctor/checks.h"
#include "tools/penstock/python_start.h"
#include "tools/penstock/train_start.h"
#include "tools/system/subprocess.h"

namespace penstock::tools {
namespace {

constexpr const char* kAskForTorch = "import importlib.metadata as m; print(m.version('torch'))";

// "2.13.0+cpu" is at least 2.7.
bool at_least_2_7(const std::string& version) {
  int major = 0, minor = 0;
  return std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2 && (major > 2 || (major == 2 && minor >= 7));
}

Finding fio_finding() {
  const Result<std::string> version = run_program({"fio", "--version"});
  if (version.ok()) return {"fio", Level::good, trimmed(*version), "penstock nvme compare can run", ""};
  return {"fio", Level::note, "not installed", "penstock nvme compare cannot run", "sudo apt install fio"};
}

// It was linked to torch's C++ library when it was built.
Finding trainer_finding() {
  const Result<std::string> trainer = trainer_path("doctor");
  if (trainer.ok()) return {"trainer", Level::good, *trainer, "penstock train and generate can run", ""};
  return {"trainer", Level::note, "this build has none", "drives, plans and updates need none; penstock train does",
          "tools/setup installs torch, whose C++ library it needs; then build again"};
}

Finding torch_finding() {
  const std::string python = python_of_command();
  const Result<std::string> version = run_program({python, "-c", kAskForTorch});
  const std::string where = text(" in ", python);
  if (!version.ok())
    return {"torch", Level::note, text("none", where),
            "the Python package's optimizer needs it; penstock train does not",
            "pip install torch, or name another Python in PENSTOCK_PYTHON"};
  const std::string found = trimmed(*version) + where;
  if (at_least_2_7(*version)) return {"torch", Level::good, found, "", ""};
  return {"torch", Level::note, found, "the Python package needs 2.7 or newer", "pip install 'torch>=2.7'"};
}

}  // namespace

Findings check_software() { return {fio_finding(), trainer_finding(), torch_finding()}; }

}  // namespace penstock::tools
