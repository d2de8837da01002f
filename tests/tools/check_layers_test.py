#!/usr/bin/env python3
"""Each kind of breach is found, and what is allowed is not."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"


def check(source, line):
    """The exit code and output for a tree whose only include is `line` in `source`."""
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "tiering").mkdir()
        path = Path(root) / source
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// A file.\n{line}\n")
        ran = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout


class CheckLayers(unittest.TestCase):
    def test_refuses(self):
        for source, line in (
            ("tiering/a.h", '#include "aio/queued_io_engine.h"'),
            ("tiering/a.h", '#include "tiering/plan/plan.h"'),
            ("tiering/plan/a.h", '#include "tiering/store/slot_table.h"'),
            ("tiering/store/a.h", '#include "tiering/plan/plan.h"'),
            ("tiering/store/a.cpp", "#include <sys/mman.h>"),
            ("aio/a.h", '#include "aio/store/tile_store.h"'),
            ("aio/store/a.h", '#include "tiering/plan/plan.h"'),
            ("tiering/a.h", "#include <thread>"),
            ("tiering/a.cpp", "#include <sys/mman.h>"),
            ("tiering/a.cpp", "#  include <cuda_runtime.h>"),
            ("aio/a.h", '#include "cpu_optim/adam.h"'),
            ("aio/a.h", '#include "gpu/device.h"'),
            ("cpu_optim/a.h", '#include "aio/queued_io_engine.h"'),
            ("gpu/a.cu", '#include "runtime/engine/engine.h"'),
            ("runtime/engine/a.h", '#include "runtime/trainer/model.h"'),
            ("runtime/engine/a.h", "#include <torch/torch.h>"),
            ("aio/a.cpp", '#include "tests/support/fake.h"'),
            ("aio/a.cpp", '#include "tools/nvme/job.h"'),
            ("aio/a.cpp", '#include "engine.h"'),
        ):
            with self.subTest(source=source, line=line):
                code, output = check(source, line)
                self.assertEqual(code, 1)
                self.assertIn(f"{source}:2:", output)

    def test_allows(self):
        for source, line in (
            ("tiering/a.h", "#include <vector>"),
            ("tiering/plan/a.h", '#include "tiering/unit.h"'),
            ("aio/store/a.h", '#include "tiering/store/slot_table.h"'),
            ("aio/a.cpp", "#include <thread>"),
            ("aio/a.cpp", '#include "tiering/status.h"'),
            ("gpu/a.cu", "#include <cuda_runtime.h>"),
            ("runtime/engine/a.cpp", '#include "cpu_optim/adam.h"'),
            ("runtime/trainer/a.cpp", "#include <torch/torch.h>"),
            ("tools/a.cpp", '#include "aio/queued_io_engine.h"'),
            ("tests/aio/a.cpp", '#include "tests/support/fake.h"'),
        ):
            with self.subTest(source=source, line=line):
                self.assertEqual(check(source, line)[0], 0)


if __name__ == "__main__":
    unittest.main()
