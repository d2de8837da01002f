"""optimizer.state[p] as torch has it, but that its tensors have no memory: they read the store when somebody wants their
values, and write it when somebody writes them."""

import weakref

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ._refusal import PenstockError


class Live(torch.Tensor):
    """A state of a parameter, or its "step", as the store has it whenever one looks; or a part of it, as m[3:5] is.
    Whatever is computed with it is computed with a copy in host memory, which goes into the store where it was written
    in place. numpy() gives a copy."""

    @staticmethod
    def __new__(cls, engine, number, name, part=None):
        """`part`: of which state, and a tensor on the device "meta" that lies in it as this one is to."""
        whole, like = part or (None, _meta(() if name == "step" else engine.parameters[number].shape))
        made = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), storage_offset=like.storage_offset(), dtype=like.dtype, device="cpu"
        )
        made._engine, made._number, made._name, made._whole = weakref.ref(engine), number, name, whole
        made._is_cut = False
        torch._C._set_throw_on_mutable_data_ptr(made)
        return made

    def engine(self):
        if (engine := self._engine()) is None:
            raise PenstockError(f"state[p][{self._name!r}]: its optimizer is gone")
        if self._root()._is_cut:
            engine.refuse(f"state[p][{self._name!r}]: another has taken its place since it was read; clone() keeps values")
        return engine

    def cut(self):
        """The state has become another: whoever holds this one is told."""
        self._is_cut = True

    def _root(self):
        return self if self._whole is None else self._whole

    def whole(self):
        return self.engine().read_state(self._number, self._name)

    def plain(self):
        """A tensor like any other."""
        return self.whole() if self._whole is None else self._in(self.whole()).clone()

    def _in(self, whole):
        """The tensor's part of it."""
        row = whole.view(-1).view(self.dtype) if self.dtype != whole.dtype else whole
        return row.as_strided(self.shape, self.stride(), self.storage_offset())

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function._schema.name.removeprefix("aten::") in _NOT_DONE:
            raise PenstockError(f"{function} of a state that is in the store; clone() it before")
        live = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Live)]
        if _gives_a_view(function):
            with_meta = tree_map(lambda one: one._in(_meta(one._root().shape)) if isinstance(one, Live) else one, (args, kwargs))
            with torch.inference_mode(False):
                return tree_map(live[0]._part, function(*with_meta[0], **with_meta[1]))
        wholes = {}
        for one in live:
            if one._key() not in wholes:
                wholes[one._key()] = one.whole()
        values = {id(one): one._in(wholes[one._key()]) for one in live}
        plain_args, plain_kwargs = tree_map(lambda one: values.get(id(one), one), (args, kwargs))
        result = function(*plain_args, **plain_kwargs)
        written = list(_written(function, args, kwargs))
        for key, one in {one._key(): one for one, _ in written if isinstance(one, Live)}.items():
            one.engine().write_state(one._number, one._name, wholes[key])
        # autograd itself counts the writes of single arguments alone.
        torch.autograd.graph.increment_version([one for one, in_list in written if in_list])
        given_back = {id(values[id(one)]): one for one in live}
        return tree_map(lambda one: given_back.get(id(one), one), result)

    def _part(self, like):
        return Live(self.engine(), self._number, self._name, (self._root(), like))

    __torch_function__ = torch._C._disabled_torch_function_impl

    def _key(self):
        return id(self._engine()), self._number, self._name

    @property
    def data(self):
        return self

    @data.setter
    def data(self, values):
        self.copy_(values)

    def __deepcopy__(self, memo):
        return self.plain()

    def __reduce_ex__(self, protocol):
        return self.plain().__reduce_ex__(protocol)

    def __dlpack__(self, **more):
        return self.plain().__dlpack__(**more)

    def __dlpack_device__(self):
        return self.plain().__dlpack_device__()

    def share_memory_(self):
        raise PenstockError("share_memory_() of a state that is in the store; clone() it before")

    def untyped_storage(self):
        return self.plain().untyped_storage()

    def __format__(self, how):
        return self.plain().__format__(how)

    def __repr__(self, **_):
        return repr(self.plain())

    def numpy(self, **more):
        return self.plain().numpy(**more)

    def __array__(self, *more):
        return self.plain().__array__(*more)

    def tolist(self):
        return self.plain().tolist()


# They would change what the tensor is, or read its memory in another way; or write parts that nobody can tell from
# others.
_NOT_DONE = {"set_", "resize_", "resize_as_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapdims_", "swapaxes_",
             "as_strided_", "_conj", "_neg_view", "_conj_physical", "unsafe_split", "unsafe_split_with_sizes",
             "unsafe_chunk"}


def _meta(shape):
    return torch.empty(shape, dtype=torch.float32, device="meta")


def _gives_a_view(function):
    return any(one.alias_info is not None and not one.alias_info.is_write for one in function._schema.returns)


def _written(function, args, kwargs):
    """The tensors among the arguments that it writes, each with whether it is one of a list."""
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from ((one, one is not given) for one in tree_leaves(given) if torch.is_tensor(one))


def in_memory(entry):
    """An entry of optimizer.state, with what the store has of it read."""
    return {name: value.plain() if isinstance(value, Live) else value for name, value in entry.items()}


def states_of(engine, number):
    """What optimizer.state has of a parameter."""
    return {name: Live(engine, number, name) for name in ("step", *engine.states)}
