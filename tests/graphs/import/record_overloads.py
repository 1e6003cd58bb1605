"""Records what PyTorch gives for overloads that the model samples do not use.

Run with PyTorch 2.15: writes overloads.json and overloads.io.npz beside this file. Every call is one
node of one graph; every result is an output.
"""

import io
import json
import pathlib
import struct
import zipfile

import torch

FOLDER = pathlib.Path(__file__).parent
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.int64: "int64",
          torch.int32: "int32", torch.bool: "bool", torch.int16: "int16", torch.uint8: "uint8", torch.int8: "int8"}
CODES = {"float32": "<f4", "bfloat16": "<u2", "float16": "<u2", "int64": "<i8", "int32": "<i4", "bool": "|b1",
         "int16": "<i2", "uint8": "|u1", "int8": "|i1"}


class Node:
    def __init__(self, id, value):
        self.id, self.value = id, value


class Graph:
    def __init__(self, name):
        self.name, self.inputs, self.nodes, self.outputs, self.arrays = name, [], [], [], {}
        self.n_ids = 0

    def new_id(self):
        self.n_ids += 1
        return self.n_ids - 1

    def input(self, tensor):
        node = Node(self.new_id(), tensor)
        self.inputs.append({"id": node.id, "name": f"in{len(self.inputs)}", "role": "input", "out": recorded(tensor)})
        self.arrays[f"in_{len(self.inputs) - 1}"] = tensor
        return node

    def call(self, target, *args, **kwargs):
        namespace, op, overload = target.split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), op), overload)
        result = function(*unwrap(args), **unwrap(kwargs))
        id = self.new_id()
        is_tuple = isinstance(result, (tuple, list))
        out = {"tuple": [recorded(item) for item in result]} if is_tuple else recorded(result)
        self.nodes.append({"id": id, "name": f"n{id}", "target": target, "args": [encode(arg) for arg in args],
                           "kwargs": {key: encode(value) for key, value in kwargs.items()}, "out": out})
        if is_tuple:
            return tuple(self.item(id, position, item) for position, item in enumerate(result))
        return self.output(Node(id, result))

    def item(self, id, position, value):
        own = self.new_id()
        self.nodes.append({"id": own, "name": f"n{own}", "target": "getitem", "args": [{"ref": id}, position],
                           "kwargs": {}, "out": recorded(value)})
        return self.output(Node(own, value))

    def output(self, node):
        self.outputs.append({"ref": node.id, "desc": f"PlainAOTOutput(idx={len(self.outputs)})"})
        self.arrays[f"out_{len(self.outputs) - 1}"] = node.value
        return node

    def write(self):
        document = {"format": "fxg-json/1", "name": self.name, "kind": "inference",
                    "source": {"torch": torch.__version__, "decomposition": "none"}, "inputs": self.inputs,
                    "nodes": self.nodes, "outputs": self.outputs, "constants": {}}
        (FOLDER / f"{self.name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")
        with zipfile.ZipFile(FOLDER / f"{self.name}.io.npz", "w") as archive:
            for name, tensor in self.arrays.items():
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(tensor), zipfile.ZIP_DEFLATED)


def recorded(tensor):
    return {"shape": list(tensor.shape), "stride": list(tensor.stride()), "dtype": DTYPES[tensor.dtype], "device": "cpu"}


def unwrap(value):
    if isinstance(value, Node):
        return value.value
    if isinstance(value, (list, tuple)):
        return type(value)(unwrap(item) for item in value)
    if isinstance(value, dict):
        return {key: unwrap(item) for key, item in value.items()}
    return value


def encode(value):
    if isinstance(value, Node):
        return {"ref": value.id}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": DTYPES[value]}
    if isinstance(value, str):
        return {"str": value}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": str(value)}
    return value


