"""Whether a process has a run: `penstock train` holds a lock on the run's folder while it lives."""

import fcntl
import os

# Where a lock is known to the machine alone that has taken it; and all of FUSE.
OF_SEVERAL_MACHINES = {"nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "gpfs", "beegfs", "afs", "gfs2", "ocfs2"}


def is_held(folder):
    """None where it cannot be known: on drives of several machines, or of a trainer that is older than the lock."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        kind = _file_system(os.fstat(descriptor).st_dev)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if kind in OF_SEVERAL_MACHINES or kind.startswith("fuse") or _is_written(os.path.join(folder, "log.jsonl")):
        return None
    return False


def _file_system(device):
    """Its type, as mount(8) names it; "" where nobody says so."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[2] == number:
                return after.split()[0]
    return ""


def _is_written(path):
    """Whether a process of this machine that may be looked at has the file open to write to it."""
    path = os.path.realpath(path)
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            for number in os.listdir(f"/proc/{process}/fd"):
                if os.readlink(f"/proc/{process}/fd/{number}") != path:
                    continue
                with open(f"/proc/{process}/fdinfo/{number}", encoding="ascii") as told:
                    flags = next(line.split()[1] for line in told if line.startswith("flags:"))
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                    return True
        except OSError:  # it has ended, or is somebody else's
            continue
    return False
