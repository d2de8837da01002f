"""The drive's rates for runs whose tests are about something else: measured once a day, not for seconds by each run."""
import fcntl
import subprocess
import time
from pathlib import Path

A_DAY = 24 * 3600


def machine_profile(penstock):
    """The path of a profile of the drive on which the command itself is."""
    beside = Path(penstock).resolve().parent
    profile = beside / "machine-of-tests.json"
    with open(beside / "machine-of-tests.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run beside one another
        if not profile.exists() or time.time() - profile.stat().st_mtime > A_DAY:
            profile.unlink(missing_ok=True)
            subprocess.run([penstock, "nvme", "probe", beside, "--duration", "0.2s", "--size", "64MiB", "--profile", profile],
                           check=True, capture_output=True)
    return str(profile)
