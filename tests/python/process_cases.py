"""An optimizer in threads, forked processes and under interrupts. hostile_test.py runs these."""
import copy
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from optimizer_support import SEED, WORKER, X, Case, in_child, loop, mse, net, nn, torch, words_different

import penstock


class Threads(Case):
    def test_steps_from_several_threads_come_one_after_another(self):
        for begin in ("step", "backward"):
            model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, begin=begin), steps=2)
            wrong = []
            mse(model, X[2]).backward()  # once: torch's own .grad is no place for several threads

            def train(model=model, optimizer=optimizer, wrong=wrong):
                for _ in range(20):
                    try:
                        optimizer.step()
                        optimizer.state[model[0].weight]["exp_avg"].sum()
                        optimizer.kept(), optimizer.statistics()
                    except (penstock.PenstockError, RuntimeError) as error:
                        if not isinstance(error, penstock.PenstockError) and "inplace" not in str(error):
                            wrong.append(error)

            threads = [threading.Thread(target=train) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])
            weights = copy.deepcopy(list(model.parameters()))
            optimizer.close()
            self.assertGreater(optimizer.resume(), 2)
            self.assertEqual(words_different(weights, model.parameters()), 0)

    def test_collected_in_a_backward_hook(self):
        model = net()
        holder = [self.tiered(model.parameters(), begin="backward", store=self.folder / "store")]
        for s in range(3):
            mse(model, X[s]).backward()
            holder[0].step(), model.zero_grad()

        def drop(_):
            holder.clear()
            gc.collect()

        model[2].weight.register_post_accumulate_grad_hook(drop)
        mse(model, X[3]).backward()
        self.assertEqual(holder, [])
        again = self.tiered(model.parameters(), store=self.folder / "store")
        self.assertEqual(again.resume(), 3)


class Hooks(Case):
    def test_an_interrupt_in_the_first_hook_of_backward_or_when_a_step_begins(self):
        """Before a step of the engine's has begun, and behind it."""
        for verb, does_it in (("begin", False), ("begin", True), ("gradient", False), ("gradient", True)):
            for more in ({"begin": "step"}, {"begin": "backward"}, {"begin": "backward", "gradients": "taken"}):
                make = lambda params, lr, more=more: self.tiered(params, lr=lr, **more)  # noqa: E731
                (theirs, reference), (model, optimizer) = loop(self.fused, 3), loop(make, 3)
                store = optimizer._penstock.store

                def interrupted(*arguments, real=getattr(store, verb), does_it=does_it):
                    if does_it:
                        real(*arguments)
                    raise KeyboardInterrupt

                setattr(store, verb, interrupted)
                with self.assertRaises(KeyboardInterrupt):
                    mse(model, X[0]).backward(), optimizer.step()
                delattr(store, verb)
                optimizer.zero_grad()
                self.assertEqual(float(optimizer.state[model[0].weight]["step"]), 3)
                optimizer.load_state_dict(optimizer.state_dict())
                loop(None, 3, model=theirs, optimizer=reference), loop(None, 3, model=model, optimizer=optimizer)
                self.assertEqual(words_different(theirs.parameters(), model.parameters()), 0, f"seed {SEED}")

    def test_a_parameter_has_one_hook_however_many_optimizers_it_had(self):
        model = net()
        for _ in range(3):
            optimizer = self.tiered(model.parameters(), begin="backward")
            loop(None, 2, model=model, optimizer=optimizer)
            optimizer.close()
        self.assertEqual([len(p._post_accumulate_grad_hooks) for p in model.parameters()], [1] * 6)
        del optimizer
        gc.collect()
        self.assertEqual([len(p._post_accumulate_grad_hooks) for p in model.parameters()], [0] * 6)


