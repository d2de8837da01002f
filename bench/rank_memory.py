"""How hard is the memory budget of ranks, and does each move its part of the bytes? Every rank of a run is in a control
group of its own, whose limit is its part of the host budget: none may be killed, and what each reads and writes must be
1/N of what the plan says of the model.

On paper, all state on NVMe: 14 B read and 12 B written a parameter and step among all ranks, a retained gradient that
finds no room 4 B more. What is printed as moved is what the kernel has counted for each process, beyond a shorter run's:
what opening the store moves, and the first steps, in which no engine knows yet that every step is clipped.

usage: rank_memory.py PENSTOCK FOLDER [--ranks 2] [--stage 3] [--params 1.3B|7B|tiny] [--memory 4GiB] [--steps 5]
       [--tokens 128] [--within 0.01] [--json]
--memory is the node's, of all ranks. Needs root, for the control groups. 1.3B takes 31 GB of disk.
"""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import train_memory
from rank_peers import free_port
from train_memory import CLIPS, ControlGroup, bytes_of, planned

FIRST_STEPS = 3  # of each process, which do not count


class Run(train_memory.Run):
    name = "penstock-rank-memory"

    def config(self, steps):
        path = super().config(steps)
        config = json.loads(path.read_text())
        config["zero_optimization"] = {"stage": self.options.stage}
        path.write_text(json.dumps(config))
        return path

    def train(self, groups, steps):
        """Rank 0's answer, and for each rank the bytes that the kernel has counted."""
        config, port = self.config(steps), free_port()
        processes = []
        for rank, group in enumerate(groups):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(groups), "LOCAL_WORLD_SIZE": len(groups),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            processes.append(subprocess.Popen(
                [self.options.penstock, "train", str(config), "--json"], stdout=subprocess.PIPE, text=True,
                stderr=open(self.folder / f"said{rank}.txt", "w", encoding="utf-8"), preexec_fn=group.enter,
                env={**os.environ, **{name: str(value) for name, value in place.items()}}))
        said = [process.stdout.read() for process in processes]
        moved = []
        for rank, process in enumerate(processes):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            moved.append((usage.ru_inblock * 512, usage.ru_oublock * 512))
        for rank, process in enumerate(processes):
            if process.returncode != 0:
                sys.exit(f"rank {rank}: {process.returncode}, killed: {groups[rank].killed()}\n"
                         f"{(self.folder / f'said{rank}.txt').read_text()[-2000:]}")
        return json.loads(said[0]), moved


def measure(options, name, groups):
    run = Run(options, CLIPS[name])
    run.begin_anew()
    run.train(groups, 1)  # makes the store
    _, begun = run.train(groups, 1 + FIRST_STEPS)
    answer, moved = run.train(groups, 1 + 2 * FIRST_STEPS + options.steps)
    parameters = answer["parameters"]
    _, planned_read, planned_written = planned(answer, name == "always")
    share = parameters * options.steps / len(groups)
    return {"clipping": name, "ranks": len(groups), "stage": options.stage, "parameters": parameters, "step_s": answer["step_s"],
            "steps": options.steps, "steps_clipped": sum(line["grad_norm"] > run.clip > 0 for line in run.log()[-options.steps:]),
            "planned_read_bytes": planned_read, "planned_written_bytes": planned_written,
            "read_bytes": [(after - before) / share for (after, _), (before, _) in zip(moved, begun)],
            "written_bytes": [(after - before) / share for (_, after), (_, before) in zip(moved, begun)],
            "budget_bytes": answer["budget_bytes"], "peak_rss_bytes": answer["peak_rss_bytes"],
            "group_peak_bytes": [group.peak_bytes() for group in groups], "killed": sum(group.killed() for group in groups)}


def apart(row):
    """The most that a rank's bytes are from its part of the plan's."""
    return max(abs(bytes / row[f"planned_{way}_bytes"] - 1) for way in ("read", "written") for bytes in row[f"{way}_bytes"])


def words(row):
    def each(values, factor=1.0, digits=3):
        return ", ".join(f"{value * factor:.{digits}f}" for value in values)
    return (f"{row['clipping']}: {row['parameters']} parameters in {row['ranks']} ranks, stage {row['stage']}, {row['steps']} steps, "
            f"{row['steps_clipped']} clipped; {row['step_s']:.2f} s a step; read {each(row['read_bytes'])} of "
            f"{row['planned_read_bytes']:.3f} B, written {each(row['written_bytes'])} of {row['planned_written_bytes']:.3f} B a "
            f"parameter of a rank's part; peaks of the groups {each(row['group_peak_bytes'], 2**-20, 0)} of "
            f"{row['budget_bytes'] / 2**20:.0f} MiB; killed {row['killed']}")


def main():
    parser = train_memory.arguments_of_run(__doc__, memory="4GiB", steps=5, space="double", weights="nvme", share=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--within", type=float, default=0.01, help="how far a rank's bytes may be from its part of the plan's; tiny's "
                                                                   "tiles do not divide evenly")
    options = parser.parse_args()
    options.penstock = str(Path(options.penstock).resolve())
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = Run(options, 0).folder
    folder.mkdir(parents=True, exist_ok=True)
    rows, groups = [], []
    try:
        for rank in range(options.ranks):
            groups.append(ControlGroup(bytes_of(options.memory) // options.ranks, f"rank{rank}"))
        train_memory.probe(options, folder)
        for name in options.clipping:
            rows.append(measure(options, name, groups))
            if not options.json:
                print(words(rows[-1]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for group in groups:
            group.close()
    if options.json:
        print(json.dumps(rows))
    most = max(apart(row) for row in rows)
    killed = sum(row["killed"] for row in rows)
    print(f"killed: {killed}; bytes of a rank at most {100 * most:.2f} % from its part of the plan's",
          file=sys.stderr if options.json else sys.stdout)
    sys.exit(1 if killed or most > options.within else 0)


if __name__ == "__main__":
    main()
