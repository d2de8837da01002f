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


def write_page(path, content, force):
    path = Path(path)
    if path.exists() and not force:
        with open(path, "rb") as file:
            if MARK.encode() not in file.read(4096):
                raise Refusal(f"report: {path}: exists already and is no report", "another --out, or --force to replace it")
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
    write_page(out, page(summary), options.force)
    fields, made = {**summary.fields(), "page": os.path.abspath(out)}, [out]
    if options.tensorboard:
        made.append(exports.write_tensorboard(options.tensorboard, summary.run))
        fields["tensorboard"] = os.path.abspath(made[-1])
    if options.prometheus:
        exports.replace(Path(options.prometheus), exports.prometheus_text(summary).encode())
        made.append(options.prometheus)
        fields["prometheus"] = os.path.abspath(options.prometheus)
    if options.wandb:
        made.append(exports.send_to_wandb(options.wandb, summary.run))
        fields["wandb"] = made[-1]
    return "".join(f"{path}\n" for path in made), fields


if __name__ == "__main__":
    sys.exit(run_verb("report", report, sys.argv[1:]))
