"""What torch shows of a parameter's state, optimizer.state[p]: it is read from the store when somebody asks, and what
somebody writes there goes into the store."""

import torch
from torch.utils._pytree import tree_leaves


class Copy(torch.Tensor):
    """A moment, or "step", as it was when somebody asked. Writing it in place writes it into the store, and so does
    writing a view of it; what numpy() gives is memory that nobody watches."""

    _engine, _number, _name, _steps, _whole = None, 0, "", 0, None

    @staticmethod
    def of(values, engine, number, name, steps):
        made = torch.Tensor._make_subclass(Copy, values)
        made._engine, made._number, made._name, made._steps = engine, number, name, steps
        return made

    def plain(self):
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            copies = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Copy) and one._engine is not None]
            versions = [one._version for one in copies]
            result = function(*args, **(kwargs or {}))
            written = {id(one._origin()): one for one, was in zip(copies, versions, strict=True) if one._version != was}
            for one in written.values():
                one._write()
            if type(result) in (tuple, list):  # split, unbind and their kin
                return type(result)(_part_of(copies, one) for one in result)
            return _part_of(copies, result)

    def _origin(self):
        return self if self._whole is None else self._whole

    def _write(self):
        whole = self._origin()
        whole._engine.write_state(whole._number, whole._name, whole.plain(), whole._steps)

    def __deepcopy__(self, memo):
        return self.plain().clone()

    def __reduce_ex__(self, protocol):
        return self.plain().__reduce_ex__(protocol)


def _part_of(copies, one):
    """A tensor that lies in the memory of one of them writes it, too."""
    if not isinstance(one, torch.Tensor) or isinstance(one, Copy):
        return one
    for copy in copies:
        if one.untyped_storage().data_ptr() == copy.untyped_storage().data_ptr():
            part = torch.Tensor._make_subclass(Copy, one)
            part._whole = copy._origin()
            part._engine = part._whole._engine
            return part
    return one


class View(dict):
    """optimizer.state[p]. "step" is in it, and the moments are read when somebody asks for one: whoever goes through
    all that is in it, as frameworks do, does not read the store."""

    def __init__(self, engine, number, steps):
        """`steps`: those that the store has done."""
        self._engine, self._number = engine, number
        step = torch.tensor(float(engine.store.count(number)))
        super().__init__(step=Copy.of(step, engine, number, "step", steps))

    def _copy(self, name, values):
        return Copy.of(values, self._engine, self._number, name, self._engine.store.steps())

    def plain(self, name):
        """A tensor like any other."""
        return torch.tensor(float(self[name])) if name == "step" else self._engine.read_state(self._number, name)

    def __contains__(self, name):
        return super().__contains__(name) or name in self._engine.states

    def __missing__(self, name):
        if name not in self._engine.states:
            raise KeyError(name)
        return self._copy(name, self._engine.read_state(self._number, name))

    def get(self, name, default=None):
        return self[name] if name in self else default

    def __setitem__(self, name, value):
        if name == "step" or name in self._engine.states:
            self._engine.write_state(self._number, name, value)
        if name == "step":
            value = self._copy(name, torch.tensor(float(value)))
        if name not in self._engine.states:
            super().__setitem__(name, value)

    def update(self, *others, **named):
        for name, value in dict(*others, **named).items():
            self[name] = value
