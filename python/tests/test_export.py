"""Archives of torch.export, read by the command: models in both forms, and updates in place."""

import copy
import importlib
import json
import random
import re
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_as_accurate
from torch import nn
from torch.utils import _pytree as pytree
from transformers import BertConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.bert.modeling_bert import BertLayer

ROOT = Path(__file__).parents[2]

#: As `torch.export.export` gives a program, and after `run_decompositions`.
FORMS = ["exported", "decomposed"]


def command():
    """The command that was built last."""
    built = [ROOT / "target" / profile / "neffuse" for profile in ("release", "debug")]
    return max((path for path in built if path.exists()), key=lambda path: path.stat().st_mtime)


def neffuse(*arguments, exit_code=0):
    process = subprocess.run([command(), *map(str, arguments)], capture_output=True, text=True)
    assert process.returncode == exit_code, process.stderr
    return process


def save(path, module, inputs, form, kwargs=None, **options):
    program = torch.export.export(module, inputs, kwargs, **options)
    torch.export.save(program.run_decompositions() if form == "decomposed" else program, path)
    return path


def run(archive, inputs):
    """Compiles an archive and runs it on tensors, with its own weights; outputs by position."""
    neff, given, result = (archive.with_suffix(suffix) for suffix in (".neff", ".in.npz", ".out.npz"))
    names = [name for name in input_names(archive) if name is not None]
    tensors = [value for value in pytree.tree_leaves(inputs) if isinstance(value, torch.Tensor)]
    np.savez(given, **{name: array(tensor) for name, tensor in zip(names, tensors, strict=True)})
    neffuse("compile", archive, "-o", neff)
    neffuse("run", neff, "--inputs", given, "--weights", archive, "--outputs", result)
    with np.load(result) as arrays:
        return {int(name.removeprefix("out_")): arrays[name] for name in arrays}


def input_names(archive):
    """The user's inputs by name; ``None`` for those that are no tensors."""
    signature = model(archive)["graph_module"]["signature"]
    users = [spec["user_input"]["arg"] for spec in signature["input_specs"] if "user_input" in spec]
    return [argument.get("as_tensor", {}).get("name") for argument in users]


def model(archive):
    with zipfile.ZipFile(archive) as members:
        (name,) = (name for name in members.namelist() if name.endswith("models/model.json"))
        return json.loads(members.read(name))


def array(tensor):
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def tensor(array, like):
    return torch.from_numpy(array).view(torch.bfloat16) if like.dtype == torch.bfloat16 else torch.from_numpy(array)


def compare(archive, module, inputs):
    """Runs an archive; updated inputs and results must be as accurate as eager's."""
    wide = [value.double() if is_float(value) else value for value in inputs]
    (eager, before, after), (truth, _, exact) = (
        observe(module, inputs),
        observe(copy.deepcopy(module).double(), wide),
    )
    changed = [position for position, value in enumerate(before) if not torch.equal(value, after[position])]
    expected = [(after[position], exact[position]) for position in changed] + list(zip(eager, truth, strict=True))
    outputs = run(archive, inputs)
    wanted = {position: pair for position, pair in enumerate(expected) if isinstance(pair[0], torch.Tensor)}
    assert outputs.keys() == wanted.keys()
    for position, (theirs, exact) in wanted.items():
        assert_as_accurate(tensor(outputs[position], theirs), theirs, exact)


def is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def observe(module, inputs):
    """The flat results of a call, and all tensors that it may update, before and after it."""
    module, inputs = copy.deepcopy((module, inputs))
    constants = [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
    tensors = [*module.parameters(), *module.buffers(), *constants, *filter(torch.is_tensor, inputs)]
    before = copy.deepcopy(tensors)
    with torch.no_grad():
        results = pytree.tree_leaves(module(*inputs), is_leaf=lambda value: value is None)
    return copy.deepcopy((results, before, tensors))


def rms_norm():
    return nn.RMSNorm(64), (torch.randn(4, 64),)


def mlp():
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 8))
    return module, (torch.randn(4, 16),)


def bert_layer():
    config = BertConfig(hidden_size=32, num_attention_heads=2, intermediate_size=64, attn_implementation="sdpa")
    return BertLayer(config), (torch.randn(2, 8, 32),)


def llama():
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=50,
        max_position_embeddings=32,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return LlamaForCausalLM(config), (torch.randint(0, 50, (2, 8)),)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("build", [rms_norm, mlp, bert_layer, llama])
