"""python -m penstock.data FILE... and python -m penstock.data show DIR: what `penstock data` starts."""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a model is a folder
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from .._verb import Arguments, run  # noqa: E402


def main(arguments: list[str]) -> int:
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        sys.stderr.write(f"penstock: data: {error}\ntry: pip install numpy transformers tokenizers\n")
        return 4
    if arguments[:1] == ["show"]:
        from .show import show

        return run("data show", lambda words, progress: show(words, progress, Arguments("penstock data show")), arguments[1:])
    from .prepare import prepare

    return run("data", lambda words, progress: prepare(words, progress, Arguments("penstock data")), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
