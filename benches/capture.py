"""Writes the graphs of ``benches/graphs`` that are captured here: blocks on fake tensors, without weights.

AOTAutograd traces each module with the core decompositions, as the sample graphs of the tests were
traced, and the backend's own capture writes the graph down. Run it after a change of PyTorch or of
the format: ``.venv/bin/python benches/capture.py``.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from torch import nn
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from neffuse.capture import capture

FOLDER = Path(__file__).parent / "graphs"


class RmsNorm(nn.Module):
    """Spelled out, as models that predate ``nn.RMSNorm`` do."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class LlamaLike(nn.Module):
    """A decoder block in f32: grouped heads, attention written as two products and a softmax."""

    def __init__(self, hidden, inner, n_heads, n_shared):
        super().__init__()
        self.n_heads, self.n_shared, self.width = n_heads, n_shared, hidden // n_heads
        self.attention_norm, self.mlp_norm = RmsNorm(hidden), RmsNorm(hidden)
        self.query = nn.Linear(hidden, n_heads * self.width, bias=False)
        self.key = nn.Linear(hidden, n_shared * self.width, bias=False)
        self.value = nn.Linear(hidden, n_shared * self.width, bias=False)
        self.output = nn.Linear(n_heads * self.width, hidden, bias=False)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        normed = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))

    def attention(self, x, cos, sin):
        batch, length, _ = x.shape

        def heads(projected, n_heads):
            return projected.view(batch, length, n_heads, self.width).transpose(1, 2)

        query = rotated(heads(self.query(x), self.n_heads), cos, sin)
        key = rotated(heads(self.key(x), self.n_shared), cos, sin)
        value = heads(self.value(x), self.n_shared)
        repeats = self.n_heads // self.n_shared
        key, value = (part.repeat_interleave(repeats, dim=1) for part in (key, value))
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.width)
        is_later = torch.arange(length)[None, :] > torch.arange(length)[:, None]
        mixed = torch.softmax(scores.masked_fill(is_later, -math.inf), dim=-1) @ value
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))


def llama_like(hidden, inner, n_heads, n_shared, length):
    width = hidden // n_heads
    tables = [torch.empty(1, 1, length, width) for _ in range(2)]
    return LlamaLike(hidden, inner, n_heads, n_shared), [torch.empty(1, length, hidden), *tables]


class Layer(nn.Module):
    """A layer of a library's model, whose tables of positions are two inputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, cos, sin):
        found = self.layer(x, position_embeddings=(cos, sin))
        return found[0] if isinstance(found, tuple) else found


class Logits(nn.Module):
    """A library's model, from ids of tokens to logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


def in_bf16(make):
    torch.set_default_dtype(torch.bfloat16)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


def llama3_8b(length):
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaDecoderLayer

    sizes = {"intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = LlamaConfig(hidden_size=4096, **sizes, attn_implementation="sdpa")
    layer = in_bf16(lambda: Layer(LlamaDecoderLayer(config, layer_idx=0)))
    return layer, [torch.empty(1, length, width, dtype=torch.bfloat16) for width in (4096, 128, 128)]


def llama7b(length):
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

    sizes = {"intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000}
    config = LlamaConfig(hidden_size=4096, num_hidden_layers=32, **sizes, attn_implementation="sdpa")
    return in_bf16(lambda: Logits(LlamaForCausalLM(config))), [torch.zeros(1, length, dtype=torch.int64)]


GRAPHS = {
    "llama_like_1024": (lambda: llama_like(1024, 2816, 16, 8, 256), "hidden 1,024, 16 heads over 8, 256 tokens, f32"),
    "llama3_8b_block_core_512": (lambda: llama3_8b(512), "one decoder layer, bf16, batch 1 x 512"),
}

#: A megabyte each: not kept in the repository.
LARGE_GRAPHS = {"llama7b": (lambda: llama7b(2048), "32 layers, embedding and logits, bf16, batch 1 x 2048")}


def document(name, make, note):
    captured = []

    def compiler(graph_module, _):
        captured.append(graph_module)
        return graph_module.forward

    with FakeTensorMode(), torch.no_grad():
        module, inputs = make()
        weights = {id(weight) for weight in (*module.parameters(), *module.buffers())}
        is_static = []

        def dynamo_backend(graph_module, examples):
            is_static.extend(id(example) in weights for example in examples)
            backend = aot_autograd(fw_compiler=compiler, decompositions=core_aten_decompositions())
            return backend(graph_module, examples)

        torch.compile(module.eval(), backend=dynamo_backend, fullgraph=True)(*inputs)
    (graph_module,) = captured
    static = [position for position, weight in enumerate(is_static) if weight]
    written = capture(graph_module, name=name, kind="inference", static=static, parameter_names={}).document
    written["source"] = {"torch": torch.__version__, "decomposition": "core", "dynamic": False, "note": note}
    for node in written["nodes"]:
        node.pop("loc", None)
    return written


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="graphs to write; those of the repository if none is named")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    for name in arguments.names or GRAPHS:
        torch._dynamo.reset()
        written = document(name, *{**GRAPHS, **LARGE_GRAPHS}[name])
        path = arguments.folder / f"{name}.inf.json"
        path.write_text(json.dumps(written, allow_nan=False, separators=(",", ":")) + "\n")
        print(f"{path}: {len(written['inputs'])} inputs, {len(written['nodes'])} nodes")


if __name__ == "__main__":
    main()
