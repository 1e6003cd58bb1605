"""Compile times of other compilers on the graphs of ``benches/targets``, each measured once.

``peers.py GRAPHS OUT.json`` runs every peer in a process of its own with a time limit, and writes
seconds or why there are none. What is timed is the peer's own compilation: reading and building the
graph, tracing and lowering to its input form come before. Weights are the peer's constants where its
users have them so. Graphs are fxg-json/1 documents and lists of pointwise nodes, as
``cargo bench --bench targets -- graphs FOLDER`` writes them.
"""

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Peer: modules it needs, graphs it gets, seconds for all of them.
PEERS = {
    "ONNX Runtime": (["onnxruntime", "onnx"], ["block", "blocks_64", "dag_2000", "dag_10000"], 60),
    "OpenVINO": (["openvino", "onnx"], ["block", "blocks_64", "dag_2000", "dag_10000"], 60),
    "XLA": (["jax"], ["block", "blocks_64", "dag_2000", "dag_10000"], 150),
    # Its memory grows to that of the machine on shared values: 250 nodes take 42 s, 1,000 do not end.
    "IREE": (["jax", "iree-base-compiler"], ["block", "blocks_64"], 60),
    "Inductor": (["torch"], ["block", "blocks_64", "dag_2000", "dag_10000"], 240),
}

#: Most bytes of address space for a compiler that is run as a command.
MAX_BYTES = 12 << 30


def rows_of(document):
    """(id, overload, arguments, keyword arguments, shape, element type) of every node."""
    for node in document["nodes"]:
        yield node["id"], node["target"], node["args"], node["kwargs"], node["out"]


def ref(argument):
    return argument["ref"] if isinstance(argument, dict) and "ref" in argument else None


def number(argument):
    return float(argument["float"]) if isinstance(argument, dict) and "float" in argument else argument


class Numpy:
    """ATen overloads on a module with numpy's interface."""

    def __init__(self, np, sigmoid, softmax, rsqrt):
        self.np, self.sigmoid, self.softmax, self.rsqrt = np, sigmoid, softmax, rsqrt

    def apply(self, target, args, out):
        np, first = self.np, args[0]
        match target.removeprefix("aten."):
            case "view.default" | "expand.default" | "clone.default":
                shape = tuple(out["shape"])
                return np.broadcast_to(first, shape) if target == "aten.expand.default" else first.reshape(shape)
            case "permute.default":
                return np.transpose(first, args[1])
            case "unsqueeze.default":
                return first.reshape(tuple(out["shape"]))
            case "slice.Tensor":
                axis, begin, end = args[1] % first.ndim, args[2], min(args[3], first.shape[args[1] % first.ndim])
                return first[(slice(None),) * axis + (slice(begin, end),)]
            case "cat.default":
                return np.concatenate(first, axis=args[1])
            case "mm.default" | "bmm.default":
                return np.matmul(first, args[1])
            case "mul.Tensor":
                return first * args[1]
            case "add.Tensor":
                return first + args[1]
            case "sub.Tensor":
                return first - args[1]
            case "div.Tensor":
                return first / args[1]
            case "maximum.default":
                return np.maximum(first, args[1])
            case "relu.default":
                return np.maximum(first, 0.0)
            case "tanh.default":
                return np.tanh(first)
            case "pow.Tensor_Scalar":
                return first ** args[1]
            case "mean.dim":
                return np.mean(first, axis=tuple(args[1]), keepdims=args[2])
            case "rsqrt.default":
                return self.rsqrt(first)
            case "neg.default":
                return -first
            case "sigmoid.default":
                return self.sigmoid(first)
            case "_softmax.default":
                return self.softmax(first)
            case "arange.start_step":
                return np.arange(first, args[1], dtype=np.int32)
            case "gt.Tensor":
                return first > args[1]
            case "scalar_tensor.default":
                return np.float32(first)
            case "where.self":
                return np.where(first, args[1], args[2])
        raise NotImplementedError(target)


def resolved(argument, values):
    """An argument with values for references."""
    if isinstance(argument, list):
        return [resolved(item, values) for item in argument]
    return number(argument) if ref(argument) is None else values[ref(argument)]