def npy(tensor):
    tensor = tensor.contiguous()
    name = DTYPES[tensor.dtype]
    view = tensor.view(torch.int16) if name in ("bfloat16", "float16") else tensor
    formats = {"float32": "f", "bfloat16": "h", "float16": "h", "int64": "q", "int32": "i", "bool": "?", "int16": "h",
               "uint8": "B", "int8": "b"}
    flat = view.reshape(-1).tolist()
    data = struct.pack(f"<{len(flat)}{formats[name]}", *flat)
    shape = tuple(tensor.shape)
    header = f"{{'descr': '{CODES[name]}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def pointwise(g, x, y, positive, half, other_half, ints, bools):
    aten = lambda name, *args, **kwargs: g.call(f"aten.{name}", *args, **kwargs)
    for name in ("reciprocal", "erf", "sigmoid", "sign", "relu", "square", "hardsigmoid", "hardswish", "mish", "neg",
                 "abs", "exp", "tanh", "silu", "cos", "sin", "special_erf"):
        aten(f"{name}.default", x)
        aten(f"{name}.default", half)
    for name in ("log", "sqrt", "rsqrt"):
        aten(f"{name}.default", positive)
        aten(f"{name}.default", g.input(positive.value.to(torch.bfloat16)))
    for name in ("abs", "neg", "sign", "square", "relu", "exp", "sigmoid"):
        aten(f"{name}.default", ints)
    aten("gelu.default", x)
    aten("gelu.default", half, approximate="tanh")
    aten("softplus.default", x)
    aten("softplus.default", half, 1, 20)
    aten("glu.default", x)
    aten("glu.default", half, 1)
    aten("logical_not.default", ints)
    aten("bitwise_not.default", bools)
    for name in ("and", "or", "xor"):
        aten(f"logical_{name}.default", ints, bools)
        aten(f"bitwise_{name}.Tensor", bools, bools)
    for name in ("add", "sub"):
        aten(f"{name}.Tensor", x, y, alpha=0.5)
        aten(f"{name}.Tensor", half, other_half, alpha=3)
        aten(f"{name}.Tensor", half, 0.1)
        aten(f"{name}.Tensor", ints, 2)
        aten(f"{name}.Tensor", ints, 1.5)
        aten(f"{name}.Tensor", ints, ints, alpha=2)
        aten(f"{name}.Scalar", x, 2, 3)
    aten("add.Tensor", bools, bools)
    aten("add.Tensor", bools, 1)
    aten("rsub.Scalar", half, 1.1)
    aten("rsub.Tensor", x, y, alpha=2)
    aten("mul.Tensor", bools, bools)
    aten("mul.Tensor", half, 1 / 3)
    aten("mul.Tensor", half, x)
    aten("mul.Tensor", ints, half)
    aten("mul.Scalar", half, 0.7)
    aten("div.Tensor", ints, ints)
    aten("div.Tensor", ints, 2)
    aten("div.Tensor", half, 3)
    aten("div.Scalar", half, 3.3)
    aten("div.Tensor_mode", x, y, rounding_mode=None)
    aten("true_divide.Tensor", ints, 7)
    aten("maximum.default", x, y)
    aten("minimum.default", half, other_half)
    aten("maximum.default", ints, ints)
    aten("max.other", x, y)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        aten(f"{name}.Scalar", half, 0.1)
        aten(f"{name}.Scalar", ints, 0.5)
        aten(f"{name}.Tensor", half, x)
        aten(f"{name}.Tensor", ints, bools)
    aten("where.self", bools, half, x)
    aten("where.ScalarOther", bools, half, 2.5)
    aten("where.ScalarSelf", bools, 1, ints)
    aten("where.Scalar", bools, 1.0, 0.0)
    aten("masked_fill.Scalar", half, bools, 0.1)
    aten("masked_fill.Scalar", ints, bools, 7)
    for value in (x, half):
        aten("clamp.default", value, -0.3, 0.4)
        aten("clamp.default", value, None, 0.4)
        aten("clamp_min.default", value, 0.1)
        aten("clamp_max.default", value, 0.1)
        aten("hardtanh.default", value)
        aten("hardtanh.default", value, 0.0, 6.0)
    aten("clamp.default", ints, 0, 3)
    aten("clamp.default", ints, 0.5)
    aten("clamp.Tensor", x, y)
    for exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 1.7):
        aten("pow.Tensor_Scalar", positive, exponent)
    aten("pow.Tensor_Scalar", ints, 2)
    aten("pow.Tensor_Scalar", ints, 3)
    aten("pow.Tensor_Scalar", half, 2)
    aten("pow.Tensor_Tensor", positive, x)
    aten("pow.Scalar", 0.9, x)
    aten("addcmul.default", x, y, positive, value=0.5)
    aten("addcdiv.default", half, half, g.input(positive.value.to(torch.bfloat16)), value=2)
    for weight in (0.1, 0.9):
        aten("lerp.Scalar", x, y, weight)
        aten("lerp.Scalar", half, other_half, weight)
    scalar = g.input(torch.tensor(0.1))
    aten("mul.Tensor", half, scalar)
    aten("add.Tensor", ints, scalar)
    aten("add.Tensor", g.input(torch.tensor(3)), half)


