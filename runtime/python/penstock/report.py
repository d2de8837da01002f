"""`penstock report RUN`: one HTML page about a run; and the same for other programs."""

import os
import sys
from pathlib import Path

from . import exports
from ._refusal import Refusal
from ._verb import Arguments, run as run_verb
from .page import MARK, page
from .run import Run
from .summary import Summary


def check_file(flag, path, is_own, force):
    """Refuses to replace what no report has written, which is_own(its first bytes) tells, and what is no file."""
    path = Path(path)
    exports.check_folder(flag, path.parent)
    if path.exists() and not path.is_file():
        raise Refusal(f"report: {path}: is not a file", f"{flag} FILE")
    if path.exists() and not force:
        with open(path, "rb") as file:
            if not is_own(file.read(4096)):
                raise Refusal(f"report: {path}: exists already and is no report", f"another {flag}, or --force to replace it")


def write_file(flag, path, content):
    exports.make_folder(flag, Path(path).parent)
    exports.replace(path, content.encode())


def report(arguments, progress):
    parser = Arguments("penstock report")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--tensorboard", metavar="FOLDER")
    parser.add_argument("--prometheus", metavar="FILE")
    parser.add_argument("--wandb", metavar="PROJECT")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(arguments)
    summary = Summary(Run(options.run))
    out = options.out or os.path.join(options.run, "report.html")
    # All before the first is written.
    check_file("--out", out, lambda head: MARK.encode() in head, options.force)
    if options.prometheus:
        check_file("--prometheus", options.prometheus, lambda head: head.startswith(exports.PROMETHEUS_BEGINS), options.force)
    if options.tensorboard:
        exports.check_folder("--tensorboard", options.tensorboard)
    write_file("--out", out, page(summary))
    fields, made = {**summary.fields(), "page": os.path.abspath(out)}, [out]
    if options.tensorboard:
        made.append(exports.write_tensorboard(options.tensorboard, summary.run))
        fields["tensorboard"] = os.path.abspath(made[-1])
    if options.prometheus:
        write_file("--prometheus", options.prometheus, exports.prometheus_text(summary))
        made.append(options.prometheus)
        fields["prometheus"] = os.path.abspath(options.prometheus)
    if options.wandb:
        made.append(exports.send_to_wandb(options.wandb, summary.run))
        fields["wandb"] = made[-1]
    return "".join(f"{path}\n" for path in made), fields


if __name__ == "__main__":
    sys.exit(run_verb("report", report, sys.argv[1:]))
