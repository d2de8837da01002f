"""`penstock plan` as a dictionary."""

from . import _command


def plan(model=None, *, params=None, layers=None, hidden=None, heads=None, kv_heads=None, ffn=None, vocab=None,
         machine=None, budget=None, flops=None, host_gbps=None, tokens=None, seq=None, micro_batches=None,
         optimizer=None, moments=None, activations=None, clip=None, strike_share=None, durability=None,
         update_only=False):
    """Whether a model fits, how long a step takes and what limits it: the keys of `penstock plan --json`, and its
    options by their names. What does not fit is an answer, too: "fits" is False, and "needed_bytes" says what it needs.

    model: a Hugging Face config.json, or a name such as "llama-2-7b"; instead of it sizes, by params and layers.
    machine: a profile that penstock.nvme.probe() has written, or a shipped one; None: this machine's.
    budget: "host=64GiB", or a dictionary by tier.

    >>> found = plan(params=7e9, machine="rtx4090-2gen4", budget={"host": "64GiB", "device": "16GiB"})
    >>> found["fits"], found["bottleneck"]
    (True, 'compute')
    >>> sorted(found["needed_bytes"])
    ['device', 'host', 'nvme']
    >>> round(found["bytes_per_parameter"]["written"])
    12
    >>> plan(params=7e9, machine="rtx4090-2gen4", budget="host=1GiB")["fits"]
    False
    """
    return _command.answer("plan", **locals())