def jax_function(document):
    import jax
    import jax.numpy as jnp

    ops = Numpy(jnp, jax.nn.sigmoid, lambda x: jax.nn.softmax(x, axis=-1), jax.lax.rsqrt)
    ids = [entry["id"] for entry in document["inputs"]]

    def function(*inputs):
        values = dict(zip(ids, inputs, strict=True))
        for node, target, args, _, out in rows_of(document):
            values[node] = ops.apply(target, [resolved(argument, values) for argument in args], out)
        return [values[output["ref"]] for output in document["outputs"]]

    shapes = [jax.ShapeDtypeStruct(tuple(entry["out"]["shape"]), jnp.float32) for entry in document["inputs"]]
    return jax.jit(function), shapes


def xla(document):
    function, shapes = jax_function(document)
    lowered = function.lower(*shapes)
    start = time.perf_counter()
    lowered.compile()
    return time.perf_counter() - start


def iree(document):
    import resource

    function, shapes = jax_function(document)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "graph.mlir"
        source.write_text(function.lower(*shapes).as_text())
        command = [Path(sys.executable).parent / "iree-compile", "--iree-input-type=stablehlo"]
        command += ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
        command += ["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3", source, "-o", Path(folder) / "graph.vmfb"]
        start = time.perf_counter()
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))  # noqa: E731
        subprocess.run(command, check=True, preexec_fn=limit, capture_output=True, text=True)
        return time.perf_counter() - start