def test_models_pass_check(tmp_path, build, form):
    module, inputs = build()
    archive = save(tmp_path / "model.pt2", module.eval(), inputs, form)
    report = json.loads(neffuse("check", archive, "--report", "json").stdout)
    assert report["ok"]
    assert report["host_ops"] == []


@pytest.mark.parametrize("form", FORMS)
def test_tied_weights_are_two_inputs_with_one_storage(tmp_path, form):
    module, inputs = llama()
    archive = save(tmp_path / "model.pt2", module.eval(), inputs, form)
    compare(archive, Logits(module), inputs)


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return (self.model(ids).logits,)


@pytest.mark.parametrize("form", FORMS)
def test_results_are_those_of_eager(tmp_path, form):
    module, inputs = mlp()
    compare(save(tmp_path / "mlp.pt2", module.eval(), inputs, form), module, inputs)


class Counter(nn.Module):
    """A buffer that is updated, read before and after, and returned."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(2, dtype=torch.int32))
        self.register_buffer("total", torch.randn(3, 4))

    def forward(self, x):
        before = self.total * 2
        self.calls += 1
        self.total.add_(x).mul_(0.5)
        return before, self.total + 1, self.calls * 3


class Cache(nn.Module):
    """Keys written by slice into a buffer that is not saved, as decoders do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.randn(2, 8, 4), persistent=False)

    def forward(self, k):
        self.keys[:, 3:5] = k
        window = self.keys[:, :5]
        self.keys.transpose(0, 1)[6].copy_(k[:, 0])
        return window.sum(1), self.keys[:, 6]


class Indexed(nn.Module):
    """Rows of a cache written at positions that are known only when the program runs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.randn(1, 2, 8, 4))
        self.register_buffer("rows", torch.randn(8, 4))

    def forward(self, k, positions):
        self.keys.index_copy_(2, positions, k)
        self.rows[positions] = k[0, 0]
        return self.keys.sum(2), self.rows[1:] * 2


class Views(nn.Module):
    """Writes through views of views, seen by the base and by other views."""

    def forward(self, x):
        base = x * 1
        rows = base.view(2, 3, 4)
        turned = rows.permute(2, 0, 1)
        corner = turned[1:3, 1].t()
        other = base[0]
        corner.mul_(3)
        turned[0].zero_()
        flat = base.reshape(-1)
        flat[::5] = 7
        flat[1:20:6].add_(flat[0])
        return base, rows.sum(0), turned, corner, other + 1


class Parts(nn.Module):
    """Several results that are views of one operand, read after it has changed."""

    def forward(self, x):
        base = x.clone().detach()
        left, right = base.split([1, 3], dim=1)
        first, *_ = base.unbind(0)
        upper, lower = base.chunk(2)
        base.select(1, 2).fill_(5)
        base.narrow(0, 1, 2).unsqueeze(0).squeeze(0).sub_(x[1:3])
        return left * 1, right * 2, first + upper[0], lower, base


class Copies(nn.Module):
    """Copies that look like views, and views that look like copies."""

    def forward(self, x):
        base = x + 1
        copied = base.t().reshape(-1)
        viewed = base.reshape(-1)
        same = base.to(torch.float32).contiguous()
        packed = base.t().contiguous()
        base.mul_(2)
        viewed[0] = -1
        same[-1].add_(10)
        return copied, viewed * 1, same, packed, base


class Types(nn.Module):
    """In-place ops keep the type and shape of what they update."""

    def forward(self, x, mask):
        half = x.to(torch.bfloat16)
        half.add_(x[0])
        counts = torch.zeros(4, 4, dtype=torch.int32)
        counts += mask.to(torch.int32)
        flags = mask.clone()
        flags &= mask.t()
        flags.logical_or_(mask)
        x.masked_fill_(mask, 0.25).clamp_(-1, 1)
        return half, counts, flags, x * 2


class Constants(nn.Module):
    """Tensors that are neither parameters nor buffers, with and without memory in common."""

    def __init__(self):
        super().__init__()
        table = torch.randn(4, 8)
        self.turned = nn.Parameter(table.t())
        self.row = nn.Parameter(table[1:3])
        self.register_buffer("repeated", torch.randn(1, 3).expand(4, 3))
        self.fixed = torch.arange(4.0)

    def forward(self, x, scale, absent, flag):
        assert flag
        assert absent is None
        scaled = (x * scale + torch.tensor([1.0, 2.0, 3.0, 4.0])) @ self.turned.t()
        return {"scaled": scaled, "none": None}, self.row * 2, self.repeated + 1, self.fixed + 1, scale


class Regions(nn.Module):
    """Blocks in which gradients or automatic types are off."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            y = x + 1
            self.seen.add_(y.sum(0))
        with torch.autocast("cpu", enabled=False):
            z = y @ y.t()
        return z, self.seen * 1


