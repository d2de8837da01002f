#!/usr/bin/env python3
"""Models made by transformers, small and with random weights, against ours: loss, logits, and export.

Usage: transformers_test.py MODEL_PROBE. Ends with 77 where torch or transformers is absent.
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

LENGTH, SEQUENCES, VOCAB = 48, 2, 131
LONGER = {"gemma2": 150}  # than the queries whose bounded scores are computed at once
LLAMA = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, vocab_size=VOCAB,
             max_position_embeddings=64, bos_token_id=1, eos_token_id=2)


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


def cases():
    t = transformers
    yield "gpt2", t.GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=VOCAB, n_positions=64)
    yield "gpt2 untied, by layer", t.GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=VOCAB, n_positions=64, n_inner=100,
                                                tie_word_embeddings=False, scale_attn_by_inverse_layer_idx=True,
                                                activation_function="gelu")
    yield "llama", t.LlamaConfig(**LLAMA, num_key_value_heads=2)
    yield "llama tied, biases", t.LlamaConfig(**LLAMA, num_key_value_heads=4, tie_word_embeddings=True, attention_bias=True,
                                              mlp_bias=True)
    yield "llama linear", t.LlamaConfig(**LLAMA, num_key_value_heads=1, **rope("linear", factor=4.0))
    short = {**LLAMA, "max_position_embeddings": 32}
    yield "llama dynamic", t.LlamaConfig(**short, num_key_value_heads=2, **rope("dynamic", factor=4.0))
    yield "llama3", t.LlamaConfig(**LLAMA, num_key_value_heads=2, head_dim=32,
                                  **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                         original_max_position_embeddings=32))
    yield "llama yarn", t.LlamaConfig(**LLAMA, num_key_value_heads=2, **rope("yarn", factor=4.0,
                                                                            original_max_position_embeddings=16))
    yield "mistral", t.MistralConfig(**LLAMA, num_key_value_heads=2, sliding_window=9)
    yield "mistral full", t.MistralConfig(**LLAMA, num_key_value_heads=2, sliding_window=None)
    yield "qwen2", t.Qwen2Config(**LLAMA, num_key_value_heads=2, tie_word_embeddings=True)
    yield "qwen2 windows", t.Qwen2Config(**LLAMA, num_key_value_heads=2, use_sliding_window=True, sliding_window=9,
                                         max_window_layers=1)
    yield "qwen3", t.Qwen3Config(**LLAMA, num_key_value_heads=2, head_dim=32)
    gemma = dict(**LLAMA, head_dim=32, sliding_window=9, query_pre_attn_scalar=24)
    yield "gemma2", t.Gemma2Config(**gemma, num_key_value_heads=2, attn_logit_softcapping=5.0, final_logit_softcapping=3.0)
    yield "gemma2 without caps", t.Gemma2Config(**gemma, num_key_value_heads=4, attn_logit_softcapping=None,
                                                final_logit_softcapping=None, attention_bias=True, tie_word_embeddings=False)
    yield "gemma3", t.Gemma3TextConfig(**gemma, num_key_value_heads=1,
                                       layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    yield "gemma3 stretched", t.Gemma3TextConfig(**{**gemma, "num_hidden_layers": 6}, num_key_value_heads=2,
                                                 final_logit_softcapping=3.0, rope_parameters={
        "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
    yield "qwen3 tied", t.Qwen3Config(**LLAMA, num_key_value_heads=4, head_dim=16, tie_word_embeddings=True)


def perturb(model):
    """Zeros and ones of a fresh model would hide a bias or a norm that is left out."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)


def probe(program, folder, dtype, tokens, targets, *more):
    given = json.dumps({"tokens": tokens.tolist(), "targets": targets.tolist()})
    done = subprocess.run([program, folder, dtype, *more], input=given, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{folder}: model_probe ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def theirs(model, tokens, targets):
    with torch.no_grad():
        logits = model.eval()(input_ids=tokens).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=-100)
    return loss.item(), logits.reshape(-1)


def check(program, name, config, folder):
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config)
    perturb(model)
    tokens = torch.randint(0, VOCAB, (SEQUENCES, LONGER.get(name, LENGTH)))
    targets = torch.randint(0, VOCAB, tokens.shape)
    targets[0, 5:9] = -100
    for dtype, torch_dtype, tolerance in (("fp32", torch.float32, 1e-5), ("bf16", torch.bfloat16, 1e-2)):
        made = os.path.join(folder, dtype)
        model = model.to(torch_dtype)
        # The small shards make a sharded folder with an index.
        model.save_pretrained(made, max_shard_size="100KB" if "llama3" in name else "1GB")
        # What was loaded: to() alone would round the frequencies of rotary positions too.
        loaded = transformers.AutoModelForCausalLM.from_pretrained(made, dtype=torch_dtype)
        loss, logits = theirs(loaded, tokens, targets)
        exported = os.path.join(folder, dtype + "_exported")
        ours = probe(program, made, dtype, tokens, targets, exported, "100000" if name == "qwen3" else "1000000000")
        if ours["unused"]:
            sys.exit(f"{name}: not used: {ours['unused']}")
        apart = abs(ours["loss"] - loss)
        farthest = (torch.tensor(ours["logits"]) - logits).abs().max().item()
        print(f"{name}, {dtype}: loss {loss:.6f}, ours apart by {apart:.2e}; logits apart by up to {farthest:.2e}", flush=True)
        if not apart <= tolerance:
            sys.exit(f"{name}, {dtype}: the first loss is {ours['loss']}, transformers has {loss}: more than {tolerance} apart")
        # Logits here are of the order of 1.
        if not farthest <= 20 * tolerance:
            sys.exit(f"{name}, {dtype}: logits are up to {farthest} apart, at most {20 * tolerance} expected")
        again = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype="auto")
        if again.dtype != torch_dtype:
            sys.exit(f"{name}: exported as {torch_dtype}, loaded as {again.dtype}")
        if not torch.equal(theirs(again, tokens, targets)[1], logits):
            sys.exit(f"{name}, {dtype}: the exported model has other logits")


def main():
    program = sys.argv[1]
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, config) in enumerate(cases()):
            check(program, name, config, os.path.join(scratch, str(number)))


if __name__ == "__main__":
    main()
