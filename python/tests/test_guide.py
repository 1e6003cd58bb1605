"""Runs docs/guide.md: every command in it, in order, and compares what it prints with what is shown.

Blocks are read by the words after their fence:

* ``python NAME`` is a file that the reader writes.
* ``sh`` holds commands after ``$``, each followed by what it prints. ``sh checkout`` runs in the
  repository instead of the reader's folder. A command that must fail ends with ``# exit CODE``.

Shown lines must come in the output in their order. Numbers may differ, ``...`` stands for any lines.
``GUIDE_UPDATE=1`` writes what the commands print into the guide instead, for review.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide.md"
FENCE = re.compile(r"^```(\w*) ?(.*)$")


def blocks(lines):
    """Fenced blocks: language, rest of the fence, first and last line of the content."""
    start = None
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if match is None:
            continue
        if start is None:
            start = (match[1], match[2].strip(), number + 1)
        else:
            yield (*start, number)
            start = None


def commands(content):
    """Commands of a block with the lines shown after them."""
    found = []
    for line in content:
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def normal(line):
    """A line without what differs from run to run: numbers, lengths of rules and spaces."""
    line = re.sub(r"\b[0-9a-f]{8,}\b", "#", line)
    line = re.sub(r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", "#", line)
    return re.sub(r"([─━═ ])\1*", r"\1", line).strip()


def missing(shown, printed):
    """The first shown line that the output lacks at its place, or ``None``."""
    printed = [normal(line) for line in printed]
    position = 0
    for line in shown:
        if line.strip() in ("", "..."):
            continue
        try:
            position = printed.index(normal(line), position) + 1
        except ValueError:
            return line
    return None


def run(command, folder, environment):
    """Prints and exit code of one shell command."""
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    return result.stdout.splitlines(), result.returncode


def environment(folder):
    """The reader's shell: the virtual environment and the command are on the path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NEFFUSE_", "TORCH"))}
    path = [str(Path(sys.executable).parent), str(ROOT / "target" / "release"), inherited["PATH"]]
    return inherited | {
        "PATH": os.pathsep.join(path),
        "NEFFUSE_CACHE_DIR": str(folder / ".cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / ".inductor"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "PYTHONPATH": "",
    }


def test_every_command_of_the_guide(tmp_path):
    lines = GUIDE.read_text().splitlines()
    shell = environment(tmp_path)
    updates = os.environ.get("GUIDE_UPDATE")
    replaced = []
    n_commands = 0
    for language, words, start, end in blocks(lines):
        content = lines[start:end]
        if language == "python" and words:
            (tmp_path / words).write_text("\n".join(content) + "\n")
        if language != "sh":
            continue
        new = []
        for command, shown in commands(content):
            expected = re.search(r"# exit (\d+)$", command)
            printed, code = run(command, ROOT if words == "checkout" else tmp_path, shell)
            n_commands += 1
            text = "\n".join(printed)
            assert code == (int(expected[1]) if expected else 0), f"{command}: exit {code}\n{text}"
            new += [f"$ {command}", *(shown if "..." in shown or not updates else printed)]
            if not updates:
                lacking = missing(shown, printed)
                assert lacking is None, f"{command}: does not print\n{lacking}\nbut\n{text}"
        replaced.append((start, end, new))
    assert n_commands > 10
    if updates:
        for start, end, new in reversed(replaced):
            lines[start:end] = new
        GUIDE.write_text("\n".join(lines) + "\n")
        pytest.skip("the guide is rewritten: review it")