class Forks(Case):
    def test_a_child_whose_parent_was_in_the_middle_of_a_verb(self):
        _, optimizer = loop(self.tiered, 1)
        has_it, is_over = threading.Event(), threading.Event()

        def hold():
            with optimizer._penstock.lock:
                has_it.set(), is_over.wait()

        (holder := threading.Thread(target=hold)).start()
        has_it.wait()
        in_child(self, lambda: (signal.alarm(30), optimizer.close()))
        is_over.set(), holder.join()

    def test_an_optimizer_in_a_child_of_a_process_that_has_closed_its_own(self):
        """The caller's thread has helped with gradients of more than a block, which leaves it and others with oneTBB."""
        def work(store):
            model = nn.Linear(600, 600)
            optimizer = self.tiered(model.parameters(), budget="host=64MiB", store=self.folder / store)
            model(torch.ones(1, 600)).sum().backward()
            optimizer.step()
            optimizer.close()

        def threads():
            gc.collect()
            return len(os.listdir("/proc/self/task"))

        before = threads()
        for number in range(6):
            work(f"parent{number}")
            self.assertLessEqual(threads(), before, "some that a child would not have")
            in_child(self, lambda number=number: (signal.alarm(60), work(f"child{number}")))

    def test_every_verb_in_a_child_is_refused_and_backward_is_not(self):
        for begin in ("step", "backward"):
            model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, begin=begin), steps=2)
            state = optimizer.state_dict()

            def work(model=model, optimizer=optimizer, state=state):
                mse(model, X[0]).backward()
                for verb in (optimizer.step, optimizer.state_dict, optimizer.resume, optimizer.kept, optimizer.statistics,
                             lambda: optimizer.drop(2), lambda: optimizer.load_state_dict(copy.deepcopy(state)),
                             lambda: optimizer.state[model[0].weight]["exp_avg"].sum()):
                    self.refused("the store belongs to its parent", verb)
                optimizer.zero_grad()
                optimizer.close()

            mse(model, X[2]).backward()  # in the middle of a step
            in_child(self, work)
            optimizer.step(), optimizer.zero_grad()
            loop(None, steps=1, model=model, optimizer=optimizer)

    def test_a_child_that_exits_as_programs_do(self):
        program = WORKER.replace("optimizer.step(), optimizer.zero_grad()", """optimizer.step(), optimizer.zero_grad()
    import os
    if step == 2:
        if os.fork() == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
""")
        arguments = [sys.executable, "-c", program, self.folder / "store", "4", self.folder / "weights"]
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parent, timeout=300)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_made_in_the_parent_and_used_in_a_child(self):
        model = net()
        optimizer = self.tiered(model.parameters(), begin="backward")
        in_child(self, lambda: loop(None, steps=2, model=model, optimizer=optimizer) and optimizer.close())
        self.assertEqual(optimizer.resume(), 2)

    def test_made_in_a_child_whose_parent_has_one_open(self):
        model, optimizer = loop(self.tiered, steps=2)

        def work():
            for _ in range(2):
                self.refused("forked while its parent had an engine open", loop, self.tiered)

        in_child(self, work)
        loop(None, steps=1, model=model, optimizer=optimizer)


