#!/usr/bin/env python3
"""Ranks of two hosts, each with stores of its own.

Usage: ranks_hosts_test.py PENSTOCK [CLASS].
"""
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from ranks_support import CORRUPT, ENVIRON, ENVIRONMENT, PENSTOCK, TORCHRUN, USAGE, RanksCase


class Hosts(RanksCase):
    """Two hosts: network namespaces with names and a cable between them, where these can be made; else both on 127.0.0.1."""
    NAMES = ("host-a", "host-b")
    OF_HOSTS = ("a", "b")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.enter, cls.address = [[], []], "127.0.0.1"
        try:
            cls.why_no_networks = cls.make_networks()
        except OSError as error:
            cls.why_no_networks = str(error)

    @classmethod
    def make_networks(cls):
        enter = []
        for name in cls.NAMES:
            # Ends with this process, and the namespaces with it.
            holder = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && ip link set lo up && echo made && exec cat"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            cls.addClassCleanup(holder.communicate)
            cls.addClassCleanup(holder.kill)
            if holder.stdout.readline() != "made\n":
                return "no network namespaces here"
            enter.append(["nsenter", "-t", str(holder.pid), "-n", "-u"])
        other = enter[1][2]
        for host, words in ((0, f"link add cable0 type veth peer name cable1 netns {other}"), (0, "addr add 10.77.0.1/24 dev cable0"),
                            (1, "addr add 10.77.0.2/24 dev cable1"), (0, "link set cable0 up"), (1, "link set cable1 up")):
            if subprocess.run([*enter[host], "ip", *words.split()], check=False, capture_output=True).returncode != 0:
                return f"ip {words}: refused"
        cls.enter, cls.address = enter, "10.77.0.1"
        return None

    def name_of(self, host):
        return os.uname().nodename if self.why_no_networks else self.NAMES[host]

    def configs(self, name, **changes):
        """One for each host, which has a store of its own; the run's folder is the first's."""
        penstock = changes.pop("penstock", {})
        found = []
        for host in self.OF_HOSTS:
            own = {"stores": [self.path(f"{name}.{host}")], "run": self.path(name), **penstock}
            found.append(self.config(f"{name}-{host}", penstock=own, **changes))
        return found

    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def torchrun_of(self, host, rank_here, ranks_here, meeting):
        return {"RANK": host * ranks_here + rank_here, "WORLD_SIZE": 2 * ranks_here, "LOCAL_RANK": rank_here, "LOCAL_WORLD_SIZE": ranks_here,
                "GROUP_RANK": host, "TORCHELASTIC_RUN_ID": self.id(), **meeting}

    def slurm_of(self, host, rank_here, ranks_here, meeting):
        return {"SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0, "SLURM_PROCID": host * ranks_here + rank_here, "SLURM_NTASKS": 2 * ranks_here,
                "SLURM_NNODES": 2, "SLURM_NODEID": host, "SLURM_LOCALID": rank_here, **meeting}

    def start_ranks(self, configs, ranks_here=2, launcher=None, verb=("train",)):
        """By rank; a process that enters a namespace stays the same process."""
        meeting = {"MASTER_ADDR": self.address, "MASTER_PORT": self.free_port(), "PENSTOCK_SECRET": self.id()}
        ranks = []
        for host, config in enumerate(configs):
            for rank_here in range(ranks_here):
                place = (launcher or self.torchrun_of)(host, rank_here, ranks_here, meeting)
                rank = subprocess.Popen([*self.enter[host], PENSTOCK, verb[0], config, *verb[1:], "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env={**ENVIRON, **{name: str(value) for name, value in place.items()}})
                self.addCleanup(rank.kill)
                ranks.append(rank)
        return ranks

    def ends_of(self, ranks, code):
        ends = [rank.communicate(timeout=300) for rank in ranks]
        for rank, (out, err) in zip(ranks, ends):
            self.assertEqual(rank.returncode, code, [out + err for out, err in ends])
        return ends

    def train(self, configs, **how):
        ends = self.ends_of(self.start_ranks(configs, **how), 0)
        self.assertEqual([out for out, _ in ends[1:]], [""] * (len(ends) - 1))
        return json.loads(ends[0][0])

    def train_by_torchrun(self, configs):
        port, agents = self.free_port(), []
        for host, config in enumerate(configs):
            words = [*self.enter[host], TORCHRUN, "--no-python", "--nnodes", 2, "--nproc-per-node", 2, "--node-rank", host,
                     "--master-addr", self.address, "--master-port", port, PENSTOCK, "train", config]
            agents.append(subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON))
            self.addCleanup(agents[-1].kill)
        self.ends_of(agents, 0)

    def masters(self, name):
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "out"
        stores = ",".join(self.path(f"{name}.{host}") for host in self.OF_HOSTS)
        self.run_command("checkpoint", "export", stores, out, "--dtype", "fp32")
        return (out / "model.safetensors").read_bytes()

    def files(self, name):
        return [sorted(file.name for file in (self.folder / f"{name}.{host}").iterdir()) for host in self.OF_HOSTS]

    def test_every_stage_leaves_the_bits_of_as_many_ranks_on_one_host(self):
        self.json_of("train", self.config("one", max_steps=2), "--ranks", 4)
        masters, log = self.weights("one", "fp32"), [(step["loss"], step["grad_norm"]) for step in self.log("one")]
        hybrid = {"stage": 3, "mics_shard_size": 2}  # what is gathered stays within a host
        for name, zero, launcher in (("stage0", {"stage": 0}, None), ("stage2", {"stage": 2}, TORCHRUN), ("stage3", {"stage": 3}, self.slurm_of),
                                     ("hybrid", hybrid, None)):
            configs = self.configs(name, max_steps=2, zero_optimization=zero)
            if launcher == TORCHRUN and TORCHRUN.exists():
                self.train_by_torchrun(configs)
            else:
                answer = self.train(configs, launcher=None if launcher == TORCHRUN else launcher)
                # The budget is a host's, of two ranks.
                self.assertEqual((answer["ranks"], answer["steps"], answer["budget_bytes"]), (4, 2, 2**30), name)
            self.assertEqual([(step["loss"], step["grad_norm"]) for step in self.log(name)], log, name)
            self.assertEqual(self.masters(name), masters, name)
            self.assertEqual(self.files(name), [["rank0.tiles", "rank1.tiles"], ["rank2.tiles", "rank3.tiles"]], name)

    def test_verify_holds_all_hosts_against_a_plain_loop_of_the_first(self):
        configs = self.configs("verify", precision="bf16")
        answer = json.loads(self.ends_of(self.start_ranks(configs, verb=("verify", "--steps", "2")), 0)[0][0])
        self.assertEqual((answer["words_different"], answer["losses_different"], answer["ranks"]), (0, 0, 4))
        self.assertEqual([row["placement"] for row in answer["placements"]], ["stage 0", "stage 2", "stage 3", "stage 3 within every 2"])
        self.assertEqual([(self.folder / f"verify.{host}").exists() for host in self.OF_HOSTS], [False, False])

    def test_a_killed_rank_is_named_on_all_hosts_and_a_restart_ends_with_the_same_bits(self):
        self.json_of("train", self.config("whole", max_steps=20), "--ranks", 4)
        configs = self.configs("killed", max_steps=20, zero_optimization={"stage": 3, "mics_shard_size": 2})
        ranks = self.start_ranks(configs)
        self.wait_for_steps(ranks[0], "killed", 2)
        ranks[3].kill()
        killed = time.monotonic()
        ranks[3].communicate(timeout=60)
        for _, err in self.ends_of(ranks[:3], ENVIRONMENT):
            refusals = re.findall("^penstock: .*", err, re.M)
            self.assertEqual(len(refusals), 1, err)
            self.assertRegex(refusals[0], f"^penstock: rank 3 on {self.name_of(1)} died in step [0-9]+$")
        self.assertLess(time.monotonic() - killed, 30)
        for config in configs:
            self.expect_nothing_left(config)
        self.assertEqual(self.files("killed"), [["rank0.tiles", "rank1.tiles"], ["rank2.tiles", "rank3.tiles"]])
        self.train(configs)
        losses = {step["step"]: step["loss"] for step in self.log("killed")}
        self.assertEqual([losses[step] for step in sorted(losses)], [step["loss"] for step in self.log("whole")])
        self.assertEqual(self.masters("killed"), self.weights("whole", "fp32"))

    def test_what_hosts_do_not_have_alike_is_named(self):
        by_step = {"durability": "step"}
        self.train(self.configs("two", max_steps=1, penstock=by_step), ranks_here=1)
        shutil.copytree(self.path("two.b"), self.path("first"))
        self.train(self.configs("two", max_steps=4, penstock=by_step), ranks_here=1)
        before = self.masters("two")
        go_on = self.configs("two", max_steps=5, penstock=by_step)
        first, other = f"rank 0 on {self.name_of(0)}", f"rank 1 on {self.name_of(1)}"

        def refused(said, code, store="two.b", **changes):
            configs = [go_on[0], self.config("other", **{"max_steps": 5, **changes}, penstock={"stores": [self.path(store)], **by_step})]
            for _, err in self.ends_of(self.start_ranks(configs, ranks_here=1), code):
                self.assertIn(said, err)
            self.assertEqual(self.masters("two"), before)

        refused("none.bin", USAGE, data=self.path("none.bin"))
        refused(f"{other}: what it trains", USAGE, max_steps=6)
        refused(f"{self.path('empty')}: no store for {other}, although {first} has one", USAGE, store="empty")
        refused(f"no step in common: {first} at step 4, {other} at step 1", CORRUPT, store="first")
        self.train(go_on, ranks_here=1)
        self.assertEqual([step["step"] for step in self.log("two")], [1, 2, 3, 4, 5])

    def test_the_hosts_have_networks_of_their_own(self):
        if self.why_no_networks:
            self.skipTest(f"both hosts were on 127.0.0.1: {self.why_no_networks}")
        self.assertNotEqual(self.enter[0], self.enter[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