class Composites(nn.Module):
    """Ops that only the exported form has."""

    def __init__(self):
        super().__init__()
        self.batch = nn.BatchNorm1d(4)
        self.batch.running_mean.normal_()
        self.batch.running_var.uniform_(0.5, 2)
        self.group = nn.GroupNorm(2, 4)

    def forward(self, x, mask):
        steps = torch.zeros(7, 4)
        steps[1::3] = 5
        steps[:4:2] = x[:2]
        steps[6::4] = x[0]
        moved = torch.diff(x, n=2, dim=0), torch.diff(mask, prepend=mask[:, :1])
        repeated = x.repeat_interleave(2, dim=1), x[:2].repeat_interleave(3)
        padded = nn.functional.pad(x, (1, -1, 0, 2), value=0.5)
        bits = (mask & mask.t()) | (mask ^ mask.t())
        normalized = self.batch(x), self.group(x), nn.functional.hardtanh(x, -0.5, 0.25)
        filled = torch.full_like(x, 2).fill_(x[0, 0]).type_as(x.to(torch.bfloat16))
        return steps, *moved, *repeated, padded, bits, *normalized, filled


class State(nn.Module):
    """A constant that is updated: not a buffer, so that only the exported form allows it."""

    def __init__(self):
        super().__init__()
        self.state = torch.randn(4)

    def forward(self, x):
        self.state.add_(x)
        return self.state * 2


