"""Writes the archives beside this file, and what PyTorch gives for them.

    python tests/graphs/import/pt2/export_samples.py

`NAME.pt2` is what `torch.export.save` writes, less its sample inputs, with paths of this machine taken
out of the stack traces; members are stored with descriptors after their data, as PyTorch does, and
fixed times, so that the same PyTorch gives the same bytes. `NAME.io.npz` has what the user passes as
in_0, in_1, ... and all outputs as out_0, out_1, ...: first the new values of updated inputs. All
values are small whole numbers: every result is exact.
"""

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

FOLDER = Path(__file__).parent
#: Where site-packages is.
PACKAGES = str(Path(torch.__file__).parents[2])


def whole(*shape):
    """Small whole numbers."""
    return torch.randint(-4, 5, shape).float()


class Stored(nn.Module):
    """Tied weights, strides, offsets, constants, buffers that are not saved, inputs that are no tensors."""

    def __init__(self):
        super().__init__()
        table = whole(4, 6)
        self.turned = nn.Parameter(table.t())
        self.rows = nn.Parameter(table[1:3])
        self.embedding = nn.Embedding.from_pretrained(whole(5, 4), freeze=False)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("repeated", whole(1, 3).expand(4, 3))
        self.register_buffer("hidden", whole(2, 2), persistent=False)
        self.fixed = whole(4)

    def forward(self, ids, factor, absent):
        embedded = self.embedding(ids) * factor + self.fixed
        scores = self.head(embedded + torch.tensor([1.0, -1.0, 2.0, 0.0]))
        return scores, None, embedded @ self.turned.t(), self.rows * 2, self.repeated + 1, self.hidden[1], factor


class Updated(nn.Module):
    """Writes through views to a buffer, an argument and a temporary, seen by what was taken before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", whole(2, 6, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int32))

    def forward(self, x, y):
        window = self.cache[:, 1:5]
        self.cache[:, 2:4] = x
        self.cache.transpose(0, 1)[5].mul_(2)
        self.count += 1
        base = y + 1
        turned = base.view(2, 3, 2).permute(2, 0, 1)
        flat = base.reshape(-1)
        turned[1, :, 1:].add_(10)
        flat[::5] = 7
        copied = base.t().reshape(-1)
        base[0].zero_()
        y.neg_()
        return window * 1, turned, flat, copied, base, y + 1


def save(name, module, inputs):
    program = torch.export.export(module.eval(), inputs)
    archive = io.BytesIO()
    torch.export.save(program, archive)
    written = io.BytesIO()
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(Unseekable(written), "w") as target:
        for member in source.infolist():
            inner = member.filename.partition("/")[2]
            if inner.startswith(("data/sample_inputs/", ".data/")):
                continue
            data = source.read(member)
            if inner.endswith(".json"):
                data = data.replace(f"{FOLDER}/".encode(), b"").replace(PACKAGES.encode(), b"")
            target.writestr(zipfile.ZipInfo(f"{name}/{inner}"), data)
    (FOLDER / f"{name}.pt2").write_bytes(written.getvalue())


def record(name, module, inputs):
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    arrays = {f"in_{position}": value.numpy().copy() for position, value in enumerate(tensors)}
    updatable = [*module.parameters(), *module.buffers(), *tensors]
    before = [value.clone() for value in updatable]
    with torch.no_grad():
        results = module(*inputs)
    updated = [value for value, old in zip(updatable, before, strict=True) if not torch.equal(value, old)]
    for position, value in enumerate([*updated, *results]):
        if isinstance(value, torch.Tensor):
            arrays[f"out_{position}"] = value.detach().numpy()
    np.savez(FOLDER / f"{name}.io.npz", **arrays)


class Unseekable(io.RawIOBase):
    """A file in which sizes cannot be filled in afterwards."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


def main():
    torch.manual_seed(0)
    stored = Stored(), (torch.tensor([0, 3, 1]), 2.0, None)
    updated = Updated(), (whole(2, 2, 3), whole(6, 2))
    save("stored", *stored)
    record("stored", *stored)
    save("updated", *updated)
    record("updated", *updated)


if __name__ == "__main__":
    main()
