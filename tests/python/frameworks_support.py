"""Example programs, and processes to start them in: for the tests of other frameworks' trainers."""
import os
import subprocess
import sys
from pathlib import Path


def of_example(name):
    return Path(__file__).parents[2] / "tools" / "examples" / name


def run(*arguments, **more):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env=environment, **more)