class Interrupts(Case):
    def test_what_a_signal_asks_for_in_the_middle_of_a_step_is_refused(self):
        model, optimizer = loop(self.tiered, steps=2)
        heard = []

        def handle(*_):
            for verb in (optimizer.close, optimizer.step, optimizer.state_dict, optimizer.resume, optimizer.kept,
                         optimizer.state[model[0].weight]["exp_avg"].sum):
                try:
                    verb()
                except penstock.PenstockError as error:
                    heard.append("called in the middle of a step" in str(error))

        before = signal.signal(signal.SIGUSR1, handle)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        behind = optimizer._penstock.adopt_weights

        def interrupted():
            signal.raise_signal(signal.SIGUSR1)
            return behind()

        optimizer._penstock.adopt_weights = interrupted
        loop(None, steps=1, model=model, optimizer=optimizer)
        self.assertEqual(heard, [True] * 6)
        self.assertEqual(float(optimizer.state[model[0].weight]["step"]), 3)

    def test_an_interrupt_while_the_store_grows(self):
        for existing in ("refuse", "resume"):
            model = net()
            optimizer = self.tiered(model[0].parameters(), lr=1e-2, existing=existing)
            for s in range(2):
                mse(model, X[s]).backward()
                optimizer.step(), model.zero_grad()
            optimizer.add_param_group(dict(params=list(model[2].parameters())))
            decide, calls = penstock._growth._decide, []

            def interrupted(*_, calls=calls):
                calls.append(1)
                raise KeyboardInterrupt

            penstock._growth._decide = interrupted
            mse(model, X[2]).backward()
            with self.assertRaises(KeyboardInterrupt):
                optimizer.step()
            penstock._growth._decide = decide
            optimizer.step(), model.zero_grad()
            self.assertEqual([float(optimizer.state[p]["step"]) for p in (model[0].weight, model[2].weight)], [3, 1])

    def test_an_interrupt_while_the_engine_logs(self):
        class Interrupted(logging.Handler):
            def emit(self, record):
                raise KeyboardInterrupt

        log, handler, model = logging.getLogger("penstock"), Interrupted(), net()
        optimizer, level = self.tiered(model.parameters()), log.level
        log.addHandler(handler), log.setLevel(logging.INFO)
        try:
            with self.assertRaises(KeyboardInterrupt):
                loop(None, steps=1, model=model, optimizer=optimizer)
        finally:
            log.removeHandler(handler), log.setLevel(level)
        loop(None, steps=1, model=model, optimizer=optimizer)
        self.assertEqual(float(optimizer.state[model[0].weight]["step"]), 1)

    def test_an_interrupt_behind_the_beginning_of_a_write(self):
        model, optimizer = loop(self.tiered, steps=2)
        call = penstock._open_store.call

        def interrupted(name, *arguments):
            call(name, *arguments)
            if name == "penstock_begin_writes":
                raise KeyboardInterrupt

        penstock._open_store.call = interrupted
        with self.assertRaises(KeyboardInterrupt):
            optimizer.state[model[0].weight]["exp_avg"].zero_()
        penstock._open_store.call = call
        self.assertEqual(optimizer.resume(), 2)
        loop(None, steps=1, model=model, optimizer=optimizer)

    def test_an_interrupt_on_any_line_of_a_step(self):
        """resume() goes on from the step that the store has, and close() closes it."""
        model, optimizer = loop(self.tiered, steps=1)
        ours = os.path.dirname(penstock.__file__)

        def interrupted_at(line):
            """Whether a step of that many lines came to be interrupted."""
            left = line

            def local(frame, event, _):
                nonlocal left
                if event == "line":
                    left -= 1
                    if left == 0:
                        raise KeyboardInterrupt
                return local

            mse(model, X[1]).backward()
            sys.settrace(lambda frame, event, _: local if frame.f_code.co_filename.startswith(ours) else None)
            try:
                optimizer.step()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            return left <= 0

        line, found = 1, 0
        while interrupted_at(line):
            found += 1
            done = optimizer.resume()
            self.assertGreaterEqual(done, 1, f"line {line}")
            self.assertFalse(optimizer._penstock.busy, f"line {line}")
            optimizer.zero_grad()
            line += 1 if line < 60 else 7  # the turn, and some of what is done within it
        self.assertGreater(found, 60)
        optimizer.close()

    def test_ctrl_c_in_the_step_itself(self):
        """It is noticed when the engine has returned: the step is whole."""
        def scenario(make):
            torch.manual_seed(SEED)
            params = [nn.Parameter(torch.randn(32, 48).t()), nn.Parameter(torch.randn(64))]  # the first by way of a copy
            optimizer = make(params, lr=1e-2)
            for s in range(6):
                for p in params:
                    p.grad = torch.randn_like(p)
                if s in (0, 3) and isinstance(optimizer, penstock.AdamW):
                    self.interrupt(optimizer)
                else:
                    optimizer.step()
            return params

        self.assertEqual(words_different(scenario(self.fused), scenario(self.tiered)), 0)

    def interrupt(self, optimizer, behind="penstock_step"):
        """Its step, by Ctrl-C as that call of the engine returns."""
        from penstock import _library

        real = getattr(_library._library, behind)

        def interrupted(*arguments):
            code = real(*arguments)
            signal.raise_signal(signal.SIGINT)
            return code

        setattr(_library._library, behind, interrupted)
        try:
            self.assertRaises(KeyboardInterrupt, optimizer.step)
        finally:
            setattr(_library._library, behind, real)

    def test_ctrl_c_when_a_step_begins(self):
        def scenario(make):
            def pre(s, m, o):
                if s != 3 or not isinstance(o, penstock.AdamW) or o._penstock.early:
                    return
                self.interrupt(o, behind="penstock_begin")

            return loop(make, pre=pre)

        self.same(scenario)

    def test_ctrl_c_where_the_engine_cannot_take_the_step_back(self):
        """Without clipping, and durable at exit only, updates overwrite what was there: the last durable step is left."""
        model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, durability="exit"), steps=2)
        optimizer.state_dict()  # makes step 2 durable
        mse(model, X[2]).backward()
        self.interrupt(optimizer, behind="penstock_gradient")
        self.assertRaisesRegex(penstock.PenstockError, "the last step failed", optimizer.step)
        self.assertEqual(optimizer.resume(), 2)
        theirs, _ = loop(self.fused, steps=2)
        self.assertEqual(words_different(theirs.parameters(), model.parameters()), 0)
        loop(None, steps=1, model=model, optimizer=optimizer)