class OnnxWriter:
    """A document as an ONNX model; weights are initializers of random numbers."""

    ELEMENTWISE = {  # noqa: RUF012
        "mul.Tensor": "Mul", "add.Tensor": "Add", "sub.Tensor": "Sub", "div.Tensor": "Div", "maximum.default": "Max",
        "relu.default": "Relu", "tanh.default": "Tanh", "sigmoid.default": "Sigmoid", "neg.default": "Neg",
        "pow.Tensor_Scalar": "Pow", "mm.default": "MatMul", "bmm.default": "MatMul", "gt.Tensor": "Greater",
        "where.self": "Where",
    }  # fmt: skip

    def __init__(self, document):
        import numpy as np
        from onnx import TensorProto, helper, numpy_helper

        self.np, self.helper, self.to_tensor = np, helper, numpy_helper.from_array
        self.nodes, self.constants = [], []
        random = np.random.default_rng(0)
        inputs = []
        for entry in document["inputs"]:
            shape = entry["out"]["shape"]
            if entry["role"] == "static":
                weight = random.standard_normal(shape, dtype=np.float32)
                self.constants.append(self.to_tensor(weight, f"v{entry['id']}"))
            else:
                inputs.append(helper.make_tensor_value_info(f"v{entry['id']}", TensorProto.FLOAT, shape))
        shapes = {}
        for node, target, args, _, out in rows_of(document):
            shapes[node] = out["shape"]
            self.write(f"v{node}", target.removeprefix("aten."), args, out)
        outputs = [output["ref"] for output in document["outputs"]]
        outputs = [helper.make_tensor_value_info(f"v{ref}", TensorProto.FLOAT, shapes[ref]) for ref in outputs]
        graph = helper.make_graph(self.nodes, "graph", inputs, outputs, initializer=self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        self.bytes = model.SerializeToString()

    def constant(self, value, dtype):
        name = f"c{len(self.constants)}"
        self.constants.append(self.to_tensor(self.np.asarray(value, dtype=dtype), name))
        return name

    def operand(self, argument):
        return self.constant(number(argument), self.np.float32) if ref(argument) is None else f"v{ref(argument)}"

    def node(self, op, operands, result, **attributes):
        self.nodes.append(self.helper.make_node(op, operands, [result], **attributes))

    def write(self, result, target, args, out):
        int64 = self.np.int64
        match target:
            case "view.default" | "unsqueeze.default":
                self.node("Reshape", [self.operand(args[0]), self.constant(out["shape"], int64)], result)
            case "expand.default":
                self.node("Expand", [self.operand(args[0]), self.constant(out["shape"], int64)], result)
            case "clone.default":
                self.node("Identity", [self.operand(args[0])], result)
            case "permute.default":
                self.node("Transpose", [self.operand(args[0])], result, perm=args[1])
            case "slice.Tensor":
                bounds = [self.constant([bound], int64) for bound in (args[2], args[3], args[1])]
                self.node("Slice", [self.operand(args[0]), *bounds], result)
            case "cat.default":
                self.node("Concat", [self.operand(item) for item in args[0]], result, axis=args[1])
            case "mean.dim":
                axes = self.constant(args[1], int64)
                self.node("ReduceMean", [self.operand(args[0]), axes], result, keepdims=int(args[2]))
            case "rsqrt.default":
                self.node("Sqrt", [self.operand(args[0])], f"{result}.root")
                self.node("Reciprocal", [f"{result}.root"], result)
            case "_softmax.default":
                self.node("Softmax", [self.operand(args[0])], result, axis=args[1])
            case "arange.start_step":
                self.constants.append(self.to_tensor(self.np.arange(args[0], args[1], dtype=int64), result))
            case "scalar_tensor.default":
                self.constants.append(self.to_tensor(self.np.float32(number(args[0])), result))
            case _:
                self.node(self.ELEMENTWISE[target], [self.operand(argument) for argument in args], result)


def onnx_runtime(document):
    import onnxruntime

    model = OnnxWriter(document).bytes
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    start = time.perf_counter()
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return time.perf_counter() - start


def openvino(document):
    from openvino import Core

    core = Core()
    model = core.read_model(OnnxWriter(document).bytes)
    start = time.perf_counter()
    core.compile_model(model, "CPU")
    return time.perf_counter() - start


def inductor(document):
    import torch
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    config.force_disable_caches = True
    graph, values = torch.fx.Graph(), {}
    for entry in document["inputs"]:
        values[entry["id"]] = graph.placeholder(f"v{entry['id']}")
    for node, target, args, kwargs, out in rows_of(document):
        name, overload = target.removeprefix("aten.").split(".")
        function = getattr(getattr(torch.ops.aten, name), overload)
        # Of the others the defaults are what a capture writes.
        keywords = {"memory_format": torch.contiguous_format} if "memory_format" in kwargs else {}
        if "dtype" in kwargs or "layout" in kwargs:
            keywords = {"dtype": getattr(torch, out["dtype"])}
        values[node] = graph.call_function(function, tuple(resolved(argument, values) for argument in args), keywords)
    graph.output([values[output["ref"]] for output in document["outputs"]])
    inputs = [torch.randn(entry["out"]["shape"]) for entry in document["inputs"]]
    with torch.no_grad():
        start = time.perf_counter()
        compile_fx(torch.fx.GraphModule(torch.nn.Module(), graph), inputs)
        return time.perf_counter() - start


FUNCTIONS = {"ONNX Runtime": onnx_runtime, "OpenVINO": openvino, "XLA": xla, "IREE": iree, "Inductor": inductor}


def dag_document(n_nodes):
    """A few nodes that warm a compiler up: Inductor's first compilation of a process takes seconds more."""
    out = {"shape": [8, 8], "dtype": "float32"}
    nodes = [
        {"id": i + 1, "target": "aten.tanh.default", "args": [{"ref": i}], "kwargs": {}, "out": out}
        for i in range(n_nodes)
    ]
    return {"inputs": [{"id": 0, "role": "input", "out": out}], "nodes": nodes, "outputs": [{"ref": n_nodes}]}


def run_one(peer, folder):
    """In a process of its own: a line of JSON for each graph that is done."""
    FUNCTIONS[peer](dag_document(3))
    for graph in PEERS[peer][1]:
        document = json.loads((folder / f"{graph}.json").read_text())
        print(json.dumps({"graph": graph, "seconds": FUNCTIONS[peer](document)}), flush=True)


def reason(text):
    """The line of a traceback, or of another program's messages, that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|error): \S", line)]
    return ([*lines[-1:], *errors[-1:]] or ["no message"])[-1][:120]


def run(peer, folder):
    modules, graphs, limit_seconds = PEERS[peer]
    try:
        versions = ", ".join(f"{module} {importlib.metadata.version(module)}" for module in modules)
    except importlib.metadata.PackageNotFoundError as missing:
        return {"skipped": f"{missing.name} is not installed"}
    command = [sys.executable, __file__, "--one", peer, folder]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=limit_seconds)
            why = f"failed: {reason(err)}" if process.returncode else None
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, _ = process.communicate()
            why = f"not done in {limit_seconds} s"
    seconds = {line["graph"]: line["seconds"] for line in map(json.loads, out.splitlines())}
    found = {"versions": versions, "seconds": seconds}
    if why is not None:
        found["missing"] = {graph: why for graph in graphs if graph not in seconds}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the graphs")
    parser.add_argument("out", type=Path, nargs="?", help="what is measured, added to what it holds")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), metavar="PEER")
    parser.add_argument("--one", choices=list(PEERS), metavar="PEER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        run_one(arguments.one, arguments.folder)
        return
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for peer in arguments.peers:
        found[peer] = run(peer, arguments.folder)
        print(f"{peer}: {json.dumps(found[peer])}", flush=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