UPDATES = {
    "counter": (Counter, lambda: (torch.randn(3, 4),)),
    "cache": (Cache, lambda: (torch.randn(2, 2, 4),)),
    "indexed": (Indexed, lambda: (torch.randn(1, 2, 2, 4), torch.tensor([3, 5]))),
    "views": (Views, lambda: (torch.randn(6, 4),)),
    "parts": (Parts, lambda: (torch.randn(4, 4),)),
    "copies": (Copies, lambda: (torch.randn(3, 5),)),
    "types": (Types, lambda: (torch.randn(4, 4), torch.rand(4, 4) > 0.5)),
    "constants": (Constants, lambda: (torch.randn(3, 4), 2.5, None, True)),
    "composites": (Composites, lambda: (torch.randn(4, 4), torch.rand(4, 4) > 0.5)),
    "regions": (Regions, lambda: (torch.randn(3, 4),)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_in_place_reach_everything_that_shares_memory(tmp_path, name, form):
    build, inputs = UPDATES[name]
    module, inputs = build().eval(), inputs()
    compare(save(tmp_path / f"{name}.pt2", module, inputs, form), module, inputs)


class Shuffle(nn.Module):
    """Views of views and writes to them, drawn from a seed."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed
        self.register_buffer("kept", torch.arange(24.0).view(2, 3, 4).clone())

    def forward(self, x):
        draw = random.Random(self.seed)
        pool = [x * 1, self.kept]
        self.kept.add_(1)
        for _ in range(12):
            tensor = draw.choice(pool)
            if draw.random() < 0.6:
                pool.append(self.view(draw, tensor))
            elif draw.random() < 0.5:
                tensor.mul_(draw.choice([2, 3, -1])).add_(draw.randrange(1, 9))
            else:
                source = draw.choice([other for other in pool if other.shape == tensor.shape])
                tensor.copy_(source * 2)
        return [tensor + 0 for tensor in pool]

    def view(self, draw, tensor):
        axis = draw.randrange(tensor.dim())
        size = tensor.shape[axis]
        start = draw.randrange(size)
        index = [slice(None)] * tensor.dim()
        index[axis] = slice(start, draw.randrange(start, size) + 1, draw.choice([1, 1, 2, 3]))
        return draw.choice(
            [
                lambda: tensor[tuple(index)],
                lambda: tensor.select(axis, start) if tensor.dim() > 1 else tensor,
                lambda: tensor.permute(draw.sample(range(tensor.dim()), tensor.dim())),
                lambda: tensor.reshape(-1, tensor.shape[-1]),
                lambda: tensor.flatten(),
                lambda: tensor.unsqueeze(axis) if tensor.dim() < 4 else tensor.squeeze(),
                lambda: tensor.chunk(2, axis)[-1],
                lambda: tensor.contiguous(),
                lambda: tensor.to(tensor.dtype),
            ]
        )()


@pytest.mark.parametrize("seed", range(4))
def test_random_writes_through_views_are_those_of_eager(tmp_path, seed):
    module, inputs = Shuffle(seed), (torch.randint(-3, 4, (4, 5)).float(),)
    compare(save(tmp_path / "shuffle.pt2", copy.deepcopy(module), inputs, "exported"), module, inputs)


def test_constants_that_are_updated_are_inputs(tmp_path):
    module, inputs = State(), (torch.randn(4),)
    compare(save(tmp_path / "state.pt2", copy.deepcopy(module), inputs, "exported"), module, inputs)


def test_frozen_parameters_are_no_inputs(tmp_path):
    module, inputs = mlp()
    archive = save(tmp_path / "mlp.pt2", module.eval(), inputs, "exported")
    neff, given, result = (tmp_path / name for name in ("mlp.neff", "in.npz", "out.npz"))
    neffuse("compile", archive, "--freeze", "-o", neff)
    np.savez(given, input=array(*inputs))
    neffuse("run", neff, "--inputs", given, "--outputs", result)
    eager = module(*inputs)
    truth = copy.deepcopy(module).double()(*(value.double() for value in inputs))
    with np.load(result) as arrays:
        assert_as_accurate(torch.from_numpy(arrays["out_0"]), eager, truth)


def test_inputs_that_are_missing_are_listed_at_once(tmp_path):
    module, inputs = mlp()
    archive = save(tmp_path / "mlp.pt2", module.eval(), inputs, "exported")
    other = save(tmp_path / "other.pt2", nn.Sequential(nn.Linear(16, 8)), inputs, "exported")
    neff, given = tmp_path / "mlp.neff", tmp_path / "in.npz"
    neffuse("compile", archive, "-o", neff)
    np.savez(given)
    process = neffuse("run", neff, "--inputs", given, "--weights", other, "--outputs", tmp_path / "o.npz", exit_code=1)
    first, *rest = process.stderr.splitlines()
    assert first == f"error[bad-input]: {neff}: 5 inputs are missing or of another type"
    assert rest[0] == "  tensor `0.weight` is f32[8, 16], f32[32, 16] is needed"
    assert rest[1] == "  tensor `0.bias` is f32[8], f32[32] is needed"
    assert rest[2:] == [
        f"  array `in_{position}` (`{name}`, {type}) is missing"
        for position, name, type in [
            (2, "3.weight", "f32[8, 32]"),
            (3, "3.bias", "f32[8]"),
            (4, "input", "f32[4, 16]"),
        ]
    ]


def test_symbolic_sizes_are_refused_by_dimension(tmp_path):
    batch = torch.export.Dim("batch", min=2, max=64)
    module, (x,) = rms_norm()
    archive = save(tmp_path / "norm.pt2", module, (x,), "exported", dynamic_shapes=({0: batch},))
    process = neffuse("compile", archive, exit_code=2)
    assert "norm.pt2: 1 node cannot be compiled: input (1)" in process.stderr
    assert "dimension 0 is the symbolic size s" in process.stderr
    assert "(2 to 64): export with static shapes" in process.stderr


class Overlap(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[:2])

    def forward(self, x):
        self.whole.add_(x)
        return self.part + 1


def test_what_cannot_be_followed_is_refused_with_op_and_place(tmp_path):
    archive = save(tmp_path / "overlap.pt2", Overlap(), (torch.randn(4),), "exported")
    process = neffuse("compile", archive, exit_code=2)
    assert "add_ = aten.add_.Tensor -> float32[4], test_export.py:" in process.stderr
    assert "`whole` shares it with `part`" in process.stderr or "`part` shares it with `whole`" in process.stderr


def test_rows_name_arguments_as_schemas_do():
    importlib.import_module("torch._inductor.inductor_prims")  # defines some of the ops
    table = (ROOT / "compiler" / "src" / "import" / "aten" / "table.rs").read_text()
    rows = re.findall(r'row\("(\w+)\.(\w+)\.(\w+)", "([^"]*)"', table)
    assert len(rows) > 150
    for namespace, op, overload, names in rows:
        schema = getattr(getattr(getattr(torch.ops, namespace), op), overload)._schema
        unknown = set(names.split()) - {argument.name for argument in schema.arguments} - {"*"}
        assert not unknown, f"{namespace}.{op}.{overload}"


def test_source_lines_and_modules_are_told(tmp_path):
    module, inputs = llama()
    archive = save(tmp_path / "model.pt2", module.eval(), inputs, "decomposed")
    graph = neffuse("explain", archive).stdout
    assert "transformers/models/llama/modeling_llama.py:" in graph
    assert "model.layers.1.input_layernorm" in graph
