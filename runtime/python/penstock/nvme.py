"""`penstock nvme`: the rates of drives."""

import os

from . import _command


def probe(*folders, profile=None, size=None, duration=None, engine=None):
    """Measures the drive of each folder for half a minute, and writes the machine's profile, from which plans are made.
    What it found: the keys of `penstock nvme probe --json`. Its progress goes to the logger "penstock".

    folders: one on each drive; a scratch file is made in each, and removed.
    profile: the file to write; None: ~/.config/penstock/profile.json.
    size: of a scratch file, such as "2GiB".
    duration: of the measurement, such as "20s".

        rates = penstock.nvme.probe("/mnt/nvme0", "/mnt/nvme1")
    """
    return _command.answer("nvme", "probe", *map(os.fspath, folders), profile=profile, size=size, duration=duration,
                           engine=engine)