def reductions(g, x, half, ints, bools):
    aten = lambda name, *args, **kwargs: g.call(f"aten.{name}", *args, **kwargs)
    for value in (x, half):
        aten("sum.default", value)
        aten("sum.dim_IntList", value, [0, -1])
        aten("sum.dim_IntList", value, [1], True)
        aten("mean.default", value)
        aten("mean.dim", value, [0])
        aten("mean.dim", value, [-1, 0], True)
        aten("amax.default", value, [0])
        aten("amin.default", value, [-1], True)
        aten("amax.default", value)
        aten("max.default", value)
        aten("min.default", value)
        for op in ("var", "std"):
            aten(f"{op}.correction", value, [-1], correction=0)
            aten(f"{op}.correction", value, [0, 1])
        aten("var_mean.correction", value, [-1], correction=1, keepdim=True)
        aten("cumsum.default", value, -1)
        for op in ("softmax", "log_softmax"):
            aten(f"_{op}.default", value, 1, False)
            aten(f"_{op}.default", value, -1, False)
            aten(f"{op}.int", value, 0)
    aten("softmax.int", half, -1, torch.float32)
    aten("sum.dim_IntList", half, [-1], dtype=torch.float32)
    aten("sum.default", ints)
    aten("sum.dim_IntList", bools, [0])
    aten("mean.dim", ints, [0], dtype=torch.float32)
    aten("amax.default", ints, [0])
    aten("cumsum.default", bools, 0)
    for name in ("any", "all"):
        aten(f"{name}.default", bools)
        aten(f"{name}.dim", ints, 0)
        aten(f"{name}.dims", bools, [0, 1], True)
    masked = g.input(torch.where(torch.arange(4)[:, None] == 1, float("-inf"), torch.randn(4, 6)))
    aten("_safe_softmax.default", masked, -1)


def movement(g, x, half, ints):
    aten = lambda name, *args, **kwargs: g.call(f"aten.{name}", *args, **kwargs)
    for name in ("alias", "clone", "detach", "lift_fresh_copy"):
        aten(f"{name}.default", x)
    g.call("prims.convert_element_type.default", x, torch.bfloat16)
    aten("_to_copy.default", x, dtype=torch.int32)
    aten("_to_copy.default", ints, dtype=torch.bfloat16)
    aten("_to_copy.default", half, dtype=torch.bool)
    aten("copy.default", x, half)
    aten("view.default", x, [4, -1])
    aten("reshape.default", aten("permute.default", x, [2, 0, 1]), [-1])
    row = aten("select.int", x, 1, -1)
    aten("expand.default", row, [3, -1, -1])
    aten("transpose.int", x, -1, 0)
    aten("t.default", row)
    aten("unsqueeze.default", x, -1)
    ones = aten("unsqueeze.default", aten("unsqueeze.default", row, 0), 2)
    aten("squeeze.default", ones)
    aten("squeeze.dim", ones, 2)
    aten("squeeze.dims", ones, [0, 1])
    aten("flatten.using_ints", x, 1)
    aten("slice.Tensor", x, 2, 1, 9223372036854775807, 2)
    aten("slice.Tensor", x, -1, -3, -1)
    aten("slice.Tensor", x, 0, 5, 2)
    aten("narrow.default", x, 2, 1, 3)
    aten("unbind.int", x, 1)
    aten("split.Tensor", x, 4, 2)
    aten("split_with_sizes.default", x, [1, 2, 3], 2)
    aten("chunk.default", x, 4, -1)
    empty = g.input(torch.zeros(0))
    aten("cat.default", [empty, row, row], -1)
    aten("cat.default", [x, half], 1)
    aten("stack.default", [row, row], -1)
    aten("repeat.default", row, [2, 1, 3])
    aten("roll.default", x, [1, -2], [0, 2])
    aten("constant_pad_nd.default", x, [1, -2, 0, 3], 0.5)
    aten("slice_scatter.default", x, aten("slice.Tensor", x, 2, 1, 3), 2, 2, 4)
    aten("select_scatter.default", x, row, 1, 0)
    aten("tril.default", x)
    aten("triu.default", ints, 1)
    for name in ("ones", "zeros"):
        aten(f"{name}.default", [2, 3])
        aten(f"{name}_like.default", x)
        aten(f"new_{name}.default", half, [2], dtype=torch.int64)
    aten("full.default", [2, 2], 3)
    aten("full.default", [], True)
    aten("full_like.default", half, 0.1)
    aten("new_full.default", x, [3], 2.5)
    aten("fill.Scalar", half, 0.3)
    aten("scalar_tensor.default", 3)
    aten("arange.default", 5)
    aten("arange.default", 2.5)
    aten("arange.start", 2, 7, dtype=torch.float32)
    aten("arange.start_step", 7, 1, -2)
    aten("arange.start_step", 0, 1, 0.3)


