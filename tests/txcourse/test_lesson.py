"""What every lesson uses."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from txcourse.lesson import expect, gpt2, progress, prove_equal, restore_module, show_source, write_module
from txlib.attention import causal


@pytest.mark.parametrize(("value", "mark"), [(1.0, "✓"), (2.0, "✓"), (0.9, "✗"), (2.1, "✗"), (float("nan"), "✗")])
def test_expect_says_whether_a_result_is_normal(value, mark, capsys):
    expect("Loss", value, 1.0, 2.0)
    assert capsys.readouterr().out.startswith(f"{mark} Loss")


def test_prove_equal_passes_what_is_close_and_fails_what_is_not(capsys):
    prove_equal(torch.ones(3), torch.ones(3) + 1e-7)
    assert "all 3 numbers" in capsys.readouterr().out
    with pytest.raises(AssertionError):
        prove_equal(torch.ones(3), torch.ones(3) + 1e-3)
    with pytest.raises(AssertionError):
        prove_equal(torch.ones(3), torch.ones(4))


def test_show_source_shows_the_real_source():
    assert "Vaswani et al. 2017, §3.2.3" in show_source(causal).data


def test_show_source_shows_only_the_last_lines():
    assert show_source(show_source, last=1).data.count("\n") == 2


def test_the_cells_of_a_notebook_become_a_module(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    cells = [
        "def double(x):  # a remark\n    return 2 * x",
        "class Half(nn.Module):\n    def forward(self, x):\n        return x / 2",
    ]
    shell = InteractiveShell()
    shell.push({"nn": torch.nn})
    for cell in cells:
        shell.run_cell(cell, store_history=True).raise_error()
    write_module("my_cells.py", shell.user_ns["double"], shell.user_ns["Half"])
    assert capsys.readouterr().out == "✓ my_cells.py: double, Half; 14 lines\n"
    import my_cells

    assert my_cells.Half()(my_cells.double(3)) == 3
    assert all(cell in Path("my_cells.py").read_text() for cell in cells)

    shell.run_cell("def double(x):\n    return 2 * x + 100", store_history=True).raise_error()
    write_module("my_cells.py", shell.user_ns["double"])
    import my_cells

    assert my_cells.double(3) == 106 and not hasattr(my_cells, "Half")


def test_a_module_cannot_be_made_of_a_cell_that_is_forgotten(tmp_path):
    names = {}
    exec(compile("def gone(): ...", "<a cell>", "exec"), names)
    with pytest.raises(ValueError, match="the cell that defines gone is not known any more: run it again"):
        write_module(tmp_path / "my_cells.py", names["gone"])
    assert not (tmp_path / "my_cells.py").exists()


def test_a_module_that_is_missing_comes_from_the_lesson_that_writes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    restore_module("my_transformer.py", "06_block")
    import my_transformer

    block = my_transformer.TransformerBlock(8, 2, 16)
    assert block(torch.zeros(1, 3, 8)).shape == (1, 3, 8)
    Path("my_transformer.py").write_text("changed = True\n")
    restore_module("my_transformer.py", "06_block")
    assert Path("my_transformer.py").read_text() == "changed = True\n"
    assert capsys.readouterr().out.endswith("✓ my_transformer.py: the one that you have\n")
    with pytest.raises(ValueError, match=r"lesson 06_block writes no my_gpt\.py"):
        restore_module("my_gpt.py", "06_block")


def test_progress_gives_every_item_also_outside_a_notebook():
    assert list(progress([1, 2, 3], "counting")) == [1, 2, 3]


def test_gpt2_is_found_in_the_data_folder_when_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TXLIB_DATA", str(tmp_path))
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").touch()
    assert gpt2() is None
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / "gpt2" / name).touch()
    assert gpt2() == tmp_path / "gpt2"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_kept_memory_comes_without_new_pages():
    code = """
import resource
from txcourse.lesson import keep_memory

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(2**26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

pages()
new = pages()
keep_memory()
pages()
print(new, pages())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new, kept = map(int, result.stdout.split())
    assert kept < new / 10