def indexing(g, x, ints):
    aten = lambda name, *args, **kwargs: g.call(f"aten.{name}", *args, **kwargs)
    table = g.input(torch.randn(7, 3))
    ids = g.input(torch.tensor([[0, 6], [3, 2]]))
    aten("embedding.default", table, ids, 2)
    aten("index_select.default", x, 2, g.input(torch.tensor([3, 0, 0])))
    aten("gather.default", x, -1, g.input(torch.randint(0, 6, (2, 2, 3))))
    one, two = g.input(torch.tensor([1, -1])), g.input(torch.tensor([[0], [1]]))
    aten("index.Tensor", x, [one])
    aten("index.Tensor", x, [None, one, two])
    aten("index.Tensor", x, [one, None, two])
    aten("index.Tensor", x, [None, None, one])
    aten("_unsafe_index.Tensor", x, [None, two])


def writing_at_indices(g, x):
    aten = lambda name, *args, **kwargs: g.call(f"aten.{name}", *args, **kwargs)
    aten("index_put.default", x, [None, None, g.input(torch.tensor([4, -6]))], g.input(torch.randn(3, 2, 2)))
    aten("index_put.default", x, [g.input(torch.tensor([[2], [0]]))], g.input(torch.randn(6)))
    aten("index_put.default", x, [None, g.input(torch.tensor([[True] * 5 + [False], [False] * 6]))],
         g.input(torch.tensor(0.5)))
    aten("index_copy.default", x, -1, g.input(torch.tensor([3, 0])), g.input(torch.randn(3, 2, 2)))
    aten("index_copy.default", g.input(torch.randn(40, 5)), 0, g.input(torch.tensor([39, 1])),
         g.input(torch.randn(2, 5)))


def contractions(g):
    aten = lambda name, *args, **kwargs: g.call(f"aten.{name}", *args, **kwargs)
    for dtype in (torch.float32, torch.bfloat16):
        make = lambda *shape: g.input(torch.randn(*shape).to(dtype))
        a, b, c = make(4, 5), make(5, 3), make(3)
        batch, other = make(2, 4, 5), make(2, 5, 3)
        aten("mm.default", a, b)
        aten("bmm.default", batch, other)
        aten("mv.default", a, make(5))
        aten("dot.default", c, make(3))
        aten("addmm.default", c, a, b, beta=0.5, alpha=2)
        aten("addmm.default", make(4, 3), a, b)
        aten("baddbmm.default", make(2, 4, 3), batch, other, beta=0.3)
        aten("linear.default", batch, make(3, 5), c)
        aten("linear.default", make(5), make(3, 5))
        for lhs, rhs in ((a, b), (batch, b), (a, other), (make(5), b), (a, make(5)), (make(5), make(5)), (make(5), other),
                         (make(3, 1, 4, 5), other), (batch, make(5))):
            aten("matmul.default", lhs, rhs)
    image, kernel = g.input(torch.randn(2, 3, 9, 8)), g.input(torch.randn(4, 3, 3, 2))
    bias = g.input(torch.randn(4))
    aten("convolution.default", image, kernel, bias, [3, 2], [0, 0], [1, 1], False, [0, 0], 1)
    aten("conv2d.default", g.input(torch.randn(1, 3, 7, 9)), kernel, None, [3, 2])
    aten("conv1d.default", g.input(torch.randn(2, 3, 8)), g.input(torch.randn(5, 3, 1)))


def normalizations(g, x, half):
    aten = lambda name, *args, **kwargs: g.call(f"aten.{name}", *args, **kwargs)
    for value in (x, half):
        make = lambda *shape: g.input(torch.randn(*shape).to(value.value.dtype))
        w, b = make(6), make(6)
        aten("native_layer_norm.default", value, [6], w, b, 1e-5)
        aten("native_layer_norm.default", value, [2, 6], make(2, 6), None, 1e-3)
        aten("layer_norm.default", value, [6], None, b)
        aten("layer_norm.default", value, [6])
        aten("rms_norm.default", value, [6], w)
        aten("rms_norm.default", value, [2, 6], None, 1e-3)
        channels = make(3, 4, 5, 2)
        aten("native_group_norm.default", channels, make(4), make(4), 3, 4, 10, 2, 1e-5)
        aten("native_dropout.default", value, 0.3, False)
        aten("dropout.default", value, 0.3, False)
    images = g.input(torch.randn(2, 3, 4, 4))
    vectors = [g.input(torch.randn(3)) for _ in range(3)] + [g.input(torch.rand(3) + 0.5)]
    # Results 1 and 2 are empty and of no use.
    result = torch.ops.aten._native_batch_norm_legit_no_training.default(
        images.value, *[vector.value for vector in vectors], 0.1, 1e-5)
    id = g.new_id()
    g.nodes.append({"id": id, "name": f"n{id}", "target": "aten._native_batch_norm_legit_no_training.default",
                    "args": [encode(images), *[encode(vector) for vector in vectors], 0.1, 1e-5], "kwargs": {},
                    "out": {"tuple": [recorded(item) for item in result]}})
    g.item(id, 0, result[0])


def attentions(g):
    flash = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    plain = "aten.scaled_dot_product_attention.default"
    for dtype in (torch.float32, torch.bfloat16):
        make = lambda *shape: g.input(torch.randn(*shape).to(dtype))
        q, k, v = make(2, 4, 5, 8), make(2, 4, 7, 8), make(2, 4, 7, 8)
        g.call(flash, q, k, v)
        g.call(flash, q, k, v, scale=0.2, attn_mask=make(2, 1, 5, 7))
        g.call(plain, q, k, v, g.input(torch.rand(5, 7) > 0.3))
        g.call(plain, make(2, 4, 7, 8), k, v, None, 0.0, True)
        g.call(plain, q, make(2, 2, 7, 8), make(2, 2, 7, 8), enable_gqa=True)


def main():
    torch.manual_seed(0)
    g = Graph("overloads")
    x = g.input(torch.randn(3, 2, 6))
    y = g.input(torch.randn(2, 6))
    positive = g.input(torch.rand(3, 2, 6) + 0.2)
    half = g.input(torch.randn(3, 2, 6).to(torch.bfloat16))
    other_half = g.input(torch.randn(3, 1, 6).to(torch.bfloat16))
    ints = g.input(torch.randint(1, 9, (2, 6)) * torch.tensor([1, -1])[:, None])
    bools = g.input(torch.rand(2, 6) > 0.5)
    pointwise(g, x, y, positive, half, other_half, ints, bools)
    reductions(g, x, half, ints, bools)
    movement(g, x, half, ints)
    indexing(g, x, ints)
    contractions(g)
    normalizations(g, x, half)
    attentions(g)
    writing_at_indices(g, x)
    g.write()
    print(len(g.nodes), "nodes", len(g.outputs), "outputs")


main()
